"""A visit to a running engine: what it says of itself, how it answers a few prompts, and what its counters did meanwhile.

Some twenty short requests, one after another; nothing is judged here, see `live`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import msgspec

from gateway import figures, sse
from gateway.figures import Figures

# Predictable ones first: where a draft is any good, these show whole windows accepted.
PROMPTS: Final = (
    "Count from 1 to 60, one number per line.",
    "Write the line 'the kettle is on the stove' twelve times, nothing else.",
    "Write a JSON list of ten objects with the keys id, colour and size.",
    "Write a Python function that returns the median of a list of numbers.",
    "Explain in plain words why bread rises.",
    "Tell a short story about a clockmaker who lost an hour hand.",
)
ANSWER_TOKENS: Final = 64
_HOT: Final = 1.5  # a temperature at which two answers to an open prompt are the same only if it is ignored
_SEEDS: Final = (1, 2, 3)
_TRIED: Final[Mapping[str, Mapping[str, Any]]] = {
    "min_p": {"min_p": 0.1, "temperature": 1.0},  # at temperature 0 vLLM drops it unseen
    "logit_bias": {"logit_bias": {"5": 1}},
    "structured_output": {"response_format": {"type": "json_object"}},
    "penalties": {"presence_penalty": 0.5},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "n": {"n": 2, "temperature": 1.0},
}
_TEXT: Final = "A tokenizer cuts naïve text: 1234 + x_y == {}\n\tinto pieces."


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """One streamed answer at temperature 0: its text, and the tokens of each event where the engine tells them."""

    text: str
    tokens: int
    events: int
    per_event: tuple[int, ...] = ()  # after the first, which is the prefill's
    window: int | None = None  # as the engine's own metrics say
    error: str = ""

    @property
    def per_step(self) -> float | None:
        """Tokens per event, the first and its token left out."""
        return (self.tokens - 1) / (self.events - 1) if self.events > 1 and self.tokens > 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """All that was seen of one engine; `trouble` is why nothing was, `gateway` that a Draftlane answered in its place."""

    url: str
    trouble: str = ""
    version: str | None = None
    models: Mapping[str, int | None] = field(default_factory=dict)  # name → max_model_len
    model: str = ""
    spoken: tuple[Spoken, ...] = ()
    hot: tuple[str, ...] = ()
    taken: Mapping[str, int] = field(default_factory=dict)  # feature → status of a call that needs it
    before: Figures | None = None
    after: Figures | None = None
    token_ids: tuple[int, ...] | None = None
    gateway: bool = False

    @property
    def max_model_len(self) -> int | None:
        """Tokens of prompt and answer together; None where it does not say."""
        return self.models.get(self.model)


class _Visitor:
    """Speaks with one engine."""

    def __init__(self, client: httpx.AsyncClient, url: str, model: str | None, key: str | None) -> None:
        self._client = client
        self._url = url.rstrip("/").removesuffix("/v1")
        self._model = model or ""
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self.gateway = False

    async def run(self) -> Visit:
        models = await self._models()
        if not self._model:
            self._model = next(iter(models), "")
        before = await self._counters()
        spoken = [await self._speak(prompt) for prompt in PROMPTS]
        return Visit(
            url=self._url,
            version=await self._version(),
            models=models,
            model=self._model,
            spoken=tuple(spoken),
            hot=tuple([await self._hot(seed) for seed in _SEEDS]),
            before=before,
            after=await self._counters(),
            taken={name: await self._try(fields) for name, fields in _TRIED.items()},
            token_ids=await self._tokens(),
            gateway=self.gateway,
        )

    async def _get(self, path: str) -> httpx.Response:
        return await self._client.get(self._url + path, headers=self._headers)

    async def _ask(self, prompt: str, tokens: int, **fields: Any) -> httpx.Response:
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "temperature": 0,
            **fields,
        }
        answer = await self._client.post(self._url + "/v1/chat/completions", json=body, headers=self._headers)
        self.gateway = self.gateway or "x-draftlane-pool" in answer.headers
        return answer

    async def _models(self) -> dict[str, int | None]:
        answer = await self._get("/v1/models")
        answer.raise_for_status()
        return {str(one["id"]): one.get("max_model_len") for one in answer.json()["data"]}

    async def _version(self) -> str | None:
        found = _object((await self._get("/version")).content).get("version")
        return str(found) if found else None

    async def _counters(self) -> Figures | None:
        answer = await self._get("/metrics")
        try:
            return figures.read(answer.text, time.monotonic()) if answer.status_code == 200 else None
        except ValueError:
            return None

    async def _speak(self, prompt: str) -> Spoken:
        options = {"include_usage": True, "continuous_usage_stats": True}
        answer = await self._ask(prompt, ANSWER_TOKENS, stream=True, stream_options=options)
        if answer.status_code != 200:
            return Spoken(text="", tokens=0, events=0, error=f"HTTP {answer.status_code}: {answer.text[:200]}")
        return spoken(answer.content)

    async def _hot(self, seed: int) -> str:
        answer = await self._ask(PROMPTS[-1], ANSWER_TOKENS, temperature=_HOT, seed=seed)
        return text_of(_object(answer.content))

    async def _try(self, fields: Mapping[str, Any]) -> int:
        return (await self._ask(PROMPTS[-1], 2, **fields)).status_code

    async def _tokens(self) -> tuple[int, ...] | None:
        answer = await self._client.post(
            self._url + "/tokenize", json={"model": self._model, "prompt": _TEXT}, headers=self._headers
        )
        ids = _object(answer.content).get("tokens") if answer.status_code == 200 else None
        return tuple(ids) if isinstance(ids, list) else None


async def visit(client: httpx.AsyncClient, url: str, *, model: str | None = None, key: str | None = None) -> Visit:
    """Visit an engine; what keeps it from answering is told in the visit, never raised."""
    visitor = _Visitor(client, url, model, key)
    try:
        return await visitor.run()
    except httpx.HTTPStatusError as error:
        return Visit(url=url, trouble=f"HTTP {error.response.status_code} for {error.request.url.path}")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return Visit(url=url, trouble=str(error) or type(error).__name__)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return Visit(url=url, trouble=f"answers are not those of an engine ({error!r})")


def spoken(stream: bytes) -> Spoken:
    """Read a whole stream of chat events."""
    texts: list[str] = []
    counts: list[int] = []
    events, tokens, told, window = 0, 0, False, None
    for event in sse.events(stream):
        found = _object(sse.data_of(event))
        usage = found.get("usage") or {}
        if "error" in found:
            return Spoken(text="".join(texts), tokens=tokens, events=events, error=str(found["error"])[:200])
        total = usage.get("completion_tokens", tokens) if isinstance(usage, Mapping) else tokens
        speculation = (found.get("metrics") or {}).get("speculative_decoding") or {}
        window = speculation.get("num_spec_tokens", window)
        piece = text_of(found)
        if found.get("choices") and (piece or total > tokens or _ends(found)):
            texts.append(piece)
            told = told or bool(usage)
            if total > tokens or not usage:
                events += 1
                counts.append(total - tokens)
        tokens = total
    return Spoken(
        text="".join(texts),
        tokens=tokens,
        events=events,
        per_event=tuple(counts[1:]) if told else (),
        window=window,
    )


def text_of(found: Mapping[str, Any]) -> str:
    """Return the text of the first choice, whole or a piece of it."""
    for choice in found.get("choices") or ():
        said = choice.get("delta") or choice.get("message") or {}
        return str(said.get("content") or "")
    return ""


def _ends(found: Mapping[str, Any]) -> bool:
    return any(choice.get("finish_reason") for choice in found["choices"])


def _object(data: bytes) -> dict[str, Any]:
    """Return a JSON object; an empty one for anything else."""
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
