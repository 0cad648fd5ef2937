"""Draft and target compared by their files: what differs, whether it matters, and files that are no model's."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.__main__ import main
from gateway.measure.doctor.compat import compare
from gateway.measure.doctor.finding import Checkup
from gateway.measure.doctor.folder import FolderError, canonical, read

WORDS = ["the", "kettle", "is", "on", "stove", "and", "sings"]
END, BEGIN = 7, 8


def config(**changes: Any) -> dict[str, Any]:
    """Return a small model's config.json."""
    plain = {
        "architectures": ["KettleForCausalLM"],
        "model_type": "kettle",
        "vocab_size": 16,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "intermediate_size": 128,
        "max_position_embeddings": 4096,
        "eos_token_id": END,
        "bos_token_id": BEGIN,
    }
    return {**plain, **changes}


def tokenizer(words: list[str] | None = None, **changes: Any) -> dict[str, Any]:
    """Return a small tokenizer.json."""
    chosen = WORDS if words is None else words
    plain = {
        "added_tokens": [{"id": END, "content": "<end>", "special": True}, {"id": BEGIN, "content": "<begin>"}],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Whitespace"},
        "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "vocab": {word: n for n, word in enumerate(chosen)}, "merges": ["t he", "i s"]},
    }
    return {**plain, **changes}


def folder(path: Path, made: dict[str, Any] | None = None, cut: dict[str, Any] | None = None, **others: Any) -> Path:
    """Write a model's folder."""
    path.mkdir()
    files = {"config": config() if made is None else made, "tokenizer": tokenizer() if cut is None else cut, **others}
    for name, held in files.items():
        (path / f"{name}.json").write_text(json.dumps(held))
    return path


def looked(target: Path, draft: Path, **options: Any) -> Checkup:
    """Compare two folders."""
    return compare(read([target]), read([draft]), **options)


