"""Recorded acceptance judged for smaller windows: exactly where the record tells, within bounds where it does not."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.__main__ import main
from gateway.measure.windows import records
from gateway.measure.windows.offline import STUDY, measured_steps
from gateway.measure.windows.records import Record, RecordError
from gateway.measure.windows.truncation import Truncated, last_match


def drafted(matches: Sequence[bool], window: int) -> list[int]:
    """Return what each step accepts when it is known of every token whether the draft would have proposed it."""
    at, accepted = 0, []
    while at < len(matches):
        run = 0
        while run < window and at + run < len(matches) - 1 and matches[at + run]:
            run += 1
        accepted.append(run)
        at += run + 1
    return accepted


def truncated(accepted: Sequence[int], window: int, match: float = 0.5) -> Truncated:
    """Return a record ready to be asked."""
    return Truncated(accepted, window, match, np.random.default_rng(1))


@given(st.lists(st.booleans(), min_size=1, max_size=200), st.integers(1, 15), st.integers(1, 15))
def test_smaller_windows_are_worked_out_within_bounds(matches: list[bool], window: int, smaller: int) -> None:
    """Whatever the answer: the steps that a smaller window really takes lie within the bounds, for as many tokens."""
    smaller = min(smaller, window)
    record = truncated(drafted(matches, window), window)
    real = len(drafted(matches, smaller))
    fewest, most = record.bounds(smaller)

    assert record.tokens == len(matches)
    assert fewest <= real <= most
    assert fewest <= record.steps(smaller) <= most


@given(st.lists(st.booleans(), min_size=1, max_size=200), st.integers(1, 15))
def test_the_recorded_window_is_what_was_recorded(matches: list[bool], window: int) -> None:
    """Asked for its own window a record gives its own steps, with nothing left open."""
    accepted = drafted(matches, window)
    record = truncated(accepted, window)

    assert record.bounds(window) == (len(accepted), len(accepted))
    assert record.steps(window) == len(accepted)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.integers(1, 7))
def test_without_full_windows_nothing_is_open(accepted: list[int], smaller: int) -> None:
    """Where no step accepted its whole window, every smaller one is known to the step."""
    record = truncated(accepted, 7)

    assert len({*record.bounds(smaller), record.steps(smaller)}) == 1
    assert record.steps(smaller) == sum(-(-(one + 1) // (smaller + 1)) for one in accepted)


def test_the_likely_steps_are_those_of_a_draft_that_errs_at_random() -> None:
    """For independent matches the expected acceptance of every window comes out within 2 %."""
    chance = random.Random(3)
    share = 0.8
    matches = [chance.random() < share for _ in range(40_000)]
    accepted = drafted(matches, 10)
    record = truncated(accepted, 10, last_match([(accepted, 10)]))

    for window in range(1, 11):
        expected = (1 - share ** (window + 1)) / (1 - share)
        assert record.tokens / record.steps(window) == pytest.approx(expected, rel=0.02)


def write(path: Path, *lines: Any) -> Path:
    """Write lines of JSON."""
    path.write_text("".join(f"{json.dumps(line) if not isinstance(line, str) else line}\n" for line in lines))
    return path


TOLD = {"acceptance_histogram": [2, 1, 3], "num_spec_tokens": 2, "num_spec_steps": 6}


def test_every_kind_of_line_is_read(tmp_path: Path) -> None:
    """Steps, histograms, answers of vLLM and batch lines, each with what it names."""
    usage = {"completion_tokens": 20}
    answer = {"id": "chatcmpl-1", "usage": usage, "metrics": {"speculative_decoding": TOLD}}
    path = write(
        tmp_path / "r.jsonl",
        {"id": "a", "category": "code", "window": 5, "accepted": [5, 0, 2], "step_seconds": 0.1},
        "",
        {"id": 7, "acceptance_histogram": [2, 1, 3]},
        answer,
        {"custom_id": "b-1", "category": "chat", "response": {"status_code": 200, "body": answer}},
    )
    steps, histogram, whole, batch = records.read(path)

    assert steps == Record(line=1, id="a", category="code", window=5, accepted=(5, 0, 2), step_seconds=0.1)
    assert (histogram.line, histogram.id, histogram.window, histogram.ordered) == (3, "7", 2, False)
    assert sorted(histogram.accepted) == [0, 0, 1, 2, 2, 2]
    # 13 tokens in steps with a draft and one of the prefill: six steps had none.
    assert sorted(whole.accepted) == [0] * 8 + [1] + [2] * 3
    assert (batch.id, batch.category, sorted(batch.accepted)) == ("b-1", "chat", sorted(whole.accepted))


def test_a_metrics_page_is_read(tmp_path: Path) -> None:
    """Counters by position are a histogram of the pool, scaled down where it is long."""
    lines = ["vllm:spec_decode_num_drafts_total 1000000"]
    lines += [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}} {count}'
        for place, count in enumerate((600_000, 300_000, 100_000))
    ]
    path = tmp_path / "metrics.txt"
    path.write_text("\n".join(lines))
    (found,) = records.read(path)

    assert found.window == 3
    assert [found.accepted.count(n) for n in range(4)] == [8000, 6000, 4000, 2000]
    path.write_text("vllm:num_requests_running 0\n")
    with pytest.raises(RecordError, match="absent or zero"):
        records.read(path)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "no JSON"),
        ("[1]", "expected a JSON object"),
        ({"window": 7}, "neither accepted nor acceptance_histogram"),
        ({"accepted": [1, -1], "window": 7}, "none below 0"),
        ({"accepted": "1", "window": 7}, "expected a list"),
        ({"accepted": [8], "window": 7}, "accepted 8 tokens of a window of 7"),
        ({"accepted": [0], "window": "7"}, "window: expected a whole number"),
        ({"accepted": [0]}, "window: expected a whole number"),
        ({"accepted": [1], "window": 7, "step_seconds": -1}, "step_seconds"),
        ({"metrics": {"speculative_decoding": {}}, "usage": 3}, "neither accepted nor"),
    ],
)
def test_a_line_that_is_no_record_is_named(
    tmp_path: Path, line: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Line 1731 of a long file is told by its number, with what is wrong and exit 2."""
    good = {"accepted": [1, 2], "window": 7}
    path = write(tmp_path / "r.jsonl", *[good] * 1730, line)

    assert main(["sweep", "--from", str(path)]) == 2
    said = capsys.readouterr().err
    assert "line 1731: " in said
    assert words in said


