"""Requests whose answers stand in permissively licensed packages: functions, tests, stubs, documentation, translations.

Reads a directory into which the packages of `requirements.txt` were installed, and lodash's single file. Only the requests
and the labels are kept in the project, never the answers.
"""

from __future__ import annotations

import ast
import json
import pydoc_data.topics
import random
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LANGUAGES = {
    "de": "German", "fr": "French", "es": "Spanish", "ru": "Russian", "pl": "Polish", "it": "Italian", "ja": "Japanese",
    "zh_CN": "Simplified Chinese", "cs": "Czech", "sv": "Swedish", "ko": "Korean", "pt_BR": "Brazilian Portuguese",
    "nl": "Dutch", "el": "Greek", "fi": "Finnish",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Task:
    """A request with its answer, and which kind of request it is."""

    source: str
    category: str
    prompt: str
    answer: str


@dataclass(frozen=True, slots=True)
class _Function:
    name: str
    module: str
    code: str
    bare: str  # without its docstring
    head: str  # up to and including its docstring
    rest: str  # after it
    doc: str


def _functions(root: Path, *patterns: str, longest: int = 2500) -> list[_Function]:
    """Functions of modules, in the order of files and lines, methods dedented."""
    found = []
    for pattern in patterns:
        for file in sorted(root.glob(pattern)):
            source = file.read_text(encoding="utf-8")
            text = source.split("\n")
            nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
            for node in nodes:
                code = textwrap.dedent("\n".join(text[node.lineno - 1 : node.end_lineno]))
                doc = ast.get_docstring(node) or ""
                lines = code.split("\n")
                start = node.body[0].lineno - node.lineno if doc else 0
                end = (node.body[0].end_lineno or node.lineno) - node.lineno + 1 if doc else 0
                if 150 < len(code) < longest and not node.decorator_list:
                    bare, head = "\n".join(lines[:start] + lines[end:]), "\n".join(lines[:end])
                    found.append(_Function(node.name, file.stem, code, bare, head, "\n".join(lines[end:]), doc))
    return found


def _first_sentence(doc: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r":\w+:|[`*]+", "", doc.split("\n\n", maxsplit=1)[0])).strip()


def code(root: Path, r: random.Random) -> Iterator[Task]:
    """Functions to complete, to write from a sentence, to test, and stubs to write."""
    libraries = [f"{name}/*.py" for name in ("click", "requests", "rich", "httpx", "starlette", "joblib", "tenacity")]
    known = [f for f in _functions(root, *libraries, longest=1200) if len(f.doc) > 40 and len(f.rest) > 60]
    for f in r.sample(known, 40):
        yield Task("packages-code", "complete", f.head, f.rest)
    small = _functions(root, "more_itertools/*.py", "boltons/*.py", "toolz/*.py")
    small = [
        f
        for f in small
        if not f.name.startswith("_") and 40 < len(_first_sentence(f.doc)) < 260 and 80 < len(f.bare) < 1200
    ]
    for f in r.sample(small, 50):
        what = _first_sentence(f.doc)
        asks = (
            f"Write a Python function {f.name} that does the following: {what}",
            f"Implement in Python: {what}",
            f"Python: {what} Name it {f.name}.",
        )
        yield Task("packages-function", "function", r.choice(asks), r.choice((f.bare, f"```python\n{f.bare}\n```")))
    tests = [
        f
        for f in _functions(root, "sklearn/**/tests/*.py", "numpy/**/tests/*.py", longest=1200)
        if f.name.startswith("test_")
    ]
    for f in r.sample(tests, 30):
        yield Task(
            "packages-code",
            "test",
            f"Write a pytest test called {f.name} for {f.module.removeprefix('test_')}.",
            f"```python\n{f.code}\n```",
        )
    stubs = [file for file in sorted(root.glob("mypy/typeshed/stdlib/*.pyi")) if 300 < file.stat().st_size < 6000]
    for file in r.sample(stubs, 25):
        yield Task(
            "packages-code",
            "stub",
            f"Write the type stub file for Python's {file.stem} module.",
            file.read_text(encoding="utf-8")[:1800],
        )


def prose(root: Path, r: random.Random) -> Iterator[Task]:
    """Explanations, docstrings, readmes, summaries of readmes, and classifiers."""
    known = _functions(root, "rich/*.py", "httpx/*.py", "click/*.py", "starlette/*.py", "flask/*.py", longest=1800)
    for f in r.sample([f for f in known if len(f.doc) > 120 and len(f.bare) > 80], 30):
        ask = r.choice(
            (
                "What does this function do?",
                "Explain this code to me:",
                "Describe the behaviour and parameters of this function.",
            )
        )
        yield Task("packages-prose", "explain code", f"{ask}\n\n```python\n{f.bare}\n```", f.doc)
    graphs = [
        f
        for f in _functions(root, "networkx/algorithms/*.py", longest=4000)
        if len(f.doc) > 250 and 80 < len(f.bare) < 1500
    ]
    for f in r.sample(graphs, 30):
        ask = r.choice(
            (
                "Write a complete docstring with parameters, returns and an example for:",
                "Document this function in numpydoc style.",
            )
        )
        yield Task("packages-docs", "numpydoc", f"{ask}\n\n{f.bare}", f'"""{f.doc}"""')
    for name in r.sample(sorted(pydoc_data.topics.topics), 35):
        text = re.sub(r"^.*\n\*{3,}\n", "", pydoc_data.topics.topics[name]).strip()
        asks = (
            f"Explain {name} in Python in detail.",
            f"Python reference: {name}. How does it work?",
            f'I would like to understand "{name}" in Python, please write a thorough explanation.',
        )
        yield Task("packages-prose", "topic", r.choice(asks), text[:1800])
    yield from _readmes(root, r)


