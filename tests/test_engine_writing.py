"""The embedded target writes the kind of text that is asked for."""

from __future__ import annotations

import ast
import csv
import io
import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.engine.writing import Form, Message, write
from gateway.engine.writing.pen import Pen, Sampling
from gateway.engine.writing.request import read, records

RECORDS = "id,name,price\n1,Ann,2.50\n2,Bea,13"
ONE_RECORD = "id,name,price\n1,Ann,2.50\n"
SAMPLINGS = [
    Sampling(),
    Sampling(temperature=1.0, top_p=0.9, top_k=3, min_p=0.05, presence_penalty=1, frequency_penalty=1),
]


def told(request: str, form: Form | None = None, *, system: str = "", sampling: Sampling | None = None) -> str:
    """Return the answer to a request."""
    pen = Pen(Random(request), Random(1), sampling or Sampling())
    messages = ([Message("system", system)] if system else []) + [Message("user", request)]
    return "".join(write(messages, form or Form(), pen))


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        ("Count from 3 to 7.", "3, 4, 5, 6, 7"),
        ("Count down from 5 to 2, one number per line.", "5\n4\n3\n2"),
        ("Count from 10 in steps of 5, 4 numbers.", "10, 15, 20, 25"),
        ('Repeat "hello you" 3 times.', "hello you\nhello you\nhello you"),
        ("Repeat this line exactly 2 times: a b c", "a b c\na b c"),
        ("List the first 5 square numbers.", "1, 4, 9, 16, 25"),
        ("List the first 6 prime numbers.", "2, 3, 5, 7, 11, 13"),
        ("Write the multiplication table of 4 up to 3.", "4 x 1 = 4\n4 x 2 = 8\n4 x 3 = 12\n"),
        (
            f"Convert this CSV to a JSON array.\n\n{RECORDS}",
            '[\n  {"id": 1, "name": "Ann", "price": 2.50},\n  {"id": 2, "name": "Bea", "price": 13}\n]',
        ),
        ('Convert this JSON to CSV.\n\n[{"a": 1, "b": "x"}]', "a,b\n1,x\n"),
        (
            f"Render these records as a Markdown table.\n\n{ONE_RECORD}",
            "| id | name | price |\n|---|---|---|\n| 1 | Ann | 2.50 |\n",
        ),
        (
            f"Write SQL INSERT statements into table goods for these rows:\n\n{ONE_RECORD}",
            "INSERT INTO goods (id, name, price) VALUES (1, 'Ann', 2.50);\n",
        ),
        (
            "Convert these variables to an INI section called [app]:\n\nAPP_A=1\nAPP_B=two",
            "[app]\napp_a = 1\napp_b = two\n",
        ),
        (
            "Rename the variable foo to bar in this code.\n```python\nfoo = food(foo)\n```",
            "```python\nbar = food(bar)\n```",
        ),
        ("Extract all email addresses.\n\nWrite to a@b.org or c@d.net.", "- a@b.org\n- c@d.net\n"),
    ],
    ids=lambda value: value[:30],
)
def test_exact_tasks(request_: str, answer: str):
    """What has one right answer gets it."""
    assert told(request_) == answer


def test_invented_records():
    """Records nobody has given are well-formed, as many as asked for, with the fields asked for."""
    rows = json.loads(told("Generate a JSON array of 12 users with id, name and email."))
    table = list(csv.DictReader(io.StringIO(told("Generate CSV with 5 rows with columns id, city and price."))))

    assert [row["id"] for row in rows] == list(range(1, 13))
    assert all(set(row) == {"id", "name", "email"} for row in rows)
    assert len(table) == 5
    assert set(table[0]) == {"id", "city", "price"}


@pytest.mark.parametrize(
    "request_", ["Write a Python function that adds numbers.", "Write a Python class for a queue."]
)
def test_code_is_code(request_: str):
    """Python that is written can be parsed."""
    block = told(request_).split("```")[1].removeprefix("python\n")

    assert ast.parse(block)


def test_edits_keep_most_words():
    """A correction leaves most words where they were."""
    text = "the quick brown fox jumps over the lazy dog and runs far away from here " * 20
    before, after = text.split(), told(f"Fix the grammar of this text.\n\n{text}").split()

    assert len(before) == len(after)
    assert 0.85 < sum(one == other for one, other in zip(before, after, strict=True)) / len(before) < 1


def test_the_system_prompt_may_be_the_instruction():
    """Where the user only brings material, the system prompt says what to do with it."""
    assert told("Write to a@b.org today.", system="Extract all email addresses from the text.") == "- a@b.org\n"


def test_going_on():
    """To go on is to do what was asked before."""
    messages = [
        Message("user", "Count from 1 to 3."),
        Message("assistant", "1, 2, 3"),
        Message("user", "Go on, please."),
    ]
    again = "".join(write(messages, Form(), Pen(Random(1), Random(1), Sampling())))

    assert again == "1, 2, 3"


