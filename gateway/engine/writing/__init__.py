"""The embedded target: reads a conversation and writes the kind of text it asks for.

The rules are tried in order; the first whose pattern matches the instruction writes. `write` is the whole interface.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.engine.writing import code, editing, prose, schema, sequences, tables
from gateway.engine.writing.pen import Pen
from gateway.engine.writing.request import Request, read, records

Writer = Callable[[Request, Pen], Iterator[str]]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What the answer must be: free text, JSON under a schema (None: any object), or a call of the one of `tools`."""

    kind: Literal["text", "json", "arguments", "call", "maybe_call"] = "text"
    schema: Mapping[str, object] | None = None
    tools: tuple[Mapping[str, object], ...] = ()


def _rule(pattern: str, writer: Writer) -> tuple[re.Pattern[str], Writer]:
    return re.compile(pattern, re.IGNORECASE), writer


_ON_RECORDS = (
    _rule(r"\bsql\b|\binsert\b", tables.converted(tables.as_sql)),
    _rule(r"\bmarkdown\b|\btable\b", tables.converted(tables.as_table)),
    _rule(r"\bini\b|\bconfig\b|\bsection\b", tables.converted(tables.as_ini)),
    _rule(r"\b(?:to|as|into)\s+(?:an?\s+)?csv\b", tables.converted(tables.as_csv)),
    _rule(r"\b(?:to|as|into|in)\s+(?:an?\s+)?ya?ml\b", tables.converted(tables.as_yaml)),
    _rule(r"\bjson\b", tables.converted(tables.as_json)),
    _rule(r"\bcsv\b", tables.converted(tables.as_csv)),
)
_ON_MATERIAL = (
    _rule(r"\btranslat", editing.translated),
    _rule(r"\bdocstring|\bdocument this", code.docstring),
    _rule(r"\b(?:complete|continue|implement|finish)\b.*\b(?:function|code|method)", code.body),
    _rule(r"\bextract|\blist (?:all|every)\b|\bfind all\b|\bwhich (?:names|emails|dates)", editing.extracted),
    _rule(r"\bsummar|\btl;?dr|\bshorten|\bcondense", editing.summarised),
    _rule(
        r"\brename|\breplace|\brewrite|\bcorrect|\bfix\b|\bproofread|\bedit\b|\brefactor|\bimprove|\bformat\b|\breformat|"
        r"\badd (?:type|comment)|\bconvert\b|\bindent|\bparaphrase|\bchange\b|\bremove\b|\btypo",
        editing.edited,
    ),
)
_ON_WORDS = (
    _rule(r"\brepeat\b|\bover and over\b|\b\d+ times\b.*[:\"]|\bsame (?:line|sentence)\b", sequences.repetition),
    _rule(r"\bmultiplication\b|\btimes[- ]table", sequences.multiplication),
    _rule(
        r"\bfibonacci\b(?!.*\bfunction)|\b(?:even|odd|square|cube|prime) numbers|\bsquares of|\bpowers of",
        sequences.figures,
    ),
    _rule(
        r"\bcount(?:ing)?\b(?!.*\bfunction)|\bnumbers?\s+(?:from\s+)?\d+|\blist the numbers|\bnumbers from",
        sequences.counting,
    ),
    _rule(r"\balphabet\b|\bnumbers? in words", sequences.alphabet),
    _rule(r"\bkubernetes\b|\bk8s\b|\bdeployment manifest|\bhelm\b|\bdocker[- ]compose", code.manifest),
    _rule(r"\binserts?\b.*\b(?:sql|table|rows|statements)|\bsql\b.*\binserts?\b", tables.invented(tables.as_sql)),
    _rule(r"\bsql\b|\bquery\b.*\btable", code.query),
    _rule(r"\bhtml\b|\bweb ?page\b", code.page),
    _rule(
        r"\bfunction\b|\bclass\b.*\b(?:python|java|method)|\bpython\b|\bjavascript\b|\bscript\b|\bimplement\b|\bunit tests?\b|"
        r"\balgorithm\b|\bprogram that|\bwrite (?:some |the |a )?code\b|\bdef \w+\(",
        code.python,
    ),
    _rule(r"\bjson\b", tables.invented(tables.as_json)),
    _rule(r"\bcsv\b", tables.invented(tables.as_csv)),
    _rule(r"\bya?ml\b", tables.invented(tables.as_yaml)),
    _rule(r"\btable\b", tables.invented(tables.as_table)),
    _rule(r"\b(?:poem|haiku|sonnet|lyrics|song)\b", prose.poem),
    _rule(
        r"\b(?:story|tale|novel|fiction|adventure|scene|screenplay|essay|letter|speech|blog)\b|\bonce upon", prose.story
    ),
    _rule(r"\bhow (?:many|much)\b.*\d|\d.*\bhow (?:many|much)\b|\bcalculate\b|\bsolve\b", prose.reckoning),
    _rule(r"\btranslat", editing.translated),
    _rule(r"\b(?:list|name|give me|suggest)\b.*\b(?:\d+|some|ideas|examples|names|tips)\b", prose.points),
    _rule(r"^\W*(?:hi|hello|hey|thanks|thank you|good (?:morning|evening)|ok(?:ay)?)\b.{0,40}$", prose.reply),
)
_SYSTEM = 2000  # characters of system prompts that are read
_ON_AGAIN = re.compile(r"^\W*(?:go on|continue|more|again|keep going|next)\W*(?:please)?\W*$", re.IGNORECASE)


