"""Whoever waits is looked in on, in time, until what it waits for has come."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from gateway.rounds import EVERY_SECONDS, Rounds


class Guest:
    """Waits until a time and writes down when it was looked in on."""

    def __init__(self, look_at: float, then: Callable[[], object] = lambda: None) -> None:
        self.look_at = look_at
        self.seen: list[float] = []
        self._then = then

    def look(self, now: float) -> None:
        """Note the time, and do what was asked for."""
        self.seen.append(now)
        self._then()


async def test_nobody_is_looked_in_on_too_early() -> None:
    """A look comes when its time has come and not before, then again and again until it is discarded."""
    rounds, loop = Rounds(), asyncio.get_running_loop()
    guest, later = Guest(loop.time() + 0.1), Guest(loop.time() + 100.0)
    rounds.add(loop, guest)
    rounds.add(loop, later)
    while len(guest.seen) < 3:
        await asyncio.sleep(EVERY_SECONDS)
    rounds.discard(guest)
    count = len(guest.seen)
    await asyncio.sleep(3 * EVERY_SECONDS)

    assert guest.seen[0] >= guest.look_at
    assert len(guest.seen) == count
    assert later.seen == []
    rounds.discard(later)
    rounds.discard(later)


async def test_rests_while_nobody_waits_and_goes_on_after() -> None:
    """Without anybody waiting there is no timer; the next who waits is looked in on all the same."""
    rounds, loop = Rounds(), asyncio.get_running_loop()
    for _ in range(2):
        guest = Guest(0.0)
        rounds.add(loop, guest)
        assert "Rounds of 1" in repr(rounds)
        while not guest.seen:
            await asyncio.sleep(EVERY_SECONDS)
        rounds.discard(guest)
        await asyncio.sleep(3 * EVERY_SECONDS)
        assert rounds._timer is None


async def test_one_look_may_end_anothers_wait(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever was discarded by a look of the same round is left alone, and one that fails takes no other along."""
    rounds, loop = Rounds(), asyncio.get_running_loop()
    pair: list[Guest] = []

    def leave_alone() -> None:
        for each in pair:
            rounds.discard(each)

    def fail() -> None:
        raise ValueError("lost the key")

    pair += [Guest(0.0, leave_alone), Guest(0.0, leave_alone)]
    broken, patient = Guest(0.0, fail), Guest(0.0)
    with caplog.at_level(logging.ERROR):
        for guest in (*pair, broken, patient):
            rounds.add(loop, guest)
        while not (broken.seen and patient.seen):
            await asyncio.sleep(EVERY_SECONDS)
    rounds.discard(broken)
    rounds.discard(patient)

    assert sum(len(guest.seen) for guest in pair) == 1
    assert "lost the key" in caplog.text


def test_a_new_loop_begins_anew() -> None:
    """What waited in a loop that has ended is forgotten, and its timer does not keep the next loop from having one."""
    rounds, left = Rounds(), Guest(0.0)

    async def leave_somebody() -> None:
        rounds.add(asyncio.get_running_loop(), left)

    async def wait() -> list[float]:
        guest = Guest(0.0)
        rounds.add(asyncio.get_running_loop(), guest)
        while not guest.seen:
            await asyncio.sleep(EVERY_SECONDS)
        rounds.discard(guest)
        return guest.seen

    asyncio.run(leave_somebody())
    assert asyncio.run(wait())
    assert left.seen == []
