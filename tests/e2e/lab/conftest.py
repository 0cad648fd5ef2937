"""Real engines, started once for all tests of this directory and stopped after the last of them.

Where no lab has been built these tests are left out, which the summary says. Under CI=true they are not: there they fail.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

import httpx
import pytest

from e2e.lab.stand import EXPLORES_NOT, PACE, Engine, Front
from gateway.measure.lab.engines import NGRAM, EngineSpec, Launched, await_ready, launch
from gateway.measure.lab.front import FrontPool, gateway
from gateway.measure.lab.place import Place
from gateway.measure.lab.session import Halves

WANTED = Place.usual().ready or os.environ.get("CI") == "true"
collect_ignore_glob = [] if WANTED else ["test_*.py"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say that there are tests which did not run."""
    if not WANTED:
        terminalreporter.write_line("tests/e2e/lab was left out, as there is no lab here; `make lab` builds it")


@pytest.fixture(scope="package")
def http() -> Iterator[httpx.Client]:
    """A plain client without proxies."""
    with httpx.Client(timeout=120, trust_env=False) as client:
        yield client


@dataclass(slots=True)
class Fleet:
    """The engines' processes: two that all tests share, and one whose acceptance is dictated."""

    specs: dict[str, EngineSpec]
    launched: dict[str, Launched]
    place: Place

    def begin(self, name: str, spec: EngineSpec) -> None:
        """Start an engine without waiting for it."""
        self.specs[name] = spec
        self.launched[name] = launch(spec, self.place, log=self.place.run / f"test-{name}.log")

    def dictate(self, length: float) -> None:
        """Let the engine whose acceptance is dictated accept so many tokens per step from now on."""
        path = self.specs["dictated"].acceptance
        assert path is not None
        part = path.with_suffix(".part")
        part.write_text(str(length))
        part.rename(path)

    def ready(self, *names: str) -> None:
        """Wait until engines answer."""
        await_ready([self.launched[name] for name in names])

    def stop(self) -> None:
        """Stop all."""
        for one in self.launched.values():
            one.stop()


# In bfloat16 six drafted tokens are rounded differently from one, so that near-ties fall either way and greedy answers differ.
EXACT = ("--dtype", "float32")


@pytest.fixture(scope="package")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """All engines, starting side by side."""
    halves = Halves.of_machine()
    found = Fleet({}, {}, Place.usual())
    baseline = EngineSpec(name="baseline", processors=halves.first, flags=EXACT)
    ngram = replace(baseline, name="speculative", processors=halves.second, speculative_config=NGRAM)
    # Any token that was written before is taken for a draft, so that there always is one to accept.
    synthetic = {"prompt_lookup_min": 1, "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 4.0}
    dictated = replace(ngram, processors="", speculative_config={**NGRAM, **synthetic})  # it comes up beside the others
    acceptance = tmp_path_factory.mktemp("dictated") / "acceptance"
    with ExitStack() as ending:
        ending.callback(found.stop)
        found.begin("baseline", baseline)
        found.begin("ngram", ngram)
        found.begin("dictated", replace(dictated, acceptance=acceptance))
        yield found


@pytest.fixture(scope="package")
def baseline(fleet: Fleet, http: httpx.Client) -> Engine:
    """The engine that does not speculate."""
    fleet.ready("baseline")
    return Engine(fleet.launched["baseline"].url, http)


@pytest.fixture(scope="package")
def speculative(fleet: Fleet, http: httpx.Client) -> Engine:
    """The engine that speculates by prompt lookup."""
    fleet.ready("ngram")
    return Engine(fleet.launched["ngram"].url, http)


@pytest.fixture(scope="package")
def front(
    fleet: Fleet,
    baseline: Engine,
    speculative: Engine,
    http: httpx.Client,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Front]:
    """The gateway before both, which explores nothing so that tests know where calls go."""
    folder = tmp_path_factory.mktemp("front")
    pools = [
        FrontPool(fleet.specs["baseline"], baseline.url, PACE),
        FrontPool(fleet.specs["ngram"], speculative.url, PACE),
    ]
    with gateway(pools, folder, EXPLORES_NOT) as url, ExitStack() as ending:
        yield Front(url, folder / "gateway.log", http, ending)
