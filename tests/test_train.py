"""Training: reproducible, honest about what it left out, equal to scikit-learn, and careful with an operator's traffic."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from measured import rows
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge
from sklearn.metrics.pairwise import rbf_kernel

from classifier.artifact import dump
from classifier.calibrate import apply, curve, folds, knots, left_out, ranks
from classifier.dataset import DataError, row_of, sample_of
from classifier.features import BUCKETS, NAMES, Measured, measure
from classifier.model import Sample, Settings, balance, fit, rounded
from classifier.scorer import Scorer, View
from classifier.traffic import FOLDED, Observation, Sums, Verdict, compare, learn, observations
from classifier.train import LARGEST, thinned, train
from classifier.weights import CEILING, Weights

SMALL = Settings(prototypes=60)


@pytest.fixture(scope="module")
def sample() -> Sample:
    """Two hundred measured requests."""
    return sample_of(row_of(row) for row in rows(40))


@pytest.fixture(scope="module")
def weights(sample: Sample) -> Weights:
    """Fitted to them."""
    return fit(sample, SMALL, seed=1)


@pytest.fixture(scope="module")
def trained() -> tuple[Weights, dict[str, Any]]:
    """A calibrated artefact's content."""
    return train([row_of(row) for row in rows(40)], settings=SMALL)


def test_the_same_data_give_the_same_bytes(trained: tuple[Weights, dict[str, Any]]):
    """Training twice gives the same artefact, bit for bit."""
    again = train([row_of(row) for row in rows(40)], settings=SMALL)

    assert dump(*again) == dump(*trained)


def test_other_data_or_another_seed_give_other_bytes(trained: tuple[Weights, dict[str, Any]]):
    """What enters shows in the checksum."""
    other = train([row_of(row) for row in rows(39)], settings=SMALL)
    chance = train([row_of(row) for row in rows(40)], settings=SMALL, seed=5)

    assert len({dump(*trained), dump(*other), dump(*chance)}) == 3


def test_kinds_are_told_apart(trained: tuple[Weights, dict[str, Any]]):
    """Predictions for prompts left out follow the kinds of request, and the artefact records it."""
    judged = trained[1]["metrics"]["cross_validated_by_prompt"]

    assert judged["spearman"] > 0.8
    assert judged["r_squared"] > 0.8
    assert judged["calibration_error"] < 0.1
    assert judged["decision"]["2.33"]["gap_closed"] > 0.9


def believed(sample: Sample, settings: Settings) -> list[Any]:
    """Weights of the rows for each head: an acceptance length counts by the steps of its answer."""
    even = balance(sample.sources)
    steps = np.exp(sample.targets[:, 2] - sample.targets[:, 0])
    return [even / (1.0 + settings.doubt / steps)] * 2 + [even]


def test_serving_equals_kernel_ridge_of_scikit_learn(sample: Sample):
    """With every request a prototype and likeness alone, the model is scikit-learn's kernel ridge, to 1e-9."""
    from classifier.model import _Basis, _coefficients

    settings = Settings(prototypes=len(sample), cues=0.0, words=0.0, level=0.0, local=0.0, width=1.0)
    basis = _Basis.of(sample, settings, 1)
    design = basis.design(sample)
    bias, beta = _coefficients(sample, design, settings)
    z = np.clip((sample.cues - basis.centre) * basis.scale, -3, 3)
    kernel = rbf_kernel(z, gamma=1.0 / np.count_nonzero(basis.scale))
    ours = design.dense @ beta[: design.dense.shape[1]]

    # Every request stands among the prototypes, at most half a step of their grid away.
    assert np.abs(design.gram() - kernel).max() < 1e-3
    for head, weights in enumerate(believed(sample, settings)):
        theirs = KernelRidge(alpha=settings.ridge, kernel="precomputed")
        theirs.fit(design.gram(), sample.targets[:, head] - bias[head], weights)
        assert np.abs(ours[:, head] - theirs.predict(design.gram())).max() < 1e-9


