"""Engines looked at by every rule: each alone, and those of one manifest beside each other. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gateway.measure.doctor import flags, neuron
from gateway.measure.doctor.finding import Checkup, Finding
from gateway.measure.doctor.flags import Calls, Engine
from gateway.measure.doctor.serving import Serving

# What pools of one model may differ in.
_OWN: Final = frozenset(
    {
        "--speculative-config",
        "--per-request-spec-decode-metrics",
        "--port",
        "--override-neuron-config",
        "--additional-config",
    }
)


def inspect(
    servings: Sequence[Serving], *, compiled: Mapping[str, Any] | None = None, calls: Calls | None = None
) -> list[Checkup]:
    """Look at engines one by one, and at what must hold between them."""
    engines = [flags.engine(serving, compiled=compiled, calls=calls) for serving in servings]
    between = (differ_in_speculation_alone(engines), neuron.artefacts_are_not_shared(engines))
    return [*(_alone(one) for one in engines), *(one for one in between if one is not None)]


def _alone(one: Engine) -> Checkup:
    """Look at one engine by every rule."""
    serving = one.serving
    findings = tuple(found for rule in (*flags.RULES, *neuron.RULES) for found in rule(one))
    window = one.window
    facts = {
        "release": one.release.name,
        "release_guessed": one.guessed,
        "image": serving.image,
        "model": one.command.model,
        "speculative": window is not None,
        "window": window,
        "most_tokens_per_step": None if window is None else flags.most_per_step(one),
        "flags": {name: value for name, value in one.command.values.items() if name != "--api-key"},
        "environment": {
            name: value for name, value in serving.env.items() if "KEY" not in name and "TOKEN" not in name
        },
    }
    return Checkup("flags", serving.where, findings or (Finding("ok", "flags", "nothing contradicts"),), facts)


def differ_in_speculation_alone(engines: Sequence[Engine]) -> Checkup | None:
    """Compare the pools of one model: a fair pair differs in speculation and artefacts alone; None where there is no pair."""
    plain = [one for one in engines if not one.speculation]
    fast = [one for one in engines if one.speculation]
    if len(plain) != 1 or len(fast) != 1:
        return None
    mine, others = plain[0].command.values, fast[0].command.values
    found = [
        Finding(
            "warn",
            name,
            f"is {mine.get(name, 'not set')} of baseline and {others.get(name, 'not set')} of speculative",
            "what is compared then is not speculation alone",
        )
        for name in sorted((mine.keys() | others.keys()) - _OWN)
        if mine.get(name) != others.get(name)
    ]
    if plain[0].command.model != fast[0].command.model:
        found.append(
            Finding("fix", "model", f"is {plain[0].command.model} and {fast[0].command.model}", "serve one target")
        )
    if plain[0].serving.image != fast[0].serving.image:
        found.append(Finding("warn", "image", f"is {plain[0].serving.image} and {fast[0].serving.image}", "use one"))
    subject = f"{plain[0].serving.where} beside {fast[0].serving.where}"
    return Checkup("pair", subject, tuple(found) or (Finding("ok", "flags", "differ in speculation alone"),))
