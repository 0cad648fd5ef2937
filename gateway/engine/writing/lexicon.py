"""The words that the embedded target knows, commonest first in each list; the tokenizer's vocabulary is made of them."""

from __future__ import annotations

NOUNS = (
    "time way people world life day hand part place case week company system program question work government number "
    "night point home water room mother area money story fact month lot right study book eye job word business issue "
    "side kind head house service friend father power hour game line end member law car city community name president "
    "team minute idea body information back parent face level office door health person art war history party result "
    "change morning reason research girl guy moment air teacher force education river mountain forest harbour bridge "
    "garden village market kitchen window table letter song voice shadow light fire stone glass silver lantern clock "
    "road station train ship captain sailor doctor farmer painter baker child stranger neighbour king queen dragon wolf "
    "horse bird fish tree leaf seed flower field storm rain snow wind cloud star moon sun sea island coast valley cave "
    "castle tower temple museum library school college hospital factory engine machine computer network server signal "
    "message problem answer method process structure pattern measure value price cost profit risk trade product customer "
    "project plan goal task role skill habit memory dream hope fear anger joy silence secret promise choice journey "
    "adventure lesson mistake truth language culture tradition music dance theatre film poem novel chapter sentence "
    "science theory experiment evidence energy matter particle cell gene brain muscle heart blood disease medicine diet "
    "climate weather temperature ocean planet galaxy orbit rocket telescope metal wood paper cloth leather bread cheese "
    "soup coffee tea wine sugar salt honey apple lemon pepper recipe oven knife plate bottle basket bag box key lock map "
    "compass rope wheel hammer nail brush pencil camera mirror photograph newspaper magazine radio telephone screen"
).split()
ADJECTIVES = (
    "new good old great high small large long little own other big different local social important early young public "
    "bad same able clear simple common strong whole free true full special easy difficult certain personal open red "
    "quiet bright dark cold warm deep soft sharp gentle rough smooth heavy light slow quick sudden strange familiar "
    "ancient modern narrow wide empty crowded broken hidden golden silver wooden distant nearby careful careless patient "
    "restless curious stubborn honest clever foolish brave timid proud humble lonely cheerful gloomy weary fresh dusty "
    "salty bitter sweet sour rich poor plain elegant fragile solid hollow steady uncertain reliable complex practical "
    "efficient effective natural artificial digital physical mental moral legal global regional central remote average "
    "typical unusual rare frequent recent final initial formal casual direct subtle obvious delicate generous faithful"
).split()
VERBS = (
    "said made went took came saw knew got gave found thought told became showed left felt put brought began kept held "
    "wrote stood heard let meant set met ran paid sat spoke lay led read grew lost fell sent built understood drew broke "
    "spent cut rose drove bought wore chose carried followed watched opened closed turned moved lived believed happened "
    "provided included continued changed played learned walked waited remembered considered appeared served expected "
    "stayed reached remained suggested raised passed sold required reported decided pulled whispered wandered gathered "
    "lifted listened noticed painted planted polished promised protected pushed questioned repaired replaced returned "
    "rested revealed sailed scattered searched settled shared shouted sighed smiled sparkled stared stumbled surprised "
    "trembled trusted vanished visited warned washed welcomed wondered worked crossed counted collected climbed borrowed"
).split()
PRESENT = (
    "is has makes takes gives finds shows keeps needs helps means works uses allows requires becomes creates offers "
    "improves reduces increases supports explains depends leads brings changes affects involves includes provides "
    "protects encourages limits shapes builds drives connects balances transforms reveals reflects demands prevents "
    "strengthens weakens simplifies complicates measures guides rewards deserves challenges"
).split()
ADVERBS = (
    "also often then again always usually quickly slowly carefully quietly suddenly finally perhaps almost certainly "
    "simply clearly gently rarely already together apart however therefore instead eventually meanwhile sometimes softly "
    "hardly barely nearly exactly roughly mostly partly entirely truly deeply widely closely directly openly patiently"
).split()
PREPOSITIONS = (
    "of in to for with on at from by about into through after over between against during without before under around "
    "among across behind beyond beneath beside near toward within along above below"
).split()
LINKS = (
    "and but because so while although when where since until if unless whereas though before after as once whenever"
).split()
OPENINGS = (
    "In the end|At first|For a while|After all|In practice|By then|Over time|On the other hand|As a result|Even so|In many "
    "cases|Without a word|Long ago|That evening|The next morning|Years later|At the same time|Of course|In short|To begin "
    "with|For example|In addition|By contrast|Little by little|From that day|Above all|In other words|Somewhere far away|"
    "Strangely enough|Before long|All at once|Now and then|In truth|Against all odds|With a little luck"
).split("|")
FUNCTION_WORDS = (
    "the a an and or but not no nor it its he she they them his her their our your my we you I me us this that these "
    "those there here who whom whose which what why how all any both each few more most some such only than too very can "
    "will just should now was were be been being are am do does did done doing have had having would could may might "
    "must shall up down out off away one two three four five six seven eight nine ten first second third last next every "
    "something nothing everything someone nobody everyone anything else yet still even ever never much many less least"
).split()
FIRST_NAMES = (
    "Alice Ben Clara David Emma Felix Grace Henry Iris Jack Karen Liam Maria Noah Olivia Peter Quinn Rosa Sam Tara Umar "
    "Vera Will Xenia Yusuf Zoe Anna Bruno Celia Daniel Elena Frank Gina Hugo Ivy Jonas Kira Leo Mona Nina"
).split()
LAST_NAMES = (
    "Smith Jones Brown Taylor Wilson Davies Evans Thomas Roberts Walker Wright Green Hall Wood Clarke Hughes Edwards "
    "Hill Moore Carter Turner Parker Cooper Ward Morris Baker Bell Murphy Bailey Shaw Marsh Fox Stone Rivers Lane Field"
).split()
CITIES = (
    "London Paris Berlin Madrid Rome Vienna Oslo Lisbon Dublin Prague Athens Warsaw Tokyo Seoul Cairo Nairobi Sydney "
    "Toronto Chicago Boston Denver Lima Quito Havana Bogota Delhi Mumbai Jakarta Hanoi Manila"
).split()
COLOURS = "red blue green yellow black white orange purple brown grey pink silver gold teal navy olive".split()
PRODUCTS = (
    "Laptop Keyboard Mouse Monitor Printer Scanner Camera Speaker Headset Microphone Tablet Phone Charger Cable Router "
    "Desk Chair Lamp Backpack Notebook Pen Bottle Mug Watch Jacket"
).split()
STATUSES = "active pending closed new done open shipped cancelled".split()
CODE_WORDS = (
    "def return self class import from if else elif for while in not is None True False try except finally raise with as "
    "lambda yield async await pass break continue print len range str int float list dict set tuple args kwargs init name "
    "main value values key keys item items data result index count total size node next left right head tail root path "
    "file line text error message input output function const let var null true false this new public private static void "
    "string number boolean array object map filter reduce push pop append insert remove update delete select where order "
    "by group having join on create table primary foreign integer varchar not null values insert into limit id type user "
    "users email created updated at status active config test assert equal todo example url http request response get post"
).split()
CHAT_WORDS = (
    "sure certainly happy help here let know question answer example step thanks thank please welcome hello hi great "
    "note remember consider following follows below above list table code text json csv yaml sql entry row rows column "
    "summary translation corrected rewritten version original final total item items record records email address city "
    "country price quantity date description category title author year month january february march april june july "
    "august september october november december monday tuesday wednesday thursday friday saturday sunday alpha beta gamma"
).split()


def _vocabulary() -> tuple[str, ...]:
    groups = (
        NOUNS, ADJECTIVES, VERBS, PRESENT, ADVERBS, PREPOSITIONS, LINKS, FUNCTION_WORDS, FIRST_NAMES, LAST_NAMES,
        CITIES, COLOURS, PRODUCTS, STATUSES, CODE_WORDS, CHAT_WORDS, " ".join(OPENINGS).split(),
    )  # fmt: skip
    seen = dict.fromkeys(word for group in groups for word in group)
    plurals = dict.fromkeys(f"{noun}s" for noun in NOUNS if not noun.endswith(("s", "y")))
    return tuple(seen | plurals)


VOCABULARY = _vocabulary()