def test_serving_equals_ridge_of_scikit_learn(sample: Sample):
    """What serving computes, given weights that are not yet rounded, is scikit-learn's ridge on the same rows, to 1e-9."""
    from classifier.model import _Basis, _coefficients

    settings = replace(SMALL, level=0.0, local=0.0)
    basis = _Basis.of(sample, settings, 1)
    design = basis.design(sample)
    bias, beta = _coefficients(sample, design, settings)
    whole = np.hstack((design.dense, design.words.toarray()))
    theirs = [
        Ridge(alpha=settings.ridge, fit_intercept=False).fit(whole, sample.targets[:, head] - bias[head], weights)
        for head, weights in enumerate(believed(sample, settings))
    ]
    served = Weights(**basis.weights(bias, beta), noise=np.zeros(len(NAMES) + 2), knots=np.eye(2), curve=np.ones(10))  # type: ignore[arg-type]

    for row in range(0, len(sample), 7):
        found = served.predict(Measured(sample.cues[row], np.asarray(sample.words[row], np.intp)))
        expected = bias + [model.predict(whole[row : row + 1])[0] for model in theirs]
        assert (expected > 0.0).all()
        assert (expected[:2] < CEILING).all()
        assert (found.log_length, found.log_ngram, found.log_output) == pytest.approx(expected, rel=0, abs=1e-9)


def test_many_at_once_equal_one_by_one(sample: Sample, weights: Weights):
    """Judging predicts in bulk what serving predicts one by one."""
    many = apply(weights, sample)

    for i, row in enumerate(rows(40)[:50]):
        found = weights.predict(measure(View.of(row)))
        assert [found.log_length, found.log_ngram, found.log_output] == pytest.approx(many[i].tolist(), abs=1e-5)


def test_prompts_never_part(sample: Sample):
    """Two answers to one prompt are left out together, the project's own rows never."""
    own = replace(sample, own=np.arange(len(sample)) % 3 == 0)
    parts = folds(own, 4, seed=3)
    of = {prompt: {k for k, part in enumerate(parts) if prompt in own.prompts[part]} for prompt in own.prompts.tolist()}

    assert all(len(found) <= 1 for found in of.values())
    assert sorted(np.concatenate(parts).tolist()) == np.flatnonzero(~own.own).tolist()


def answered(sample: Sample, steps: float, shift: float) -> Sample:
    """The same requests, each answered in `steps` steps, with log acceptance lengths moved by `shift`."""
    targets = sample.targets + np.array([shift, shift, 0.0])
    targets[:, 2] = targets[:, 0] + math.log(steps)
    return replace(sample, targets=targets)


@pytest.mark.parametrize(("doubt", "low", "high"), [(0.0, 0.18, 0.22), (30.0, 0.02, 0.08)])
def test_short_answers_count_less(sample: Sample, doubt: float, low: float, high: float):
    """Where answers in four and in four hundred steps disagree by .4 the long ones win, unless told otherwise."""
    short, long = answered(sample, 4.0, 0.4), answered(sample, 400.0, 0.0)
    both = Sample(*(
        [*getattr(short, name), *getattr(long, name)] if name == "words"
        else np.concatenate((getattr(short, name), getattr(long, name)))
        for name in Sample.__slots__
    ))  # fmt: skip
    settings = Settings(prototypes=60, doubt=doubt, level=0.0, local=0.0)
    predicted = apply(fit(both, settings, seed=1), sample)[:, 0]

    assert low < float((predicted - sample.targets[:, 0]).mean()) < high


def test_levels_of_writers_are_left_behind(sample: Sample):
    """A writer whose answers are all half as long lowers no prediction by as much when levels are random effects."""
    shifted = replace(sample, targets=sample.targets - 0.5 * (sample.sources == "chat")[:, None])
    rows_ = np.flatnonzero(sample.sources == "chat")
    moved = [
        float((apply(fit(s, Settings(prototypes=60, level=level, local=0.0), seed=1), s)[rows_, 0]).mean())
        for level in (0.0, 1.0) for s in (sample, shifted)
    ]  # fmt: skip

    assert moved[0] - moved[1] > moved[2] - moved[3] >= 0


def test_sources_weigh_by_the_root_of_their_size():
    """A source four times as large has twice the weight in all."""
    found = balance(np.array(["a"] * 4 + ["b"]))

    assert found[:4].sum() == pytest.approx(2 * found[4])
    assert found.mean() == pytest.approx(1.0)


