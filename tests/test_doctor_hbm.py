"""Memory of target and draft on a named machine: the study's figures, what does not fit, and what would."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.__main__ import main
from gateway.measure.doctor.capacity import Wish, plan
from gateway.measure.doctor.finding import Checkup
from gateway.measure.doctor.hbm import GIB, ModelError

MIB = 1024**2
ROOT = Path(__file__).parent.parent


def planned(**changes: Any) -> Checkup:
    """Plan the study's speculative pool, or a change of it."""
    study: dict[str, Any] = {
        "instance": "trn2.48xlarge",
        "target": "Qwen3-32B",
        "draft": "Qwen3-1.7B",
        "tensor_parallel": 32,
        "length": 1024,
        "batch": 4,
    }
    return plan(Wish(**{**study, **changes}))


def told(checkup: Checkup, severity: str) -> str:
    """Return all findings of one severity as text."""
    return "\n".join(str(found) for found in checkup.findings if found.severity == severity)


def test_the_studys_pools_are_as_published() -> None:
    """61.0, 3.2 and 1.1 GiB of weights, 1 MiB and 448 KiB of cache per token at TP 32, 8 chips, two replicas on a node."""
    found = planned()
    large, small = found.facts["models"]
    tiny = planned(draft="Qwen3-0.6B").facts["models"][1]

    assert [round(one["weights_gib"], 1) for one in (large, small, tiny)] == [61.0, 3.2, 1.1]
    assert [one["kv_bytes_per_token"] for one in (large, small, tiny)] == [MIB, 448 * 1024, 448 * 1024]
    assert found.facts["chips"] == 8
    assert found.facts["replicas_per_instance"] == 2
    assert found.facts["available_gib"] == 768
    assert found.facts["kv_gib"] == pytest.approx(4 * 1024 * (MIB + 448 * 1024) / GIB)
    assert found.facts["per_core_gib"] == pytest.approx((found.facts["weights_gib"] + found.facts["kv_gib"]) / 32)
    assert found.ok
    assert "copied to 32: 1 MiB of cache per token" in told(found, "note")


def test_it_warns_before_it_does_not_fit() -> None:
    """With growing length the plan is sound, then narrow, then too large, and says what would go in."""
    sound, narrow, over = (planned(length=length) for length in (32_768, 100_000, 131_072))

    assert "memory" in told(sound, "ok")
    assert "little is left" in told(narrow, "warn")
    assert narrow.ok
    assert not over.ok
    assert "at batch 4 a length of 111655" in told(over, "fix")
    assert planned(length=111_655).facts["fits"]
    assert not planned(length=111_660).facts["fits"]


@pytest.mark.parametrize(
    ("changes", "severity", "words"),
    [
        ({"tensor_parallel": 128}, "fix", "has 64 logical cores"),
        ({"tensor_parallel": 6}, "warn", "does not fill 2 chip(s)"),
        ({"tensor_parallel": 6}, "fix", "neither share nor copy evenly"),
        ({"tensor_parallel": 64}, "warn", "an instance of its own"),
        ({"instance": "trn1.32xlarge", "tensor_parallel": 2}, "fix", "the weights alone do not fit"),
        ({"draft": None}, "note", "2 such replica(s)"),
    ],
)
def test_what_stands_against_it_is_told(changes: dict[str, Any], severity: str, words: str) -> None:
    """Too many cores, uneven chips and heads, no room for a second pool, weights that are too large."""
    assert words in told(planned(**changes), severity)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"instance": "trn9.huge"}, "trn2.48xlarge"),
        ({"target": "Nope-7B"}, "Nope-7B"),
        ({"logical_core": 3}, "does not go into"),
    ],
)
def test_what_is_not_known_is_told(changes: dict[str, Any], words: str) -> None:
    """An instance, a model or a split of cores that does not exist."""
    with pytest.raises(ModelError, match=words):
        planned(**changes)


def test_experts_are_not_taken_for_a_dense_model(tmp_path: Path) -> None:
    """A mixture of experts is refused, as its weights are not those of this arithmetic."""
    (tmp_path / "config.json").write_text(json.dumps({"num_attention_heads": 8, "hidden_size": 64, "num_experts": 8}))
    with pytest.raises(ModelError, match="num_experts is 8"):
        planned(target=str(tmp_path))


def test_the_command_speaks_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0 when it fits, 1 with what to change when not, 2 for what is not known; models by folder or repository name."""
    assert main(["doctor", "hbm", "--draft", "Qwen/Qwen3-1.7B"]) == 0
    assert "2.19 GiB of 24.0 per core" in capsys.readouterr().out
    assert main(["doctor", "hbm", "--batch", "2000", "--json"]) == 1
    assert "it takes a batch of" in json.loads(capsys.readouterr().out)["fix"][0]
    assert main(["doctor", "hbm", "--target", str(tmp_path)]) == 2
    assert main(["doctor", "hbm", "--bytes-per-kv", "0"]) == 2
    assert "--bytes-per-kv" in capsys.readouterr().err


def test_a_full_disk_hides_no_finding() -> None:
    """What standard output does not take is on standard error, and exit is 1 though nothing is to fix."""
    line = [sys.executable, "-m", "gateway", "doctor", "hbm"]
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(line, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert ran.returncode == 1
    assert "standard output: No space left on device; what it did not take:" in ran.stderr
    assert ran.stderr.endswith("nothing to fix\n")
