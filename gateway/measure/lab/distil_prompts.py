"""What the target is asked so that a draft can learn from its answers: none of the study's own prompts. No I/O.

Half of the questions are the target's own: led to where a user would speak, an instruction model invents what a user says.
The other half are put together here, as small models rarely invent tables, lists and code of themselves.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

_THINGS: Final = (
    "apples", "boats", "bridges", "cameras", "candles", "clocks", "coats", "dogs", "doors", "engines", "farms", "gardens",
    "harbours", "horses", "islands", "kitchens", "ladders", "maps", "mountains", "museums", "notebooks", "orchards", "pianos",
    "planets", "rivers", "roads", "schools", "ships", "shops", "tools", "towers", "trains", "trees", "umbrellas", "windows",
)  # fmt: skip
_KEYS: Final = (
    "id",
    "name",
    "size",
    "colour",
    "price",
    "date",
    "city",
    "owner",
    "count",
    "weight",
    "status",
    "email",
    "age",
)
_VERBS: Final = (
    "sort",
    "count",
    "merge",
    "filter",
    "print",
    "reverse",
    "validate",
    "parse",
    "convert",
    "join",
    "split",
    "sum",
)
_LANGUAGES: Final = ("Python", "JavaScript", "SQL", "HTML", "bash", "Java", "C")
_PEOPLE: Final = (
    "a teacher",
    "a sailor",
    "two sisters",
    "an old gardener",
    "a clockmaker",
    "a young nurse",
    "a postman",
)
_OPENINGS: Final = (
    "{0} stand on the table beside {1}. Nobody has touched them since Friday. The owner says that they belong to the school.",
    "The city sold its {0} last year and bought {1} instead. Most people agree, but some write letters to the newspaper.",
    "Our order of {0} was late again. The {1} came on time. We asked the shop twice and got no answer until Monday.",
)


def _sequence(chance: random.Random) -> str:
    begin, step = chance.randrange(500), chance.choice((1, 1, 2, 3, 5, 10))
    numbers = [str(begin + step * index) for index in range(6)]
    joint = chance.choice((", ", "\n", " "))
    return f"Continue this list of numbers: {joint.join(numbers)}{joint.rstrip(' ')}"


def _table(chance: random.Random) -> str:
    keys = ", ".join(f'"{key}"' for key in chance.sample(_KEYS, chance.randint(2, 4)))
    form = chance.choice(("a JSON list", "a CSV table", "a Markdown table", "a list of Python dictionaries"))
    return f"Write {form} of {chance.randint(5, 12)} {chance.choice(_THINGS)} with the keys {keys}."


def _repetition(chance: random.Random) -> str:
    line = f"The {chance.choice(_THINGS)} and the {chance.choice(_THINGS)} are ready"
    return f"Write this line {chance.randint(5, 15)} times, numbered: {line}."


def _code(chance: random.Random) -> str:
    form = chance.choice(
        (
            "Write a {0} function that can {1} a list of {2}, with an example.",
            "Write a {0} program for {2} that can {1} them.",
            "Explain this {0} task and write the code: {1} all {2}.",
            "Write a class for {2} in {0} with the methods add, remove and {1}.",
        )
    )
    return form.format(chance.choice(_LANGUAGES), chance.choice(_VERBS), chance.choice(_THINGS))


def _story(chance: random.Random) -> str:
    form = chance.choice(
        ("Tell a story about {0} and {1}.", "Write a poem about {1}.", "Describe a day of {0} who likes {1}.")
    )
    return form.format(chance.choice(_PEOPLE), chance.choice(_THINGS))


def _question(chance: random.Random) -> str:
    form = chance.choice(
        (
            "Why do people like {0}?",
            "What are the advantages and disadvantages of {0}?",
            "How are {0} made?",
            "Give five tips for somebody who wants to buy {0}.",
            "What is the history of {0}?",
        )
    )
    return form.format(chance.choice(_THINGS))


def _summary(chance: random.Random) -> str:
    text = " ".join(
        opening.format(
            *(word.capitalize() if index == 0 else word for index, word in enumerate(chance.sample(_THINGS, 2)))
        )
        for opening in chance.sample(_OPENINGS, 2)
    )
    task = chance.choice(("Sum up this text.", "Correct the spelling of this text.", "List the facts of this text."))
    return f"{task}\n\n{text}"


_KINDS: Final = (_sequence, _table, _repetition, _code, _code, _story, _question, _summary)


def prompts(seed: int) -> Iterator[str]:
    """Yield prompts without end, all kinds in turn; the same ones for the same seed."""
    chance = random.Random(seed)
    while True:
        for kind in _KINDS:
            yield kind(chance)
