"""`draftlane serve`: the gateway on its port, with the embedded engines that its configuration asks for."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
import sys
import tempfile
import threading
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from gateway import options, tls
from gateway.config import Config, ConfigError, Server, load, loose_files
from gateway.embedded import EmbeddedEngines, EmbeddedError
from gateway.workers import Supervisor, when_orphaned

if TYPE_CHECKING:
    from gateway.app import Gateway
    from gateway.server import DrainingServer

BACKLOG = 2048  # connections that may wait to be accepted: uvicorn's
KEEP_ALIVE_SECONDS = 75  # nginx's; shorter ones make clients meet stale connections


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser("serve", help="run the gateway, and the embedded engines of its configuration")
    options.add_config(parser)
    parser.add_argument("--port", type=int, help="listen on this port instead of server.port")


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; 1 when it cannot start."""
    _log_to_stderr()
    try:
        config = load(args.config)
    except ConfigError as error:
        for problem in error.problems:
            print(f"{args.config}: {problem}", file=sys.stderr)
        return 1
    for problem in tls.problems(config):
        print(f"{args.config}: {problem}", file=sys.stderr)
        return 1
    for warning in (*config.warnings, *loose_files(args.config, config)):
        print(f"warning: {warning}", file=sys.stderr)
    try:
        sockets = _listen(config, args.port)
    except OSError as error:
        print(f"server.host, server.port: cannot listen there: {error}", file=sys.stderr)
        return 1
    with EmbeddedEngines() as engines, tempfile.TemporaryDirectory(prefix="draftlane-") as folder:
        try:
            urls = engines.start(config)
        except EmbeddedError as error:
            print(error, file=sys.stderr)
            return 1
        start = Start(config, args.config, urls, folder if config.server.workers > 1 else None)
        host, port = sockets[0].getsockname()[:2]
        scheme = "https" if config.server.tls_cert else "http"
        if config.server.workers == 1:
            import_module("gateway.app")  # before it is said: whoever reads that it serves may call at once
        print(
            f"draftlane: serving {', '.join(model.name for model in config.models)} on {scheme}://{host}:{port}",
            file=sys.stderr,
        )
        if config.server.workers > 1:
            return Supervisor(work, config.server.workers, sockets, start).run()
        return work(0, sockets, start)


@dataclass(frozen=True, slots=True)
class Start:
    """What a worker process needs to begin: `shared` is the folder where several leave their metrics."""

    config: Config
    path: Path
    embedded: dict[str, tuple[str, ...]]
    shared: str | None


def work(index: int, sockets: list[socket.socket], start: Start) -> int:
    """Serve in this process until a signal; `sockets` are the clients' listener and, where set, the operators'.

    What serving needs is imported here: a supervisor of several workers, which imports it too, would begin half a second later.
    """
    from classifier.scorer import ArtefactError
    from gateway.app import Gateway
    from gateway.metrics import Share

    _log_to_stderr()
    share = Share(Path(start.shared), f"{index}-{os.getpid()}") if start.shared else None
    admin_port = sockets[1].getsockname()[1] if len(sockets) > 1 else None
    try:
        gateway = Gateway(start.config, path=start.path, embedded=start.embedded, share=share, admin_port=admin_port)
    except ArtefactError as error:
        print(f"classifier.artefact: {error}", file=sys.stderr)
        return 1
    server = server_of(gateway, start.config)
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets)
    return 0 if server.started else 1


def _listen(config: Config, port: int | None) -> list[socket.socket]:
    """Open the listeners: of clients, on another port if one is given, and of operators where they have their own.

    Raises:
        OSError: an address is taken or not ours.
    """
    server = config.server
    ports = [server.port if port is None else port, *([] if server.admin_port is None else [server.admin_port])]
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    return [socket.create_server((server.host, port), family=family, backlog=BACKLOG) for port in ports]


def _log_to_stderr() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)


def server_of(gateway: Gateway, config: Config) -> DrainingServer:
    """Return the server for a gateway, not yet running; it reloads on SIGHUP."""
    import uvicorn

    from gateway.inbound import protocol
    from gateway.server import DrainingServer

    settings = config.server
    server = DrainingServer(
        uvicorn.Config(
            gateway,
            http=protocol(config.limits.max_header_bytes, config.limits.header_seconds),
            ws="none",
            loop="auto",
            interface="asgi3",
            lifespan="on",
            access_log=False,
            log_config=None,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=max(1, round(settings.drain_seconds)),
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
            ssl_ca_certs=settings.tls_client_ca,
            ssl_cert_reqs=ssl.CERT_REQUIRED if settings.tls_client_ca else ssl.CERT_NONE,
        ),
        running=lambda: gateway.api.running,
        draining=gateway.drain,
        drain_seconds=settings.drain_seconds,
    )
    _attach(gateway, server, settings)
    return server


def _attach(gateway: Gateway, server: DrainingServer, settings: Server) -> None:
    """Let signals reach the gateway, a supervisor's death the server, and reloads its certificate."""

    def stop() -> None:
        server.should_exit = True

    def started() -> None:
        if threading.current_thread() is threading.main_thread():  # no other may hear signals
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, gateway.reload)
        when_orphaned(stop)

    def renew() -> None:
        context = server.config.ssl
        if context is not None and settings.tls_cert is not None:  # connections to come are shown the renewed one
            context.load_cert_chain(settings.tls_cert, settings.tls_key)

    gateway.on_start, gateway.on_reload = started, renew
