"""guidellm's `benchmarks.json`: a report of benchmarks, each with its requests by status; read here, written beside.

Per request: `request_latency` in seconds, `time_to_first_token_ms`, tokens of the server's usage, events
(`info.timings.token_iterations`) and, since 0.7, vLLM's own metrics. Its `time_per_output_token_ms` includes the first
token; TPOT here does not. Requests with the same body are the same prompt, so two reports can be paired by bodies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.measure.load.sample import Sample
from gateway.measure.paired.formats.fields import Fields, FormatError, Keyed, Loaded, decode

OURS: Final = "draftlane"
_NOT_PROMPT: Final = ("model", "stream", "stream_options", "user")
_STATUSES: Final = ("successful", "errored", "incomplete")


def recognised(value: object) -> bool:
    """Whether a JSON value is such a report."""
    return isinstance(value, dict) and "benchmarks" in value


def read(path: Path, content: bytes, target: str) -> Loaded:
    """Read a report that has one benchmark.

    Raises:
        FormatError: it has several, none, or a field is missing or wrong.
    """
    report = Fields.of(path, "", decode(path, content))
    benchmarks = list(report.objects("benchmarks"))
    if len(benchmarks) != 1:
        raise report.fail(
            "benchmarks", f"{len(benchmarks)} of them; name a report of one, so that it is clear which one counts"
        )
    (benchmark,) = benchmarks
    entries = list(_entries(benchmark))
    prompts = [_prompt(entry) for entry, _ in entries]
    keyed: Keyed = "id" if all(prompts) else ""
    samples: list[Sample] = []
    texts: dict[tuple[int, str, int], str] = {}
    seen: Counter[tuple[int, str]] = Counter()
    for place, ((entry, status), known) in enumerate(zip(entries, prompts, strict=True), 1):
        prompt = known if keyed and known else (place, f"request-{place}")
        samples.append(_sample(entry, target, status, prompt, seen[prompt]))
        seen[prompt] += 1
        if (text := entry.text("output")) and samples[-1].ok:
            texts[*prompt, samples[-1].repeat] = text
    return Loaded(
        path=path,
        format="guidellm",
        samples=tuple(samples),
        concurrency=_concurrency(benchmark),
        keyed=keyed,
        texts=texts or None,
    )


def _entries(benchmark: Fields) -> Iterator[tuple[Fields, str]]:
    """Return the requests with what became of them."""
    requests = benchmark.under("requests")
    if requests is None:
        raise benchmark.fail("requests", "missing; run guidellm without limiting the requests that it keeps")
    statuses = [status for status in _STATUSES if requests.values.get(status)]
    if not statuses:
        raise requests.fail("successful", "no request; run guidellm without limiting the requests that it keeps")
    for status in statuses:
        for entry in requests.objects(status):
            yield entry, status


def _concurrency(benchmark: Fields) -> int | None:
    config = benchmark.under("config")
    strategy = None if config is None else config.under("strategy")
    if strategy is None:
        return None
    return 1 if strategy.text("type_") == "synchronous" else strategy.count("streams")


def _prompt(entry: Fields) -> tuple[int, str] | None:
    """Return a line and a name of a request's prompt that another run gives it too; None where the report holds no bodies."""
    ours = entry.under(OURS)
    if ours is not None:
        return ours.count("line") or 0, ours.text("id") or ""
    arguments = entry.text("request_args")
    if not arguments:
        return None
    value = decode(entry.path, arguments.encode("utf-8", "surrogatepass"), f"{entry.place}: request_args")
    body = value.get("body") if isinstance(value, dict) else None
    if not isinstance(body, dict):
        return None
    return 0, sha256(msgspec.json.encode(_kept(body), order="sorted")).hexdigest()[:16]


def _kept(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in _NOT_PROMPT}


def _sample(entry: Fields, target: str, status: str, prompt: tuple[int, str], repeat: int) -> Sample:
    info = entry.under("info")
    timings = None if info is None else info.under("timings")
    ttft = entry.maybe("time_to_first_token_ms")
    tokens = entry.count("output_tokens")
    whole = status == "successful"
    e2e = entry.maybe("request_latency")
    if whole and e2e is None:
        raise entry.fail("request_latency", "missing; expected seconds")
    events = (timings.count("token_iterations") if timings is not None else None) or 0
    length, source = _acceptance(entry, tokens, events) if whole else (None, None)
    problem = (info.text("error") if info is not None else None) or status
    text = entry.text("output")
    found = Sample(
        line=prompt[0],
        id=prompt[1],
        target=target,
        repeat=repeat,
        started=entry.maybe("request_start_time", "start_time") or 0.0,
        status=200 if whole else 0,
        error=None if whole else f"guidellm: {problem}",
        ttft_seconds=None if ttft is None else ttft / 1000,
        e2e_seconds=e2e or 0.0,
        prompt_tokens=entry.count("prompt_tokens"),
        completion_tokens=tokens,
        events=events,
        acceptance_length=length,
        acceptance_source=source,
        output_sha256=sha256(text.encode("utf-8", "surrogatepass")).hexdigest() if text and whole else "",
    )
    return found if (ours := entry.under(OURS)) is None else _ours(ours, found)


def _ours(ours: Fields, found: Sample) -> Sample:
    """Take back what this project's own writer put beside guidellm's fields."""
    return msgspec.structs.replace(
        found,
        repeat=ours.count("repeat") or 0,
        category=ours.text("category") or "",
        status=ours.count("status") or 0,
        cost_usd=ours.maybe("cost_usd"),
        output_sha256=ours.text("output_sha256") or "",
        acceptance_length=ours.maybe("acceptance_length"),
        acceptance_source=ours.text("acceptance_source"),
    )


def _acceptance(entry: Fields, tokens: int | None, events: int) -> tuple[float | None, Any]:
    metrics = entry.under("response_metrics")
    speculative = None if metrics is None else metrics.under("speculative_decoding")
    accepted = None if speculative is None else speculative.count("num_accepted_draft_tokens")
    if tokens and accepted is not None and accepted < tokens:
        return tokens / (tokens - accepted), "engine"
    if tokens and 1 < events <= tokens:
        return (tokens - 1) / (events - 1), "events"
    return None, None


__all__ = ["FormatError", "read", "recognised"]
