"""Laws of the project itself: sizes, docstrings, the Makefile, pins, the wheel, and what committed files may not hold."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from gateway.native import build

ROOT = Path(__file__).parent.parent
LONGEST_MODULE = 350
LONGEST_FUNCTION = 40
# Whoever copies a pin must get it from the index that is configured there, not from ours.
ADDRESS = re.compile(r"https?://|--(?:extra-)?index-url|--find-links|--trusted-host|@ file:|\"resolved\"")
# Written so that this file does not hold what it looks for.
REGISTRIES = re.compile(r"pypi[.]org|pythonhosted[.]org|registry[.]npmjs|deb[.]debian[.]org")
MACHINE_PATHS = re.compile("/(?:work|root)/|/(?:tmp)/work|/(?:opt)/pypi")


@cache
def committed() -> tuple[Path, ...]:
    """Return every file that git tracks and that is there."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(path for name in listed.split("\0") if name and (path := ROOT / name).is_file())


def texts() -> list[tuple[str, str]]:
    """Return name and content of every committed text file."""
    found = []
    for path in committed():
        try:
            found.append((str(path.relative_to(ROOT)), path.read_text()))
        except UnicodeDecodeError:
            continue
    return found


def modules() -> list[tuple[str, ast.Module, int]]:
    """Return name, tree and lines of every committed Python file."""
    return [(name, ast.parse(text), text.count("\n")) for name, text in texts() if name.endswith(".py")]


def says_why(node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a docstring gives the reason for a size: it says "long" and "because" or "so that"."""
    words = (ast.get_docstring(node) or "").lower()
    return "long" in words and ("because" in words or "so that" in words)


def test_modules_and_functions_stay_small() -> None:
    """No module has more than 350 lines and no function more than 40, unless its docstring says why it is long."""
    too_long = []
    for name, tree, lines in modules():
        if name.startswith("tests/"):
            continue
        if lines > LONGEST_MODULE and not says_why(tree):
            too_long.append(f"{name}: {lines} lines")
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or 0) - node.lineno + 1
                if size > LONGEST_FUNCTION and not says_why(node):
                    too_long.append(f"{name}:{node.lineno} {node.name}: {size} lines")

    assert too_long == []


def test_every_test_says_what_holds() -> None:
    """Every test function, in a class or not, has a docstring of at least one sentence."""
    silent = [
        f"{name}:{node.lineno} {node.name}"
        for name, tree, _ in modules()
        if name.startswith("tests/")
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if node.name.startswith("test_") and not (ast.get_docstring(node) or "").endswith(".")
    ]

    assert silent == []


def test_help_lists_every_target() -> None:
    """`make help`, the default, tells every target that a person would name, each with a sentence."""
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"(?m)^([a-z-]+):", makefile))
    phony = re.search(r"(?m)^\.PHONY: (.*)$", makefile)
    said = subprocess.run(["make"], cwd=ROOT, check=True, capture_output=True, text=True).stdout

    assert phony is not None
    assert set(phony[1].split()) == targets
    assert targets == set(re.findall(r"(?m)^  make ([a-z-]+) +\S", said))


def test_pins_are_exact_and_carry_no_address() -> None:
    """Dependencies are pinned to versions and come from whichever index is configured."""
    for path in (ROOT / "requirements").glob("*.txt"):
        lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
        assert lines
        assert [line for line in lines if not re.match(r"[a-z0-9-]+==[\w.!]+( ; .*)?$", line)] == []
    for path in (
        ROOT / "tests/node/package.json",
        ROOT / "tests/node/package-lock.json",
        *(ROOT / "requirements").glob("*"),
    ):
        assert ADDRESS.search(path.read_text()) is None, path


def pins(name: str) -> set[str]:
    """Return the pins of a requirements file."""
    return {line for line in (ROOT / "requirements" / name).read_text().splitlines() if "==" in line}


def test_every_dependency_is_pinned() -> None:
    """What serving needs is pinned, and testing runs on the very same versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    serve, dev = pins("serve.txt"), pins("dev.txt")

    def named(requirements: set[str] | list[str]) -> set[str]:
        return {re.split(r"[=<>;\s]", line, maxsplit=1)[0] for line in requirements}

    assert serve <= dev
    assert named(project["dependencies"]) <= named(serve)
    assert named([*extras["dev"], *extras["train"]]) <= named(dev)
    assert named(serve).isdisjoint({"scikit-learn", "scipy", "torch", "pytest"})


def test_committed_files_name_no_registry_and_no_machine() -> None:
    """Nothing committed depends on where it was made."""
    found = [
        f"{name}: {match[0]}"
        for name, text in texts()
        for pattern in (REGISTRIES, MACHINE_PATHS)
        for match in pattern.finditer(text)
    ]

    assert found == []


def test_the_wheel_carries_all_that_serving_needs(tmp_path: Path) -> None:
    """A built wheel holds both packages with their data and what was compiled, the command, the licence, and nothing else."""
    source = tmp_path / "source"  # building leaves traces beside the sources
    for path in committed():
        (source / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, source / path.relative_to(ROOT))
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(tmp_path),
        str(source),
    ]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("draftlane-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        entry = next(name for name in held if name.endswith("entry_points.txt"))
        assert "draftlane = gateway.__main__:main" in archive.read(entry).decode()

    packages = [
        path.relative_to(ROOT) for path in committed() if path.relative_to(ROOT).parts[0] in ("gateway", "classifier")
    ]
    data = {str(path) for path in packages if path.suffix not in (".c", ".h", ".pyi")}
    assert len(data) > 100
    for path in ("classifier/_native.py", "gateway/_native.py", *build.sources()):
        assert path.replace(".py", EXTENSION_SUFFIXES[0]) in held
    assert data <= held
    assert {name.split("/")[0] for name in held if ".dist-info/" not in name} == {"gateway", "classifier"}
    assert any(name.endswith("licenses/LICENSE") for name in held)


def test_a_skip_fails_where_the_result_is_relied_upon(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under CI=true a skipped test and a module that skips itself are failures; elsewhere they are skips."""
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function")
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text())
    pytester.makepyfile(
        test_one="import pytest\ndef test_a():\n    pytest.skip('no')\ndef test_b():\n    pass\n",
        test_two="import pytest\npytest.skip('no', allow_module_level=True)\n",
        test_three="import pytest\n@pytest.mark.xfail\ndef test_c():\n    assert False\n",
    )
    monkeypatch.delenv("CI", raising=False)
    pytester.runpytest("-p", "no:cacheprovider").assert_outcomes(passed=1, skipped=2, xfailed=1)
    monkeypatch.setenv("CI", "true")
    result = pytester.runpytest("-p", "no:cacheprovider", "--continue-on-collection-errors")

    result.assert_outcomes(passed=1, failed=1, errors=1, xfailed=1)
    assert result.ret != 0
