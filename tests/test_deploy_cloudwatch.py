"""CloudWatch's configurations speak of metrics and labels that a gateway really exports, in the namespaces that IAM allows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import pytest_asyncio
import yaml
from e2e.stack import COUNTING, STORY, chat, stack
from prometheus_client.parser import text_string_to_metric_families

from deploy.check.documents import DEPLOY

FOLDER = DEPLOY / "cloudwatch"
pytestmark = pytest.mark.asyncio(loop_scope="module")
Exported = dict[str, set[frozenset[str]]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def exported() -> Exported:
    """Every sample's name on a gateway's /metrics after calls to both pools, with the sets of labels that it carries."""
    async with stack() as serving:
        for prompt in (COUNTING, STORY):  # streams tell when their first token came
            answer = await serving.client.post("/v1/chat/completions", json=chat(prompt, stream=True))
            assert answer.status_code == 200
        await serving.gateway.settled(2)
        page, _ = serving.gateway.gateway.render_metrics("")
    found: Exported = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).add(frozenset(sample.labels))
    return found


def declared() -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield where a declaration stands, its selectors and its dimensions, of both collectors."""
    agent = json.loads((FOLDER / "agent.json").read_text())["logs"]["metrics_collected"]["prometheus"]["emf_processor"]
    for entry in agent["metric_declaration"]:
        for dimensions in entry["dimensions"]:
            yield "agent.json", entry["metric_selectors"], dimensions
    adot = yaml.safe_load((FOLDER / "adot.yaml").read_text())["exporters"]["awsemf"]
    for entry in adot["metric_declarations"]:
        for dimensions in entry["dimensions"]:
            yield "adot.yaml", entry["metric_name_selectors"], dimensions


def words_of(pattern: str) -> list[str]:
    """Return the names that an anchored pattern of alternatives stands for."""
    inner = pattern.strip("^$")
    found = re.fullmatch(r"([a-z_]*)\(([a-z_|0-9]+)\)([a-z_]*)", inner)
    return [f"{found[1]}{word}{found[3]}" for word in found[2].split("|")] if found else [inner]


async def test_every_declared_metric_is_exported_with_its_dimensions(exported: Exported) -> None:
    """No selector waits for a metric that never comes, and no dimension for a label that it does not have."""
    for where, selectors, dimensions in declared():
        for pattern in selectors:
            for name in words_of(pattern):
                assert name in exported, f"{where}: {name}"
                wanted = {*dimensions} - {"job"}  # the scrape adds that one
                assert any(wanted <= labels for labels in exported[name]), f"{where}: {name} {dimensions}"


async def test_units_are_of_metrics_that_are_declared(exported: Exported) -> None:
    """The agent's units belong to metrics that it sends."""
    agent = json.loads((FOLDER / "agent.json").read_text())["logs"]["metrics_collected"]["prometheus"]["emf_processor"]

    assert set(agent["metric_unit"]) <= exported.keys()


async def test_both_collectors_send_the_same(exported: Exported) -> None:
    """Whoever changes from one to the other keeps the dashboard: but for the job's own in-flight count, they agree."""
    sent: dict[str, set[tuple[str, tuple[str, ...]]]] = {"agent.json": set(), "adot.yaml": set()}
    for where, selectors, dimensions in declared():
        sent[where] |= {(name, tuple(dimensions)) for pattern in selectors for name in words_of(pattern)}

    assert sent["agent.json"] - sent["adot.yaml"] == {("draftlane_inflight", ("job",))}
    assert sent["adot.yaml"] <= sent["agent.json"]
    del exported


def widgets() -> list[dict[str, Any]]:
    """Return the dashboard's widgets."""
    return json.loads((FOLDER / "dashboard.json").read_text())["widgets"]  # type: ignore[no-any-return]


async def test_the_dashboard_shows_what_is_sent() -> None:
    """Each metric with its dimensions is one that the agent sends; expressions search for such names."""
    sent = {(name, tuple(sorted(dims))) for _, patterns, dims in declared() for p in patterns for name in words_of(p)}
    names = {name for name, _ in sent}
    for widget in widgets():
        for metric in widget["properties"].get("metrics", ()):
            if isinstance(metric[0], dict):
                searched = re.search(r'MetricName="([a-z_]+)"', metric[0]["expression"])
                assert searched is None or searched[1] in names
                continue
            namespace, name, *rest = metric
            dimensions = [part for part in rest if isinstance(part, str)][::2]
            assert namespace == "Draftlane"
            assert (name, tuple(sorted(dimensions))) in sent


async def test_the_dashboards_widgets_lie_side_by_side() -> None:
    """No widget lies over another or beyond the grid's 24 columns."""
    taken: set[tuple[int, int]] = set()
    for widget in widgets():
        cells = {
            (x, y)
            for x in range(widget["x"], widget["x"] + widget["width"])
            for y in range(widget["y"], widget["y"] + widget["height"])
        }
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells


async def test_policies_allow_the_namespaces_that_are_used_and_no_others() -> None:
    """PutMetricData is bound to the namespace of what is sent, log groups to the one that is written."""
    agent = json.loads((FOLDER / "agent.json").read_text())["logs"]["metrics_collected"]["prometheus"]
    adot = yaml.safe_load((FOLDER / "adot.yaml").read_text())["exporters"]["awsemf"]
    policy = json.loads((FOLDER / "iam" / "collector.json").read_text())
    (write, put) = policy["Statement"]

    assert put["Condition"]["StringEquals"]["cloudwatch:namespace"] == "Draftlane"
    assert {agent["emf_processor"]["metric_namespace"], adot["namespace"]} == {"Draftlane"}
    assert {agent["log_group_name"], adot["log_group_name"]} == {"/draftlane/prometheus"}
    assert all(":log-group:/draftlane/prometheus" in resource for resource in write["Resource"])
