"""Program text: functions, classes, queries, pages and manifests of ordinary shape, named after the request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gateway.engine.writing.lexicon import ADJECTIVES, NOUNS, PRESENT
from gateway.engine.writing.pen import Pen
from gateway.engine.writing.prose import Prose
from gateway.engine.writing.request import Request

_SIGNATURE = re.compile(r"\bdef\s+(\w+)\s*\(([^)]*)\)")
_CALLED = re.compile(r"\b(?:function|method|class|called|named)\s+[`\"']?([A-Za-z_]\w{2,})", re.IGNORECASE)
_IMAGE = re.compile(r"\bimage\s+(\S+?)(?=[,\s]|$)")
_REPLICAS = re.compile(r"(\d+)\s+replicas")
_PORT = re.compile(r"\bport\s+(\d+)")
_PROBE = re.compile(r"probe\s+on\s+(\S+?)[.,]?(?:\s|$)")
_ARGUMENTS = ("items", "values", "text", "number", "path", "data", "limit", "key", "node", "name", "size", "count")
_LOCALS = ("result", "total", "current", "found", "index", "output", "start", "best", "left", "seen", "buffer")
_CALLS = ("append", "get", "update", "strip", "split", "join", "pop", "insert", "sort", "add", "find", "read", "close")
_CHECKS = ("is None", "== 0", "not in {}", "< {}", "> {}", "!= {}", "in {}", ">= len({})")
_ERRORS = ("ValueError", "TypeError", "KeyError", "IndexError", "RuntimeError")


class Code:
    """Writes Python with a few names that it keeps using, as people do."""

    def __init__(self, request: Request, pen: Pen) -> None:
        self._pen = pen
        signature = _SIGNATURE.search(request.instruction + "\n" + request.material)
        topics = [word for word in request.topics if word not in ("python", "code", "program", "script", "class")]
        called = _CALLED.search(request.instruction)
        plain = called[1] if called and called[1].lower() not in ("that", "which", "for", "with", "the") else ""
        self.name = signature[1] if signature else plain or "_".join(topics[-2:]) or "process"
        given = [one.split(":")[0].split("=")[0].strip(" *") for one in signature[2].split(",")] if signature else []
        chosen = [pen.pick(_ARGUMENTS) for _ in range(1 + pen.roll(2))]
        self.arguments = [one for one in given if one and one != "self"] or list(dict.fromkeys(chosen))
        self.locals = list(dict.fromkeys(pen.pick(_LOCALS) for _ in range(3)))
        self._topics = topics

    def function(self, name: str, indent: str, first: Sequence[str] = ()) -> Iterator[str]:
        """Yield one function, a line at a time."""
        pen = self._pen
        arguments = ", ".join([*first, *self.arguments])
        yield f"{indent}def {name}({arguments}):\n"
        inner = indent + "    "
        sentence = Prose(pen, self._topics, tense="present").sentence()
        yield f'{inner}"""{sentence}"""\n'
        if pen.chance(0.5):
            argument = pen.pick(self.arguments)
            yield f"{inner}if {argument} is None:\n"
            yield f'{inner}    raise {pen.pick(_ERRORS)}("{argument} {pen.pick(("missing", "required", "invalid"))}")\n'
        for variable in self.locals[: 1 + pen.roll(2)]:
            yield f"{inner}{variable} = {pen.pick(('0', '[]', 'None', '{}', chr(39) * 2, '1'))}\n"
        for _ in range(1 + pen.roll(2)):
            yield from self._block(inner)
        yield f"{inner}return {pen.pick(self.locals)}\n"

    def _block(self, indent: str) -> Iterator[str]:
        pen = self._pen
        source = pen.pick(self.arguments)
        shape = pen.roll(3)
        if shape == 0:
            yield f"{indent}for item in {source}:\n"
        elif shape == 1:
            yield f"{indent}for index in range(len({source})):\n"
        else:
            yield f"{indent}while {pen.pick(self.locals)} {pen.pick(_CHECKS).format(source)}:\n"
        inner = indent + "    "
        subject = ("item", f"{source}[index]", pen.pick(self.locals))[shape]
        if pen.chance(0.6):
            yield f"{inner}if {subject} {pen.pick(_CHECKS).format(pen.pick(self.locals))}:\n"
            yield f"{inner}    {pen.pick(('continue', 'break', 'return ' + self.locals[0]))}\n"
        for _ in range(1 + pen.roll(2)):
            target = pen.pick(self.locals)
            verb = pen.pick((".append({})", " += {}", " = {}", f".{pen.pick(_CALLS)}({{}})"))
            yield f"{inner}{target}{verb.format(subject)}\n"


def python(request: Request, pen: Pen) -> Iterator[str]:
    """Yield a function, or a class of some methods, with an example of its use."""
    code = Code(request, pen)
    yield "```python\n"
    if "class" in request.instruction.lower():
        yield f"class {code.name.title().replace('_', '')}:\n"
        yield f"    def __init__(self, {', '.join(code.arguments)}):\n"
        for argument in code.arguments:
            yield f"        self.{argument} = {argument}\n"
        for name in dict.fromkeys(pen.pick(_CALLS) for _ in range(4)):
            yield "\n"
            yield from code.function(name, "    ", ("self",))
    else:
        yield from code.function(code.name, "")
        if pen.chance(0.5):
            yield "\n\n"
            yield from code.function(f"test_{code.name}", "")
    yield "```\n"
    yield "\n" + Prose(pen, request.topics, tense="present").sentence()


def body(request: Request, pen: Pen) -> Iterator[str]:
    """Yield a given function's signature followed by a body for it."""
    code = Code(request, pen)
    yield "```python\n"
    given = request.material.rstrip() or f"def {code.name}({', '.join(code.arguments)}):"
    yield given + "\n"
    yield from list(code.function(code.name, ""))[2:]
    yield "```"


