"""Example configurations for other gateways, run against a real gateway's advice where their language can be run here."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import lupa
import pytest
import pytest_asyncio
import yaml
from e2e.stack import COUNTING, STORY, Stack, chat, stack
from harness import KEY

from deploy.check.documents import DEPLOY
from gateway.api import ADVICE
from gateway.wire import ENDPOINTS

FOLDER = DEPLOY / "integrations"
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def brain() -> AsyncIterator[Stack]:
    """A gateway to ask."""
    async with stack() as serving:
        yield serving


async def said(brain: Stack) -> httpx.Response:
    """Return advice on one request."""
    return await brain.client.post(f"{ADVICE}/v1/chat/completions", json=chat(COUNTING))


async def test_envoy_asks_and_follows_what_is_answered(brain: Stack) -> None:
    """Its path prefix is the route's, every header that it takes over is in the answer, its routes cover both kinds of pool."""
    text = (FOLDER / "envoy.yaml").read_text(encoding="utf-8")
    (listener,) = yaml.safe_load(text)["static_resources"]["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    asking = manager["http_filters"][0]["typed_config"]
    service = asking["http_service"]
    answer = await said(brain)

    assert service["path_prefix"] == ADVICE
    taken = [pattern["exact"] for pattern in service["authorization_response"]["allowed_upstream_headers"]["patterns"]]
    assert [name for name in taken if name not in answer.headers] == []
    assert asking["clear_route_cache"]
    assert not asking["failure_mode_allow"]
    (host,) = manager["route_config"]["virtual_hosts"]
    kinds = {
        match["string_match"]["exact"]: route["route"]["cluster"]
        for route in host["routes"]
        for match in route["match"].get("headers", ())
    }
    assert kinds == {"speculative": "speculative", "baseline": "baseline"}
    assert "authorization" in manager["route_config"]["request_headers_to_remove"]


async def test_what_envoy_would_do_with_a_call(brain: Stack) -> None:
    """Sent as ext_authz sends it, a right call is allowed with its pool's kind and one without a key is denied."""
    sent = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    async with httpx.AsyncClient(base_url=brain.gateway.url) as envoy:
        body = json.dumps(chat(COUNTING)).encode()
        allowed = await envoy.post(f"{ADVICE}/v1/chat/completions", content=body, headers=sent)
        denied = await envoy.post(f"{ADVICE}/v1/chat/completions", content=body)

    assert (allowed.status_code, allowed.headers["x-draftlane-kind"]) == (200, "speculative")
    assert denied.status_code == 401


class Kong:
    """What Kong offers to a pre-function, as far as the example uses it; it remembers what was done."""

    def __init__(self, url: str, path: str, body: str, headers: dict[str, str]) -> None:
        self.url = url
        self.path = path
        self.body = body
        self.headers = headers
        self.upstream: str | None = None
        self.exited: tuple[int, Any] | None = None
        self.cleared: list[str] = []
        self.set: dict[str, str] = {}

    def request_uri(self, uri: str, method: str, body: str, headers: dict[str, str]) -> tuple[int, str, dict[str, str]]:
        """Send what resty.http would."""
        assert uri.startswith("http://draftlane:80/")
        with httpx.Client() as client:
            answer = client.request(method, uri.replace("http://draftlane:80", self.url), content=body, headers=headers)
        return answer.status_code, answer.text, dict(answer.headers)

    def exit(self, status: int, body: Any) -> None:
        """Remember how the call ended."""
        self.exited = (status, body)

    def set_upstream(self, name: str) -> None:
        """Remember where the call goes."""
        self.upstream = name

    def set_header(self, name: str, value: str) -> None:
        """Remember a header for the engine."""
        self.set[name] = value

    def clear_header(self, name: str) -> None:
        """Remember a header that the engine does not get."""
        self.cleared.append(name)


KONG = """
function run(host, code)
  package.loaded["resty.http"] = {new = function()
    return {
      set_timeout = function() end,
      request_uri = function(_, uri, options)
        local status, body, headers = host.request_uri(uri, options.method, options.body, python.builtins.dict(options.headers))
        return {status = status, body = body, headers = headers}, nil
      end,
    }
  end}
  kong = {
    request = {
      get_headers = function() return host.headers end,
      get_path = function() return host.path end,
      get_raw_body = function() return host.body end,
    },
    response = {exit = function(status, body) host.exit(status, body) end},
    service = {
      set_upstream = function(name) host.set_upstream(name) end,
      request = {
        set_header = function(name, value) host.set_header(name, value) end,
        clear_header = function(name) host.clear_header(name) end,
      },
    },
  }
  load(code)()
end
"""


def through_kong(url: str, body: dict[str, Any], headers: dict[str, str]) -> Kong:
    """Run the example's function on a call."""
    config = yaml.safe_load((FOLDER / "kong.yaml").read_text(encoding="utf-8"))
    (service,) = config["services"]
    (code,) = service["plugins"][0]["config"]["access"]
    host = Kong(url, "/v1/chat/completions", json.dumps(body), headers)
    given = lupa.as_attrgetter(host)
    host.headers = lupa.as_itemgetter(_Nilling(headers))  # type: ignore[assignment]
    lua = lupa.LuaRuntime(unpack_returned_tuples=True)
    lua.execute(KONG)
    lua.globals().run(given, code)
    return host


class _Nilling(dict[str, str]):
    """A table as Lua has it: what is not there is nil."""

    def __missing__(self, key: str) -> None:
        return None


@pytest.mark.parametrize(("prompt", "kind"), [(COUNTING, "speculative"), (STORY, "baseline")])
async def test_kong_sets_the_upstream_that_is_advised(brain: Stack, prompt: str, kind: str) -> None:
    """Its function, run by a real Lua, asks with the client's key and sends the call to that pool without the key."""
    key = {"authorization": f"Bearer {KEY}"}
    kong = await asyncio.to_thread(through_kong, brain.gateway.url, chat(prompt), key)
    config = yaml.safe_load((FOLDER / "kong.yaml").read_text(encoding="utf-8"))

    assert (kong.upstream, kong.exited) == (kind, None)
    assert kong.upstream in {upstream["name"] for upstream in config["upstreams"]}
    assert {"authorization", "x-api-key"} <= set(kong.cleared)
    assert set(config["services"][0]["routes"][0]["paths"]) == set(ENDPOINTS)


async def test_kong_passes_a_refusal_on(brain: Stack) -> None:
    """Without a key the client gets the advice's own 401, and no upstream is set."""
    kong = await asyncio.to_thread(through_kong, brain.gateway.url, chat(), {})

    assert kong.exited is not None
    assert kong.exited[0] == 401
    assert kong.upstream is None


LITELLM = """
import asyncio, json, sys
import draftlane_hook
data = json.loads(sys.argv[1])
print(json.dumps([asyncio.run(draftlane_hook.Router().async_pre_call_hook(None, None, one, sys.argv[2])) for one in data]))
"""


async def through_litellm(
    url: str, calls: list[dict[str, Any]], call_type: str = "acompletion"
) -> list[dict[str, Any]]:
    """Run the example's callback in a process of its own, beside a LiteLLM of which only the base class is there."""
    folder = DEPLOY.parent / "tests" / "litellm_stub"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        LITELLM,
        json.dumps(calls),
        call_type,
        env={**os.environ, "PYTHONPATH": f"{FOLDER}:{folder}", "DRAFTLANE_URL": url, "DRAFTLANE_KEY": KEY},
        stdout=subprocess.PIPE,
    )
    told, _ = await process.communicate()
    assert process.returncode == 0
    return json.loads(told)  # type: ignore[no-any-return]


