"""Flags of an engine that contradict each other, its image, its artefacts or what callers will ask of it. Pure.

Each rule takes an engine and yields findings; it says nothing where it does not apply. Those of Neuron are in `neuron`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.measure.doctor.command import Command, read_as
from gateway.measure.doctor.finding import Finding
from gateway.measure.doctor.releases import NATIVE, PLUGIN, RELEASES, STOCK, V0, Release, of_image
from gateway.measure.doctor.serving import Serving

_OLD: Final = ("--speculative-model", "--num-speculative-tokens", "--speculative-max-model-len")
_LARGEST_WINDOW: Final = 15  # of the study; beyond it early rejections waste nearly all that is drafted


@dataclass(frozen=True, slots=True)
class Calls:
    """What callers will ask for, where it is known, in tokens."""

    prompt_tokens: int | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine whose flags have been read as its image's vLLM would; `compiled` is the neuron_config.json of its artefacts."""

    serving: Serving
    release: Release
    guessed: bool
    command: Command
    compiled: Mapping[str, Any] | None = None
    calls: Calls = field(default_factory=Calls)

    @property
    def speculation(self) -> Mapping[str, Any]:
        """Its speculative configuration, empty without."""
        found = self.command.values.get("--speculative-config")
        return found if isinstance(found, Mapping) else {}

    @property
    def window(self) -> int | None:
        """Drafted tokens per step; None without speculation."""
        found = self.speculation.get("num_speculative_tokens")
        return found if isinstance(found, int) else None

    @property
    def neuron(self) -> bool:
        """Whether it runs on Neuron."""
        return self.release is not STOCK

    def number(self, flag: str) -> int | None:
        """Return a flag's number; None where it is not given."""
        found = self.command.values.get(flag)
        return found if isinstance(found, int) and not isinstance(found, bool) else None

    def additional(self, name: str) -> Mapping[str, Any] | None:
        """Return a part of --additional-config; None where it is not there."""
        config = self.command.values.get("--additional-config")
        found = config.get(name) if isinstance(config, Mapping) else None
        return found if isinstance(found, Mapping) else None

    @property
    def neuron_config(self) -> Mapping[str, Any]:
        """The configuration of NxD Inference, from wherever it stands, empty without."""
        old = self.command.values.get("--override-neuron-config")
        for found in (old, self.additional("override_neuron_config"), self.additional("neuron_config")):
            if isinstance(found, Mapping):
                return found
        return {}


Rule = Callable[[Engine], Iterator[Finding]]


def engine(serving: Serving, *, compiled: Mapping[str, Any] | None = None, calls: Calls | None = None) -> Engine:
    """Read a command line by the release that its image has, or that its flags look like."""
    named = of_image(serving.image)
    release = named or guess(serving)
    return Engine(serving, release, named is None, read_as(serving.args, release), compiled, calls or Calls())


def guess(serving: Serving) -> Release:
    """Return the release that flags and variables belong to."""
    flags = " ".join(serving.args)
    if "--override-neuron-config" in flags or serving.env.get("VLLM_USE_V1") == "0":
        return V0
    if '"override_neuron_config"' in flags:
        return PLUGIN
    if '"neuron_config"' in flags:
        return NATIVE
    return PLUGIN if any("NEURON" in name for name in serving.env) else STOCK


def most_per_step(one: Engine) -> int:
    """Return the most tokens that a verification step can emit: NxD Inference drafts k and uses k − 1 of them."""
    window = one.window or 0
    return window if one.release in (V0, PLUGIN) else window + 1


def is_taken(one: Engine) -> Iterator[Finding]:
    """What its vLLM would not take, and what only this table does not know."""
    if one.guessed:
        yield Finding(
            "note",
            "image",
            f"is not told; read as {one.release.name}, as flags and variables look",
            "name it with --image",
        )
    for flag, problem in one.command.unknown.items():
        owners = [other.name for other in RELEASES if flag in other.flags]
        if flag in _OLD:
            yield Finding(
                "fix",
                flag,
                "is gone from vLLM",
                'use --speculative-config \'{"model": …, "num_speculative_tokens": …}\'',
            )
        elif owners:
            yield Finding(
                "fix", flag, problem, f"it belongs to {' and '.join(owners)}; do not carry flags across images"
            )
        else:
            yield Finding("note", flag, f"is not among the flags of {one.release.name} that are known here")
    yield from (
        Finding("fix", "flags", problem)
        for problem in one.command.problems
        if problem not in one.command.unknown.values()
    )