def test_too_many_rows_are_thinned_evenly(sample: Sample):
    """Beyond the limit rows are drawn, small sources kept, the project's own kept whole."""
    many = sample.take(np.tile(np.arange(len(sample)), 50))
    many = replace(many, own=np.arange(len(many)) < 30)
    found = thinned(many, 1)

    assert len(found) == LARGEST
    assert int(found.own.sum()) == 30
    assert thinned(sample, 1) is sample


def test_scores_are_calibrated_quantiles():
    """Where predictions carry half of the variance, the mean observed quantile of each tenth is its score."""
    r = np.random.default_rng(1)
    truth = r.normal(size=4000) * 0.3 + 1.0
    predicted = truth / 2 + 0.5 + r.normal(size=4000) * 0.1
    bends = knots(predicted, truth)
    scores = np.interp(predicted, bends[:, 0], bends[:, 1])
    quantiles = ranks(truth, truth)

    for part in np.array_split(np.argsort(scores), 10):
        assert abs(scores[part].mean() - quantiles[part].mean()) < 0.03
    assert (np.diff(bends, axis=0) >= 0).all()


def test_a_curve_rises_from_one_to_eight():
    """Ten values, increasing, within what window 7 allows, whatever the data."""
    r = np.random.default_rng(2)
    found = curve(r.uniform(size=300), r.uniform(1, 8, size=300))

    assert found.shape == (10,)
    assert (np.diff(found) >= 0).all()
    assert 1.0 <= found[0] <= found[-1] <= 8.0


def test_spread_is_wider_where_errors_are(trained: tuple[Weights, dict[str, Any]]):
    """Predicted spreads are positive and match the errors on the whole."""
    found = [trained[0].predict(measure(View.of(row))).spread for row in rows(40)]

    assert 0.05 < float(np.mean(found)) < 0.4


def test_left_out_rows_do_not_teach(sample: Sample):
    """A prediction for a part does not change with the labels of that part."""
    parts = [np.arange(0, len(sample), 5)]
    other = sample.targets.copy()
    other[parts[0]] = 0.0
    found = [left_out(s, SMALL, parts, seed=1) for s in (sample, replace(sample, targets=other))]

    assert np.array_equal(found[0][parts[0]], found[1][parts[0]])
    assert np.isnan(found[0][1]).all()


@pytest.mark.parametrize("value", [0.0, 1.0, -1.2345678, 1e-12, 123456.789])
def test_rounding_keeps_six_digits(value: float):
    """Coefficients are stored with six significant digits."""
    assert float(rounded(np.array([value]))[0]) == pytest.approx(value, rel=5e-6)


# --- own traffic --------------------------------------------------------------------------------------------------------