def docstring(request: Request, pen: Pen) -> Iterator[str]:
    """Yield a docstring for the given function."""
    prose = Prose(pen, request.topics, tense="present")
    yield f'"""{prose.sentence()}\n\n'
    signature = _SIGNATURE.search(request.instruction + "\n" + request.material)
    names = [one.split(":")[0].split("=")[0].strip(" *") for one in signature[2].split(",")] if signature else []
    if names:
        yield "Args:\n"
    for name in names:
        if name and name != "self":
            yield f"    {name}: The {pen.pick(ADJECTIVES)} {pen.pick(NOUNS)} that {pen.pick(PRESENT)} the {pen.pick(NOUNS)}.\n"
    yield f'\nReturns:\n    {prose.sentence()}\n"""'


def query(request: Request, pen: Pen) -> Iterator[str]:
    """Yield an SQL query."""
    names = request.topics or ["orders"]
    table = pen.pick(names)
    yield f"```sql\nSELECT {pen.pick(names)}, COUNT(*) AS total\nFROM {table}\n"
    if pen.chance(0.6):
        other = pen.pick(NOUNS)
        yield f"JOIN {other}s ON {other}s.id = {table}.{other}_id\n"
    yield f"WHERE {table}.{pen.pick(NOUNS)} > {pen.roll(100)}\nGROUP BY {pen.pick(names)}\nORDER BY total DESC\n"
    yield f"LIMIT {10 * (1 + pen.roll(10))};\n```\n\n{Prose(pen, names, tense='present').sentence()}"


def page(request: Request, pen: Pen) -> Iterator[str]:
    """Yield an HTML page."""
    title = " ".join(request.topics[-3:]).title() or "Page"
    yield f'<!DOCTYPE html>\n<html lang="en">\n<head>\n  <meta charset="utf-8">\n  <title>{title}</title>\n</head>\n<body>\n'
    prose = Prose(pen, request.topics, tense="present")
    for section in range(3 + pen.roll(3)):
        yield f'  <section id="section-{section + 1}">\n    <h2>{pen.pick(NOUNS).title()}</h2>\n'
        yield f"    <p>{prose.sentence()}</p>\n  </section>\n"
    yield "</body>\n</html>"


def manifest(request: Request, pen: Pen) -> Iterator[str]:
    """Yield a Kubernetes Deployment with a Service."""
    text = request.instruction
    named = re.search(r"\bnamed\s+(\w[\w-]*)", text)
    name = named[1] if named else (request.topics or ["app"])[-1]
    image, replicas, port, probe = (one.search(text) for one in (_IMAGE, _REPLICAS, _PORT, _PROBE))
    number = port[1] if port else "8080"
    yield f"apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: {name}\n  labels:\n    app: {name}\n"
    yield f"spec:\n  replicas: {replicas[1] if replicas else pen.roll(4) + 1}\n"
    yield f"  selector:\n    matchLabels:\n      app: {name}\n"
    yield f"  template:\n    metadata:\n      labels:\n        app: {name}\n    spec:\n      containers:\n"
    yield f"        - name: {name}\n          image: {image[1] if image else name + ':latest'}\n"
    yield f"          ports:\n            - containerPort: {number}\n"
    for kind in ("readiness", "liveness")[: 1 + pen.roll(2)]:
        yield f"          {kind}Probe:\n            httpGet:\n              path: {probe[1] if probe else '/healthz'}\n"
        yield f"              port: {number}\n            initialDelaySeconds: {pen.pick(('5', '10', '3', '15'))}\n"
    yield f"---\napiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\nspec:\n  selector:\n    app: {name}\n"
    yield f"  ports:\n    - port: 80\n      targetPort: {number}\n"
