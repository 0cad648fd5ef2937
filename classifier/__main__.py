"""Command line: `python -m classifier train | evaluate | score`.

Results go to stdout, progress to stderr. Exit codes: 0 ok, 1 the check failed, 2 wrong use.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from classifier.artifact import ArtefactError
from classifier.scorer import Scorer, View


def _parser() -> argparse.ArgumentParser:
    """The command line; long because it names every option in one place."""
    parser = argparse.ArgumentParser(
        prog="python -m classifier", description="Predicts how many drafted tokens a request gets accepted."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="train | evaluate | score")
    train = commands.add_parser(
        "train", help="train an artefact from measured requests, or correct one by your own traffic"
    )
    train.add_argument("--data", type=Path, metavar="DIR", help="directory of *.jsonl files of measured requests")
    train.add_argument(
        "--traffic", type=Path, nargs="+", metavar="FILE", help="observations of your own traffic, .jsonl or .parquet"
    )
    train.add_argument(
        "--artefact", type=Path, metavar="FILE", help="with --traffic alone: what to correct (default: the shipped one)"
    )
    train.add_argument("--out", type=Path, metavar="FILE", required=True, help="where the artefact goes")
    train.add_argument("--no-seed", action="store_true", help="learn without the project's own measured requests")
    train.add_argument(
        "--seed", type=_seed, default=None, metavar="N", help="of all chance there is (default: a fixed one)"
    )
    train.add_argument("--json", action="store_true", help="print one JSON object")
    evaluate = commands.add_parser("evaluate", help="judge an artefact on data, or the method by cross-validation")
    evaluate.add_argument(
        "--data", type=Path, metavar="DIR", required=True, help="directory of *.jsonl files of measured requests"
    )
    evaluate.add_argument(
        "--artefact", type=Path, metavar="FILE", help="judge this one as it is; without it, cross-validate"
    )
    evaluate.add_argument(
        "--learning", action="store_true", help="also learn from an eighth, a quarter and half of the prompts"
    )
    evaluate.add_argument("--shipped", action="store_true", help="judge the shipped artefact as it is")
    evaluate.add_argument(
        "--held-back", type=Path, metavar="DIR", help="learn from all of --data and judge on the requests of this one"
    )
    evaluate.add_argument(
        "--no-seed", action="store_true", help="cross-validate without the project's own measured requests"
    )
    evaluate.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw calibration and decision curves, .png or .html"
    )
    evaluate.add_argument("--json", action="store_true", help="print one JSON object")
    score = commands.add_parser("score", help="score one prompt and explain it, or each row of a directory")
    score.add_argument("prompt", nargs="?", help="a prompt; '-' reads it from stdin")
    score.add_argument(
        "--data", type=Path, metavar="DIR", help="print one JSON line per row of the *.jsonl files there"
    )
    score.add_argument("--system", default="", help="a system prompt")
    score.add_argument("--artefact", type=Path, metavar="FILE", help="default: the shipped one")
    score.add_argument("--top", type=int, default=8, metavar="N", help="how many features to explain by")
    score.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _seed(text: str) -> int:
    """A seed as numpy takes it; argparse tells what raises here."""
    if int(text) < 0:
        raise argparse.ArgumentTypeError(f"a seed is not negative, as {text} is")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    args = _parser().parse_args(argv)
    run = {"train": _train, "evaluate": _evaluate, "score": _score}[args.command]
    try:
        return run(args)
    except _expected() as error:
        print(f"classifier {args.command}: {error}", file=sys.stderr)
        return 2


def _expected() -> tuple[type[Exception], ...]:
    """Errors that are the caller's to mend; scoring alone must not import what only training needs."""
    found: list[type[Exception]] = [ArtefactError, OSError, UnicodeDecodeError, json.JSONDecodeError, _Misuse]
    if "classifier.dataset" in sys.modules:
        found.append(sys.modules["classifier.dataset"].DataError)
    return tuple(found)


