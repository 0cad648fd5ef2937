"""TLS on both sides: whose certificates are believed, by which the gateway proves itself, and how they are renewed."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from certificates import Authority, Pair
from fakes import ANSWER, CHAT, ScriptedEngine, reply
from harness import KEY, config_for, serving

from gateway import tls
from gateway.config import ConfigError, key_digest, load, loose_files

HEADERS = {"authorization": f"Bearer {KEY}"}


@asynccontextmanager
async def secure_engine(pair: Pair, clients: Authority | None = None) -> AsyncIterator[tuple[str, ScriptedEngine]]:
    """Serve an engine over TLS that asks for a client's certificate, if its authority is given."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    if clients is not None:
        context.load_verify_locations(clients.path)
        context.verify_mode = ssl.CERT_REQUIRED
    engine = ScriptedEngine([[reply(ANSWER)]])
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0, ssl=context)
    try:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", engine
    finally:
        server.close()
        await engine.stop()


async def ask(url: str, *, verify: ssl.SSLContext | bool = True) -> httpx.Response:
    """Ask the gateway once."""
    async with httpx.AsyncClient(verify=verify, timeout=20) as client:
        return await client.post(f"{url}/v1/chat/completions", json=CHAT, headers=HEADERS)


async def test_an_engine_of_a_believed_authority_is_spoken_to(tmp_path: Path) -> None:
    """With the pool's own authority the engine is asked, and its health is checked over TLS too."""
    authority = Authority(tmp_path, "authority")
    async with secure_engine(authority.issue("engine")) as (url, engine):
        pools = {"plain": {"tls_ca": str(authority.path)}}
        config = config_for({"plain": [url]}, pools=pools, limits={"health_seconds": 0.05})
        async with serving(config) as gateway:
            answer = await ask(gateway.url)
            await asyncio.sleep(0.3)
            replica = gateway.gateway.pipeline.live.pools["plain"].replicas[0]

    assert answer.status_code == 200
    assert len(engine.seen) == 1
    assert replica.healthy


async def test_an_engine_of_another_authority_is_not(tmp_path: Path) -> None:
    """An engine whose certificate nobody vouches for gets no request, and no key."""
    believed, other = Authority(tmp_path, "believed"), Authority(tmp_path, "other")
    async with secure_engine(other.issue("engine")) as (url, engine):
        config = config_for({"plain": [url]}, pools={"plain": {"tls_ca": str(believed.path)}})
        async with serving(config) as gateway:
            answer = await ask(gateway.url)

    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_failed")
    assert engine.seen == []


async def test_the_gateway_proves_itself_to_engines(tmp_path: Path) -> None:
    """An engine that asks for a certificate is answered with the pool's; without one it does not talk."""
    authority = Authority(tmp_path, "authority")
    own = authority.issue("gateway")
    async with secure_engine(authority.issue("engine"), authority) as (url, engine):
        proven = {"tls_ca": str(authority.path), "tls_cert": str(own.cert), "tls_key": str(own.key)}
        async with serving(config_for({"plain": [url]}, pools={"plain": proven})) as gateway:
            answered = await ask(gateway.url)
        bare = {"tls_ca": str(authority.path)}
        async with serving(config_for({"plain": [url]}, pools={"plain": bare})) as gateway:
            refused = await ask(gateway.url)

    assert (answered.status_code, refused.status_code) == (200, 502)
    assert len(engine.seen) == 1


async def test_clients_prove_themselves_where_they_must(tmp_path: Path) -> None:
    """With an authority for clients, a client with its certificate is served and one without gets no connection."""
    authority = Authority(tmp_path, "authority")
    server, client = authority.issue("server"), authority.issue("client")
    settings = {"tls_cert": str(server.cert), "tls_key": str(server.key), "tls_client_ca": str(authority.path)}
    config = config_for({"plain": ["http://127.0.0.1:9"]}, server=settings)
    context = ssl.create_default_context(cafile=authority.path)
    async with serving(config) as gateway:
        url = gateway.url.replace("http:", "https:")
        with pytest.raises(httpx.TransportError):
            await ask(url, verify=context)
        context.load_cert_chain(client.cert, client.key)
        answer = await ask(url, verify=context)

    assert answer.status_code == 502  # it is served: only there is no engine


