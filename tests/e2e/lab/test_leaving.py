"""Clients that leave: the work ends inside vLLM, which its own metrics show."""

from __future__ import annotations

import json
import socket
from urllib.parse import urlsplit

import pytest

from e2e.lab.stand import SECONDS, STORY, Engine, Front, chat, until
from gateway.measure.lab.front import KEY

pytestmark = pytest.mark.timeout(SECONDS)
TOKENS = 2000  # more than a minute's work


@pytest.mark.parametrize("stream", [True, False], ids=["sse", "json"])
@pytest.mark.parametrize("pool", ["speculative", "baseline"])
def test_a_client_that_leaves_ends_the_work_in_vllm(
    front: Front, baseline: Engine, speculative: Engine, pool: str, *, stream: bool
) -> None:
    """While an answer of 2,000 tokens runs its client hangs up: soon vLLM runs nothing any more, far from the end."""
    engine = baseline if pool == "baseline" else speculative
    written = engine.told("vllm:generation_tokens_total")
    body = json.dumps(chat(STORY, max_tokens=TOKENS, ignore_eos=True, stream=stream)).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: lab\r\nauthorization: Bearer {KEY}\r\n"
        f"x-draftlane-route: {pool}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", urlsplit(front.url).port or 0)) as client:
        client.sendall(head.encode() + body)
        until(lambda: engine.told("vllm:generation_tokens_total") > written + 8, 30, "the call runs")
        assert engine.told("vllm:num_requests_running") == 1
    until(lambda: engine.told("vllm:num_requests_running") == 0, 10, "the call has ended")
    written = engine.told("vllm:generation_tokens_total") - written

    assert 8 < written < TOKENS / 2
    assert engine.told("vllm:num_requests_waiting") == 0
    until(lambda: front.pool(pool)["running"] == 0, 5, "the gateway holds nothing")
    assert [line["outcome"] for line in front.lines()][-1] == "client_gone"