async def test_litellm_calls_the_model_of_the_pool_that_is_advised(brain: Stack) -> None:
    """Its callback renames the model, keeps everything else, and leaves LiteLLM's own fields out of the question."""
    calls = [chat(COUNTING), {**chat(STORY), "metadata": {"user_api_key": "x"}}]
    predictable, open_ended = await through_litellm(brain.gateway.url, calls)

    assert predictable == {**chat(COUNTING), "model": "demo-speculative"}
    assert open_ended == {**calls[1], "model": "demo-baseline"}


async def test_litellm_leaves_calls_alone_that_get_no_advice(brain: Stack) -> None:
    """A call that is not scored, a model that is unknown, a gateway that is away: the call is made as it came."""
    unknown = chat(model="other")

    assert await through_litellm(brain.gateway.url, [chat()], "aembedding") == [chat()]
    assert await through_litellm(brain.gateway.url, [unknown]) == [unknown]
    assert await through_litellm("http://127.0.0.1:9", [chat()]) == [chat()]


async def test_litellms_models_are_those_that_the_callback_names() -> None:
    """For each kind of pool there is a model of that suffix, and the callback that is configured exists."""
    config = yaml.safe_load((FOLDER / "litellm.yaml").read_text(encoding="utf-8"))
    names = {entry["model_name"] for entry in config["model_list"]}

    assert names == {"qwen3-32b", "qwen3-32b-speculative", "qwen3-32b-baseline"}
    module, _, attribute = config["litellm_settings"]["callbacks"].partition(".")
    assert f"{attribute} = Router()" in (FOLDER / f"{module}.py").read_text(encoding="utf-8")
