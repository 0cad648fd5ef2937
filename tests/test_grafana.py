"""Grafana dashboards: written as committed, valid by Grafana's schema, whole in every panel, and of metrics that exist."""

from __future__ import annotations

import json
import re
import types
import typing
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import dashboard as schema
from harness import config_for
from prometheus_client import CollectorRegistry

from deploy.grafana.__main__ import FOLDER, dashboards
from gateway.figures import Figures
from gateway.metrics import Metrics, Reading

register_default_plugins()
ROOT = Path(__file__).parent.parent
NAMES = ("cost", "routing", "latency", "engines")
PLUGIN_FIELDS = frozenset(
    {"titleFormat", "step"}
)  # of the Prometheus plugin's annotations; the schema leaves those open
METRIC = re.compile(r"\b(?:draftlane_\w+|[a-z_]+:draftlane_\w+:\w+)\b")


def board(name: str) -> dict[str, Any]:
    """Return a committed dashboard."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


def panels(name: str) -> list[dict[str, Any]]:
    """Return the panels of a dashboard that show something."""
    return [panel for panel in board(name)["panels"] if panel["type"] != "row"]


def expressions(name: str) -> list[str]:
    """Return every expression of a dashboard: of panels, annotations and variables."""
    whole = board(name)
    return [
        *(target["expr"] for panel in panels(name) for target in panel["targets"]),
        *(each["expr"] for each in whole["annotations"]["list"]),
        *(each["query"] for each in whole["templating"]["list"] if each["type"] == "query"),
    ]


def faults(value: object, wanted: Any, at: str) -> list[str]:
    """Return where a value is not of the type that the schema's own annotations name."""
    origin, inside = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted in (Any, object):  # as panels' options are, whose own types the SDK knows all the same
        return faults(value, type(value), at) if hasattr(type(value), "to_json") else []
    if origin in (typing.Union, types.UnionType):
        return min((faults(value, one, at) for one in _apt(value, inside)), key=len)
    if origin is typing.Literal or (isinstance(wanted, type) and issubclass(wanted, Enum)):
        allowed = inside or {one.value for one in wanted}
        return [] if value in allowed else [f"{at}: {value!r} is none of {allowed}"]
    if origin is list and isinstance(value, list):
        return [fault for i, one in enumerate(value) for fault in faults(one, inside[0], f"{at}[{i}]")]
    if isinstance(value, dict) and hasattr(wanted, "from_json"):  # the SDK leaves some structures unread
        again = wanted.from_json(value)
        return faults(again, wanted, at) + lost(value, again.to_json(), at)
    if not isinstance(value, (int, float) if wanted is float else origin or wanted):
        return [f"{at}: {value!r} is no {wanted}"]
    if not hasattr(type(value), "to_json"):
        return []
    hints = typing.get_type_hints(type(value), vars(import_module(type(value).__module__)))
    fields = [(field, hint) for field, hint in hints.items() if hasattr(value, field)]
    return [fault for field, hint in fields for fault in faults(getattr(value, field), hint, f"{at}.{field}")]


def _apt(value: object, inside: tuple[Any, ...]) -> list[Any]:
    """Return the members of a union that a value can be meant for: its own class where that is one, never None but for None."""
    own = [one for one in inside if isinstance(one, type) and type(value) is one]
    return own or [one for one in inside if value is None or one is not type(None)]


def lost(before: Any, after: Any, at: str = "") -> list[str]:
    """Return what of a value is missing or different in another; what that has besides does not matter."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [fault for key, value in before.items() for fault in lost(value, after.get(key), f"{at}.{key}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [fault for i, (one, other) in pairs for fault in lost(one, other, f"{at}[{i}]")]
    return [] if before == after else [f"{at}: {before!r} became {after!r}"]


def checked(whole: dict[str, Any]) -> list[str]:
    """Return where a dashboard is not as Grafana's schema wants it: wrong types, and fields that it does not know."""
    for annotation in whole["annotations"]["list"]:
        for field in PLUGIN_FIELDS:
            del annotation[field]
    read = schema.Dashboard.from_json(whole)
    return faults(read, schema.Dashboard, "") + lost(whole, json.loads(JSONEncoder().encode(read)))


def test_the_committed_dashboards_are_what_the_code_writes() -> None:
    """Writing them again changes nothing, and no other file lies beside them."""
    written = dashboards()

    assert {path.name for path in FOLDER.iterdir()} == {path.name for path in written} == {f"{n}.json" for n in NAMES}
    for path, text in written.items():
        assert path.read_text() == text, f"{path.name}: run make dashboards"


@pytest.mark.parametrize("name", NAMES)
def test_dashboards_follow_grafanas_schema(name: str) -> None:
    """Every field is known to the schema of Grafana 11.6 and of its type, options of panels and queries included."""
    assert checked(board(name)) == []
    assert board(name)["schemaVersion"] == 41


def test_the_check_of_the_schema_can_fail() -> None:
    """A wrong type, a word outside an enumeration and an unknown field are found."""
    whole = board("cost")
    whole["graphTooltip"] = 7
    whole["panels"][1]["gridPos"]["w"] = "wide"
    whole["panels"][1]["options"]["colorMode"] = "loud"
    whole["panels"][1]["targets"][0]["instant"] = "yes"
    whole["panels"][1]["surprise"] = 1

    assert sorted(fault.partition(": ")[0] for fault in checked(whole)) == [
        ".graph_tooltip",
        ".panels[1].grid_pos.w",
        ".panels[1].options.color_mode",
        ".panels[1].surprise",
        ".panels[1].targets[0].instant",
    ]


