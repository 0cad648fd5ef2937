"""What the engine counts, in Prometheus text under vLLM's names of three generations.

`current` is 0.12 and later; `v0.11` says `time_per_output_token_seconds` for the step time; `v0` (0.9.1 on the Neuron fork)
says `gpu_cache_usage_perc` besides, and its speculation counts emitted tokens instead of drafts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from gateway.engine.sequence import Finish, Sequence, Step
from gateway.engine.settings import EngineSettings

# Bounds as in vllm/v1/metrics/buckets.py.
_TTFT = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
    2560,
)
_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10, 20, 40, 80)
_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000)
_BLOCK = 16  # tokens in a block of the KV cache


class Histogram:
    """Counts by bucket, and a sum."""

    __slots__ = ("_bounds", "_counts", "count", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.count = 0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value
        self.count += 1

    def lines(self, name: str, labels: str) -> Iterator[str]:
        """Yield the samples."""
        total = 0
        for bound, count in zip((*map(float, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {total}'
        yield f"{name}_sum{{{labels}}} {self.sum}"
        yield f"{name}_count{{{labels}}} {self.count}"


class Metrics:
    """The engine's counters; it is the batch's watcher."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.success: dict[str, int] = {"stop": 0, "length": 0, "abort": 0, "error": 0}
        self.drafts = 0
        self.draft_tokens = 0
        self.accepted_tokens = 0
        self.accepted_per_pos = [0] * settings.window
        self.ttft = Histogram(_TTFT)
        self.itl = Histogram(_ITL)
        self.e2e = Histogram(_LATENCY)
        self.queue = Histogram(_LATENCY)
        self.prefill = Histogram(_LATENCY)
        self.decode = Histogram(_LATENCY)
        self.tpot = Histogram(_ITL)
        self.prompt_length = Histogram(_TOKENS)
        self.generation_length = Histogram(_TOKENS)

    def first(self, sequence: Sequence, step: Step) -> None:
        """Count a prefill and the token that it yields."""
        self.prompt_tokens += sequence.tally.prompt
        self.generation_tokens += step.tokens
        self.ttft.observe(sequence.first_token - sequence.submitted)

    def stepped(self, step: Step, seconds: float) -> None:
        """Count a verification step that took `seconds`."""
        self.generation_tokens += step.tokens
        self.itl.observe(seconds)
        if step.drafted:
            self.drafts += 1
            self.draft_tokens += step.drafted
            self.accepted_tokens += step.accepted
            for position in range(step.accepted):
                self.accepted_per_pos[position] += 1

    def finished(self, sequence: Sequence, finish: Finish, now: float) -> None:
        """Count an ended sequence; the latencies are those of sequences that got a token."""
        self.success[finish] += 1
        tally = sequence.tally
        if not tally.tokens:
            return
        self.e2e.observe(now - sequence.submitted)
        self.queue.observe(sequence.admitted - sequence.submitted)
        self.prefill.observe(sequence.first_token - sequence.admitted)
        self.decode.observe(now - sequence.first_token)
        if tally.tokens > 1:
            self.tpot.observe((now - sequence.first_token) / (tally.tokens - 1))
        self.prompt_length.observe(tally.prompt)
        self.generation_length.observe(tally.tokens)

    def render(self, running: int, waiting: int, cached: int) -> bytes:
        """Return the exposition text; `cached` counts the tokens of all running sequences."""
        style = self._settings.metrics_style
        model = f'model_name="{self._settings.model}"'
        labels = model if style == "v0" else f'engine="0",{model}'
        blocks = self._settings.slots * -(-self._settings.max_model_len // _BLOCK)
        usage = min(1.0, -(-cached // _BLOCK) / blocks)
        lines = [*self._gauges(labels, running, waiting, usage), *self._counters(labels)]
        if self._settings.speculative and self._settings.spec_counters:
            lines.extend(self._speculation_v0(labels) if style == "v0" else self._speculation(labels))
        for name, histogram in self._histograms():
            lines.append(f"# TYPE {name} histogram")
            lines.extend(histogram.lines(name, labels))
        return ("\n".join(lines) + "\n").encode()

    def _gauges(self, labels: str, running: int, waiting: int, usage: float) -> Iterator[str]:
        cache = "vllm:gpu_cache_usage_perc" if self._settings.metrics_style == "v0" else "vllm:kv_cache_usage_perc"
        for name, value in (
            ("vllm:num_requests_running", running),
            ("vllm:num_requests_waiting", waiting),
            (cache, usage),
        ):
            yield f"# TYPE {name} gauge"
            yield f"{name}{{{labels}}} {float(value)}"

    def _counters(self, labels: str) -> Iterator[str]:
        yield from _counter("vllm:prompt_tokens_total", labels, self.prompt_tokens)
        yield from _counter("vllm:generation_tokens_total", labels, self.generation_tokens)
        yield "# TYPE vllm:request_success_total counter"
        for reason, count in self.success.items():
            yield f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {float(count)}'

    def _speculation(self, labels: str) -> Iterator[str]:
        yield from _counter("vllm:spec_decode_num_drafts_total", labels, self.drafts)
        yield from _counter("vllm:spec_decode_num_draft_tokens_total", labels, self.draft_tokens)
        yield from _counter("vllm:spec_decode_num_accepted_tokens_total", labels, self.accepted_tokens)
        yield "# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter"
        for position, count in enumerate(self.accepted_per_pos):
            name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            yield f'{name}{{{labels},position="{position}"}} {float(count)}'

    def _speculation_v0(self, labels: str) -> Iterator[str]:
        yield from _counter("vllm:spec_decode_num_draft_tokens_total", labels, self.draft_tokens)
        yield from _counter("vllm:spec_decode_num_accepted_tokens_total", labels, self.accepted_tokens)
        yield from _counter("vllm:spec_decode_num_emitted_tokens_total", labels, self.accepted_tokens + self.drafts)
        rate = self.accepted_tokens / self.draft_tokens if self.draft_tokens else 0.0
        yield "# TYPE vllm:spec_decode_draft_acceptance_rate gauge"
        yield f"vllm:spec_decode_draft_acceptance_rate{{{labels}}} {rate}"

    def _histograms(self) -> Iterator[tuple[str, Histogram]]:
        step = "inter_token_latency" if self._settings.metrics_style == "current" else "time_per_output_token"
        yield "vllm:time_to_first_token_seconds", self.ttft
        yield f"vllm:{step}_seconds", self.itl
        yield "vllm:e2e_request_latency_seconds", self.e2e
        yield "vllm:request_queue_time_seconds", self.queue
        yield "vllm:request_prefill_time_seconds", self.prefill
        yield "vllm:request_decode_time_seconds", self.decode
        if self._settings.metrics_style == "current":
            yield "vllm:request_time_per_output_token_seconds", self.tpot
        yield "vllm:request_prompt_tokens", self.prompt_length
        yield "vllm:request_generation_tokens", self.generation_length


def _counter(name: str, labels: str, value: float) -> Iterator[str]:
    yield f"# TYPE {name} counter"
    yield f"{name}{{{labels}}} {float(value)}"
