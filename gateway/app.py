"""The composition root: every part is built here, once, and handed down. No other module makes one for itself."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from classifier.scorer import Scorer
from gateway import operators, state, tls
from gateway.api import Api, ASGIApp
from gateway.beside import Beside
from gateway.config import Config, ConfigError, key_digest, load
from gateway.console import overview
from gateway.conversations import Conversations
from gateway.embedded import with_urls
from gateway.errors import Unavailable
from gateway.exchange import Sink
from gateway.headers import Headers
from gateway.learning import Learning
from gateway.ledger.cost import COUNTERFACTUALS
from gateway.log import CallLog
from gateway.metrics import Metrics, Share
from gateway.metrics.share import CONTENT_TYPE
from gateway.mirror import Mirror
from gateway.orders import Orders
from gateway.pipeline import Live, Pipeline
from gateway.pools import Pools
from gateway.quotas import Quotas
from gateway.restart import needs_restart
from gateway.routing import REASONS, Curves, Settings
from gateway.routing.guards import GUARDS
from gateway.routing.thresholds import Thresholds
from gateway.store import open_store
from gateway.tenants import Tenants
from gateway.upstream import Upstream

FRESH_SECONDS = 1.0  # a benchmark that has just ended asks at once what it did to the counters
_log = logging.getLogger(__name__)


class Gateway:
    """One gateway process: an ASGI application with its lifespan, and what operators may ask of it.

    Args:
        config: the configuration in force.
        path: the file that a reload reads; without one there is nothing to reload.
        embedded: origins of embedded engines by pool, started by the caller.
        env: where named secrets are looked up.
        share: where several worker processes leave their metrics, and what they were told, for one another.
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
        self.on_start: Callable[[], None] | None = None
        self.on_reload: Callable[[], None] | None = None
        config = with_urls(config, self._embedded)
        self.metrics = Metrics(CollectorRegistry(), config, reasons=REASONS, policies=COUNTERFACTUALS, guards=GUARDS)
        self._store = open_store(config.store, env)
        # A lone process counts minutes exactly; a Store that others may share makes them everybody's.
        self._quotas = Quotas(
            self._store, together=("day", "month") if config.store.kind == "memory" else ("minute", "day", "month")
        )
        live = _build(config, env, self.metrics, self._quotas)
        self.pipeline = Pipeline(live)
        self._orders = None if share is None else Orders(share.folder, live, self._take_over)
        self._call_log = CallLog() if config.server.log == "json" else None
        # Methods, as what a call of an object means is looked up each time.
        sinks: list[Sink] = [self.metrics.finished, live.learning.__call__, live.conversations.__call__]
        if self._call_log is not None:
            sinks.append(self._call_log.__call__)
        self.api = Api(self.pipeline, operators.build(self), sinks, admin_port=admin_port)
        self.metrics.inflight(lambda: self.api.running)
        self._app = _with_cors(self.api, config)
        self._beside: Beside | None = None

    def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> Awaitable[None]:
        """Serve one ASGI connection."""
        return self._lifespan(receive, send) if scope["type"] == "lifespan" else self._app(scope, receive, send)

    async def start(self) -> None:
        """Start what runs beside the calls."""
        live = self.pipeline.live
        self._beside = Beside(
            live, self.metrics, store=self._store, quotas=self._quotas, share=self._share, add_sink=self._add_sink
        )
        await self._beside.start()
        if self._orders is not None:
            self._orders.start()
        if self.on_start is not None:
            self.on_start()
        gc.collect()
        gc.freeze()  # a collection then walks the calls' objects only, not the program's
        gc.set_threshold(50_000, 20, 20)

    async def stop(self) -> None:
        """Stop it again; calls that still run are cut."""
        await self.pipeline.live.mirror.stop()
        if self._orders is not None:
            await self._orders.stop()
        if self._beside is not None:
            await self._beside.stop()
        if self._call_log is not None:
            self._call_log.flush()
        self.pipeline.live.pools.close()

    def _add_sink(self, sink: Sink) -> None:
        self.api.add_sink(sink)
        self.pipeline.live.mirror.add_sink(sink)

    def drain(self) -> None:
        """Announce the end: /readyz turns 503, running and new calls are still served."""
        self.draining = True

    def reload(self) -> list[str]:
        """Read the configuration file again, for all workers; return its problems, in which case nothing has changed."""
        return self._reload() if self._orders is None else self._orders.reload(self._reload)

    def switch(self, name: str, *, enabled: bool) -> bool:
        """Switch a pool on or off, for all workers; return whether there is such a pool."""
        return (self._orders or self.pipeline.live.pools).switch(name, enabled=enabled)

    def _reload(self) -> list[str]:
        if self._path is None:
            return ["there is no configuration file to reload"]
        try:
            config = load(self._path, self._env)
            running = self.pipeline.live.config
            problems = [*needs_restart(config, running, self._embedded), *tls.problems(config)]
        except ConfigError as error:
            problems = error.problems
        if problems:
            self.metrics.reload_refused()
            _log.error("reload refused: %s", "; ".join(problems))
            return problems
        self._apply(with_urls(config, self._embedded))
        if self.on_reload is not None:
            self.on_reload()
        _log.warning("reloaded %s", self._path)
        return []

    def _take_over(self, config: Config) -> None:
        """Put into force what another worker has checked; its certificates may be new where it is not."""
        if config.digest != self.pipeline.live.config.digest:
            self._apply(config)
        if self.on_reload is not None:
            self.on_reload()

    def _apply(self, config: Config) -> None:
        live = self.pipeline.live
        live.pools.apply(config, self._env)
        live.pools.price(config, datetime.now(UTC).date())
        live.tenants.reload(config)
        self._quotas.keep(live.tenants.limits(), live.tenants.crowded())
        live.upstream.apply(config.limits)
        live.mirror.apply(config.limits)
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

    async def metrics_page(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics page and its content type; engines' own counters, where they are on it, are read anew."""
        if self._beside is not None and self.pipeline.live.config.server.engine_metrics:
            await self._beside.scrape.freshen(FRESH_SECONDS)
        return self.render_metrics(accept)

    def render_metrics(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics page and its content type, as they are known."""
        if self._beside is not None:
            self._beside.set_gauges()
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
            "pid": os.getpid(),
            "draining": self.draining,
            "running": self.api.running,
            "tasks": len(asyncio.all_tasks()),
            "uptime_seconds": time.time() - self.started_at,
            "settlement": None if self._beside is None else state.settlement(self._beside.settlement),
            "engines": {} if self._beside is None else state.engines(self._beside.scrape, self.pipeline.live),
            **state.snapshot(self.pipeline.live),
        }

    async def overview(self) -> dict[str, Any]:
        """Return all that the operator's page shows.

        Raises:
            Unavailable: the gateway has not started yet.
        """
        if self._beside is None:
            raise Unavailable("The gateway has not started yet.", code="starting")
        return await overview(self._beside.sight(self.state()), time.time())

    async def receipt(self, request_id: str) -> dict[str, Any] | None:
        """Return what became of a call; None when nobody knows."""
        return await self._beside.settlement.receipt(request_id) if self._beside is not None else None

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


def _build(config: Config, env: Mapping[str, str], metrics: Metrics, quotas: Quotas) -> Live:
    """Build what a call meets."""
    artefact = config.classifier.artefact
    scorer = Scorer.load(Path(artefact) if artefact else None)
    curves = Curves(scorer.prior_curve, _settings(config), artefact=scorer.version)
    pools = Pools(config, env)
    pools.price(config, datetime.now(UTC).date())
    upstream = Upstream(pools, config.limits)
    learning = Learning(pools, curves)
    seed = config.routing.seed
    return Live(
        config=config,
        tenants=Tenants(config, env, quotas.of, quotas.room),
        scorer=scorer,
        pools=pools,
        curves=curves,
        learning=learning,
        upstream=upstream,
        conversations=Conversations(),
        mirror=Mirror(upstream, [metrics.finished, learning], config.limits),
        thresholds=Thresholds(),
        clock=time.monotonic,
        chance=random.Random(seed).random,
    )


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
