"""The words that hint at what kind of answer a request wants, in groups, and the commonest words of eight languages.

Groups inform a model and decide nothing: each is one count among many cues. A word may belong to several.
"""

from __future__ import annotations

CUES: dict[str, str] = {
    "edit": "rename fix correct edit modify update change replace proofread refactor improve polish "
    "revise reformat debug "
    "bug bugs errors mistakes grammar spelling optimize adjust",
    "rewrite": "rewrite paraphrase rephrase reword shorten simplify expand tone",
    "translate": "translate translation translated localise localize traduire traduce traduzca переведи "
    "перевести übersetze "
    "tłumacz przetłumacz 翻译",
    "convert": "convert transform turn parse render transpose sort reverse reorder format normalize port "
    "migrate conversion",
    "extract": "extract find identify pull named entities quote copy highlight retrieve locate "
    "information mentioned passage "
    "context text",
    "summarise": "summarize summarise summary tldr tl condense key takeaways abstract main points gist",
    "classify": "classify categorize label sentiment true false choose select options positive negative "
    "category whether",
    "enumerate": "list enumerate bullet bullets steps numbered top items points lists",
    "sequence": "count repeat sequence multiplication times alphabet fibonacci numbers digits counting "
    "line consecutive",
    "table": "table csv columns rows column row tabular spreadsheet markdown excel",
    "structure": "json yaml xml sql insert ini toml schema manifest records array object query database csv",
    "code": "code function class script program implement method api algorithm snippet app library def "
    "return module variable",
    "language": "python javascript java typescript rust golang php ruby swift kotlin react node django "
    "flask html css cpp "
    "matlab scala perl numpy pandas pytorch tensorflow c# c++ unity vue angular spring",
    "shell": "bash shell command linux docker dockerfile kubernetes terraform config nginx git aws "
    "ansible powershell deployment",
    "document": "docstring documentation document comment comments readme reference describe",
    "test": "unit tests pytest test testing scenarios gherkin",
    "maths": "solve calculate compute equation prove integral probability total percent each sum "
    "average proof theorem matrix "
    "triangle derivative polynomial integer",
    "story_sum": "how many much per each cost total dollars hours left more twice half remaining altogether",
    "explain": "explain why how what describe difference compare definition meaning does mean understand",
    "creative": "story poem song lyrics fiction character scene dialogue novel fantasy haiku joke funny "
    "imagine rap screenplay "
    "fanfic anime write chapter characters plot sonnet verse creative humorous limerick monologue",
    "persona": "act pretend roleplay role persona simulate you",
    "letter": "email letter essay blog article speech post tweet ad slogan review report proposal cover "
    "resume linkedin headline "
    "title introduction paragraph",
    "opinion": "think opinion best should recommend advice favorite suggest suggestions ideas brainstorm "
    "tips recommendations",
    "short": "short brief concise one word single briefly only just sentence",
    "long": "detailed detail comprehensive long thorough depth extensive words",
    "strict": "only exactly exact verbatim same keep preserve unchanged whole return output",
    "template": "template format following example structure outline plan examples",
    "tongue": "german french spanish russian polish portuguese italian dutch japanese chinese turkish "
    "ukrainian korean arabic "
    "hindi english greek",
    "chance": "random randomly password passwords hash sha md5 base64 encode decode encrypt cipher rot13 "
    "backwards uuid anagram "
    "shuffle hexadecimal binary roll dice token nonce scramble",
    "fact": "who when where which capital name year born wrote invented country founded",
    "curt": "yes no one single number word answer reply respond just only letter true false briefly",
    "order": "sort order alphabetically ascending descending rank reverse arrange",
    "label": "classify label categorize sentiment positive negative neutral entailment contradiction "
    "premise hypothesis spam topic "
    "intent",
    "repeat": "repeat copy verbatim replace rename whole full corrected fix correct return same keep "
    "change quote capitalize "
    "uppercase proofread",
    "fill": "complete continue finish fill blank missing next",
    "plan": "plan itinerary outline schedule agenda syllabus curriculum roadmap checklist recipe workout",
    "quiz": "questions quiz flashcards interview exam",
    "names": "names name titles title slogans suggest ideas brainstorm synonyms",
    "sentence": "sentence sentences paragraph words headline tweet caption",
    "trouble": "hi hello thanks please hey help need want trying problem issue error exception traceback "
    "failed undefined cannot "
    "warning fails crash",
    "self": "i my me im we our",
    "science": "physics chemistry biology energy cell atom force planet light water gas theory quantum evolution",
    "humanities": "history war philosophy ethics society political economy culture law religion art literature",
    "business": "business marketing customer company product sales strategy market brand management team",
    "health": "health doctor diet exercise patient symptoms medical treatment drug disease",
}
TONGUES: dict[str, str] = {
    "en": "the of and to in is that for with as on are this be it by from an or at",
    "es": "el la de que los las en un una por con para es del se como más no",
    "de": "der die das und ist nicht ein eine mit auf für von den dem zu wie ich sie",
    "fr": "le la les des et est un une que pour dans qui pas sur avec du au je ce",
    "pt": "que não uma com para os as do da um por mais dos como é",
    "it": "il che di non una per con sono del della gli le come è",
    "pl": "nie się jest na do że to jak dla po czy od",
    "ru": "и в не на что с по как для это из к но я а от",
}