class _Misuse(Exception):
    """Arguments that do not fit together; the message says what to give."""


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _train(args: argparse.Namespace) -> int:
    from classifier import artifact, dataset
    from classifier.train import SEED, train

    if not args.data and not args.traffic:
        raise _Misuse("name measured requests by --data DIR, your own traffic by --traffic FILE, or both")
    if args.data and args.artefact:
        raise _Misuse("--artefact is what --traffic corrects; with --data a new one is trained")
    seed = SEED if args.seed is None else args.seed
    result: dict[str, Any] = {}
    if args.data:
        rows = dataset.read(args.data)
        own = [] if args.no_seed else dataset.seed_rows()
        _say(f"{len(rows)} measured requests, {len(own)} of the project's own; fitting")
        weights, about = train([*rows, *own], seed=seed)
        result |= {"metrics": about["metrics"], "data": about["data"]}
    else:
        weights, about, _ = artifact.load(args.artefact)
    if args.traffic:
        from classifier.traffic import learn

        weights, verdict = learn(args.traffic, weights, seed=seed)
        result |= {"published": verdict.publish, "reason": verdict.reason, "traffic": verdict.figures}
        about = {**about, "traffic": verdict.figures}
        if not verdict.publish:
            _report(args, result, f"not published: {verdict.reason}")
            return 1
    version = artifact.save(args.out, weights, about)
    _report(args, result | {"artefact": version, "out": str(args.out)}, f"{args.out}: artefact {version}")
    return 0


def _report(args: argparse.Namespace, result: dict[str, Any], line: str) -> None:
    print(json.dumps(result) if args.json else line)


def _evaluate(args: argparse.Namespace) -> int:
    from classifier import dataset
    from classifier.evaluate import cross_validate, judge_artefact, judge_held_back, learning_curve, table

    if args.held_back and (args.artefact or args.shipped or args.learning):
        raise _Misuse("--held-back learns anew from --data; to judge an artefact, name that directory by --data")
    if args.learning and (args.artefact or args.shipped):
        raise _Misuse("--learning fits anew from fewer prompts; an artefact is fitted already")
    if args.plot and args.plot.suffix not in {".png", ".html"}:
        raise _Misuse(f"{args.plot}: plots are written as .png or .html")
    rows = dataset.read(args.data)
    if args.artefact or args.shipped:
        report, outcomes = judge_artefact(rows, args.artefact)
    else:
        own = [] if args.no_seed else dataset.seed_rows()
        if args.held_back:
            unseen = dataset.read(args.held_back)
            _say(f"learning from {len(rows)} measured requests, judging on {len(unseen)} others")
            report, outcomes = judge_held_back(rows, own, unseen)
        else:
            _say(f"cross-validating on {len(rows)} measured requests")
            report, outcomes = cross_validate(rows, own)
        if args.learning:
            report["learning"] = learning_curve(rows, own)
    text = table(report)
    if args.plot:
        from classifier.plots import draw

        draw(outcomes, args.plot, text=text)
        _say(f"plotted {args.plot}")
    print(json.dumps(report) if args.json else text)
    return 0


def _score(args: argparse.Namespace) -> int:
    if (args.prompt is None) == (args.data is None):
        raise _Misuse("give one prompt, or --data DIR")
    scorer = Scorer.load(args.artefact)
    if args.data:
        return _score_rows(args.data, scorer)
    text = sys.stdin.read() if args.prompt == "-" else args.prompt
    system = [{"role": "system", "content": args.system}] if args.system else []
    view = View.of({"messages": [*system, {"role": "user", "content": text}]})
    found, why = scorer.score(view), scorer.explain(view, args.top)
    if args.json:
        told = (
            {"artefact": scorer.version}
            | msgspec.structs.asdict(found)
            | {"explanation": [asdict(item) for item in why]}
        )
        print(json.dumps(told))
        return 0
    print(
        f"score {found.value:.3f}   {found.acceptance_length:.2f} tokens per step (×/÷ {2.718281828**found.spread:.2f})"
    )
    print(f"prompt lookup {found.ngram_acceptance_length:.2f}   expected answer {found.output_tokens:.0f} tokens\n")
    for item in why:
        print(f"{item.effect:+.4f}  {item.name} = {item.value:.3g}")
    return 0


def _score_rows(directory: Path, scorer: Scorer) -> int:
    """One JSON line per row; labels are neither needed nor read."""
    files = sorted(directory.glob("*.jsonl"))
    if not files:
        raise _Misuse(f"{directory} holds no *.jsonl files")
    for file in files:
        # By the file's own lines: splitlines would also break at U+2028 and the like, inside of a text.
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    print(json.dumps(_scored(line, f"{file.name}:{number}", scorer)))
    return 0


def _scored(line: str, place: str, scorer: Scorer) -> dict[str, Any]:
    """What is told of one row; raises _Misuse naming the place of a line that is no JSON."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _Misuse(f"{place}: {error}") from error
    found = scorer.score(View.of(content))
    told = {"id": content.get("id") if isinstance(content, dict) else None, "score": round(found.value, 6)}
    told |= {"acceptance_length": round(found.acceptance_length, 4), "spread": round(found.spread, 4)}
    return told | {"output_tokens": round(found.output_tokens, 1)}


if __name__ == "__main__":
    sys.exit(main())
