"""Builders for routing tests: pools, scores, asks and curves with sensible defaults."""

from __future__ import annotations

from typing import Any

from classifier.scorer import Score
from gateway.routing import FEATURES, Ask, Curves, Needs, PoolView, Settings

NOW = 1_800_000_000.0
REFERENCE = (1.5, 1.8, 2.0, 2.2, 2.4, 2.6, 2.9, 3.2, 4.0, 5.5)
ALL = frozenset(FEATURES)
NOTHING = Needs(frozenset(), 100, None, 0.0)


def baseline(**changes: Any) -> PoolView:
    """An idle baseline pool: four slots, 45 ms a step."""
    facts: dict[str, Any] = {
        "name": "base",
        "speculative": False,
        "window": 1,
        "drafter": None,
        "revision": "base-1",
        "supports": ALL,
        "max_model_len": None,
        "slots": 4,
        "running": 0,
        "queued": 0,
        "live_replicas": 1,
        "step_seconds": 0.045,
        "ttft_seconds": 0.1,
        "price_per_slot_second": 0.001,
    }
    return PoolView(**(facts | changes))


def speculative(**changes: Any) -> PoolView:
    """An idle speculative pool: window 7, four slots, 105 ms a step, so that it breaks even at 2.33."""
    facts: dict[str, Any] = {
        "name": "spec",
        "speculative": True,
        "window": 7,
        "drafter": "draft_model",
        "revision": "spec-1",
        "step_seconds": 0.105,
    }
    return baseline(**(facts | changes))


def score(value: float = 0.5, *, tokens: float = 200.0, ngram: float = 1.2) -> Score:
    """A score at a place on the curve."""
    return Score(value, 2.5, 0.3, ngram, tokens)


def ask(**changes: Any) -> Ask:
    """A plain greedy call of one tenant, without template, that may not explore."""
    facts: dict[str, Any] = {
        "model": "demo",
        "tenant": "acme",
        "policy": "auto",
        "route": None,
        "cost_weight": 0.5,
        "explore": False,
        "needs": NOTHING,
        "score": score(),
        "template": "",
    }
    return Ask(**(facts | changes))


def curves(**dials: Any) -> Curves:
    """Curves that have learned nothing, of a pool that is known."""
    made = Curves(REFERENCE, Settings(**dials))
    made.of(speculative())
    return made


def teach(made: Curves, *, m: float, calls: int = 20, now: float = NOW, every: float = 1.0, **facts: Any) -> float:
    """Let the speculative pool finish calls at acceptance length `m`; returns the time of the last."""
    known: dict[str, Any] = {
        "revision": "spec-1",
        "temperature": 0.0,
        "tenant": "acme",
        "model": "demo",
        "template": "",
        "score": score(),
        "steps": 60.0,
    }
    for index in range(calls):
        made.observe(**(known | facts), m=m, now=now + index * every)
    return now + (calls - 1) * every


def expected(made: Curves, *, now: float = NOW, pool: PoolView | None = None, **facts: Any) -> float:
    """The acceptance length that is believed of a call on the speculative pool."""
    known: dict[str, Any] = {"score": score(), "temperature": 0.0, "tenant": "acme", "model": "demo", "template": ""}
    return made.expected(pool or speculative(), **(known | facts), now=now).mean