def test_ids_are_unique() -> None:
    """No two dashboards share a uid or title, and no two panels of one an id or a place."""
    whole = [board(name) for name in NAMES]

    assert len({each["uid"] for each in whole}) == len({each["title"] for each in whole}) == len(NAMES)
    for each in whole:
        ids = [panel["id"] for panel in each["panels"]]
        places = [
            {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            for at in (panel["gridPos"] for panel in each["panels"])
        ]
        assert len(ids) == len(set(ids))
        assert all(at["x"] + at["w"] <= 24 for at in (panel["gridPos"] for panel in each["panels"]))
        assert sum(map(len, places)) == len(set().union(*places)), f"{each['title']}: panels overlap"


@pytest.mark.parametrize("name", NAMES)
def test_every_panel_is_whole(name: str) -> None:
    """A title of its own, a description in sentences, a unit, thresholds, and queries with letters of their own."""
    titles = [panel["title"] for panel in panels(name)]

    assert len(titles) == len(set(titles)) > 10
    for panel in panels(name):
        defaults = panel["fieldConfig"]["defaults"]
        assert re.fullmatch(r"[A-Z$1].*[.]", panel["description"]), panel["title"]
        assert len(panel["description"]) > 25, panel["title"]
        assert defaults["unit"], panel["title"]
        assert panel["type"] == "heatmap" or defaults["thresholds"]["steps"], panel["title"]
        letters = [target["refId"] for target in panel["targets"]]
        assert letters
        assert len(letters) == len(set(letters)), panel["title"]
        for target in panel["targets"]:
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


@pytest.mark.parametrize("name", NAMES)
def test_dashboards_share_choices_and_lead_to_each_other(name: str) -> None:
    """All have the variables, the annotations of reloads, revisions and guards, and links to the three others."""
    whole = board(name)
    links = {link["url"] for link in whole["links"]}

    assert [each["name"] for each in whole["templating"]["list"]] == ["datasource", "tenant", "model", "pool"]
    assert [each["name"] for each in whole["annotations"]["list"]] == ["Reloads", "Revisions", "Guards"]
    assert links == {f"/d/draftlane-{other}" for other in NAMES if other != name}
    assert all(link["keepTime"] and link["includeVars"] for link in whole["links"])
    used = set(re.findall(r"\$(\w+)", " ".join(expressions(name))))
    assert used <= {"tenant", "model", "pool", "__range", "__rate_interval"}


def recorded() -> set[str]:
    """Return the names of all recording rules."""
    rules = yaml.safe_load((ROOT / "deploy/prometheus/rules/recording.yml").read_text())
    return {rule["record"] for group in rules["groups"] for rule in group["rules"]}


def counted() -> set[str]:
    """Return every sample's name without its ending that the gateway may expose."""
    registry = CollectorRegistry()
    metrics = Metrics(registry, config_for({"spec": ["http://127.0.0.1:9"], "base": ["http://127.0.0.1:10"]}))
    metrics.engines(lambda: [Reading(pool="fast", replica="0", model="demo", figures=Figures(0.0, {}, {}), restarts=0)])
    return {metric.name for metric in registry.collect()}


def test_no_panel_rule_or_alert_asks_for_a_metric_that_is_not_there() -> None:
    """Every metric that is named anywhere is one of the gateway's or a recording rule's, and every rule is of use."""
    files = [ROOT / "deploy/prometheus/rules" / name for name in ("recording.yml", "alerts.yml")]
    rules = [
        rule["expr"]
        for path in files
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
    ]
    asked = [*(expr for name in NAMES for expr in expressions(name)), *rules]
    named = {found for expr in asked for found in METRIC.findall(expr)}
    known = counted()
    endings = ("", "_total", "_bucket", "_sum", "_count", "_info")

    assert {name for name in named if ":" in name} == recorded()
    assert [
        name for name in named if ":" not in name and not any(name.removesuffix(end) in known for end in endings)
    ] == []


def test_every_metric_is_described() -> None:
    """deploy/prometheus/METRICS.md has a line for each of the gateway's metrics, and for no other."""
    text = (ROOT / "deploy/prometheus/METRICS.md").read_text()
    described = set(re.findall(r"(?m)^\| `(draftlane_\w+?)(?:_total)?` ", text))

    assert described == {name for name in counted() if name.startswith("draftlane_")}


def test_every_alert_leads_to_its_runbook() -> None:
    """Each alert has a severity, words and a runbook whose section is there, and each section has an alert."""
    rules = yaml.safe_load((ROOT / "deploy/prometheus/rules/alerts.yml").read_text())
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    sections = {
        line.removeprefix("## ").lower().replace(" ", "-")
        for line in (ROOT / "deploy/runbooks.md").read_text().splitlines()
        if line.startswith("## ")
    }

    assert len(alerts) > 12
    for alert in alerts:
        assert alert["labels"]["severity"] in {"page", "ticket", "note"}
        assert {"summary", "description", "runbook_url"} == set(alert["annotations"])
        path, _, section = alert["annotations"]["runbook_url"].partition("#")
        assert path == "deploy/runbooks.md"
        assert section in sections, alert["alert"]
    assert sections == {alert["annotations"]["runbook_url"].partition("#")[2] for alert in alerts}


def test_provisioning_finds_the_dashboards() -> None:
    """The provisioning files are valid YAML, name one provider and one data source with the scrape interval."""
    provider = yaml.safe_load((ROOT / "deploy/grafana/provisioning/dashboards/draftlane.yml").read_text())
    source = yaml.safe_load((ROOT / "deploy/grafana/provisioning/datasources/prometheus.yml").read_text())
    scrape = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())

    assert provider["providers"][0]["type"] == "file"
    assert source["datasources"][0]["type"] == "prometheus"
    assert source["datasources"][0]["jsonData"]["timeInterval"] == scrape["global"]["scrape_interval"]
