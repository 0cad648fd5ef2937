"""The composition root: every part is built here, once, and handed down. No other module makes one for itself."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import time
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import httpx
from prometheus_client import CollectorRegistry

from classifier.scorer import Scorer
from gateway import operators, state
from gateway.api import Api, ASGIApp
from gateway.config import Config, ConfigError, key_digest, load
from gateway.conversations import Conversations
from gateway.embedded import with_urls
from gateway.exchange import Sink
from gateway.health import HealthChecks
from gateway.learning import Learning, SharedCurves
from gateway.ledger import Receipts, Settlement, journal_directory, open_ledger
from gateway.ledger.receipts import decode
from gateway.log import CallLog
from gateway.metrics import Metrics, Share
from gateway.metrics.share import CONTENT_TYPE
from gateway.mirror import Mirror
from gateway.pipeline import Live, Pipeline
from gateway.pools import REPLICA_STATES, Pools
from gateway.routing import REASONS, Curves, Settings
from gateway.scrape import Scrape
from gateway.store import Store, open_store
from gateway.tenants import Headers, Tenants
from gateway.upstream import Upstream

GAUGE_SECONDS = 1.0
_log = logging.getLogger(__name__)


class Gateway:
    """One gateway process: an ASGI application with its lifespan, and what operators may ask of it.

    Args:
        config: the configuration in force.
        path: the file that a reload reads; without one there is nothing to reload.
        embedded: origins of embedded engines by pool, started by the caller.
        env: where named secrets are looked up.
        share: where several worker processes leave their metrics for one another.
        admin_port: the port that alone serves operators, where they have their own.
    """

    def __init__(
        self,
        config: Config,
        *,
        path: Path | None = None,
        embedded: Mapping[str, tuple[str, ...]] | None = None,
        env: Mapping[str, str] = os.environ,
        share: Share | None = None,
        admin_port: int | None = None,
    ) -> None:
        self._share = share
        self._path = path
        self._embedded = dict(embedded or {})
        self._env = env
        self.draining = False
        self.started_at = time.time()
        config = with_urls(config, self._embedded)
        pools = Pools(config, env)
        scorer = Scorer.load(Path(config.classifier.artefact) if config.classifier.artefact else None)
        curves = Curves(scorer.prior_curve, _settings(config))
        self.metrics = Metrics(CollectorRegistry(), config, reasons=REASONS)
        upstream = Upstream(pools, config.limits)
        learning, conversations = Learning(pools, curves), Conversations()
        self._mirror = Mirror(upstream, [self.metrics.finished, learning], config.limits)
        self.pipeline = Pipeline(
            Live(
                config=config,
                tenants=Tenants(config, env),
                scorer=scorer,
                pools=pools,
                curves=curves,
                upstream=upstream,
                conversations=conversations,
                mirror=self._mirror,
                clock=time.monotonic,
            )
        )
        self._call_log = CallLog() if config.server.log == "json" else None
        sinks: list[Sink] = [self.metrics.finished, learning, conversations]
        if self._call_log is not None:
            sinks.append(self._call_log)
        self.api = Api(self.pipeline, operators.build(self), sinks, admin_port=admin_port)
        self._app = _with_cors(self.api, config)
        self.receipts = Receipts()
        self.api.add_sink(self.receipts.append)
        self._mirror.add_sink(self.receipts.append)
        self._settlement: Settlement | None = None
        self.on_start: Callable[[], None] | None = None
        self._client: httpx.AsyncClient | None = None
        self._health: HealthChecks | None = None
        self._scrape: Scrape | None = None
        self._store: Store | None = None
        self._gauges: asyncio.Task[None] | None = None

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Serve one ASGI connection."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        else:
            await self._app(scope, receive, send)

    async def start(self) -> None:
        """Start what runs beside the calls."""
        self.pipeline.live.clock = asyncio.get_running_loop().time
        self._client = httpx.AsyncClient()
        pools = self.pipeline.live.pools
        self._health = HealthChecks(pools, self._client)
        self._health.start()
        self._scrape = Scrape(pools, self._client, clock=self.pipeline.live.clock)
        self._scrape.start()
        await self._keep_books()
        self._gauges = asyncio.create_task(self._keep_gauges())
        if self.on_start is not None:
            self.on_start()
        gc.collect()
        gc.freeze()  # a collection then walks the calls' objects only, not the program's
        gc.set_threshold(50_000, 20, 20)

    async def _keep_books(self) -> None:
        """Open the ledger and its Store; only now, as a journal belongs to one process."""
        settings = self.pipeline.live.config.store
        self._store = open_store(settings, self._env)
        ledger, outbox = open_ledger(journal_directory(settings))
        self.api.add_sink(ledger.append)
        self._mirror.add_sink(ledger.append)
        self._settlement = Settlement(
            store=self._store,
            ledger=ledger,
            outbox=outbox,
            curves=SharedCurves(self.pipeline.live.curves),
            receipts=self.receipts,
            flush_seconds=settings.flush_seconds,
        )
        await self._settlement.start()

    async def stop(self) -> None:
        """Stop it again; calls that still run are cut."""
        if self._health is not None:
            await self._health.stop()
        if self._gauges is not None:
            self._gauges.cancel()
            await asyncio.gather(self._gauges, return_exceptions=True)
        await self._mirror.stop()
        if self._scrape is not None:
            await self._scrape.stop()
        if self._client is not None:
            await self._client.aclose()
        if self._settlement is not None:
            await self._settlement.stop()
        if self._call_log is not None:
            self._call_log.flush()
        self.pipeline.live.pools.close()

    def drain(self) -> None:
        """Announce the end: /readyz turns 503, running and new calls are still served."""
        self.draining = True

    def reload(self) -> list[str]:
        """Read the configuration file again; return its problems, in which case nothing has changed."""
        if self._path is None:
            return ["there is no configuration file to reload"]
        try:
            config = load(self._path, self._env)
            problems = self._needs_restart(config)
        except ConfigError as error:
            problems = error.problems
        if problems:
            self.metrics.reload_refused()
            _log.error("reload refused: %s", "; ".join(problems))
            return problems
        self._apply(with_urls(config, self._embedded))
        _log.warning("reloaded %s", self._path)
        return []

    def _needs_restart(self, config: Config) -> list[str]:
        """Return what a running process cannot change."""
        running = self.pipeline.live.config
        found = [
            f"server.{name}: changing it needs a restart"
            for name in ("host", "port", "workers", "admin_port", "cors_origins", "tls_cert", "tls_key", "log")
            if getattr(config.server, name) != getattr(running.server, name)
        ]
        for index, pool in enumerate(config.pools):
            if pool.embedded is not None and len(self._embedded.get(pool.name, ())) != pool.embedded.replicas:
                found.append(f"pool[{index}].embedded: starting or stopping embedded engines needs a restart")
        if config.classifier != running.classifier:
            found.append("classifier.artefact: changing it needs a restart")
        return found

    def _apply(self, config: Config) -> None:
        live = self.pipeline.live
        live.pools.apply(config, self._env)
        live.tenants.reload(config)
        live.upstream.apply(config.limits)
        live.curves.settings = _settings(config)
        live.config = config
        self.metrics.reloaded(config)

    @property
    def admin_digest(self) -> str | None:
        """SHA-256 of the admin key, hex; None when the admin plane is off."""
        server = self.pipeline.live.config.server
        if server.admin_key_env is not None:
            return key_digest(self._env.get(server.admin_key_env, "")) if self._env.get(server.admin_key_env) else None
        return server.admin_key_sha256

    def not_ready(self) -> list[str]:
        """Return why no traffic should come, in words; empty when it may."""
        if self.draining:
            return ["draining"]
        live = self.pipeline.live
        now = live.clock()
        return [
            f"model {model.name}: no pool has a live replica"
            for model in live.config.models
            if not any(view.available for view in live.pools.view(model.name, now))
        ]

    def render_metrics(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics page and its content type."""
        self._set_gauges()
        if self._share is not None:
            return self._share.merged(self.metrics.render()[0]), CONTENT_TYPE
        return self.metrics.render(accept)

    def models(self, headers: Headers) -> list[dict[str, Any]]:
        """Return the models that the caller may use, aliases included, as OpenAI's model objects."""
        live = self.pipeline.live
        return state.model_cards(live, live.tenants.identify(headers), created=int(self.started_at))

    def state(self) -> dict[str, Any]:
        """Return what the gateway is doing, for people."""
        return {
            "draining": self.draining,
            "running": self.api.running,
            "uptime_seconds": time.time() - self.started_at,
            **state.snapshot(self.pipeline.live),
        }

    async def receipt(self, request_id: str) -> dict[str, Any] | None:
        """Return what became of a call, here or in any process over the same Store; None when nobody knows."""
        found = self.receipts.get(request_id)
        if found is None and self._store is not None:
            kept = await self._store.receipt(request_id)
            found = decode(kept) if kept is not None else None
        return found

    def _set_gauges(self) -> None:
        live = self.pipeline.live
        now = live.clock()
        for pool in live.pools:
            counts = dict.fromkeys(REPLICA_STATES, 0)
            for replica in pool.replicas:
                counts[replica.state(now)] += 1
            self.metrics.pool(pool.name, step_seconds=pool.view(now).step_seconds, replicas=counts)

    async def _keep_gauges(self) -> None:
        while True:
            self._set_gauges()
            if self._share is not None:
                self._share.leave(self.metrics.render()[0])
            await asyncio.sleep(GAUGE_SECONDS)

    async def _lifespan(self, receive: Any, send: Any) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self.start()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return


def _settings(config: Config) -> Settings:
    routing = config.routing
    return Settings(
        prior_samples=routing.prior_samples,
        half_life_seconds=routing.half_life_seconds,
        explore_near=routing.explore_near,
        explore_far=routing.explore_far,
        hysteresis=routing.hysteresis,
        expected_output_tokens=routing.expected_output_tokens,
        cost_weight=routing.cost_weight,
    )


def _with_cors(app: ASGIApp, config: Config) -> ASGIApp:
    origins = config.server.cors_origins
    if not origins:
        return app
    from starlette.middleware.cors import CORSMiddleware  # only where it is asked for

    return CORSMiddleware(
        app,
        allow_origins=list(origins),
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=[
            "x-request-id",
            "x-draftlane-pool",
            "x-draftlane-score",
            "x-draftlane-threshold",
            "x-draftlane-reason",
        ],
    )