def sample(tmp_path: Path, **shares: float) -> Path:
    """Write forty records of each category, whose drafts err at random."""
    chance = random.Random(5)
    lines = [
        {
            "category": category,
            "window": 10,
            "accepted": drafted([chance.random() < share for _ in range(300)], 10),
        }
        for category, share in shares.items()
        for _ in range(40)
    ]
    return write(tmp_path / "r.jsonl", *lines)


def swept(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    """Run the command and return its JSON."""
    assert main(["sweep", *words, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_each_category_has_its_best_window(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Predictable text wants a large window, other text a small one, and noise none at all; all with intervals."""
    path = sample(tmp_path, code=0.9, chat=0.45, noise=0.05)
    found = swept(capsys, "--from", str(path))

    assert found["kind"] == "sweep"
    assert {name: best["window"] for name, best in found["best"].items() if name in ("chat", "noise")} == {
        "chat": 1,
        "noise": 0,
    }
    assert 5 <= found["best"]["code"]["window"] <= 9
    assert found["best"]["code"]["gain_over_baseline"]["interval"][0] > 2
    code = {row["window"]: row for row in found["windows"] if row["category"] == "code"}
    assert list(code) == [*range(1, 11), 0]
    lengths = [code[window]["acceptance_length"]["value"] for window in range(1, 11)]
    assert lengths == sorted(lengths)
    assert all(row["steps_range"][0] <= row["steps_range"][1] for row in code.values() if row["window"])
    for row in found["windows"]:
        for name in ("acceptance_length", "step_seconds", "tpot_seconds", "goodput_tokens_per_s"):
            low, high = row[name]["interval"]
            assert low <= row[name]["value"] <= high
    assert any("the study's on Trainium2" in warning for warning in found["warnings"])


def test_step_times_decide(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Cheap drafting makes larger windows best, dear drafting none; given, measured with the records, or of a sweep."""
    path = sample(tmp_path, code=0.9)
    given = ("--from", str(path), "--step-base-ms", "45", "--step-per-token-ms")
    cheap, dear = swept(capsys, *given, "0.1"), swept(capsys, *given, "45")

    assert cheap["best"][""]["window"] == 10
    assert any("larger than 10 may be better" in warning for warning in cheap["warnings"])
    assert dear["best"][""]["window"] == 0
    kept = tmp_path / "sweep.json"
    kept.write_text(json.dumps(dear))
    again = swept(capsys, "--from", str(path), "--steps-from", str(kept))
    assert again["windows"] == dear["windows"]
    assert again["step_model"][""] == dear["step_model"][""]


def test_step_times_of_records_are_used() -> None:
    """Two windows' step times make a line; one window's does with the baseline's."""
    one = Record(line=1, id="", category="", window=7, accepted=(1,), step_seconds=0.105)
    other = Record(line=2, id="", category="", window=3, accepted=(1,), step_seconds=0.085)

    assert measured_steps([one], None) is None
    by_base, by_two = measured_steps([one], 0.045), measured_steps([one, other], 0.045)
    assert by_base is not None
    assert by_two is not None
    assert by_base.seconds(7) == pytest.approx(0.105)
    assert by_base.per_token_seconds == pytest.approx(STUDY.per_token_seconds)
    assert (by_two.base_seconds, by_two.per_token_seconds) == pytest.approx((0.070, 0.005))


def test_what_was_promised_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Windows whose answers take too long per token have no goodput; where none is quick enough, exit is 1."""
    path = sample(tmp_path, code=0.9)
    strict = swept(capsys, "--from", str(path), "--tpot-ms", "22")
    rows = {row["window"]: row for row in strict["windows"]}

    assert rows[0]["goodput_tokens_per_s"] == {"value": 0.0, "interval": None}
    assert rows[1]["met_share"] == 0
    assert rows[6]["met_share"] > 0.8
    nobody = swept(capsys, "--from", str(path), "--tpot-ms", "1", code=1)
    assert nobody["best"] == {}
    assert any("no call met what was asked" in warning for warning in nobody["warnings"])


def test_nxd_inference_uses_one_less(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its meaning of a window, k accepts k − 1: the steps of window 8 are those of window 7 elsewhere."""
    line = {"window": 9, "accepted": drafted([True, True, True, False] * 40 + [True] * 100, 8)}
    path = write(tmp_path / "r.jsonl", *[line] * 6)
    theirs = swept(capsys, "--from", str(path), "--nxdi")
    usual = swept(capsys, "--from", str(write(path, *[{**line, "window": 8}] * 6)))

    def lengths(found: dict[str, Any]) -> dict[int, float]:
        return {row["window"]: row["acceptance_length"]["value"] for row in found["windows"]}

    assert min(window for window in lengths(theirs) if window) == 2
    assert lengths(theirs)[8] == lengths(usual)[7]


def test_records_of_smaller_windows_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A record cannot tell of windows above its own: by default all are asked for what all can tell."""
    lines = [{"window": window, "accepted": [window, 0]} for window in (5, 5, 9, 9, 9)]
    path = write(tmp_path / "r.jsonl", *lines, {"window": 5, "accepted": []})

    assert {row["window"] for row in swept(capsys, "--from", str(path))["windows"]} == {*range(6)}
    larger = swept(capsys, "--from", str(path), "--windows", "3,8")
    assert {(row["window"], row["n"]) for row in larger["windows"]} == {(3, 3), (8, 3), (0, 3)}
    assert "3 of 6 records have a window below 8" in larger["warnings"][0]
    assert main(["sweep", "--from", str(path), "--windows", "12"]) == 2
    assert "12 is over 9" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "give FILE with requests, or --from"),
        (("x.jsonl", "--from", "y.jsonl"), "not both"),
        (("--from", "gone.jsonl"), "gone.jsonl: No such file"),
        (("--from", "x", "--rate", "3"), "--rate: means nothing with --from"),
        (("--from", "x", "--step-base-ms", "3"), "give both"),
        (("x.jsonl", "--nxdi", "--lab"), "--nxdi: means nothing without --from"),
        (("x.jsonl",), "say where to measure"),
        (("x.jsonl", "--endpoint", "5=http://h"), "one window alone"),
        (("x.jsonl", "--start", "engine", "--windows", "5"), "one window alone"),
        (("x.jsonl", "--lab", "--start", "y"), "not several"),
        (("x.jsonl", "--endpoint", "5=http://h", "--windows", "5"), "leave --windows"),
        (("x.jsonl", "--endpoint", "5=http://h", "--endpoint", "5=http://i"), "window-5 stands twice"),
        (("x.jsonl", "--lab", "--resume"), "--resume: name the results"),
        (("x.jsonl", "--lab", "--baseline", "http://h"), "another baseline is started"),
        (("x.jsonl", "--lab", "--key-env", "DRAFTLANE_NO_SUCH_KEY"), "DRAFTLANE_NO_SUCH_KEY is not set"),
        (("x.jsonl", "--lab", "--start-baseline", "y"), "goes with --start"),
    ],
)
def test_wrong_use_is_told(words: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Options that do not go together are 2, each with what to do."""
    assert main(["sweep", *words]) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [("--windows", "0"), ("--windows", "9-5"), ("--windows", "a"), ("--endpoint", "5=ftp://x"), ("--drafts", "a,")],
)
def test_options_that_say_nothing_are_refused(words: tuple[str, str]) -> None:
    """Windows, endpoints and drafts that cannot be read end the command as argparse does."""
    with pytest.raises(SystemExit) as raised:
        main(["sweep", "x.jsonl", *words])

    assert raised.value.code == 2


def test_people_read_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The curve, the best window, the step model and the warnings, in words."""
    assert main(["sweep", "--from", str(sample(tmp_path, code=0.9))]) == 0
    said = capsys.readouterr().out

    for words in ("all together", "← best", "none", "goodput tokens/s", "times baseline", "8.57 ms per drafted token"):
        assert words in said
