"""What is asked: the study's families of prompts, in our own wording and for a model of 135 million parameters.

Families that a draft should find easy come first. Small models are literal: they are shown the beginning of what they shall
go on with, where a large one would be told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from gateway.measure.load.trace import Request

Kind = Literal["predictable", "open"]


@dataclass(frozen=True, slots=True)
class Family:
    """Prompts of one kind.

    `kind` is what the study found of it, `tokens` the longest answer, `role` the system prompt that an application for such
    prompts would have. A prompt is what the user says, or that and the beginning of the answer, which the model goes on with.
    """

    name: str
    kind: Kind
    tokens: int
    role: str
    prompts: tuple[str | tuple[str, str], ...]


_NOTES: Final = (
    "The workshop in Graz opened its second hall in May. Forty people work there now, most of them on frames for cargo "
    "bicycles. The frames are welded in the morning and painted in the afternoon, because the oven needs four hours to warm "
    "up. Last winter a broken pump stopped the oven for nine days; since then a spare pump stands in the cellar. Orders come "
    "mainly from post offices and bakeries. The head of the workshop, Ms Adler, wants to buy a second oven next year if the "
    "post office in Linz renews its contract. The contract is worth about a third of what the workshop earns."
)
_TICKETS: Final = (
    "Ticket 4411: The printer on floor two prints every page twice. Reported by Mr Osei on Monday. Ticket 4412: The door of "
    "the server room does not lock. Reported by Ms Lind on Monday. Ticket 4413: The calendar shows meetings one hour late "
    "since the clocks changed. Reported by Mr Osei on Tuesday. Ticket 4414: The phone in room 12 has no dial tone. Reported "
    "by Ms Vega on Wednesday. The printer was repaired on Tuesday. The door was repaired on Thursday. The calendar and the "
    "phone are still open."
)
_RECIPE: Final = (
    "Wash two kilograms of plums and take out the stones. Put the plums into a wide pot with three hundred grams of sugar, "
    "one stick of cinnamon and the peel of a lemon. Let the pot stand overnight in a cool place. On the next day heat the "
    "pot slowly and stir every ten minutes. After three hours the plums are dark and thick. Take out the cinnamon and the "
    "peel, fill the jam into hot glasses and turn the glasses upside down until they are cold."
)

FAMILIES: Final[tuple[Family, ...]] = (
    Family(
        "repetition",
        "predictable",
        160,
        "You copy text exactly as often as you are asked to.",
        (
            (
                "Write this line twelve times, numbered.",
                "1. The lamp is on and the door is closed.\n2. The lamp is on and the door is closed.\n3.",
            ),
            (
                "Copy the sentence ten times, numbered: Trains to the north leave from platform four.",
                "1) All trains to the north leave from platform four.\n2) All trains to the north leave from platform four.\n",
            ),
            (
                "Repeat these four words again and again: red, green, blue, white.",
                "red, green, blue, white, red, green, blue, white, red, green,",
            ),
            (
                "Say exactly this text eight times: Please keep your ticket until the end.",
                "Please keep your ticket until the end. Please keep your ticket until the end. Please keep your ticket until",
            ),
            (
                "Print the following row fifteen times without any change: | 0 | 0 | 0 | 1 | 0 | 0 | 0 |",
                "| 0 | 0 | 0 | 1 | 0 | 0 | 0 |\n| 0 | 0 | 0 | 1 | 0 | 0 | 0 |\n|",
            ),
        ),
    ),
    Family(
        "sequence",
        "predictable",
        192,
        "You write sequences and tables of numbers.",
        (
            ("Count from 1 to 80.", "1, 2, 3, 4, 5, 6, 7,"),
            ("Write all numbers from 100 to 160, separated by commas.", "100, 101, 102, 103,"),
            ("Write the even numbers up to 200.", "2, 4, 6, 8, 10, 12, 14,"),
            ("Write the multiplication table of seven up to 7 x 30.", "7 x 1 = 7\n7 x 2 = 14\n7 x 3 = 21\n7 x"),
            ("List the days of January, one per line.", "1 January\n2 January\n3 January\n4 January\n5"),
        ),
    ),
    Family(
        "json",
        "predictable",
        256,
        "You answer with JSON and nothing else.",
        (
            (
                'Write a JSON list of eight products, each with the keys "id", "name", "price" and "in_stock".',
                '[\n  {"id": 1, "name": "Lamp", "price": 20, "in_stock": true},\n  {"id": 2,',
            ),
            (
                'Write a JSON list of ten users with the keys "id", "email" and "active".',
                '[\n  {"id": 1, "email": "user1@example.com", "active": true},\n  {"id": 2,',
            ),
            (
                'Give the opening hours of the week as a JSON list of objects with the keys "day", "open" and "close".',
                '[\n  {"day": "Monday", "open": "08:00", "close": "18:00"},\n  {"day":',
            ),
            (
                'Write a JSON object with the keys "sensor_1" to "sensor_12"; every value has a "unit" and a "value".',
                '{\n  "sensor_1": {"unit": "C", "value": 20},\n  "sensor_2":',
            ),
            (
                'Write six orders as JSON, one per line, with the keys "order", "customer", "items" and "paid".',
                (
                    '{"order": 1001, "customer": "A. Smith", "items": 2, "paid": true}\n'
                    '{"order": 1002, "customer": "B. Smith", "items": 1, "paid": false}\n{"order": 1003,'
                ),
            ),
        ),
    ),
    Family(
        "code skeleton",
        "predictable",
        256,
        "You write skeletons of code: names and signatures, no bodies.",
        (
            (
                "Write a Python class Account with empty methods open, close, deposit, withdraw, balance and report. Every "
                "method has a docstring and the body `pass`."
            ),
            (
                "Write the skeleton of a Python module with eight functions named load_a, load_b, load_c, load_d, load_e, "
                "load_f, load_g and load_h. Each takes a path and returns None."
            ),
            "Write a Python class with one constant for each of these colours: RED, GREEN, BLUE, YELLOW, BLACK, WHITE, GREY.",
            (
                "Write SQL that creates five tables named sales_2020 to sales_2024, all with the columns id, day, amount and "
                "customer."
            ),
            "Write an HTML table with ten rows. Each row has three cells: the number of the row, the word Item, and a price.",
        ),
    ),
    Family(
        "simple code",
        "predictable",
        192,
        "You write short programs.",
        (
            "Write a Python function that returns the largest number of a list, with a short example.",
            "Write a Python function is_prime(n) and print all primes below fifty with it.",
            "Write a JavaScript function that counts the vowels of a word.",
            "Write a Python function that turns degrees Celsius into Fahrenheit, and one that turns them back.",
            "Write a bash loop that renames every .txt file of a folder to .md.",
        ),
    ),
    Family(
        "summary",
        "open",
        160,
        "You work on texts that you are given: summing up, correcting, quoting.",
        (
            f"Sum up the following text in three sentences.\n\n{_NOTES}",
            f"Which of these tickets are still open, and who reported them? Quote the text.\n\n{_TICKETS}",
            f"Write this recipe as a numbered list of steps, in the same words.\n\n{_RECIPE}",
            f"Correct the spelling of this text and give it back otherwise unchanged.\n\n{_NOTES}",
            f"Write a short report for the head of the office about these tickets.\n\n{_TICKETS}",
        ),
    ),
    Family(
        "open chat",
        "open",
        160,
        "You are a friendly partner to talk with.",
        (
            "What should I think about before I move to another city?",
            "Why do people like to watch the sea?",
            "My neighbour plays the trumpet at night. How can I talk to him about it without a quarrel?",
            "Which hobby would you recommend to somebody who has little time and likes to be outdoors?",
            "How did the invention of the bicycle change everyday life?",
        ),
    ),
    Family(
        "story",
        "open",
        192,
        "You write stories and poems.",
        (
            "Tell a story about a lighthouse keeper who finds a letter in a bottle.",
            "Write the beginning of a mystery that is set in a night train.",
            "Tell a fairy tale about a fox who wants to learn to read.",
            "Describe a market in a town that nobody has ever visited.",
            "Write a poem about the first snow on an empty street.",
        ),
    ),
)

KINDS: Final[dict[str, str]] = {family.name: family.kind for family in FAMILIES}


def requests(
    families: tuple[Family, ...] = FAMILIES, *, model: str, temperature: float = 0.0, roles: bool = False, **fields: Any
) -> list[Request]:
    """Return all prompts as chat requests, families in turn so that neighbours differ; `fields` go into every body.

    With `roles` every family comes from an application of its own, which has a system prompt.
    """
    found: list[Request] = []
    deepest = max(len(family.prompts) for family in families)
    for index in range(deepest):
        for family in families:
            if index < len(family.prompts):
                found.append(
                    _request(len(found) + 1, family, index, roles=roles, model=model, temperature=temperature, **fields)
                )
    return found


def _request(line: int, family: Family, index: int, *, roles: bool, **fields: Any) -> Request:
    prompt = family.prompts[index]
    said, begun = prompt if isinstance(prompt, tuple) else (prompt, "")
    messages = [{"role": "system", "content": family.role}] if roles else []
    messages.append({"role": "user", "content": said})
    if begun:
        messages.append({"role": "assistant", "content": begun})
        fields = {"add_generation_prompt": False, "continue_final_message": True, **fields}
    return Request(
        line=line,
        id=f"{family.name}-{index + 1}",
        path="/v1/chat/completions",
        body={"messages": messages, "max_tokens": family.tokens, **fields},
        category=family.name,
    )