def _plain(text: str) -> str:
    """A readme without badges, directives, markup and addresses."""
    kept = [
        line for line in text.splitlines() if not line.lstrip().startswith(("<", "[!", "![", "..", ":target", ":alt"))
    ]
    bare = re.sub(r"<[^<>]{1,200}>|https?://[^\s)>]+", "", "\n".join(kept))
    return re.sub(r"\n{3,}", "\n\n", bare)


def _readmes(root: Path, r: random.Random) -> Iterator[Task]:
    found = []
    for file in sorted(root.glob("*.dist-info/METADATA")):
        head, _, body = file.read_text(encoding="utf-8").partition("\n\n")
        body = _plain(body)
        told = dict(re.findall(r"^(Name|Summary): (.*)$", head, re.MULTILINE))
        if len(body) > 500 and "Summary" in told:
            found.append(
                (told["Name"], told["Summary"], body.strip(), re.findall(r"^Classifier: (.*)$", head, re.MULTILINE))
            )
    for name, summary, body, labels in r.sample(found, len(found)):
        yield Task("packages-prose", "readme", f"Write the README of the Python package {name}: {summary}", body[:1800])
        ask = r.choice(
            (
                "Summarize this README in one sentence.",
                "What is this project, in one line?",
                "Give a one-sentence abstract of the text below.",
            )
        )
        yield Task("packages-summary", "summary", f"{ask}\n\n{body[:1500]}", summary)
        if len(labels) > 4:
            yield Task(
                "packages-summary",
                "classifiers",
                f"Which PyPI trove classifiers fit the package {name} ({summary})? List them.",
                "\n".join(labels),
            )


def javascript(file: Path, r: random.Random) -> Iterator[Task]:
    """Functions of lodash from their descriptions."""
    found = re.findall(
        r"    /\*\*\n((?:     \*.*\n)+)     \*/\n    (function \w+\([^)]*\) \{\n(?:.*\n){2,25}?    \})\n",
        file.read_text(encoding="utf-8"),
    )
    tasks = []
    for comment, body in found:
        what = re.sub(r"\s+", " ", re.sub(r"^\s*\*", " ", comment.split("@")[0], flags=re.MULTILINE)).strip()
        if 40 < len(what) < 350:
            tasks.append((what, textwrap.dedent("    " + body)))
    for what, body in r.sample(tasks, 40):
        ask = r.choice(("Write a JavaScript function: ", "JS helper needed. ", "Implement in javascript: "))
        yield Task("packages-javascript", "function", ask + what, f"```javascript\n{body}\n```")


def _messages(file: Path) -> list[tuple[str, str]]:
    """Pairs of source and translation of a gettext catalogue, without format strings."""
    quoted = r'((?:"[^\n]*"\n)+)'
    pairs = []
    for entry in re.finditer(rf"^msgid {quoted}msgstr {quoted}", file.read_text(encoding="utf-8"), re.MULTILINE):
        a, b = ("".join(json.loads(line) for line in part.strip().split("\n")) for part in entry.groups())
        if a != b and b and 8 < len(a) < 200 and "%" not in a:
            pairs.append((a, b))
    return pairs


def translations(root: Path, r: random.Random) -> Iterator[Task]:
    """Interface texts of Sphinx in fifteen languages, alone, in lines and in JSON."""
    for code_, language in LANGUAGES.items():
        pairs = _messages(root / f"sphinx/locale/{code_}/LC_MESSAGES/sphinx.po")
        for form in ("one", "lines", "json", "lines"):
            some = r.sample(pairs, 1 if form == "one" else r.choice((3, 5)))
            keys = {f"msg{i}": pair for i, pair in enumerate(some)}
            prompt, answer = {
                "one": (f'How would you translate "{some[0][0]}" into {language}?', some[0][1]),
                "lines": (
                    f"Translate these strings to {language}, one per line.\n\n" + "\n".join(a for a, _ in some),
                    "\n".join(b for _, b in some),
                ),
                "json": (
                    f"Localise this JSON for {language} users; keep the keys.\n"
                    + json.dumps({k: a for k, (a, _) in keys.items()}, indent=2),
                    json.dumps({k: b for k, (_, b) in keys.items()}, indent=2, ensure_ascii=False),
                ),
            }[form]
            yield Task("packages-translation", "interface", prompt, answer)
