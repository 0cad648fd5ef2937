"""Measures the project's own requests anew: `python -m classifier.seed --draft FILE.gguf --packages DIR --lodash FILE --out FILE`."""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from classifier.scorer import Scorer, View
from classifier.seed.packages import Task, code, javascript, prose, translations
from classifier.seed.programs import TASKS
from classifier.seed.recall import RECALL, tool_call
from classifier.seed.replay import Draft, name_of

EACH = 16  # requests of every program
WRITTEN = Path(__file__).parent / "written.txt"


def programs() -> Iterator[tuple[Task, list[Any]]]:
    """Requests that programs make, none twice."""
    for name, task in (TASKS | RECALL).items():
        chance, seen = random.Random(name), set[str]()
        for _ in range(4 * EACH):
            prompt, answer = task(chance)
            if prompt not in seen and len(seen) < EACH:
                seen.add(prompt)
                yield Task("programs", name, prompt, answer), []
    chance = random.Random("tool_call")
    for _ in range(2 * EACH):
        prompt, answer, tools = tool_call(chance)
        yield Task("programs", "tool_call", prompt, answer), tools


def written() -> Iterator[Task]:
    """Requests and answers written by hand."""
    for block in re.split(r"^=== ", WRITTEN.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        category, _, rest = block.partition("\n>>> ")
        prompt, _, answer = rest.partition("\n<<< ")
        yield Task("written", category, prompt.strip("\n"), answer.rstrip("\n"))


def main() -> int:
    """Write one JSON line per request, without its answer; of requests in other people's words the features alone."""
    parser = argparse.ArgumentParser(
        prog="python -m classifier.seed", description="Measure the project's own requests anew."
    )
    parser.add_argument("--draft", type=Path, required=True, metavar="FILE", help="SmolLM2-135M-Instruct as GGUF")
    parser.add_argument(
        "--packages",
        type=Path,
        required=True,
        metavar="DIR",
        help="where requirements.txt was installed (pip --target)",
    )
    parser.add_argument("--lodash", type=Path, required=True, metavar="FILE", help="lodash.js of lodash 4.18.1")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    args = parser.parse_args()
    chance = random.Random(1)
    taken = [*code(args.packages, chance), *prose(args.packages, chance), *translations(args.packages, chance)]
    taken += javascript(args.lodash, chance)
    tasks = [*programs(), *((task, []) for task in [*written(), *taken])]
    draft = Draft(args.draft)
    with args.out.open("w", encoding="utf-8") as out:
        for number, (task, tools) in enumerate(tasks, 1):
            out.write(json.dumps(_row(task, tools, draft), ensure_ascii=False) + "\n")
            out.flush()
            print(f"\r{number}/{len(tasks)}", end="", file=sys.stderr)
    return 0


def _row(task: Task, tools: list[Any], draft: Draft) -> dict[str, Any]:
    messages = [{"role": "user", "content": task.prompt}]
    name = name_of(task.source, messages, tools)
    asked: dict[str, Any] = {"messages": messages} | ({"tools": tools} if tools else {})
    if task.source.startswith("packages"):
        asked = {"features": Scorer.load().features(View.of(asked))}
    return (
        {"id": name, "source": task.source, "category": task.category, "target": "exact"}
        | asked
        | draft.measure(messages, task.answer, tools)
    )


if __name__ == "__main__":
    sys.exit(main())
