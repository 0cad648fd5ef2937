"""The bypass of an event loop: streams whose events are ordinary are read and passed on by compiled code as long as they are.

Through transports and protocols an event takes some ten calls, here none (gateway/native/bypass.c). It reads sockets itself, so
only such whose bytes are what the connection carries; elsewhere, and where it was not compiled, transports read on.
"""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

try:
    from gateway._native import Bypass
except ImportError:  # no C compiler where the package was installed, or no Linux
    Bypass = None  # type: ignore[assignment,misc]


def plain_socket(transport: asyncio.BaseTransport) -> int:
    """Return the descriptor of the socket on which this transport's bytes are as they are; -1 for none, as under TLS."""
    raw = transport.get_extra_info("socket")
    return -1 if raw is None or transport.get_extra_info("ssl_object") is not None else int(raw.fileno())


def bypass(loop: asyncio.AbstractEventLoop, socket: int) -> Bypass | None:
    """Return the loop's bypass for this socket; None where there is none, for want of a socket or of descriptors too."""
    if Bypass is None or socket < 0:
        return None
    found = _of_loops.get(loop)
    if found is None:
        try:
            found = _of_loops[loop] = Bypass()
        except OSError:  # as many descriptors are open as may be
            return None
        loop.add_reader(found.fileno(), found.look)
    return found


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Bypass] = WeakKeyDictionary()
