"""Hostile requests: what cannot be read in one way only is refused, and what is refused reaches no engine."""

from __future__ import annotations

import asyncio
import gzip
import json
import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from re._constants import BRANCH, MAX_REPEAT, MAXREPEAT, MIN_REPEAT
from re._parser import SubPattern
from re._parser import parse as parse_pattern
from typing import Any

import audit
import httpx
import leaks
import pytest
from fakes import ANSWER, CHAT, reply, scripted, visitor
from harness import ADMIN_KEY, KEY, config_for, serving

import gateway
from classifier.artifact import SHIPPED, ArtefactError
from classifier.scorer import Scorer
from gateway.app import Gateway

ROOT = Path(__file__).parent.parent
BODY = json.dumps(CHAT).encode()
HEAD = b"host: x\r\nauthorization: Bearer sk-test\r\ncontent-type: application/json\r\n"
LENGTH = b"content-length: %d\r\n" % len(BODY)
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)


def post(headers: bytes, body: bytes = BODY, version: bytes = b"1.1", line_end: bytes = b"\r\n") -> bytes:
    """Return a chat request with further header lines, each with its end, before the body."""
    lines = b"POST /v1/chat/completions HTTP/" + version + line_end + HEAD.replace(b"\r\n", line_end) + headers
    return lines + line_end + body


