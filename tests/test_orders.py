"""What one worker is told, the others do: switches add up, a reload is everyone's, a refused one nobody's."""

from __future__ import annotations

import logging
import os
from datetime import date
from pathlib import Path

import pytest
from harness import config_for

from gateway.app import Gateway
from gateway.config import Config
from gateway.orders import Orders
from gateway.pipeline import Live

ENGINES = {"spec": ["http://127.0.0.1:9"], "plain": ["http://127.0.0.1:10"]}
PRICES = {"plain": {"price": [{"from": date(2026, 1, 1), "per_hour": 2.0}]}}


class Worker:
    """A worker as its orders see it; `taken` are the configurations that it took over from others."""

    def __init__(self, folder: Path) -> None:
        self.live: Live = Gateway(config_for(ENGINES)).pipeline.live
        self.taken: list[Config] = []
        self.orders = Orders(folder, self.live, self.taken.append)

    def switch(self, pool: str, *, enabled: bool) -> None:
        """Be told to switch a pool."""
        assert self.orders.switch(pool, enabled=enabled)

    def reload(self, *problems: str) -> list[str]:
        """Be told to reload a file that has another slot, or problems."""

        def step() -> list[str]:
            if not problems:
                self.live.config = config_for(ENGINES, pools={"plain": {"slots": 9}})
            return list(problems)

        return self.orders.reload(step)

    @property
    def on(self) -> dict[str, bool]:
        """Which pools are on."""
        self.orders.follow()
        return {pool.name: pool.enabled for pool in self.live.pools}


def test_switches_of_all_workers_add_up(tmp_path: Path) -> None:
    """Two pools switched on two workers at once are switched on both, and on one that begins later."""
    one, two = Worker(tmp_path), Worker(tmp_path)
    one.switch("spec", enabled=False)
    two.switch("plain", enabled=False)
    late = Worker(tmp_path)
    assert one.on == two.on == late.on == {"spec": False, "plain": False}
    late.switch("spec", enabled=True)

    assert one.on == two.on == {"spec": True, "plain": False}


def test_a_reload_is_everyone_s_and_a_refused_one_nobody_s(tmp_path: Path) -> None:
    """Others take over the very configuration; one that is reloaded unchanged is taken too, as its files may be new."""
    one, two = Worker(tmp_path), Worker(tmp_path)
    assert one.reload("server: is wrong") == ["server: is wrong"]
    two.orders.follow()
    assert two.taken == []

    assert one.reload() == one.reload() == []
    two.orders.follow()
    one.reload()
    two.orders.follow()
    two.orders.follow()

    assert [config.digest for config in two.taken] == [one.live.config.digest] * 2
    assert one.taken == []


def test_a_switch_follows_a_reload_that_it_had_not_heard_of(tmp_path: Path) -> None:
    """What is switched is the pool of the configuration that another worker has just reloaded, if it is still there."""
    one = Worker(tmp_path)
    two: Live = Gateway(config_for(ENGINES)).pipeline.live
    orders = Orders(tmp_path, two, lambda config: two.pools.apply(config, {}))
    one.live.config = config_for({"spec": ENGINES["spec"]})
    one.live.pools.apply(one.live.config, {})
    assert one.orders.reload(list) == []

    assert orders.switch("spec", enabled=False)
    assert not orders.switch("plain", enabled=False)
    assert one.on == {"spec": False}
    assert [(pool.name, pool.enabled) for pool in two.pools] == [("spec", False)]


@pytest.mark.parametrize("config", [config_for(ENGINES), config_for(ENGINES, pools=PRICES)])
def test_a_configuration_is_the_same_when_it_was_told(config: Config) -> None:
    """As JSON and back it means the same, dates included."""
    told = config.model_dump_json(by_alias=True)
    assert Config.model_validate_json(told, strict=False).digest == config.digest


def test_orders_that_cannot_be_left_are_an_error_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A worker whose disk is full does what it was told, and says that the others were not."""
    worker = Worker(tmp_path)
    (tmp_path / f"orders.json.{os.getpid()}.part").mkdir()
    with caplog.at_level(logging.ERROR, "gateway.orders"):
        worker.switch("spec", enabled=False)

    assert worker.on == {"spec": False, "plain": True}
    assert "the other workers could not be told" in caplog.text