def traffic(path: Path, count: int, *, factor: float = 1.0, noise: float = 0.1, seed: int = 1, **more: Any) -> Path:
    """Observed calls of the known kinds; `factor` is what this operator's draft reaches of the reference lengths."""
    r = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for row in rows(count // 5, seed=seed):
            length = row["acceptance_length"]["draft"]["7"] * factor * r.lognormvariate(0.0, noise)
            seen = {
                "request": {"messages": row["messages"]},
                "acceptance": max(1.0, length),
                "steps": 40,
                "propensity": 0.5,
            }
            file.write(json.dumps(seen | more) + "\n")
    return path


def test_traffic_of_another_draft_is_learned(tmp_path: Path, weights: Weights):
    """Where every call reaches six tenths of what was expected, the correction learns it and may be published."""
    learned, verdict = learn([traffic(tmp_path / "t.jsonl", 1200, factor=0.6)], weights, seed=1)

    assert verdict.publish
    assert verdict.figures["learned"]["rmse"] < 0.7 * verdict.figures["current"]["rmse"]
    view = View.of(rows(1)[0])
    assert learned.predict(measure(view)).log_length < weights.predict(measure(view)).log_length


def test_what_is_worse_is_not_published(weights: Weights):
    """Weights that err more on the same observations do not replace the current ones, and the verdict says why."""
    seen = [
        Observation(measure(View.of(row)), math.log(row["acceptance_length"]["draft"]["7"]), 1.0, row["id"])
        for row in rows(20)
    ]
    worse = replace(weights, bias=weights.bias + np.float32(0.5))
    verdict = compare(weights, worse, seen)

    assert verdict == Verdict(False, verdict.reason, verdict.figures)
    assert "squared error" in verdict.reason


def test_routing_that_gets_slower_is_not_published(weights: Weights):
    """A smaller error that costs decode time is refused as well."""
    view = measure(View.of({}))
    at = weights.predict(view).log_length
    near, far = math.log(2.33) + 0.02, math.log(2.33) - 0.02
    current = replace(weights, bias=weights.bias + np.float32(near + 0.2 - at))
    learned = replace(weights, bias=weights.bias + np.float32(far - at))
    verdict = compare(current, learned, [Observation(view, near, 1.0, str(i)) for i in range(50)])

    assert not verdict.publish
    assert "decode time" in verdict.reason


def test_too_little_traffic_decides_nothing(tmp_path: Path, weights: Weights):
    """A handful of held-out calls cannot tell better from worse."""
    _, verdict = learn([traffic(tmp_path / "t.jsonl", 50)], weights, seed=1)

    assert not verdict.publish
    assert "held out" in verdict.reason


def test_parquet_and_features_teach_the_same(tmp_path: Path, weights: Weights):
    """Requests as JSON lines, requests in Parquet and features without text lead to the same sums."""
    import pyarrow as pa
    from pyarrow import parquet

    plain = traffic(tmp_path / "t.jsonl", 100)
    contents = [json.loads(line) for line in plain.read_text(encoding="utf-8").splitlines()]
    table = [content | {"request": json.dumps(content["request"])} for content in contents]
    parquet.write_table(pa.Table.from_pylist(table), tmp_path / "t.parquet")
    scorer = Scorer(weights, {}, "x")
    lines = [json.dumps({**c, "request": None, "features": scorer.features(View.of(c["request"]))}) for c in contents]
    (tmp_path / "f.jsonl").write_text("\n".join(lines), encoding="utf-8")
    grams = []
    for name in ("t.jsonl", "t.parquet", "f.jsonl"):
        sums = Sums(weights)
        for seen in observations(tmp_path / name):
            sums.add(seen)
        sums.flush()
        grams.append(sums.gram)

    assert np.array_equal(grams[0], grams[1])
    assert np.allclose(grams[0], grams[2], atol=1e-2, rtol=1e-3)


def test_weights_are_clipped_and_count_independent_samples(tmp_path: Path):
    """Inverse propensity is clipped; S steps count as S / 8.5, timed ones a quarter of it; biased calls are passed over."""
    cases = [
        ({"propensity": 0.5, "steps": 17}, 4.0),
        ({"propensity": 0.0001, "steps": 8.5}, 20.0),
        ({"steps": None, "propensity": None}, 1.0),
        ({"steps": 17, "propensity": 1, "source": "timing"}, 0.5),
    ]
    for given, weight in cases:
        path = traffic(tmp_path / "t.jsonl", 5, **given)
        assert {seen.weight for seen in observations(path)} == {weight}
    assert list(observations(traffic(tmp_path / "t.jsonl", 5, biased="cut by max_tokens"))) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"acceptance": 0.5}, "below one"),
        ({"acceptance": float("nan")}, "below one"),
        ({"propensity": 0}, r"not in \(0, 1\]"),
        ({"features": {"digest": "0", "cues": [], "words": []}}, "another release"),
        ({"request": 5, "acceptance": "x"}, "could not convert"),
    ],
)
def test_a_broken_observation_is_named(tmp_path: Path, given: dict[str, Any], said: str):
    """The error tells which observation and what is wrong."""
    with pytest.raises(DataError, match=f"observation 1: .*{said}"):
        list(observations(traffic(tmp_path / "t.jsonl", 5, **given)))


def test_memory_does_not_grow_with_traffic(weights: Weights):
    """The sums keep their size, and a batch never exceeds its own."""
    sums, seen = Sums(weights), Observation(measure(View.of(rows(1)[0])), 0.7, 1.0, "t")
    sizes = set()
    for _ in range(3000):
        sums.add(seen)
        sizes.add((sums.gram.shape, len(sums._batch) <= 1024))

    assert sizes == {((1 + len(NAMES) + FOLDED,) * 2, True)}
    assert sums.corrected().words.shape == (2 * BUCKETS, 3)


def test_without_traffic_nothing_is_corrected(weights: Weights):
    """The prior alone gives the current artefact back."""
    found = Sums(weights).corrected()

    assert np.array_equal(found.cues, rounded(weights.cues))
    assert np.array_equal(found.bias, rounded(weights.bias))