def write(messages: Sequence[Message], form: Form, pen: Pen) -> Iterator[str]:
    """Yield the answer to a conversation, piece by piece; the pieces follow from the arguments and the pen alone."""
    request = read(_asked(messages))
    if form.kind == "json":
        return schema.structured(form.schema, request, pen)
    if form.kind in ("arguments", "call", "maybe_call"):
        tool = schema.chosen_tool(form.tools, request) or (None if form.kind == "maybe_call" else form.tools[0])
        if tool is not None:
            return (schema.arguments if form.kind == "arguments" else schema.call)(tool, request, pen)
    return _writer(request, messages)(request, pen)


def endless(messages: Sequence[Message], pen: Pen) -> Iterator[str]:
    """Yield text that goes on after the answer, for a client that does not let the sequence end."""
    request = read(_asked(messages))
    while True:
        yield "\n\n"
        yield from prose.explanation(request, pen)


def _asked(messages: Sequence[Message]) -> str:
    users = [message.text for message in messages if message.role == "user"] or [messages[-1].text if messages else ""]
    if len(users) > 1 and _ON_AGAIN.match(users[-1]):
        return users[-2]
    return users[-1]


def _writer(request: Request, messages: Sequence[Message]) -> Writer:
    if messages and messages[-1].role == "tool":
        return prose.reply
    system = " ".join(message.text[:_SYSTEM] for message in messages if message.role in ("system", "developer"))[
        :_SYSTEM
    ]
    for words in (request.instruction, system):
        if not words:
            continue
        material = request.material or (request.instruction if words is system else "")
        if material and records(material) and (found := _first(_ON_RECORDS, words)) is not None:
            return found
        if material and (found := _first(_ON_MATERIAL, words)) is not None:
            return _with(Request(system, material, request.language), found) if words is system else found
        if (found := _first(_ON_WORDS, words)) is not None:
            return found
    return prose.explanation


def _with(request: Request, writer: Writer) -> Writer:
    """Return `writer` working on a request whose instruction stands in the system prompt."""
    return lambda _, pen: writer(request, pen)


def _first(rules: Sequence[tuple[re.Pattern[str], Writer]], words: str) -> Writer | None:
    return next((writer for pattern, writer in rules if pattern.search(words)), None)
