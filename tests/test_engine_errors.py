"""What an embedded engine refuses, and in which words."""

from __future__ import annotations

import pytest
from engines import ask, chat, engine

COUNT = "Count from 1 to 30."
STORY = "Tell me a story about a lighthouse."


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "JSON decode error"),
        (b"{", "JSON decode error"),
        (b"\xff", "JSON decode error"),
        (b"[" * 100_000, "JSON decode error"),
        (b"[]", "valid dictionary"),
        (b"{}", "Field required"),
        (b'{"messages": 5}', "valid list"),
        (b'{"messages": [5]}', "valid dictionary"),
        (b'{"messages": []}', "at least one message"),
        (b'{"messages": [{"content": "x"}]}', "Field required"),
        (b'{"messages": [{"role": "user", "content": 5}]}', "valid list"),
        (b'{"messages": [{"role": "user"}], "max_tokens": "5"}', "valid integer"),
        (b'{"messages": [{"role": "user"}], "max_tokens": 0}', "max_tokens must be at least 1"),
        (b'{"messages": [{"role": "user"}], "temperature": -1}', "temperature must be at least 0"),
        (b'{"messages": [{"role": "user"}], "temperature": "hot"}', "valid number"),
        (b'{"messages": [{"role": "user"}], "stream": "yes"}', "valid boolean"),
        (b'{"messages": [{"role": "user"}], "stop": [5]}', "valid string or list of strings"),
        (b'{"messages": [{"role": "user"}], "n": 1000}', "n must be at most 128"),
        (b'{"messages": [{"role": "user"}], "stream_options": {"include_usage": true}}', "when `stream=True`"),
        (b'{"messages": [{"role": "user"}], "response_format": {"type": "xml"}}', "json_schema"),
        (b'{"messages": [{"role": "user"}], "tool_choice": "required"}', "`tools` must be set"),
    ],
    ids=lambda value: value[:40].decode("latin-1") if isinstance(value, bytes) else None,
)
async def test_bad_requests(body: bytes, words: str):
    """What cannot be understood gets a 400 that says why, in vLLM's error object."""
    async with engine() as (_, client):
        response = await client.post("/v1/chat/completions", content=body)

    error = response.json()["error"]
    assert response.status_code == error["code"] == 400
    assert words in error["message"]


async def test_context_length():
    """A prompt and output that do not fit together get a 400 with the figures."""
    async with engine(max_model_len=100) as (_, client):
        output = await client.post("/v1/chat/completions", json=chat(COUNT, max_tokens=99))
        prompt = await client.post("/v1/chat/completions", json=chat("word " * 200))
        vast = await client.post("/v1/chat/completions", json=chat("x" * 10**7))
        rest = await ask(client, STORY)

    for response in (output, prompt, vast):
        assert response.status_code == 400
        assert "maximum context length is 100 tokens" in response.json()["error"]["message"]
    assert rest["usage"]["total_tokens"] == 100
    assert rest["choices"][0]["finish_reason"] == "length"


async def test_keys():
    """An engine started with a key wants it on its /v1 paths, and nowhere else."""
    async with engine(api_key="secret") as (_, client):
        statuses = [
            (await client.get("/v1/models", headers=headers)).status_code
            for headers in (
                {},
                {"authorization": "Bearer wrong"},
                {"authorization": "Bearer secret"},
                {"x-api-key": "secret"},
            )
        ]
        refused = await client.post("/v1/chat/completions", json=chat(COUNT))
        health = await client.get("/health")

    assert statuses == [401, 401, 200, 200]
    assert (refused.status_code, refused.json()) == (401, {"error": "Unauthorized"})
    assert health.status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
        ("HEAD", "/health", 200),
        ("HEAD", "/v1/models", 200),
        ("OPTIONS", "/v1/chat/completions", 200),
        ("DELETE", "/tokenize", 405),
    ],
)
async def test_methods(method: str, path: str, status: int):
    """Unknown paths are 404, wrong methods 405 with those allowed; HEAD has no body, OPTIONS says what is there."""
    async with engine() as (_, client):
        response = await client.request(method, path)

    assert response.status_code == status
    if status == 405 or method == "OPTIONS":
        assert response.headers["allow"]
    if method == "HEAD":
        assert response.content == b""


async def test_messages_errors_have_anthropics_shape():
    """On /v1/messages an error looks like one of Anthropic's."""
    async with engine() as (_, client):
        response = await client.post(
            "/v1/messages", json={"model": "demo", "messages": [{"role": "user", "content": "x"}]}
        )

    assert response.status_code == 400
    assert response.json()["type"] == "error"
    assert "Field required" in response.json()["error"]["message"]
