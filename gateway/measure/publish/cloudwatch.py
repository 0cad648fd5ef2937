"""Measurements as CloudWatch metrics: TTFT, InterTokenLatency, E2E and Throughput, with dimensions Variant and TestCase.

Names and dimensions are those of the AWS study of speculative decoding, so that its dashboards read them. InterTokenLatency
is (E2E − TTFT)/(tokens − 1), the time per output token after the first. Times are milliseconds, one value per call, so
CloudWatch has their percentiles; Throughput is output tokens per second of all calls together, one value.

Limits are CloudWatch's own: https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_PutMetricData.html and
https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from gateway.measure.load.sample import Sample
from gateway.measure.paired.pairs import level_of, reached
from gateway.measure.publish.results import Sweep
from gateway.measure.windows.candidate import Candidate

TTFT, INTER_TOKEN, E2E, THROUGHPUT = "TTFT", "InterTokenLatency", "E2E", "Throughput"
UNITS: Final = {
    TTFT: "Milliseconds",
    INTER_TOKEN: "Milliseconds",
    E2E: "Milliseconds",
    THROUGHPUT: "Count/Second",
}
ALL: Final = "all"  # the TestCase of calls without a category, and of all of them together
MOST_VALUES: Final = 150  # different values in one datum
MOST_DATA: Final = 1000  # data in one request
MOST_BYTES: Final = 1_000_000  # of one request
MOST_IN_LINE: Final = 100  # values of a metric in one line of the embedded format
_DIGITS: Final = 3  # microseconds; values that agree to them are one value with a count


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """Values of one metric of one variant and test case, at a Unix time."""

    name: str
    variant: str
    case: str
    values: tuple[float, ...]
    at: float


def of_samples(samples: Iterable[Sample]) -> list[Metric]:
    """Return the metrics of measured calls: the variant is the target, the test case the category.

    Calls of several levels of concurrency have it in their test case: "json at 16".
    """
    whole = [sample for sample in samples if sample.ok]
    levels = {level_of(sample.target)[1] for sample in whole}
    found: list[Metric] = []
    for target in sorted({sample.target for sample in whole}):
        variant, level = level_of(target)
        calls = [sample for sample in whole if sample.target == target]
        suffix = f" at {level}" if len(levels) > 1 else ""
        at_once = reached(calls)
        found += _of_calls(calls, variant, ALL + suffix, at_once)
        for category in sorted({sample.category for sample in calls} - {"", ALL}):
            found += _of_calls([one for one in calls if one.category == category], variant, category + suffix, at_once)
    return found


def _of_calls(calls: Sequence[Sample], variant: str, case: str, at_once: float | None) -> Iterator[Metric]:
    at = max(sample.started + sample.e2e_seconds for sample in calls)
    seconds = sum(sample.e2e_seconds for sample in calls)
    rate = sum(sample.completion_tokens or 0 for sample in calls) / seconds * at_once if at_once and seconds else None
    yield from of_figures(
        variant,
        case,
        at,
        {
            TTFT: [1000 * one.ttft_seconds for one in calls if one.ttft_seconds is not None],
            INTER_TOKEN: [1000 * one.tpot_seconds for one in calls if one.tpot_seconds is not None],
            E2E: [1000 * one.e2e_seconds for one in calls],
            THROUGHPUT: [] if rate is None else [rate],
        },
    )


def of_figures(variant: str, case: str, at: float, values: Mapping[str, Iterable[float | None]]) -> Iterator[Metric]:
    """Return metrics by name from values in their units; what is None or not there is left out."""
    for name in UNITS:
        known = tuple(value for value in values.get(name, ()) if value is not None)
        if known:
            yield Metric(name=name, variant=variant, case=case, values=known, at=at)


def of_sweep(found: Sweep, at: float) -> list[Metric]:
    """Return the metrics of a sweep over windows without its calls, named as they would be: "window-7", "small:window-7"."""
    metrics: list[Metric] = []
    for row in found.windows:
        category, draft = row.line
        values = {
            TTFT: [row.value("ttft_seconds", 1000)],
            INTER_TOKEN: [row.value("tpot_seconds", 1000)],
            E2E: [row.value("e2e_seconds", 1000)],
            THROUGHPUT: [row.value("goodput_tokens_per_s")],
        }
        metrics += of_figures(Candidate(row.window, draft).label, category or ALL, at, values)
    return metrics


def data(metrics: Iterable[Metric]) -> Iterator[dict[str, Any]]:
    """Return the metrics as data of PutMetricData: values with their counts, so many as one datum takes."""
    for metric in metrics:
        counts = sorted(Counter(round(value, _DIGITS) for value in metric.values).items())
        for start in range(0, len(counts), MOST_VALUES):
            part = counts[start : start + MOST_VALUES]
            yield {
                "MetricName": metric.name,
                "Dimensions": [
                    {"Name": "Variant", "Value": metric.variant},
                    {"Name": "TestCase", "Value": metric.case},
                ],
                "Timestamp": datetime.fromtimestamp(metric.at, UTC),
                "Values": [value for value, _ in part],
                "Counts": [float(count) for _, count in part],
                "Unit": UNITS[metric.name],
            }


def batches(found: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Return data in batches that one request takes, in number and in bytes."""
    batch: list[dict[str, Any]] = []
    size = 0
    for datum in found:
        more = _size(datum)
        if batch and (len(batch) >= MOST_DATA or size + more > MOST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(datum)
        size += more
    if batch:
        yield batch


def _size(datum: Mapping[str, Any]) -> int:
    """Return at most how many bytes a datum takes, in the wordiest of the protocols: a form with indexed names.

    `MetricData.member.1000.Values.member.150=` has 40 characters and a value at most 24; dimensions may be percent-encoded.
    """
    named = sum(len(each["Value"].encode()) for each in datum["Dimensions"])
    return 600 + 3 * named + 130 * len(datum["Values"])


def embedded(metrics: Iterable[Metric], namespace: str) -> Iterator[str]:
    """Return the metrics as lines of CloudWatch's embedded metric format, which its agent and Lambda take from logs."""
    groups: dict[tuple[str, str], list[Metric]] = {}
    for metric in metrics:
        groups.setdefault((metric.variant, metric.case), []).append(metric)
    for (variant, case), group in groups.items():
        longest = max(len(metric.values) for metric in group)
        for start in range(0, longest, MOST_IN_LINE):
            parts = {metric.name: metric.values[start : start + MOST_IN_LINE] for metric in group}
            here = {name: [round(value, _DIGITS) for value in values] for name, values in parts.items() if values}
            told = {
                "Namespace": namespace,
                "Dimensions": [["Variant", "TestCase"]],
                "Metrics": [{"Name": name, "Unit": UNITS[name]} for name in here],
            }
            line = {
                "_aws": {"Timestamp": round(1000 * group[0].at), "CloudWatchMetrics": [told]},
                "Variant": variant,
                "TestCase": case,
                **{name: values[0] if len(values) == 1 else values for name, values in here.items()},
            }
            yield msgspec.json.encode(line).decode()
