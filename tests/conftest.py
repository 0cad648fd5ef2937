"""What holds for every test: it runs what stands in the sources, and under CI=true nothing is skipped."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings

from gateway import compiled

pytest_plugins = ["pytester"]

# A shell starts what it puts into the background deaf to interrupts, and so would be what tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples on every run, and no clock that could fail one on a busy machine.
settings.register_profile(
    "draftlane", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("draftlane")


def pytest_configure() -> None:
    """Refuse to test modules as they were before they were edited."""
    if edited := compiled.stale():
        raise pytest.UsageError(f"edited since compiled: {', '.join(edited)}; `make setup` compiles again")


Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def _skipping_fails(report: Report) -> Report:
    """A check that did not run is no success where the result is relied upon."""
    if os.environ.get("CI") == "true" and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not allow: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skipped test into a failure under CI."""
    return _skipping_fails((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn a module that skips itself into a failure under CI."""
    return _skipping_fails((yield))
