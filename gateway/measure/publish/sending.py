"""Sending metrics to CloudWatch with boto3, which alone of all here needs the `cloudwatch` extra."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Final, Protocol

from gateway.measure import writing
from gateway.measure.publish.cloudwatch import Metric, batches, data, embedded

TRIES: Final = 8  # with a pause that doubles up to 20 s: throttling of a busy account lasts for seconds
_OLDEST: Final = timedelta(days=14)  # CloudWatch takes nothing that is older


class PublishError(Exception):
    """Metrics that could not be published; the message says why and how many were."""


class Client(Protocol):
    """What is used of boto3's client."""

    def put_metric_data(self, *, Namespace: str, MetricData: list[dict[str, Any]]) -> Any:  # noqa: N803 - boto3's names
        """Send one batch."""


def add_options(group: argparse._ArgumentGroup) -> None:
    """Add --cloudwatch, --region and --dry-run."""
    group.add_argument(
        "--cloudwatch",
        metavar="NAMESPACE",
        help="publish TTFT, InterTokenLatency, E2E and Throughput by Variant and TestCase",
    )
    group.add_argument("--region", metavar="R", help="of CloudWatch (default: that of the AWS configuration)")
    group.add_argument("--dry-run", action="store_true", help="print what would be published, in the embedded format")


def check(args: argparse.Namespace) -> None:
    """See that what the options ask for can be done, before anything is measured.

    Raises:
        PublishError: it cannot; the message says what to do.
    """
    if args.dry_run and args.cloudwatch is None:
        raise PublishError("--dry-run shows what would be published; name a namespace with --cloudwatch")
    if args.cloudwatch is not None and not args.dry_run:
        connect(region=args.region)


def give_out(args: argparse.Namespace, metrics: Iterable[Metric], report: str) -> bool:
    """Publish as the options say and print the report; returns whether all went well.

    The lines of a dry run go to standard output and the report beside them, unless that is JSON. What standard output does
    not take, as on a full disk, goes to standard error.
    """
    lines: list[str] = []
    well = True
    if args.cloudwatch is not None:
        try:
            if args.dry_run:
                lines = list(embedded(metrics, args.cloudwatch))
            else:
                sent = publish(metrics, args.cloudwatch, connect(region=args.region))
                sys.stderr.write(f"published {sent} metric data to {args.cloudwatch}\n")
        except PublishError as error:
            sys.stderr.write(f"draftlane {args.command}: {error}\n")
            well = False
    dry = "".join(f"{line}\n" for line in lines)
    first, beside = (dry, f"{report}\n") if lines and not args.json else (f"{report}\n", dry)
    well = writing.to_stdout(first) and well
    sys.stderr.write(beside)
    return well


def connect(*, region: str | None = None, endpoint: str | None = None, tries: int = TRIES) -> Client:
    """Return boto3's client of CloudWatch, with its own credentials and retries.

    Raises:
        PublishError: boto3 is not installed, or no region is known.
    """
    try:
        from boto3.session import Session
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError:
        raise PublishError("publishing needs boto3: pip install 'draftlane[cloudwatch]', or use --dry-run") from None
    config = Config(retries={"mode": "standard", "total_max_attempts": tries}, connect_timeout=5, read_timeout=20)
    try:
        client: Client = Session(region_name=region).client("cloudwatch", endpoint_url=endpoint, config=config)
    except (BotoCoreError, ValueError) as error:
        raise PublishError(f"{error}; name a region with --region, or see to the AWS configuration") from error
    return client


def publish(
    metrics: Iterable[Metric], namespace: str, client: Client, *, clock: Callable[[], float] = time.time
) -> int:
    """Send metrics in batches and return how many data were sent.

    Raises:
        PublishError: a batch was refused or could not be sent; the ones before it are published.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    found = list(metrics)
    if old := [metric for metric in found if metric.at < clock() - _OLDEST.total_seconds()]:
        raise PublishError(f"{len(old)} metrics were measured more than two weeks ago, and CloudWatch takes none such")
    sent = 0
    for batch in batches(data(found)):
        try:
            client.put_metric_data(Namespace=namespace, MetricData=batch)
        except (BotoCoreError, ClientError) as error:
            raise PublishError(
                f"CloudWatch: {_reason(error)}; {sent} data are published, the others are not"
            ) from error
        sent += len(batch)
    return sent


def _reason(error: Exception) -> str:
    response = getattr(error, "response", None)
    told = response.get("Error", {}) if isinstance(response, Mapping) else {}
    code = told.get("Code")
    advice = {
        "AccessDenied": "; the role needs cloudwatch:PutMetricData for this namespace",
        "AccessDeniedException": "; the role needs cloudwatch:PutMetricData for this namespace",
    }.get(str(code), "")
    return f"{code}: {told.get('Message')}{advice}" if code else str(error)
