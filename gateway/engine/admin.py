"""The engine's own paths, for tests and demonstrations: /engine/record, /engine/faults, /engine/settings."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

from gateway.engine.api.fields import Fields, decode
from gateway.engine.api.refusal import Refusal
from gateway.engine.core import Engine
from gateway.engine.faults import of
from gateway.engine.http import Reply, Request
from gateway.engine.schedule import Dial


def show_record(engine: Engine, request: Request, reply: Reply) -> None:
    """Answer with what was received, oldest first, and with what is running."""
    del request
    found = {
        "total": engine.record.total,
        "probes": engine.record.probes,
        "running": engine.batch.running,
        "waiting": engine.batch.waiting,
        "requests": [entry.shown() for entry in engine.record],
    }
    reply.json(200, found)


def clear_record(engine: Engine, request: Request, reply: Reply) -> None:
    """Forget what was received."""
    engine.record.clear()
    show_record(engine, request, reply)


def show_faults(engine: Engine, request: Request, reply: Reply) -> None:
    """Answer with the faults that were set."""
    del request
    reply.json(200, {"faults": engine.faults.shown()})


def set_fault(engine: Engine, request: Request, reply: Reply) -> None:
    """Put a fault in force."""
    try:
        engine.faults.set(of(decode(request.body)), asyncio.get_running_loop().time())
    except ValueError as error:
        raise Refusal(str(error), param="fault") from None
    show_faults(engine, request, reply)


def clear_faults(engine: Engine, request: Request, reply: Reply) -> None:
    """Lift all faults."""
    engine.faults.clear()
    show_faults(engine, request, reply)


def show_settings(engine: Engine, request: Request, reply: Reply) -> None:
    """Answer with the settings that may change."""
    del request
    reply.json(200, asdict(engine.dial))


def change_settings(engine: Engine, request: Request, reply: Reply) -> None:
    """Change settings of a running engine; what is running keeps its draft, and takes the new step time."""
    fields = Fields(decode(request.body))
    known = asdict(engine.dial)
    if unknown := fields.body.keys() - known.keys():
        raise Refusal(f"No such setting: {min(unknown)}; there are {', '.join(known)}", param=min(unknown))
    changed = {name: fields.number(name, known[name], low=0.0) for name in known}
    try:
        Dial(**changed)
    except ValueError as error:
        raise Refusal(str(error)) from None
    for name, value in changed.items():
        setattr(engine.dial, name, value)
    show_settings(engine, request, reply)
