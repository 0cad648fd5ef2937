"""A real Prometheus beside a test: started on a scratch folder, asked over HTTP, and PromQL taken apart."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

ROOT = Path(__file__).parent.parent
RULES = ROOT / "deploy" / "prometheus" / "rules"
SCRAPE = "250ms"
# What ends an operand at the top level of an expression: set operators, comparisons, and how they match labels.
_MATCHING = r"(?:\s+bool)?(?:\s+(?:on|ignoring)\s*\([^)]*\))?(?:\s+group_(?:left|right)\s*(?:\([^)]*\))?)?"
_SPLIT = re.compile(rf"(?:\b(?:and|unless|or)\b|==|!=|>=|<=|>|<){_MATCHING}")


def tool(name: str) -> str:
    """Return where a program is, on the PATH or as `make tools` has put it."""
    unpacked = ROOT / ".tools" / "usr" / "bin" / name
    found = shutil.which(name) or (str(unpacked) if unpacked.is_file() else None)
    if found is None:
        pytest.fail(f"{name} is not here; make tools fetches it")
    return found


@dataclass(frozen=True, slots=True)
class Prometheus:
    """One that runs: its address and a client."""

    url: str
    client: httpx.AsyncClient

    async def ask(self, path: str, **params: Any) -> Any:
        """Return the data of an API call; fails with Prometheus' own words."""
        answer = (await self.client.get(f"{self.url}/api/v1/{path}", params=params)).json()
        assert answer["status"] == "success", f"{params.get('query')}: {answer.get('error')}"
        return answer["data"]

    async def value(self, expr: str, at: float | None = None) -> float | None:
        """Return the single value of an expression, None where there is none."""
        found = await self.values(expr, at)
        assert len(found) <= 1, expr
        return next(iter(found.values()), None)

    async def values(self, expr: str, at: float | None = None) -> dict[tuple[str, ...], float]:
        """Return the values of an expression by the values of their labels, in the order of the labels' names."""
        data = await self.ask("query", query=expr, **({} if at is None else {"time": at}))
        if data["resultType"] == "scalar":
            return {(): float(data["result"][1])}
        return {
            tuple(value for name, value in sorted(each["metric"].items()) if name != "__name__"): float(
                each["value"][1]
            )
            for each in data["result"]
        }

    async def history(self, expr: str, start: float, end: float) -> list[float]:
        """Return all values of an expression over a span, a second apart, without those that are no number."""
        data = await self.ask("query_range", query=expr, start=start, end=end, step=1)
        return [float(value) for each in data["result"] for _, value in each["values"] if float(value) == float(value)]


@asynccontextmanager
async def prometheus(folder: Path, target: str) -> AsyncIterator[Prometheus]:
    """Run Prometheus with the committed rules on one target until the block ends."""
    config = yaml.safe_load((RULES.parent / "prometheus.yml").read_text())
    config["global"] |= {"scrape_interval": SCRAPE, "scrape_timeout": SCRAPE, "evaluation_interval": "500ms"}
    config["rule_files"] = [str(RULES / "*.yml")]
    config["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        tool("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=exemplar-storage",
        "--log.level=error",
    )
    try:
        async with httpx.AsyncClient(timeout=10) as client:
            url = f"http://127.0.0.1:{port}"
            await _ready(client, url)
            yield Prometheus(url, client)
    finally:
        process.terminate()
        await process.wait()


async def _ready(client: httpx.AsyncClient, url: str) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                if (await client.get(f"{url}/-/ready")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.05)


def operands(expr: str) -> list[str]:
    """Return what an expression compares and combines, without plain numbers: each should have values though it has none.

    Alerts and annotations are empty while all is well; that their operands are not shows that they could fire.
    """
    parts, depth, start, place = [], 0, 0, 0
    while place < len(expr):
        if expr[place] == '"':
            place = expr.index('"', place + 1)
        elif expr[place] in "([{":
            depth += 1
        elif expr[place] in ")]}":
            depth -= 1
        elif depth == 0 and (found := _SPLIT.match(expr, place)) and not re.match(r"\w\b", expr[place - 1 : place]):
            parts.append(expr[start:place])
            place = start = found.end()
            continue
        place += 1
    parts.append(expr[start:])
    found_parts = [part.strip() for part in parts]
    if len(found_parts) == 1:
        whole = found_parts[0]
        return operands(whole[1:-1]) if _wrapped(whole) else [whole]
    return [one for part in found_parts if not re.fullmatch(r"[\d.\s*e-]+", part) for one in operands(part)]


def _wrapped(text: str) -> bool:
    """Whether one pair of parentheses encloses all of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return False
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return place == len(text) - 1
    return False