def told(checkup: Checkup, severity: str) -> str:
    """Return all findings of one severity as text."""
    return "\n".join(str(found) for found in checkup.findings if found.severity == severity)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Return the folder of the target."""
    return folder(tmp_path / "target")


def test_models_of_one_tokenizer_fit(target: Path, tmp_path: Path) -> None:
    """Nothing differs: nothing to fix or to look at, and every section has the same digest, merges written in either way."""
    pairs = tokenizer()
    pairs["model"]["merges"] = [["t", "he"], ["i", "s"]]
    pairs["added_tokens"].reverse()
    found = looked(target, folder(tmp_path / "draft", cut=pairs), tensor_parallel=4, length=1024)

    assert found.ok
    assert told(found, "fix") + told(found, "warn") == ""
    assert found.facts["target"]["sections"] == found.facts["draft"]["sections"]
    assert set(found.facts["target"]["sections"]) == {
        *("model.vocab", "model.merges", "added_tokens", "normalizer", "pre_tokenizer", "decoder")
    }


@pytest.mark.parametrize(
    ("made", "cut", "severity", "words"),
    [
        (config(vocab_size=32), None, "fix", "config.vocab_size: is 16 of the target and 32"),
        (None, tokenizer(["kettle", "the", *WORDS[2:]]), "fix", "2 ids mean one token to the target"),
        (config(vocab_size=7), tokenizer(WORDS, added_tokens=[]), "fix", "embedding ends at 7"),
        (None, tokenizer(WORDS[:6]), "warn", "1 ids are known to the target alone: 6 'sings'"),
        (None, tokenizer(WORDS, normalizer=None), "warn", "tokenizer.normalizer: differs"),
        (None, tokenizer(WORDS, pre_tokenizer={"type": "Bert"}), "warn", "tokenizer.pre_tokenizer: differs"),
        (None, tokenizer(WORDS, decoder=None), "note", "the target's alone is used"),
        (config(eos_token_id=5), None, "warn", "eos_token_id: is 7 of the target, 5 of the draft"),
        (config(eos_token_id=[5, 7]), None, "note", "they share one"),
        (config(bos_token_id=None), None, "warn", "bos_token_id: is 8 of the target, not set of the draft"),
        (config(pad_token_id=3), None, "note", "engines pad with the target's"),
        (config(model_type="pot"), None, "warn", "is kettle of the target, pot of the draft"),
        (config(max_position_embeddings=512), None, "warn", "is 4096 of the target, 512 of the draft"),
    ],
)
def test_what_differs_is_weighed(
    target: Path, tmp_path: Path, made: dict[str, Any] | None, cut: dict[str, Any] | None, severity: str, words: str
) -> None:
    """Each difference is found, with what it means: wrong tokens must be fixed, other habits cost acceptance."""
    found = looked(target, folder(tmp_path / "draft", made, cut))

    assert words in told(found, severity)
    assert found.ok == (severity != "fix")


def test_ids_count_whichever_section_names_them(target: Path, tmp_path: Path) -> None:
    """A token among the added ones means the same as one in the vocabulary: only noted."""
    moved = tokenizer(added_tokens=[])
    moved["model"]["vocab"].update({"<end>": END, "<begin>": BEGIN})
    found = looked(target, folder(tmp_path / "draft", cut=moved))

    assert found.ok
    assert "written in another way" in told(found, "note")
    assert "all 9 ids mean the same" in told(found, "ok")


def test_the_length_decides_whether_positions_matter(target: Path, tmp_path: Path) -> None:
    """A draft that ends before max-model-len must be fixed, one that ends after it need not be."""
    draft = folder(tmp_path / "draft", config(max_position_embeddings=512))

    assert "is 512 of the draft, below the length of 1024" in told(looked(target, draft, length=1024), "fix")
    assert looked(target, draft, length=512).ok


@pytest.mark.parametrize(
    ("changes", "degree", "severity", "words"),
    [
        ({}, 4, "ok", "1 of 4 KV heads on each core"),
        ({}, 8, "note", "each of 4 KV heads is kept 2 times"),
        ({"num_key_value_heads": 3}, 4, "fix", "3 KV heads cannot be shared out or copied evenly"),
        ({"num_attention_heads": 12}, 8, "warn", "12 attention heads do not go into 8 parts"),
        ({"intermediate_size": 100}, 8, "fix", "intermediate_size 100"),
        ({"num_attention_heads": 0}, 8, "warn", "its heads are not known"),
        ({"num_key_value_heads": -1}, 8, "warn", "its heads are not known"),
    ],
)
def test_heads_are_shared_out(
    target: Path, tmp_path: Path, changes: dict[str, int], degree: int, severity: str, words: str
) -> None:
    """KV heads divide the tensor-parallel degree or are divided by it; attention heads and layers go into its parts."""
    found = looked(target, folder(tmp_path / "draft", config(**changes)), tensor_parallel=degree)

    assert words in told(found, severity)


def test_a_model_that_sees_is_looked_at_one_level_down(target: Path, tmp_path: Path) -> None:
    """The language model's part of a configuration is what is compared."""
    inner = config()
    del inner["architectures"]
    found = looked(target, folder(tmp_path / "draft", {"architectures": ["Seeing"], "text_config": inner}))

    assert found.ok
    assert found.facts["draft"]["vocab_size"] == 16


def test_special_tokens_come_from_wherever_they_are_set(tmp_path: Path) -> None:
    """generation_config goes before config, and a name in tokenizer_config is looked up."""
    bare = config(eos_token_id=None, bos_token_id=None)
    files = read(
        [
            folder(
                tmp_path / "m",
                bare,
                generation_config={"eos_token_id": [9, END]},
                tokenizer_config={"bos_token": {"content": "<begin>"}, "pad_token": "the"},
            )
        ]
    )

    assert [files.special(which) for which in ("eos", "bos", "pad")] == [(END, 9), (BEGIN,), (0,)]


def test_older_files_and_unigrams_are_read(tmp_path: Path) -> None:
    """vocab.json with merges.txt makes a tokenizer, and a unigram's tokens are numbered as they stand."""
    old = tmp_path / "old"
    old.mkdir()
    (old / "vocab.json").write_text(json.dumps({word: n for n, word in enumerate(WORDS)}))
    (old / "merges.txt").write_text("#version: 0.2\nt he\ni s\n")
    new = read([folder(tmp_path / "new", cut=tokenizer(added_tokens=[]))])
    unigram = tokenizer(model={"type": "Unigram", "vocab": [[word, -1.0] for word in WORDS]}, added_tokens=[])
    scored = read([folder(tmp_path / "unigram", cut=unigram)])

    assert read([old]).meanings == new.meanings == scored.meanings
    assert read([old]).hashes["model.merges"] == new.hashes["model.merges"]


def test_pieces_alone_are_compared_as_files(tmp_path: Path) -> None:
    """Where there is only tokenizer.model its bytes decide."""
    paths = []
    for name, held in (("a", b"one"), ("b", b"one"), ("c", b"two")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config()))
        (tmp_path / name / "tokenizer.model").write_bytes(held)
        paths.append(tmp_path / name)

    assert looked(paths[0], paths[1]).ok
    assert "tokenizer.model is another file" in told(looked(paths[0], paths[2]), "fix")


