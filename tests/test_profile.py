"""The profile: calls of all kinds are counted before the modules are compiled, and what cannot be counted stops nobody."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gateway.native import build, profile


def compiler() -> str:
    """Return the compiler that extensions are built with."""
    return profile.compiler()[0]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go to an empty directory, so that the profile of this build stays what it is; the gateway is found all the same."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(Path(build.__file__).parents[2])


USES = pytest.mark.usefixtures("elsewhere")


def test_the_modules_here_are_compiled_by_it() -> None:
    """`make test` has counted before: where GCC compiles there are counts of every module, and it is told where."""
    gcc = profile.is_gcc(profile.compiler())
    for path in build.sources():
        assert build.profile_of(path).exists() is gcc, path
        assert ("-fprofile-use" in build.by_profile(path)) is gcc


@USES
def test_where_nothing_was_counted_the_compiler_is_told_nothing() -> None:
    """As in an installation from the sources: it compiles as it ever did."""
    assert build.by_profile("gateway/relay.py") == []


@USES
def test_counts_are_looked_for_where_they_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """GCC finds those of a build with counters, and of code that has changed since it makes the best without."""
    source, made = Path("relay.c"), build.profile_of("gateway/relay.py")
    made.parent.mkdir(parents=True)
    body = "int main(int n, char **words) { int sum = 0; while (n--) sum += words[n][0] > 'a'; return sum > 100; }"
    source.write_text(body)
    monkeypatch.setenv(build.COUNTING, "1")
    _compile(source, *build.by_profile("gateway/relay.py"))
    subprocess.run([Path("a.out").resolve()], check=True)
    assert made.exists()

    monkeypatch.delenv(build.COUNTING)
    flags = build.by_profile("gateway/relay.py")
    said = _compile(source, *flags[:-4], "-Wmissing-profile", *flags[-4:])
    assert "profile" not in said
    source.write_text(body.replace("sum += ", "if (n % 3) sum -= 1; else sum += "))
    _compile(source, *flags, "-Werror")


def _compile(source: Path, *flags: str) -> str:
    command = [compiler(), "-O2", "-c", source.name, "-o", "made.o", *flags]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    subprocess.run([compiler(), "made.o", "--coverage"], check=True)
    return said


@pytest.mark.parametrize(
    ("named", "words"),
    [("no-such-compiler-here", "no compiler"), ("cat", "cat is not GCC")],
)
@USES
def test_another_compiler_is_told_and_stops_nothing(
    named: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Clang keeps its profiles in another way; the build goes on without one."""
    monkeypatch.setenv("CC", named)

    assert profile.main() == 0
    assert words in capsys.readouterr().err
    assert not build.PROFILE.exists()


@USES
def test_a_build_that_fails_is_told_and_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Here there is nothing to build: neither gateway nor classifier."""
    assert profile.main() == 0
    assert "compiling without a profile: " in capsys.readouterr().err
    assert not any(build.PROFILE.glob("*"))
    assert not profile.TREE.exists()


@USES
async def test_every_call_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls by which is counted are right ones: each kind, whole and as a stream, scored and not."""
    monkeypatch.setattr(profile, "CALLS", 2 * len(profile.bodies()))
    profile.TREE.mkdir(parents=True)

    await profile.serve()


@USES
async def test_a_call_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was counted on the way of errors would be no profile of calls."""
    monkeypatch.setattr(profile, "bodies", lambda: [("auto", "/chat/completions", {"model": "another"})])
    profile.TREE.mkdir(parents=True)

    with pytest.raises(profile.NotCounted, match="a call failed: 4"):
        await profile.serve()


@USES
async def test_a_gateway_that_does_not_come_up_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what it said."""
    monkeypatch.setattr(profile, "config", lambda: "nonsense = 1")
    profile.TREE.mkdir(parents=True)

    with pytest.raises(profile.NotCounted, match="nonsense"):
        await profile.serve()
    assert [path.name for path in profile.TREE.iterdir()] == ["profile.toml"]
