"""Scraping engines: gently, per replica, with the age of what is known."""

from __future__ import annotations

import pytest
from engines import ask, engine
from fakes import reply, scripted
from harness import config_for

from gateway.control import Control
from gateway.pools import Pools
from gateway.scrape import INTERVAL_SECONDS, LONGEST_INTERVAL_SECONDS, STALE_SECONDS, Scrape


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """The time."""
        return self.now


def never() -> float:
    """No jitter: the middle of its range."""
    return 0.5


def scrape_of(url: str, clock: Clock) -> tuple[Scrape, Pools]:
    """A scrape of one replica, not started."""
    pools = Pools(config_for({"base": [url]}), {})
    return Scrape(pools, Control(pools), clock=clock, chance=never), pools


async def test_a_reading_has_an_age_and_is_not_repeated_before_its_time() -> None:
    """A replica is read once per interval, its figures age, and stale gauges are not told."""
    async with engine() as (running, client):
        clock = Clock()
        scrape, pools = scrape_of(running.url, clock)
        readings = scrape.of(pools["base"].replicas[0])
        await scrape.scrape_due()
        first = readings.last
        await scrape.scrape_due()

        assert readings.last is first
        clock.now += INTERVAL_SECONDS
        await ask(client, "Count from 1 to 20.", max_tokens=30)
        await scrape.scrape_due()
        assert readings.last is not first
        assert readings.age(clock.now) == 0.0
        assert scrape.recent(pools["base"]).generated == 30
        assert readings.gauge("running", clock.now) == 0.0
        assert readings.gauge("running", clock.now + STALE_SECONDS + 1) is None


async def test_figures_are_read_anew_for_whoever_cannot_wait() -> None:
    """What is older than wanted is read between turns; what is fresh enough, and what fails, is left alone."""
    async with engine() as (running, client):
        clock = Clock()
        scrape, pools = scrape_of(running.url, clock)
        readings = scrape.of(pools["base"].replicas[0])
        await scrape.scrape_due()
        await ask(client, "Count from 1 to 20.", max_tokens=30)
        clock.now += 1.0
        await scrape.freshen(1.0)
        assert readings.last is not None
        assert readings.last.values["generated"] == 0
        await scrape.freshen(0.5)
        assert readings.last.values["generated"] == 30
        readings.failures, clock.now = 1, clock.now + 60
        before = readings.last
        await scrape.freshen(0.5)
        assert readings.last is before


async def test_a_replica_that_fails_is_asked_less_and_less() -> None:
    """Failures double the wait up to a minute, and what others run there is forgotten."""
    clock = Clock()
    scrape, pools = scrape_of("http://127.0.0.1:9", clock)
    replica = pools["base"].replicas[0]
    replica.others = 3
    waits = []
    for _ in range(5):
        await scrape.scrape_due()
        readings = scrape.of(replica)
        waits.append(readings.due_at - clock.now)
        clock.now = readings.due_at

    assert waits == [16.0, 32.0, LONGEST_INTERVAL_SECONDS, LONGEST_INTERVAL_SECONDS, LONGEST_INTERVAL_SECONDS]
    assert replica.others == 0
    assert scrape.of(replica).age(clock.now) is None


async def test_a_restarted_engine_begins_anew() -> None:
    """After a restart the former intervals are dropped, and the next difference starts from the new counters."""
    async with engine() as (running, client):
        clock = Clock()
        scrape, pools = scrape_of(running.url, clock)
        replica = pools["base"].replicas[0]
        for _ in range(2):
            await ask(client, "Count from 1 to 20.", max_tokens=30)
            await scrape.scrape_due()
            clock.now += INTERVAL_SECONDS
        before = len(scrape.of(replica).intervals)
        async with engine() as (restarted, _):
            replica.url, old = restarted.url, replica.url
            scrape._readings[restarted.url] = scrape._readings.pop(old)
            await scrape.scrape_due()

    assert before == 1
    assert scrape.of(replica).restarts == 1
    assert not scrape.of(replica).intervals


@pytest.mark.parametrize(
    "page", [reply(b'vllm:x{a="', 200), reply(b"vllm:num_requests_running 1\n", 500), b"garbage\r\n\r\n"]
)
async def test_scraping_survives_an_engine_that_answers_nonsense(page: bytes) -> None:
    """A page that is no metrics page is a failure like any other, not the end of scraping."""
    async with scripted(page=page) as nonsense:
        scrape, pools = scrape_of(nonsense.url, Clock())
        await scrape.scrape_due()

    assert scrape.of(pools["base"].replicas[0]).failures == 1