async def test_renewed_certificates_are_taken_by_a_reload(tmp_path: Path) -> None:
    """After a reload new connections are shown the new certificate of the same files, and engines the new client's."""
    one, two = Authority(tmp_path, "one"), Authority(tmp_path, "two")
    pair, renewed = one.issue("server"), two.issue("renewed")
    path = tmp_path / "config.toml"
    path.write_text(written(pair))
    async with serving(load(path), path=path) as gateway:
        url = gateway.url.replace("http:", "https:")
        before = await ask(url, verify=ssl.create_default_context(cafile=one.path))
        pair.cert.write_bytes(renewed.cert.read_bytes())
        pair.key.write_bytes(renewed.key.read_bytes())
        problems = gateway.gateway.reload()
        after = await ask(url, verify=ssl.create_default_context(cafile=two.path))

    assert problems == []
    assert (before.status_code, after.status_code) == (502, 502)


def written(pair: Pair) -> str:
    """Return a configuration file that serves with this certificate."""
    return (
        f'[server]\nport = 0\nlog = "off"\ndrain_seconds = 1.0\ntls_cert = "{pair.cert}"\ntls_key = "{pair.key}"\n'
        '[[model]]\nname = "demo"\n[[pool]]\nname = "plain"\nmodel = "demo"\nkind = "baseline"\n'
        '[[pool.replica]]\nurl = "http://127.0.0.1:9"\n'
        f'[[tenant]]\nname = "tester"\nkey_sha256 = ["{key_digest(KEY)}"]\n'
    )


def test_files_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    """A file that is missing, or holds no certificate, is a problem with its key path, not a defect at the first call."""
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("nothing")
    absent = config_for({"plain": ["https://127.0.0.1:9"]}, pools={"plain": {"tls_ca": str(tmp_path / "absent.pem")}})
    empty = config_for({"plain": ["https://127.0.0.1:9"]}, pools={"plain": {"tls_ca": str(nothing)}})
    server = config_for({"plain": ["http://127.0.0.1:9"]}, server={"tls_cert": str(nothing), "tls_key": str(nothing)})

    for config, where in ((absent, "pool[0]"), (empty, "pool[0]"), (server, "server.tls_cert")):
        (problem,) = tls.problems(config)
        assert problem.startswith(where)
    with pytest.raises(ConfigError, match=r"pool\[0\].tls_key: is missing"):
        config_for({"plain": ["https://127.0.0.1:9"]}, pools={"plain": {"tls_cert": "x"}})
    with pytest.raises(ConfigError, match=r"server.tls_cert: is missing; clients show certificates"):
        config_for({"plain": ["http://127.0.0.1:9"]}, server={"tls_client_ca": "x"})


@pytest.mark.parametrize("whose", [0o040, 0o004])
def test_files_that_others_could_change_or_read_are_told(whose: int, tmp_path: Path) -> None:
    """A configuration that the group or anyone may write, and keys that they may read, are warned of; well kept ones not."""
    path, key, own = tmp_path / "config.toml", tmp_path / "key.pem", tmp_path / "own.pem"
    for each in (path, key, own):
        each.write_text("x")
        each.chmod(0o600)
    config = config_for(
        {"plain": ["https://127.0.0.1:9"]},
        pools={"plain": {"tls_cert": "cert.pem", "tls_key": str(own)}},
        server={"tls_cert": "cert.pem", "tls_key": str(key)},
    )

    assert loose_files(path, config) == []
    path.chmod(0o600 | whose >> 1)
    for each in (key, own):
        each.chmod(0o600 | whose)
    told = [line.partition(":")[0] for line in loose_files(path, config)]
    assert told == [str(path), "server.tls_key", "pool[0].tls_key"]
