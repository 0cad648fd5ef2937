"""`draftlane check`: every problem of a configuration at once, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.__main__ import main

SHIPPED = Path(__file__).parent.parent / "config.toml"
WRONG = """
[server]
prot = 80
[[model]]
name = "demo"
[[pool]]
name = "fast"
model = "dmo"
kind = "speculative"
[[tenant]]
name = "nobody"
"""
BARE = """
[[model]]
name = "demo"
[[pool]]
name = "base"
model = "demo"
kind = "baseline"
[pool.embedded]
[[tenant]]
name = "t"
anonymous = true
"""


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def test_the_shipped_configuration_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    """The file that comes with the project passes, and the answer names what it serves."""
    assert main(["check", "--config", str(SHIPPED)]) == 0
    out, err = capsys.readouterr()

    assert "ok, models demo; pools speculative, baseline" in out
    assert err == ""


def test_every_problem_is_told(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt key, an unknown model, a missing window, missing engines and a tenant without a key: all in one run."""
    path.write_text(WRONG)
    assert main(["check", "--config", str(path)]) == 1
    out, err = capsys.readouterr()
    lines = err.splitlines()

    assert out == ""
    assert all(line.startswith(f"{path}: problem: ") for line in lines)
    for place in ("server.prot", "pool[0].model", "pool[0].window", "pool[0].replica", "tenant[0]", "model[0].name"):
        assert any(f": {place}: " in line for line in lines), place
    assert 'did you mean "port"?' in err


def test_programs_get_one_object(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json the answer is one object on standard output, whether all is well or not."""
    assert main(["check", "--json", "--config", str(SHIPPED)]) == 0
    good = json.loads(capsys.readouterr().out)
    path.write_text(WRONG)
    assert main(["check", "--json", "--config", str(path)]) == 1
    bad = json.loads(capsys.readouterr().out)

    assert (good["ok"], good["problems"], good["pools"]) == (True, [], ["speculative", "baseline"])
    assert len(good["digest"]) == 64
    assert not bad["ok"]
    assert len(bad["problems"]) >= 6


def test_what_works_but_is_worth_a_word_is_a_warning(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A configuration without prices is right, and says that every call will cost nothing."""
    path.write_text(BARE)
    assert main(["check", "--config", str(path)]) == 0
    out, err = capsys.readouterr()

    assert "ok" in out
    assert "warning: pool[0].price_per_hour" in err


@pytest.mark.parametrize("content", ["[server\n", "\x00", None])
def test_a_file_that_cannot_be_read_is_a_problem(
    path: Path, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bad TOML, or no file at all, is told like any other problem."""
    if content is not None:
        path.write_text(content)

    assert main(["check", "--config", str(path)]) == 1
    assert str(path) in capsys.readouterr().err


def test_wrong_use_is_two(capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown options and commands are answered with how it is used."""
    for words in (["check", "--nonsense"], ["frobnicate"], []):
        with pytest.raises(SystemExit) as caught:
            main(words)
        assert caught.value.code == 2
    assert "usage: draftlane" in capsys.readouterr().err
