"""What runs beside the calls, started and stopped as one: health checks, scraping, steering, limits, books, gauges."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gateway.console import DECISIONS, Colleagues, Lately, Sight, Told, Used, decision
from gateway.control import Control
from gateway.health import HealthChecks
from gateway.learning import SharedCurves
from gateway.ledger import Ledger, Receipts, Settlement, journal_directory, open_ledger
from gateway.loop import Loop
from gateway.metrics import Reading
from gateway.pools import REPLICA_STATES
from gateway.scrape import Scrape
from gateway.steering import Steering
from gateway.traces import Traces
from gateway.traffic import DROPPED, Keeper

if TYPE_CHECKING:
    from gateway.admission import Usage
    from gateway.exchange import Sink
    from gateway.metrics import Metrics, Share
    from gateway.pipeline import Live
    from gateway.quotas import Quotas
    from gateway.store import Store

GAUGE_SECONDS = 1.0
_log = logging.getLogger(__name__)


class Beside:
    """The background of one process. Build it on the running loop: a journal, and so the ledger, belongs to one process.

    `add_sink` is told who wants every finished call, shadow copies included.
    """

    def __init__(
        self,
        live: Live,
        metrics: Metrics,
        *,
        store: Store,
        quotas: Quotas,
        share: Share | None,
        add_sink: Callable[[Sink], None],
    ) -> None:
        self._live = live
        self._metrics = metrics
        self._store = store
        self._quotas = quotas
        self._share = share
        self._told: set[tuple[str, str]] = set()  # budgets past their soft share, by tenant and label
        self._control = control = Control(live.pools)
        self._gauges = Loop(self._keep_gauges)
        self.receipts = receipts = Receipts(shared=live.config.store.kind != "memory")  # that is this process's own
        self.lately = Lately()
        self._colleagues = Colleagues(share.folder, share.name) if share is not None else None
        self.health = HealthChecks(live.pools, control, interval_seconds=lambda: live.config.limits.health_seconds)
        self.scrape = Scrape(live.pools, control, clock=live.clock)
        self.steering = Steering(
            config=lambda: live.config,
            pools=live.pools,
            curves=live.curves,
            thresholds=live.thresholds,
            scrape=self.scrape,
            clock=live.clock,
        )
        ledger, self.settlement = self._open_books(store, receipts)
        for sink in (receipts.append, ledger.append, self.steering.__call__, self.lately.__call__):
            add_sink(sink)
        self._traces = None if live.config.server.traces is None else Traces(live.config.server.traces)
        if self._traces is not None:
            add_sink(self._traces.__call__)
        self._keeper = live.observer = self._keep_observations()
        metrics.engines(self._readings)

    def _keep_observations(self) -> Keeper | None:
        """Return what keeps observations of traffic, where the operator wants some."""
        settings, metrics = self._live.config.classifier, self._metrics
        if settings.observations == "off":
            return None
        metrics.kept(0)
        for reason in DROPPED:
            metrics.dropped(reason, 0)
        return Keeper(
            settings,
            self._live.pools,
            self._live.scorer,
            origin=self.settlement.state().origin,
            writers=self._live.config.server.workers,
            kept=metrics.kept,
            dropped=metrics.dropped,
            trouble=lambda wrong: metrics.degraded("observations", wrong),
        )

    def _open_books(self, store: Store, receipts: Receipts) -> tuple[Ledger, Settlement]:
        settings = self._live.config.store
        ledger, outbox = open_ledger(journal_directory(settings))
        books = Settlement(
            store=store,
            ledger=ledger,
            outbox=outbox,
            curves=SharedCurves(self._live.curves),
            receipts=receipts,
            flush_seconds=settings.flush_seconds,
            watch=self._metrics.degraded,
        )
        return ledger, books

    async def start(self) -> None:
        """Start everything; what others have learned is taken over first."""
        await self.settlement.start()
        await self._quotas.start()
        self.health.start()
        self.scrape.start()
        self.steering.start()
        if self._traces is not None:
            self._traces.start()
        self._gauges.start()
        if self._keeper is not None:
            self._keeper.start()

    async def stop(self) -> None:
        """Stop everything; the books are brought to safety last."""
        await self.health.stop()
        await self.scrape.stop()
        await self.steering.stop()
        await self._gauges.stop()
        if self._traces is not None:
            await self._traces.stop()
        if self._keeper is not None:
            await self._keeper.stop()
        self._control.close()
        await self._quotas.stop()
        await self.settlement.stop()

    def sight(self, state: Mapping[str, Any]) -> Sight:
        """Return what the operator's page looks at; `state` is what /draftlane/state says."""
        now = self._live.clock()
        replicas = [replica for pool in self._live.pools for replica in pool.replicas]
        ages = {replica.name: self.scrape.of(replica).age(now) for replica in replicas}
        return Sight(
            config=self._live.config,
            state=state,
            store=self._store,
            own=self._told_by_this(),
            others=self._colleagues.hear() if self._colleagues is not None else (),
            used=[Used(each.tenant, each.label, each.used / each.limit) for each in self._live.tenants.used()],
            ages={name: age for name, age in ages.items() if age is not None},
            workers=self._live.config.server.workers,
        )

    def _told_by_this(self) -> Told:
        return Told(
            running={pool.name: pool.running for pool in self._live.pools},
            steps=self.lately.steps,
            decisions=[decision(call) for call in self.receipts.last(DECISIONS)],
        )

    def set_gauges(self) -> None:
        """Set the figures of pools, limits and books as they are now, and take the prices of today."""
        self._keep_account()
        self.steering.show(self._metrics)
        now = self._live.clock()
        for pool in self._live.pools:
            counts = dict.fromkeys(REPLICA_STATES, 0)
            for replica in pool.replicas:
                counts[replica.state(now)] += 1
            self._metrics.pool(
                pool.name,
                step_seconds=pool.step_seconds,
                replicas=counts,
                running=pool.running,
                waiting=pool.turns.waiting,
                slots=pool.slots * len(pool.replicas),
                usd_per_hour=pool.usd_per_hour,
            )
            if pool.speculative:
                points = self._live.curves.points(pool.view(now), 0.0, time.time())
                self._metrics.curve(pool.name, [point.mean for point in points])
        for usage in self._live.tenants.used():
            self._metrics.limit(usage.tenant, usage.label, used=usage.used, amount=usage.limit)
        books = self.settlement.state()
        self._metrics.books(pending=books.pending, journal_bytes=books.journal_bytes, last_success=books.last_success)
        self._metrics.degraded("limits", self._quotas.trouble)

    def _readings(self) -> Iterator[Reading]:
        """Yield what every engine last told, for the metrics."""
        for pool in self._live.pools:
            for index, replica in enumerate(pool.replicas):
                seen = self.scrape.of(replica)
                if seen.last is not None:
                    yield Reading(
                        pool=pool.name,
                        replica=str(index),
                        model=pool.served_model,
                        figures=seen.last,
                        restarts=seen.restarts,
                    )

    def _tell(self, usage: Usage) -> None:
        """Log a budget that passes its soft share, once until it is below that again."""
        key = (usage.tenant, usage.label)
        if not usage.told:
            self._told.discard(key)
        elif key not in self._told:
            self._told.add(key)
            _log.warning(
                "tenant %s has used %.0f %% of its %g %s",
                usage.tenant,
                100 * usage.used / usage.limit,
                usage.limit,
                usage.label,
            )

    def _keep_account(self) -> None:
        """Take the prices of today, count what the pools have cost since the last time, and tell of budgets."""
        self._live.pools.price(self._live.config, datetime.now(UTC).date())
        for pool in self._live.pools:
            self._metrics.spent(pool.name, replicas=len(pool.replicas), usd_per_hour=pool.usd_per_hour)
        for usage in self._live.tenants.used():
            self._tell(usage)

    async def _keep_gauges(self) -> float:
        """Keep the account; gauges are set when they are read, which is every second where others read them from a file."""
        if self._share is None:
            self._keep_account()
        else:
            self.set_gauges()
            self._share.leave(self._metrics.render()[0])
        if self._colleagues is not None:
            self._colleagues.tell(self._told_by_this())
        return GAUGE_SECONDS
