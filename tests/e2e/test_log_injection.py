"""What strangers write never makes a log line of its own: a whole gateway process, hostile requests, its two outputs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fakes import ANSWER, reply, scripted, visitor
from harness import KEY

from gateway.config import key_digest

FORGED = '{"event":"call","tenant":"forged","outcome":"ok"}'
TRICKS = {
    "line feed": f"demo\n{FORGED}",
    "carriage return": f"demo\r\n{FORGED}\r\n",
    "end of string": f'demo","tenant":"forged","x":{FORGED}',
    "escape sequence": "demo\x1b[2J\x1b]0;owned\x07\x9b31m",
    "line separators": f"demo\u2028{FORGED}\u2029\u0085\x0b\x0c{FORGED}",
    "direction": "demo\u202e\u2066gpj.exe",
    "null": "demo\0end",
    "half a pair": "demo\ud800",
}
# Raw bytes in heads: what HTTP forbids is refused before it can be logged, the rest must not matter.
HEADS = [
    b"x-request-id: evil\x1b[31m",
    b'x-request-id: a","tenant":"forged',
    b"x-request-id: a%0d%0a" + FORGED.encode(),
    b"x-request-id: a\xe2\x80\xa8b\x85",
    b"user-agent: \x1b[2J",
    b"x-draftlane-route: \xff\x9b31m",
    b"authorization: Bearer a\x1b[2J",
    b'authorization: Bearer {"a":"b"}',
]
PATHS = [
    b"/v1/chat%0d%0a" + b"%7B%22event%22:%22call%22%7D",
    b'/v1/x","tenant":"forged',
    b"/v1/x%1b%5b2J",
    b"/nowhere%0a%7B%22event%22:%22call%22%7D",
    b"/nowhere%1b%5b31m%22",
    b"/draftlane/receipts/%0a%1b%5b2J",
]


def post(body: bytes, head: bytes = b"", path: bytes = b"/v1/chat/completions") -> bytes:
    """Return a chat request with one more line in its head."""
    key = b"" if head.startswith(b"authorization") else b"authorization: Bearer %b\r\n" % KEY.encode()
    lines = b"host: x\r\n%bcontent-length: %d\r\nconnection: close\r\n" % (key, len(body))
    return b"POST %b HTTP/1.1\r\n%b%b\r\n" % (path, lines, head + b"\r\n" if head else b"") + body


def requests() -> list[bytes]:
    """Return every trick in every place that a client writes to."""
    found = []
    for trick in TRICKS.values():
        for body in (
            {"model": trick, "messages": [{"role": "user", "content": "a"}]},
            {"model": "demo", "messages": [{"role": "user", "content": trick}], "user": trick},
            {"model": "demo", "messages": [{"role": trick, "content": "a"}], "tools": [{"function": {"name": trick}}]},
            {"model": "demo", "messages": [], "temperature": trick},
        ):
            found += [
                post(json.dumps(body).encode()),
                post(json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")),
            ]
        found.append(post(trick.encode("utf-8", "replace")))
    plain = json.dumps({"model": "demo", "messages": [{"role": "user", "content": "a"}]}).encode()
    return [*found, *(post(plain, head) for head in HEADS), *(post(plain, path=path) for path in PATHS)]


def written(path: Path, url: str, *, prompts: bool) -> None:
    """Write a configuration with one engine."""
    path.write_text(f"""
[server]
port = 0
drain_seconds = 1
log_prompts = {str(prompts).lower()}
[[model]]
name = "demo"
[[pool]]
name = "plain"
model = "demo"
kind = "baseline"
price_per_hour = 1.0
[[pool.replica]]
url = "{url}"
[[tenant]]
name = "tester"
key_sha256 = ["{key_digest(KEY)}"]
""")


@asynccontextmanager
async def process(config: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """Run `draftlane serve`; yield it and its port."""
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "serve", "--config", str(config)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    try:
        assert running.stderr is not None
        while b"serving" not in (line := await running.stderr.readline()):
            assert line, "it has ended"
        yield running, int(line.rsplit(b":", 1)[1])
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()


async def test_no_client_writes_a_line_of_the_log(tmp_path: Path) -> None:
    """Names, texts, headers, ids and paths full of line ends and escapes leave one valid JSON line per call, and no other."""
    async with scripted([reply(ANSWER)]) as engine:
        written(tmp_path / "config.toml", engine.url, prompts=True)
        async with process(tmp_path / "config.toml") as (running, port):
            for each in requests():
                async with visitor(port) as client:
                    await client.send(each)
                    assert (await client.answer()).status in {200, 400, 401, 404, 405}
            running.send_signal(signal.SIGTERM)
            out, err = await running.communicate()

    lines = out.split(b"\n")
    assert lines.pop() == b""
    calls = [json.loads(line) for line in lines]
    assert len(calls) > len(TRICKS) * 8
    assert {call["event"] for call in calls} == {"call"}
    assert {call.get("tenant", "") for call in calls} <= {"tester", ""}
    assert {call.get("model", "") for call in calls} <= {"demo", ""}
    assert all(re.fullmatch(r"[\w.:-]{1,128}", call["request_id"], re.ASCII) for call in calls)
    assert len({call["request_id"] for call in calls}) == len(calls)
    assert not re.search(rb"[\x00-\x09\x0b-\x1f\x7f]", out)
    assert not re.search("[\x7f-\x9f\u2028-\u202e\u2066-\u2069]", out.decode())
    assert any("\u2028" in call.get("prompt", "") for call in calls)  # escaped, not lost
    assert not re.search(rb"[\x00-\x08\x0b-\x1f\x7f]", err)
    assert b"forged" not in b"".join(line for line in err.split(b"\n") if not line.startswith(b" "))