# What two readers could take for two different requests: RFC 9112 §6.3, §2.2, §5.1, §5.2, §7.1.
AMBIGUOUS = {
    "length and chunks": post(LENGTH + b"transfer-encoding: chunked\r\n"),
    "chunks and length": post(b"transfer-encoding: chunked\r\ncontent-length: 5\r\n", b"0\r\n\r\n"),
    "two lengths": post(LENGTH + b"content-length: 3\r\n"),
    "one length twice": post(LENGTH + LENGTH),
    "a list of lengths": post(b"content-length: %d, %d\r\n" % (len(BODY), len(BODY))),
    "a signed length": post(b"content-length: +%d\r\n" % len(BODY)),
    "a negative length": post(b"content-length: -1\r\n"),
    "a length in hex": post(b"content-length: 0x%x\r\n" % len(BODY)),
    "an unknown coding": post(b"transfer-encoding: xchunked\r\n", CHUNKED),
    "a coding before chunked": post(b"transfer-encoding: gzip, chunked\r\n", CHUNKED),
    "a coding behind chunked": post(b"transfer-encoding: chunked, identity\r\n", CHUNKED),
    "two codings": post(b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n", CHUNKED),
    "a blank before the colon": post(b"transfer-encoding : chunked\r\n", CHUNKED),
    "a folded header": post(b"x-a: b\r\n c: d\r\n" + LENGTH),
    "a folded coding": post(b"transfer-encoding:\r\n chunked\r\n", CHUNKED),
    "bare line feeds": post(LENGTH.replace(b"\r\n", b"\n"), line_end=b"\n"),
    "a bare line feed": post(b"x-a: b\nx-c: d\r\n" + LENGTH),
    "a bare carriage return": post(b"x-a: b\rx-c: d\r\n" + LENGTH),
    "a null": post(b"x-a: b\0c\r\n" + LENGTH),
    "a control character": post(b"x-a: b\x0bc\r\n" + LENGTH),
    "a blank in a name": post(b"x a: b\r\n" + LENGTH),
    "no colon": post(b"xa\r\n" + LENGTH),
    "no name": post(b": b\r\n" + LENGTH),
    "chunks with line feeds": post(b"transfer-encoding: chunked\r\n", CHUNKED.replace(b"\r\n", b"\n")),
    "a chunk's size with a prefix": post(b"transfer-encoding: chunked\r\n", b"0x" + CHUNKED),
    "a chunk's size beyond bounds": post(b"transfer-encoding: chunked\r\n", b"f" * 17 + b"\r\n" + BODY),
    "another version": post(LENGTH, version=b"2.0"),
    "no version": b"GET /v1/models\r\n\r\n",
    "a tunnel": b"CONNECT 169.254.169.254:80 HTTP/1.1\r\n" + HEAD + b"\r\n",
    "no host": post(LENGTH).replace(b"host: x\r\n", b""),
    "two hosts": post(b"host: y\r\n" + LENGTH),
    "one host twice": post(b"Host: x\r\n" + LENGTH),
    "a host and a path": post(LENGTH).replace(b"host: x", b"host: x/v1"),
    "a host with a name": post(LENGTH).replace(b"host: x", b"host: evil@x"),
    "a list of hosts": post(LENGTH).replace(b"host: x", b"host: x y"),
    "a host with quotes": post(LENGTH).replace(b"host: x", b'host: "x"'),
    "a host with a broken escape": post(LENGTH).replace(b"host: x", b"host: x%zz"),
    "a host beyond ASCII": post(LENGTH).replace(b"host: x", b"host: \xc3\xa9"),
    "a port that is none": post(LENGTH).replace(b"host: x", b"host: x:80a"),
    "an address without its end": post(LENGTH).replace(b"host: x", b"host: [::1"),
    "two hosts of an old version": post(b"host: y\r\n" + LENGTH, version=b"1.0"),
    "an old version's host and path": post(LENGTH, version=b"1.0").replace(b"host: x", b"host: x/v1"),
    "no host but a whole target": b"GET http://x/v1/models HTTP/1.1\r\n\r\n",
    "a byte that is no ASCII": b"GET /v1/\xc3\xa9 HTTP/1.1\r\n" + HEAD + b"\r\n",
}


async def test_what_could_be_read_in_two_ways_is_refused() -> None:
    """Each ambiguous request gets a 400, ends its connection, and reaches no engine, nor does what hides behind it."""
    found = {}
    async with scripted([reply(ANSWER)]) as engine, serving(config_for({"plain": [engine.url]})) as gateway:
        for name, raw in AMBIGUOUS.items():
            async with visitor(gateway.port) as client:
                await client.send(raw + post(LENGTH))
                answer = await client.answer()
                rest = await client.reader.read()
            assert answer.error["type"] == "invalid_request_error"
            found[name] = (answer.status, rest, len(engine.seen))

    assert found == dict.fromkeys(AMBIGUOUS, (400, b"", 0))


@pytest.mark.parametrize(
    "host", [b"x", b"", b"x:8080", b"x:", b"127.0.0.1:1", b"[::1]:8080", b"[::ffff:1.2.3.4]", b"a_b-c.example", b"%7Ex"]
)
async def test_hosts_of_any_legal_form_are_served(host: bytes) -> None:
    """Names, addresses, ports and the empty host are fine, again and again on one connection."""
    async with serving(config_for({"plain": ["http://127.0.0.1:9"]})) as gateway, visitor(gateway.port) as client:
        for _ in range(2):
            await client.send(b"GET /healthz HTTP/1.1\r\nhOsT: " + host + b"\r\n\r\n")
            assert (await client.answer()).status == 200
        await client.send(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert (await client.answer()).error["code"] == "invalid_host"


async def test_nothing_behind_a_refused_request_is_served() -> None:
    """Also where the refusal has to wait for the answer before it: it is the last thing that the connection carries."""
    refused = post(LENGTH).replace(b"host: x", b"host: x/v1")
    async with (
        scripted([0.1, reply(ANSWER)]) as engine,
        serving(config_for({"plain": [engine.url]})) as gateway,
        visitor(gateway.port) as client,
    ):
        await client.send(post(LENGTH) + refused + post(LENGTH))
        answers = [(await client.answer()).status, (await client.answer()).status]

        assert answers == [200, 400]
        assert await client.ended()
        assert len(engine.seen) == 1


async def test_an_old_version_needs_no_host() -> None:
    """HTTP/1.0 knows no Host header (RFC 9112 §3.2)."""
    async with serving(config_for({"plain": ["http://127.0.0.1:9"]})) as gateway, visitor(gateway.port) as client:
        await client.send(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert (await client.answer()).status == 200


PATHS = [
    b"/v1/../engine/faults",
    b"/v1/./x",
    b"/v1/.hidden",
    b"/v1/%2e%2e/engine/faults",
    b"/v1/..%2fengine%2ffaults",
    b"/v1/x%2f..%2f..%2fmetrics",
    b"/v1//engine/faults",
    b"/v1/..\\engine",
    b"/v1/x%00",
    b"/v1/x%0d%0ahost:%20evil",
    b"/v1/x#fragment",
    b"/v1/x;/../../metrics",
    b"/v1/",
    b"//v1/embeddings",
    b"/engine/faults",
    b"/metrics/../v1/embeddings",
    b"/v1/load_lora_adapter",
    b"/v1/unload_lora_adapter",
]


async def test_paths_with_tricks_reach_no_engine() -> None:
    """Dot segments, escapes, doubled slashes and what only operators may ask of an engine are not passed through."""
    found = {}
    async with (
        scripted([reply(ANSWER)]) as engine,
        serving(config_for({"plain": [engine.url]})) as gateway,
        visitor(gateway.port) as client,
    ):
        for path in PATHS:
            await client.send(b"POST " + path + b" HTTP/1.1\r\n" + HEAD + b"content-length: 0\r\n\r\n")
            found[path] = ((await client.answer()).status, len(engine.seen))

    assert found == dict.fromkeys(PATHS, (404, 0))


async def test_engines_are_those_of_the_configuration_only() -> None:
    """Neither an absolute target nor Host nor forwarding headers take a request anywhere else."""
    async with (
        scripted([reply(ANSWER)]) as engine,
        serving(config_for({"plain": [engine.url]})) as gateway,
        visitor(gateway.port) as client,
    ):
        await client.send(
            b"GET http://169.254.169.254/v1/embeddings?x=1 HTTP/1.1\r\nhost: 169.254.169.254\r\n"
            b"x-forwarded-host: evil\r\nforwarded: host=evil\r\nauthorization: Bearer sk-test\r\n\r\n"
        )
        answer = await client.answer()

    (seen,) = engine.seen
    assert answer.status == 200
    assert (seen.target, seen.header("host")) == ("/v1/embeddings?x=1", f"127.0.0.1:{engine.port}")
    assert {"authorization", "x-forwarded-host", "forwarded"}.isdisjoint(name for name, _ in seen.headers)


BOMBS: dict[str, bytes] = {
    "deep arrays": b'{"model":"demo","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"model":"demo","messages":[{"role":"user","content":"x"}],"x":'
    + b'{"a":' * 100_000
    + b"1"
    + b"}" * 100_001,
    "a number of many digits": b'{"model":"demo","messages":[],"max_tokens":' + b"9" * 1_000_000 + b"}",
    "an exponent": b'{"model":"demo","messages":[{"role":"user","content":"x"}],"temperature":1e999999999}',
    "many keys": b'{"model":"demo","messages":[],' + b",".join(b'"k%d":1' % n for n in range(200_000)) + b"}",
    "half a surrogate": b'{"model":"demo","messages":[{"role":"user","content":"\\ud800"}]}',
    "a byte order mark": b"\xef\xbb\xbf" + BODY,
    "not UTF-8": b'{"model":"demo","messages":[{"role":"user","content":"\xff"}]}',
    "NaN": b'{"model":"demo","messages":[{"role":"user","content":"x"}],"temperature":NaN}',
}


async def test_bombs_of_json_are_defused() -> None:
    """Depth, digits, exponents and bytes that are no text cost little and end in an answer; the next call is served."""
    found = {}
    async with (
        scripted([reply(ANSWER)]) as engine,
        serving(config_for({"plain": [engine.url]})) as gateway,
        httpx.AsyncClient(headers={"authorization": f"Bearer {KEY}"}, timeout=20) as client,
    ):
        for name, body in BOMBS.items():
            bombed = await client.post(f"{gateway.url}/v1/chat/completions", content=body)
            answer = await client.post(f"{gateway.url}/v1/chat/completions", json=CHAT)
            found[name] = (bombed.status_code in (200, 400), answer.status_code)

    assert found == dict.fromkeys(BOMBS, (True, 200))
    assert {call.outcome for call in gateway.finished} <= {"ok", "rejected"}


async def test_a_key_that_stands_twice_means_the_same_to_engines() -> None:
    """Of doubled keys the last one counts, here and in vLLM's parser, so no one is checked for one model and served another."""
    twice = b'{"model":"nosuch","messages":[{"role":"user","content":"x"}],"model":"demo"}'
    async with scripted([reply(ANSWER)]) as engine:
        config = config_for({"plain": [engine.url]}, pools={"plain": {"served_model": "served"}})
        async with serving(config) as gateway, httpx.AsyncClient(headers={"authorization": f"Bearer {KEY}"}) as client:
            answer = await client.post(f"{gateway.url}/v1/chat/completions", content=twice)
            other = await client.post(
                f"{gateway.url}/v1/chat/completions",
                content=twice.replace(b'"demo"', b'"x"').replace(b'"nosuch"', b'"demo"'),
            )

    assert (answer.status_code, other.status_code) == (200, 404)
    assert [seen.json["model"] for seen in engine.seen] == ["served"]


async def test_bombs_of_compression_are_defused() -> None:
    """A megabyte that unpacks to a gigabyte is refused when it passes the limit, not when it is unpacked."""
    bomb = gzip.compress(bytes(1 << 28), 9)
    headers = {"authorization": f"Bearer {KEY}", "content-encoding": "gzip"}
    async with (
        scripted([reply(ANSWER)]) as engine,
        serving(config_for({"plain": [engine.url]})) as gateway,
        httpx.AsyncClient(headers=headers, timeout=20) as client,
    ):
        refused = await client.post(f"{gateway.url}/v1/chat/completions", content=bomb)
        answer = await client.post(f"{gateway.url}/v1/chat/completions", content=gzip.compress(BODY))

    assert (refused.status_code, answer.status_code) == (413, 200)
    assert len(engine.seen) == 1


async def test_no_client_makes_a_series() -> None:
    """Whatever names, paths, keys and ids clients make up, the metrics page has as many series as before."""
    async with (
        scripted([reply(ANSWER)]) as engine,
        serving(config_for({"plain": [engine.url]})) as gateway,
        httpx.AsyncClient(timeout=20) as client,
    ):

        async def attack(number: int) -> None:
            key = KEY if number % 2 else f"sk-{number}"
            headers = {"authorization": f"Bearer {key}", "x-request-id": f"id-{number}", "x-tenant": f"t{number}"}
            body = {**CHAT, "model": f"m{number}" if number % 3 else "demo", "user": f"u{number}"}
            path = f"/v1/p{number}" if number % 5 == 0 else "/v1/chat/completions"
            await client.post(f"{gateway.url}{path}", json=body, headers=headers)

        async def series() -> set[str]:
            page = (await client.get(f"{gateway.url}/metrics")).text
            return {
                line.rpartition(" ")[0]
                for line in page.splitlines()
                if line.startswith("draftlane_") and "_age_" not in line
            }

        for number in range(30):
            await attack(number)
        before = await series()
        await asyncio.gather(*(attack(number) for number in range(30, 330)))
        after = await series()

    assert after == before


async def test_operators_have_a_port_of_their_own() -> None:
    """Where it is set, the admin plane and metrics are on that port alone, and clients' paths on the other alone."""
    config = config_for({"plain": ["http://127.0.0.1:9"]})
    gateway = Gateway(config, admin_port=7777)
    statuses: dict[tuple[str, int], int] = {}
    for path in ("/draftlane/state", "/draftlane/openapi.json", "/metrics", "/v1/models", "/healthz"):
        for port in (7777, 8080):
            statuses[path, port] = await status_of(gateway, path, port)

    assert {key for key, status in statuses.items() if status != 404} == {
        ("/draftlane/state", 7777),
        ("/draftlane/openapi.json", 7777),
        ("/metrics", 7777),
        ("/v1/models", 8080),
        ("/healthz", 7777),
        ("/healthz", 8080),
    }


async def status_of(gateway: Gateway, path: str, port: int) -> int:
    """Return the status that a path answers with on a port."""
    found: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            found.append(message["status"])

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"authorization", f"Bearer {ADMIN_KEY}".encode())],
        "server": ("127.0.0.1", port),
        "client": ("127.0.0.1", 1),
        "scheme": "http",
        "http_version": "1.1",
    }
    await gateway.api(scope, receive, send)
    return found[0]


