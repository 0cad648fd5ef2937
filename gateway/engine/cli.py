"""`draftlane engine`: an embedded engine as a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from gateway.engine.running import serve
from gateway.engine.settings import DRAFTERS, KINDS, METRICS_STYLES, EngineSettings

if TYPE_CHECKING:
    _SubParsers = argparse._SubParsersAction[argparse.ArgumentParser]

_CHOICES: dict[str, tuple[str, ...]] = {"kind": KINDS, "drafter": DRAFTERS, "metrics_style": METRICS_STYLES}
_HELP = {
    "kind": "whether a draft model proposes tokens",
    "model": "the name served; `NAME@fault=…` is served too, and goes wrong as it says",
    "host": "address to listen on",
    "port": "port to listen on; 0 takes a free one",
    "window": "drafted tokens per verification step",
    "drafter": "what drafts: a small model, or prompt lookup alone, which skips steps where it finds nothing",
    "draft_quality": "0 (every guess is wild) to 1",
    "step_seconds": "seconds per verification step; 0.045 baseline, 0.105 speculative unless set",
    "step_growth": "relative growth of the step time per further running request",
    "slots": "sequences that run at once; the rest queue",
    "ttft_seconds": "seconds from the start of a request to its first token",
    "speed": "divides every time: 10 makes an engine ten times as fast",
    "seed": "another seed gives other answers; the same one the same at temperature 0",
    "default_temperature": "temperature of requests that name none",
    "max_model_len": "tokens of prompt and answer together",
    "stream_interval": "tokens per event at least, beyond the first event",
    "metrics_style": "generation of metric names in /metrics",
    "spec_counters": "leave vllm:spec_decode_* out of /metrics, as fused speculation on Neuron does",
    "per_request_metrics": "tell in each answer how drafting went (metrics.speculative_decoding)",
    "greedy_only": "ignore sampling parameters silently, as a sampler compiled greedy does",
    "api_key": "ask for this key; the environment variable VLLM_API_KEY does the same",
    "record_limit": "requests kept in /engine/record",
    "journal": "file that gets a line of JSON for each whole answer, before its client has it",
}


def add_parser(subparsers: _SubParsers) -> argparse.ArgumentParser:
    """Add the command and its flags, which are the fields of `EngineSettings`."""
    parser = subparsers.add_parser(
        "engine",
        help="run an embedded engine, a vLLM look-alike without a model",
        description="A vLLM look-alike for machines without an accelerator: answers are made up, drafting and verification "
        "are real. When it listens it prints one JSON line with its URL.",
    )
    for field in fields(EngineSettings):
        flag = "--" + field.name.replace("_", "-")
        if field.default is False:
            parser.add_argument(flag, action="store_true", help=_HELP[field.name])
        elif field.default is True:
            parser.add_argument("--no-" + flag[2:], dest=field.name, action="store_false", help=_HELP[field.name])
        else:
            kind = float if field.name == "step_seconds" else str if field.default is None else type(field.default)
            parser.add_argument(
                flag, type=kind, default=field.default, choices=_CHOICES.get(field.name), help=_HELP[field.name]
            )
    parser.add_argument("--with-parent", action="store_true", help="stop when standard input is closed")
    return parser


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM, SIGINT or, with --with-parent, the end of standard input; return the exit status."""
    values: dict[str, Any] = {field.name: getattr(args, field.name) for field in fields(EngineSettings)}
    values["api_key"] = values["api_key"] or os.environ.get("VLLM_API_KEY")
    try:
        settings = EngineSettings(**values)
    except ValueError as error:
        sys.stderr.write(f"draftlane engine: {error}\n")
        return 2
    try:
        asyncio.run(_serve(settings, with_parent=args.with_parent))
    except OSError as error:
        sys.stderr.write(f"draftlane engine: cannot listen on {settings.host}:{settings.port}: {error.strerror}\n")
        return 1
    return 0


async def _serve(settings: EngineSettings, *, with_parent: bool) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with serve(settings) as running:
        line = {"event": "listening", "url": running.url, "kind": settings.kind, "model": settings.model}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        transport = await _watch_parent(stop) if with_parent else None
        await stop.wait()
        if transport is not None:
            transport.close()


class _Parent(asyncio.Protocol):
    """Standard input as the parent's life-line: its end is what matters, its content is nothing."""

    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop

    def connection_lost(self, _: Exception | None) -> None:
        """Stop the engine."""
        self._stop.set()


async def _watch_parent(stop: asyncio.Event) -> asyncio.BaseTransport:
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: _Parent(stop), sys.stdin)
    return transport
