"""`draftlane serve`: the gateway on its port, with the embedded engines that its configuration asks for."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
from pathlib import Path

import uvicorn

from gateway.app import Gateway
from gateway.config import Config, ConfigError, load
from gateway.embedded import EmbeddedEngines, EmbeddedError
from gateway.server import DrainingServer, protocol

KEEP_ALIVE_SECONDS = 75  # nginx's; shorter ones make clients meet stale connections


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser("serve", help="run the gateway, and the embedded engines of its configuration")
    parser.add_argument(
        "--config", default="config.toml", type=Path, help="the configuration file (default: %(default)s)"
    )
    parser.add_argument("--port", type=int, help="listen on this port instead of server.port")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; 1 when it cannot start."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        config = load(args.config)
    except ConfigError as error:
        for problem in error.problems:
            print(f"{args.config}: {problem}", file=sys.stderr)
        return 1
    if args.port is not None:
        config = config.model_copy(update={"server": config.server.model_copy(update={"port": args.port})})
    for warning in config.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    with EmbeddedEngines() as engines:
        try:
            urls = engines.start(config)
        except EmbeddedError as error:
            print(error, file=sys.stderr)
            return 1
        gateway = Gateway(config, path=args.config, embedded=urls)
        server = server_of(gateway, config)
        with contextlib.suppress(KeyboardInterrupt):
            server.run()
        return 0 if server.started else 1


def server_of(gateway: Gateway, config: Config) -> DrainingServer:
    """Return the server for a gateway, not yet running; it reloads on SIGHUP."""
    settings = config.server
    server = DrainingServer(
        uvicorn.Config(
            gateway,
            host=settings.host,
            port=settings.port,
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
        ),
        running=lambda: gateway.api.running,
        draining=gateway.drain,
        drain_seconds=settings.drain_seconds,
    )
    gateway.on_start = lambda: asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, gateway.reload)
    return server