@pytest.mark.parametrize("key", ["", KEY, "sk-admi", "sk-admin2"])
async def test_the_admin_plane_takes_the_admin_key_only(key: str) -> None:
    """No key, a tenant's and a wrong one get a 401 on every path of the admin plane, before anything else is looked at."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with (
        serving(config_for({"plain": ["http://127.0.0.1:9"]})) as gateway,
        httpx.AsyncClient(headers=headers) as client,
    ):
        got = [
            await client.get(f"{gateway.url}/draftlane/{path}")
            for path in ("state", "openapi.json", "receipts/x", "overview")
        ]
        put = [
            await client.post(f"{gateway.url}/draftlane/{path}")
            for path in ("reload", "explain", "pools/plain/disable")
        ]

    assert {answer.status_code for answer in (*got, *put)} == {401}
    assert all(KEY not in answer.text and ADMIN_KEY not in answer.text for answer in (*got, *put))


def test_an_artefact_that_was_tampered_with_is_not_loaded(tmp_path: Path) -> None:
    """One digit of the classifier's artefact changed, wherever it stands, and the gateway does not start with it."""
    whole = SHIPPED.read_bytes()
    assert Scorer.load(SHIPPED).version
    for place in range(len(whole) // 10, len(whole), len(whole) // 5):
        digit = next(at for at in range(place, len(whole)) if whole[at : at + 1].isdigit())
        changed = bytearray(whole)
        changed[digit] = ord("1") if whole[digit] != ord("1") else ord("2")
        copy = tmp_path / "artefact.json"
        copy.write_bytes(changed)
        with pytest.raises(ArtefactError):
            Gateway(config_for({"plain": ["http://127.0.0.1:9"]}, classifier={"artefact": str(copy)}))


def patterns() -> Iterator[tuple[str, re.Pattern[Any]]]:
    """Return every pattern that a module compiles when serving imports it; measuring tools read their operator's files."""
    names = [found.name for found in pkgutil.walk_packages(gateway.__path__, "gateway.")]
    names = [
        name
        for name in names
        if not name.startswith(("gateway.engine", "gateway.measure")) and not name.endswith("__main__")
    ]
    for name in (*names, "classifier.scorer", "classifier.view"):
        yield from ((name, each) for each in vars(import_module(name)).values() if isinstance(each, re.Pattern))


def explodes(tree: Any, *, inside: str = "nothing") -> bool:
    """Whether a parsed pattern has one repetition without bound in another, by which matching may take for ever."""
    for name, value in tree:
        unbounded = name in (MAX_REPEAT, MIN_REPEAT) and value[1] is MAXREPEAT
        if unbounded and inside == "repetition":
            return True
        parts = [part for part in (value if isinstance(value, tuple | list) else ()) if isinstance(part, SubPattern)]
        parts += [each for part in (value[1] if name is BRANCH else ()) for each in [part]]
        if any(explodes(part, inside="repetition" if unbounded else inside) for part in parts):
            return True
    return False


def test_no_pattern_can_take_for_ever() -> None:
    """No regular expression that meets strangers' text has a repetition without bound within another."""
    found = list(patterns())

    assert len(found) > 10
    assert [
        f"{name}: {each.pattern!r}" for name, each in found if explodes(parse_pattern(each.pattern, each.flags))
    ] == []
    assert explodes(parse_pattern("(?:a+)+b"))
    assert explodes(parse_pattern("(?:(a|b*)c)*"))


def test_no_committed_file_holds_a_secret() -> None:
    """No private key, no token of a well-known service and no string that looks like chance is in the repository."""
    assert leaks.leaks() == []


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("-----BEGIN RSA PRIVATE " + "KEY-----", "private key"),
        ("aws = AKIA" + "IOSFODNN7EXAMPLE", "key of AWS"),
        ("ghp_" + "a1B2" * 9, "token of GitHub"),
        ("sk-" + "a1B2" * 10, "key of OpenAI or Anthropic"),
        ("redis://:" + "hunter22@10.0.0.1:6379/0", "password in an address"),
        ("key = '" + "Zk3vQ9xWm2" + "Lr8TbY5nHs1Pd7Cf'", "random string"),
        ('"' + "9f2c4e8a7b" + "1d3f6058c9e2a4b7d1f3' 1"[:16] + '"', "random string"),
        ('key_sha256 = "' + "0b2aed7405c13a82" * 4 + '"', None),
        ("'the-name-of-a-very-long-setting-that-nobody-chose-at-random'", None),
        ('url_env = "redis://$USER:$PASSWORD@host"', None),
    ],
)
def test_the_scan_for_secrets_finds_them(text: str, kind: str | None) -> None:
    """Each form is found, and what this project writes on purpose is not."""
    assert [found for _, found, _ in leaks.found("config.toml", f"a line\n{text}\n")] == ([kind] if kind else [])


def test_an_audit_fails_for_a_weakness_and_for_nothing_else() -> None:
    """A known weakness is told with the release that mends it; a database that cannot be asked fails nobody."""
    weak = {"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}
    unknown = {"name": "b", "skip_reason": "not found"}

    assert audit.verdict([weak, unknown]) == (1, ["audit: a 1: CVE-1, mended in ['2']"])
    assert audit.verdict([unknown]) == (0, ["audit: no known weakness; nothing is known of 1 packages"])
    assert audit.verdict(None)[0] == 0
    assert audit.ask(ROOT / "requirements" / "serve.txt", seconds=0.001) is None


@pytest.mark.parametrize("document", ["SECURITY.md", "README.md"])
def test_every_promise_names_tests_that_exist(document: str) -> None:
    """Each test file and each test that a promise or a threat refers to is there."""
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / document).read_text())

    assert named
    for path, test in named:
        assert f"def {test}" in (ROOT / path).read_text(), f"{path}::{test}"