def test_plain_files_are_enough(target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files of any name are told apart by what is in them; what is missing is said and not guessed."""
    named = tmp_path / "draft-tokenizer.json"
    named.write_text(json.dumps(tokenizer(["kettle", "the", *WORDS[2:]])))
    shape = tmp_path / "draft-shape.json"
    shape.write_text(json.dumps(config()))
    both = [str(target / "config.json"), str(target / "tokenizer.json")]

    assert main(["doctor", "compat", "--target", *both, "--draft", str(shape), str(named), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["kind"] == "doctor"
    assert not said["ok"]
    assert "2 ids mean one token" in said["fix"][0]
    assert main(["doctor", "compat", "--target", str(target), "--draft", str(shape)]) == 0
    assert "no tokenizer of" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("tokenizer.json", "{", "no JSON"),
        ("tokenizer.json", "[]", "no JSON object"),
        ("tokenizer.json", '{"model": {"vocab": {"a": "b"}}}', "not a tokenizer's"),
        ("tokenizer.json", '{"model": {"vocab": {"a": 0}}, "added_tokens": [{"content": "x"}]}', "not a tokenizer's"),
        ("tokenizer.json", '{"model": {"vocab": {"a": 0}, "merges": [1]}}', "not a tokenizer's"),
        ("tokenizer.json", "version https://git-lfs.github.com/spec/v1", "pointer to large storage"),
        ("notes.json", '{"a": 1}', "neither a tokenizer nor"),
        ("notes.txt", "words", "no folder"),
    ],
)
def test_what_is_no_models_is_told(tmp_path: Path, name: str, text: str, words: str) -> None:
    """A file that cannot be used is named, with what is wrong."""
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(FolderError, match=words) as raised:
        read([path])

    assert name in str(raised.value)


def test_wrong_use_is_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder without a model, a path that is not there, and no check or two at once are wrong use, each told."""
    (tmp_path / "empty").mkdir()
    assert main(["doctor", "compat", "--target", str(tmp_path / "empty"), "--draft", str(tmp_path / "gone.json")]) == 2
    assert "has neither config.json" in capsys.readouterr().err
    assert main(["doctor"]) == 2
    assert "name one of compat, hbm" in capsys.readouterr().err
    assert main(["doctor", "--plan", "x.toml", "hbm"]) == 2
    assert "exclude each other" in capsys.readouterr().err


def test_canonical_digests_follow_meaning() -> None:
    """Order of keys and of added tokens does not change a digest; content does."""
    one = [{"id": 2, "content": "b"}, {"content": "a", "id": 1}]

    assert canonical("added_tokens", one) == canonical("added_tokens", one[::-1])
    assert canonical("normalizer", {"a": 1, "b": 2}) == canonical("normalizer", {"b": 2, "a": 1})
    assert canonical("normalizer", {"a": 1}) != canonical("normalizer", {"a": 2})


VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 40)
    | st.sampled_from(["x", "<end>"])
    | st.lists(st.integers(0, 9), max_size=3)
)
ODD = st.dictionaries(
    st.sampled_from([*config(), "pad_token_id", "head_dim"]), VALUES | st.dictionaries(st.just("a"), VALUES)
)
PIECES = st.dictionaries(
    st.sampled_from(["model", "added_tokens", "normalizer", "decoder"]),
    VALUES
    | st.dictionaries(st.sampled_from(["vocab", "merges"]), VALUES | st.dictionaries(st.sampled_from(WORDS), VALUES))
    | st.lists(st.dictionaries(st.sampled_from(["id", "content"]), VALUES), max_size=2),
)


@given(ODD, PIECES)
def test_any_files_are_compared_or_refused(made: dict[str, Any], cut: dict[str, Any]) -> None:
    """Whatever JSON a model's files hold: they are compared, or refused; nothing breaks."""
    with TemporaryDirectory() as place:
        path = folder(Path(place) / "odd", {**made, "vocab_size": made.get("vocab_size")}, cut)
        whole = folder(Path(place) / "whole")
        try:
            odd = read([path])
        except FolderError:
            return
        assert compare(read([whole]), odd, tensor_parallel=4, length=8).findings
        assert compare(odd, read([whole]), tensor_parallel=4).findings