def lengths_agree(one: Engine) -> Iterator[Finding]:
    """Draft and target reach equally far."""
    length, drafts = one.number("--max-model-len"), one.speculation.get("max_model_len")
    if length is None:
        if one.neuron:
            yield Finding(
                "fix", "--max-model-len", "is missing, and shapes are static on Neuron", "set what was compiled"
            )
        return
    if isinstance(drafts, int) and drafts > length:
        yield Finding(
            "fix",
            "--speculative-config",
            f"the draft's max_model_len {drafts} is over the target's {length}",
            f"set {length}",
        )
    elif isinstance(drafts, int) and drafts < length:
        yield Finding(
            "warn",
            "--speculative-config",
            f"the draft ends at {drafts} of {length} tokens, and drafting with it",
            f"set {length}",
        )


def calls_fit(one: Engine) -> Iterator[Finding]:
    """Prompt and answer go into the length; the last step of a speculative engine needs a whole window of room."""
    length = one.number("--max-model-len")
    prompt, most = one.calls.prompt_tokens or 0, one.calls.max_tokens or 0
    if length is None or not (prompt or most):
        return
    window = one.window or 0
    if prompt + most > length - window:
        room = f"{length} less the window of {window}" if window else f"{length}"
        why = "shapes are static, so the call is refused" if one.neuron else "the call is refused"
        yield Finding(
            "fix",
            "--max-model-len",
            f"{prompt} + {most} tokens are over {room}; {why}",
            f"set at least {prompt + most + window}, or ask for fewer tokens",
        )
    else:
        yield Finding("ok", "--max-model-len", f"{prompt} + {most} tokens go into {length}")


def window_makes_sense(one: Engine) -> Iterator[Finding]:
    """What a window of k means to this engine, and whether it is a sensible one."""
    window = one.window
    if window is None or window < 1:
        return
    most = most_per_step(one)
    if most == window:
        what = f"window {window} drafts {window} and uses {window - 1}: at most {window} tokens a step"
    else:
        what = f"window {window}: at most {most} tokens a step"
    yield Finding("note", "window", what)
    if most < 2:
        yield Finding("fix", "window", "of 1 can win nothing here", "take at least 2")
    if window > _LARGEST_WINDOW:
        yield Finding(
            "warn", "window", f"of {window} is beyond what has been found useful", "measure it: draftlane sweep"
        )
    low, high = one.speculation.get("prompt_lookup_min"), one.speculation.get("prompt_lookup_max")
    if isinstance(low, int) and isinstance(high, int) and low > high:
        yield Finding("fix", "--speculative-config", f"prompt_lookup_min {low} is over prompt_lookup_max {high}")
    batched, sequences = one.number("--max-num-batched-tokens"), one.number("--max-num-seqs")
    if batched is not None and sequences is not None and batched < sequences * (window + 1):
        yield Finding(
            "warn",
            "--max-num-batched-tokens",
            f"{batched} is below {sequences} sequences x {window + 1} tokens of a step",
            "steps of a full batch do not go into one pass",
        )
    if one.release is STOCK:
        yield from _degrees(one)


def _degrees(one: Engine) -> Iterator[Finding]:
    """The draft runs on one core or on as many as the target."""
    target = one.number("--tensor-parallel-size") or 1
    for name in ("draft_tensor_parallel_size", "tensor_parallel_size"):
        drafts = one.speculation.get(name)
        if isinstance(drafts, int) and drafts not in (1, target):
            yield Finding("fix", "--speculative-config", f"{name} is {drafts}; vLLM takes 1 or the target's {target}")


def acceptance_can_be_seen(one: Engine) -> Iterator[Finding]:
    """Draftlane learns from answers and counters: flags that hide them cost it its eyes."""
    values = one.command.values
    interval = one.number("--stream-interval")
    if interval is not None and interval > 1:
        yield Finding(
            "warn",
            "--stream-interval",
            f"{interval} merges steps into one event, so events tell no acceptance",
            "leave it at 1, or have per-request metrics on",
        )
    if values.get("--disable-log-stats"):
        yield Finding("warn", "--disable-log-stats", "takes the counters out of /metrics", "leave it out")
    if one.release is STOCK and one.window and "--per-request-spec-decode-metrics" not in values:
        yield Finding(
            "note",
            "--per-request-spec-decode-metrics",
            "is not set",
            "'summary' tells each answer's acceptance exactly",
        )


def ends_when_told(one: Engine) -> Iterator[Finding]:
    """A shell between Kubernetes and the engine does not pass SIGTERM on."""
    if one.serving.swallows:
        yield Finding(
            "warn", "command", "a shell stays in front of the engine and swallows SIGTERM", "exec vllm serve …"
        )


RULES: Final[tuple[Rule, ...]] = (
    is_taken,
    lengths_agree,
    calls_fit,
    window_makes_sense,
    acceptance_can_be_seen,
    ends_when_told,
)