@given(st.text(max_size=300), st.sampled_from(SAMPLINGS))
def test_any_request_is_answered(request_: str, sampling: Sampling):
    """Whatever is asked, something is written, and the same thing twice."""
    assert told(request_, sampling=sampling) == told(request_, sampling=sampling)


@given(st.text(max_size=300))
def test_reading_is_total(text: str):
    """Any text is read as a request, and any material as records or none."""
    assert isinstance(read(text).topics, list)
    assert isinstance(records(text), list)


_SCALARS = st.sampled_from(
    [
        {"type": "string"},
        {"type": "string", "maxLength": 3},
        {"type": "integer", "minimum": 5, "maximum": 9},
        {"type": "number"},
        {"type": "boolean"},
        {"type": "null"},
        {"enum": ["a", 1, None]},
        {"const": {"x": 1}},
        {"type": ["string", "null"]},
        {"type": "string", "format": "date"},
    ]
)
_SCHEMAS = st.recursive(
    _SCALARS,
    lambda inner: (
        st.builds(
            lambda properties: {"type": "object", "properties": properties, "required": sorted(properties)},
            st.dictionaries(st.text(max_size=5), inner, max_size=4),
        )
        | st.builds(lambda items, least: {"type": "array", "items": items, "minItems": least}, inner, st.integers(0, 3))
        | st.builds(lambda one, other: {"anyOf": [one, other]}, inner, inner)
    ),
    max_leaves=10,
)


def fits(value: object, schema: dict[str, object]) -> bool:
    """Return whether a value keeps to a schema of the kinds above."""
    if "anyOf" in schema:
        return any(fits(value, one) for one in schema["anyOf"])  # type: ignore[attr-defined]
    if "const" in schema:
        return value == schema["const"]
    if "enum" in schema:
        return value in schema["enum"]  # type: ignore[operator]
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if isinstance(value, dict):
        properties: dict[str, dict[str, object]] = schema.get("properties", {})  # type: ignore[assignment]
        return (
            "object" in kinds
            and set(value) == set(properties)
            and all(fits(value[one], properties[one]) for one in value)
        )
    if isinstance(value, list):
        return (
            "array" in kinds and len(value) >= schema["minItems"] and all(fits(one, schema["items"]) for one in value)
        )  # type: ignore[operator, arg-type]
    names = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
    bounded = not isinstance(value, int) or schema.get("minimum", value) <= value <= schema.get("maximum", value)  # type: ignore[operator]
    short = not isinstance(value, str) or len(value) <= schema.get("maxLength", len(value))  # type: ignore[operator]
    return names[type(value)] in kinds and bounded and short


@given(_SCHEMAS, st.text(max_size=80), st.sampled_from(SAMPLINGS))
def test_structured_output_keeps_to_its_schema(schema: dict[str, object], request_: str, sampling: Sampling):
    """JSON under a schema is valid under it, at any temperature."""
    assert fits(json.loads(told(request_, Form(kind="json", schema=schema), sampling=sampling)), schema)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_schema_gets_json(schema: object):
    """A schema that makes no sense still gets some JSON."""
    given_ = schema if isinstance(schema, dict) else {"type": schema}

    json.loads(told("Fill this in.", Form(kind="json", schema=given_)))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "minItems": 10**9, "items": {"type": "string", "minLength": 10**9}},
        {"type": "array", "minItems": 2, "items": {"$ref": "#"}},
        {"properties": {name: {"$ref": "#"} for name in "abcdefgh"}, "required": list("abcdefgh")},
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}]},
    ],
    ids=["endless", "array of itself", "object of itself", "itself", "one of itself"],
)
def test_schemas_without_an_end(schema: dict[str, object]):
    """A schema that asks for more than there is room for gets a document of bounded size."""
    assert len(told("Fill this in.", Form(kind="json", schema=schema))) < 10**6


@pytest.mark.parametrize("letters", ["a", "5 times ", "a, and ", "count 5 to ", '"', "`", "x@", "[", "=\n", "Aa "])
@pytest.mark.parametrize("task", ["Extract all emails:\n\n", "Repeat ", "Generate JSON with ", ""])
def test_long_requests_are_read_in_bounded_time(letters: str, task: str):
    """No pattern takes forever over a long and monotonous request (the suite's time limit would end it)."""
    pen = Pen(Random(1), Random(1), Sampling())

    assert next(write([Message("user", task + letters * 50_000)], Form(), pen)) is not None


def test_temperature_changes_words():
    """At temperature 0 the dice do not matter; above it they do, less where top-k or top-p leave no choice."""

    def story(dice: int, **sampling: float) -> str:
        pen = Pen(Random(1), Random(dice), Sampling(**sampling))
        return "".join(write([Message("user", "Tell me a story.")], Form(), pen))

    assert story(1) == story(2)
    assert story(1, temperature=1.0) != story(2, temperature=1.0)
    assert story(1, temperature=1.0, top_k=1) == story(2, temperature=1.0, top_k=1)
    assert story(1, temperature=1.0, top_p=0.01) == story(2, temperature=1.0, top_p=0.01)
