"""Time what every call pays in this process, apart from its bytes: one JSON line per step, in microseconds.

Each step runs many times in several rounds; the least disturbed round counts, with the spread to the median one.
"""

from __future__ import annotations

import json
import statistics
import time
import timeit
from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry

from gateway.config import Config, key_digest, parse
from gateway.metrics import Metrics
from gateway.record import Finished
from gateway.routing import REASONS
from gateway.tenants import Tenants

ROUNDS: Final = 7
TIMES: Final = 20_000

# The headers that OpenAI's Python client sends.
HEADERS: Final = [
    (b"host", b"127.0.0.1:8080"),
    (b"accept-encoding", b"gzip, deflate"),
    (b"connection", b"keep-alive"),
    (b"accept", b"application/json"),
    (b"content-type", b"application/json"),
    (b"user-agent", b"OpenAI/Python 1.60.0"),
    (b"x-stainless-lang", b"python"),
    (b"x-stainless-async", b"false"),
    (b"authorization", b"Bearer key"),
    (b"content-length", b"1800"),
]


def _config() -> Config:
    pool = {"model": "demo", "price_per_hour": 17.88, "embedded": {}}
    return parse(
        {
            "model": [{"name": "demo"}],
            "pool": [
                {"name": "speculative", "kind": "speculative", "window": 7, **pool},
                {"name": "baseline", "kind": "baseline", **pool},
            ],
            "tenant": [
                {
                    "name": "demo",
                    "key_sha256": [key_digest("key")],
                    "max_concurrent": 100,
                    "requests_per_minute": 1_000_000_000,
                    "tokens_per_minute": 1_000_000_000_000,
                }
            ],
        },
        env={},
    )


def _record() -> Finished:
    return Finished(
        request_id="req-0123456789abcdef",
        time=time.time(),
        endpoint="chat",
        tenant="demo",
        model="demo",
        stream=True,
        status=200,
        outcome="ok",
        pool="speculative",
        speculative=True,
        reason="predictable",
        score=0.8,
        expected=4.1,
        acceptance=3.9,
        source="events",
        prompt_tokens=120,
        completion_tokens=300,
        usage_source="engine",
        duration=8.2,
        ttft=0.11,
        overhead={"parse": 12e-6, "score": 40e-6, "plan": 30e-6, "total": 150e-6},
        slot_seconds=8.1,
        cost_usd=0.01,
        counterfactual={"baseline": 0.017, "speculative": 0.01},
    )


def steps() -> dict[str, Callable[[], object]]:
    """Return the timed steps by name."""
    config = _config()
    tenants = Tenants(config, {})
    tenant = tenants.identify(HEADERS)
    metrics = Metrics(CollectorRegistry(), config, reasons=REASONS)
    record = _record()

    def admit() -> None:
        admission = tenants.admit(tenant, model="demo", tokens=420, now=time.monotonic())
        admission.settle(380, 0.0, 0.0)
        admission.release()

    return {
        "identify": lambda: tenants.identify(HEADERS),
        "admit, settle, release": admit,
        "metrics.finished": lambda: metrics.finished(record),
    }


def main() -> None:
    """Time every step and print it."""
    for name, step in steps().items():
        rounds = sorted(took / TIMES * 1e6 for took in timeit.repeat(step, number=TIMES, repeat=ROUNDS))
        print(
            json.dumps(
                {"step": name, "least_us": round(rounds[0], 2), "median_us": round(statistics.median(rounds), 2)}
            )
        )


if __name__ == "__main__":
    main()
