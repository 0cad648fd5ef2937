"""The modules that every call passes are compiled as they stand, are what runs, and are no condition for running."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from gateway import compiled
from gateway.__main__ import main
from gateway.native import build

ROOT = Path(__file__).parent.parent
SUFFIX = EXTENSION_SUFFIXES[0]


@pytest.fixture(name="tree")
def tree_fixture(tmp_path: Path) -> Path:
    """A working tree of one module, compiled after it was written."""
    (tmp_path / "gateway").mkdir()
    (tmp_path / "classifier").mkdir()
    (tmp_path / "pyproject.toml").touch()
    for when, name in enumerate(("wire.py", f"wire{SUFFIX}", "app.py", f"_native{SUFFIX}")):
        (tmp_path / "gateway" / name).touch()
        os.utime(tmp_path / "gateway" / name, (when, when))
    return tmp_path


@pytest.mark.parametrize("path", build.sources())
def test_a_module_that_calls_pass_runs_compiled(path: str) -> None:
    """Python takes what was compiled, and its functions still are the ones that the source names."""
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))

    assert module.__file__ == str(ROOT / path.removesuffix(".py")) + SUFFIX
    assert ROOT / path in compiled.modules()
    assert compiled.stale() == []


def test_an_edited_module_is_known(tree: Path) -> None:
    """Where a source is younger than what was compiled of it, it is named; what has no source, or is not compiled, is not."""
    assert compiled.modules(tree) == [tree / "gateway" / "wire.py"]
    assert compiled.stale(tree) == []
    os.utime(tree / "gateway" / "wire.py", (9, 9))

    assert compiled.stale(tree) == ["gateway/wire.py"]


def test_an_installed_package_is_not_asked(tree: Path) -> None:
    """Installers date files as they come; only a working tree is edited."""
    os.utime(tree / "gateway" / "wire.py", (9, 9))
    (tree / "pyproject.toml").unlink()

    assert compiled.stale(tree) == []


def test_a_command_says_what_it_does_not_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever edits a module and starts the gateway at once hears that the edit has no effect yet, and what to do."""
    monkeypatch.setattr(compiled, "stale", lambda: ["gateway/wire.py"])
    with pytest.raises(SystemExit):
        main(["--help"])

    assert "gateway/wire.py: edited since compiled" in capsys.readouterr().err


def test_without_a_compiler_the_package_is_built(tmp_path: Path) -> None:
    """Where no compiler works, the wheel has the sources and nothing compiled, and is no failure."""
    source = tmp_path / "source"
    parts = ("pyproject.toml", "README.md", "LICENSE", "gateway", "classifier")
    for part in parts:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        else:
            source.mkdir(exist_ok=True)
            shutil.copy(ROOT / part, source / part)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    environment = {**os.environ, "CC": "false"}
    subprocess.run([*command, "--wheel-dir", tmp_path, source], env=environment, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("draftlane-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())

    assert set(build.sources()) <= held
    assert not [name for name in held if name.endswith(".so")]


def test_without_a_compiler_the_sources_run(tmp_path: Path) -> None:
    """Where nothing was compiled, Python's own modules, and theirs alone, pass the tests of what a call passes."""
    for package in ("gateway", "classifier"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (tmp_path / "probe.py").write_text(
        "import gateway.pipeline, classifier.scorer\n"
        "assert gateway.pipeline.__file__.endswith('.py') and classifier.scorer.__file__.endswith('.py')\n"
    )
    sources = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "probe.py"], cwd=tmp_path, env=sources, check=True)
    names = ("wire", "pools", "plan", "exchange", "lockstep", "http1")
    files = [str(ROOT / "tests" / f"test_{name}.py") for name in names]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        str(ROOT / "pyproject.toml"),
        *files,
    ]
    done = subprocess.run(command, cwd=tmp_path, env=sources, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout[-2000:]
