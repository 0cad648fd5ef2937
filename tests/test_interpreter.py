"""Which Python .venv is built with: the one at hand, unless the system's is the same release and better built."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent.parent / "requirements" / "interpreter.py"
OPTIMISED, PLAIN = "'--enable-optimizations' '--with-lto'", "'--enable-shared'"


@pytest.fixture(name="choose")
def choose_fixture() -> Any:
    """The choice itself."""
    return runpy.run_path(str(SCRIPT))["choose"]


def interpreter(at: Path, *, code: int) -> str:
    """Return a Python that ends with this exit status, whatever it is asked."""
    path = at / "python3"
    path.write_text(f"#!/bin/sh\nexit {code}\n")
    path.chmod(0o755)
    return str(path)


def test_a_better_built_one_of_the_same_release_is_taken(choose: Any, tmp_path: Path) -> None:
    """Where the one at hand was built without optimisation and the system's has all that is needed."""
    assert choose("/opt/python3", PLAIN, interpreter(tmp_path, code=0)) == str(tmp_path / "python3")


def test_otherwise_the_one_at_hand_stays(choose: Any, tmp_path: Path) -> None:
    """It is well built itself, or is the system's, or the system's lacks something, or there is none."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    bad.mkdir()
    fits = interpreter(good, code=0)

    assert choose("/opt/python3", OPTIMISED, fits) == "/opt/python3"
    assert choose(fits, PLAIN, fits) == fits
    assert choose("/opt/python3", PLAIN, interpreter(bad, code=1)) == "/opt/python3"
    assert choose("/opt/python3", PLAIN, str(tmp_path / "none")) == "/opt/python3"


def test_what_is_asked_of_it_can_be_answered() -> None:
    """The question holds for the interpreter that runs this, whose headers the compiled parts were built with."""
    wanted = runpy.run_path(str(SCRIPT))["_WANTED"]

    assert subprocess.run([sys.executable, "-c", wanted], check=False).returncode == 0
    other = wanted.replace(str(sys.version_info[:2]), "(3, 1)")
    assert subprocess.run([sys.executable, "-c", other], check=False).returncode == 1


def test_it_prints_one_line_that_is_a_python() -> None:
    """What make takes is a path alone; the reason goes to standard error."""
    found = output(sys.executable, str(SCRIPT))

    assert output(found, "-c", "import sys; print(sys.version_info[:2])") == str(sys.version_info[:2])


def output(*command: str) -> str:
    """Return the line that a command prints."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.removesuffix("\n")
