"""What the dashboards are made of: queries, panels by kind, variables, annotations, links. Panels look alike everywhere.

A panel that is added has a title, a sentence that says what it shows and what follows from it, and a unit; nothing is left out
by accident, since all three are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from grafana_foundation_sdk.builders import (
    barchart,
    bargauge,
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.models import common as looks
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import heatmap as heat
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE: Final = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
GREEN, YELLOW, RED, BLUE = "green", "yellow", "red", "blue"
USD: Final = "currencyUSD"
LETTERS: Final = "ABCDEFGHIJ"
Panel = TypeVar(
    "Panel",
    timeseries.Panel,
    stat.Panel,
    bargauge.Panel,
    barchart.Panel,
    table.Panel,
    statetimeline.Panel,
    heatmap.Panel,
)
Joined = TypeVar("Joined", barchart.Panel, table.Panel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One PromQL expression; `legend` names its series, `now` asks for the last value only, `examples` for exemplars."""

    expr: str
    legend: str = ""
    now: bool = False
    examples: bool = False
    form: PromQueryFormat = PromQueryFormat.TIME_SERIES

    def build(self, letter: str) -> prometheus.Dataquery:
        """Return it under a letter."""
        found = prometheus.Dataquery().expr(self.expr).ref_id(letter).datasource(SOURCE).format(self.form)
        found = found.instant() if self.now else found.range()
        if self.examples:
            found = found.exemplar(exemplar=True)
        return found.legend_format(self.legend or "__auto")


def now(expr: str, legend: str = "") -> Query:
    """Return a query for the value of now."""
    return Query(expr=expr, legend=legend, now=True)


def rows(expr: str) -> Query:
    """Return a query whose labels become columns."""
    return Query(expr=expr, now=True, form=PromQueryFormat.TABLE)


def steps(*edges: tuple[float | None, str]) -> dashboard.ThresholdsConfig:
    """Return thresholds: each colour holds from its value on, the first from below (None)."""
    found = [model.Threshold(value=value, color=color) for value, color in edges]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(found)


CALM: Final = ((None, BLUE),)


def _fill(panel: Panel, title: str, why: str, unit: str, queries: Sequence[Query], size: tuple[int, int]) -> Panel:
    """Give a panel what every panel has."""
    panel = panel.title(title).description(why).unit(unit).datasource(SOURCE).span(size[0]).height(size[1])
    for letter, query in zip(LETTERS, queries, strict=False):
        panel = panel.with_target(query.build(letter))
    return panel


def series(
    title: str,
    why: str,
    unit: str,
    *queries: Query,
    size: tuple[int, int] = (12, 8),
    look: str = "lines",
    least: float | None = 0,
    most: float | None = None,
    edges: Iterable[tuple[float | None, str]] = (),
) -> timeseries.Panel:
    """Return lines over time; look "stack" stacks them, "share" shows them as shares of their sum, "bars" as bars."""
    panel = _fill(timeseries.Panel(), title, why, unit, queries, size)
    panel = panel.line_width(1.5).fill_opacity(8).show_points(looks.VisibilityMode.AUTO).span_nulls(span_nulls=True)
    panel = panel.line_interpolation(looks.LineInterpolation.LINEAR).thresholds(steps(*(tuple(edges) or CALM)))
    if edges:
        panel = panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(looks.GraphThresholdsStyleMode.DASHED))
    if look in ("stack", "share", "bars"):
        mode = looks.StackingMode.PERCENT if look == "share" else looks.StackingMode.NORMAL
        panel = panel.stacking(common.StackingConfig().mode(mode).group("A")).fill_opacity(35).line_width(0.5)
    if look == "bars":
        panel = panel.draw_style(looks.GraphDrawStyle.BARS).fill_opacity(70)
    if least is not None:
        panel = panel.min(least)
    if most is not None:
        panel = panel.max(most)
    legend = common.VizLegendOptions().display_mode(looks.LegendDisplayMode.TABLE).show_legend(show_legend=True)
    legend = legend.placement(looks.LegendPlacement.BOTTOM).calcs(["mean", "lastNotNull"])
    tooltip = common.VizTooltipOptions().mode(looks.TooltipDisplayMode.MULTI).sort(looks.SortOrder.DESCENDING)
    return panel.legend(legend).tooltip(tooltip)


def number(
    title: str,
    why: str,
    unit: str,
    *queries: Query,
    size: tuple[int, int] = (4, 4),
    edges: Iterable[tuple[float | None, str]] = (),
    digits: int | None = None,
    nothing: str = "no traffic",
) -> stat.Panel:
    """Return one figure that can be read from across the room, coloured by thresholds where there are some."""
    panel = _fill(stat.Panel(), title, why, unit, queries, size)
    panel = panel.thresholds(steps(*(tuple(edges) or CALM))).no_value(nothing)
    panel = panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(values=False))
    panel = panel.graph_mode(looks.BigValueGraphMode.AREA).color_mode(looks.BigValueColorMode.VALUE)
    panel = panel.justify_mode(looks.BigValueJustifyMode.AUTO).text_mode(looks.BigValueTextMode.AUTO)
    return panel if digits is None else panel.decimals(digits)


def bars(
    title: str,
    why: str,
    unit: str,
    *queries: Query,
    size: tuple[int, int] = (8, 8),
    edges: Iterable[tuple[float | None, str]] = (),
    most: float | None = None,
    digits: int | None = None,
) -> bargauge.Panel:
    """Return one horizontal bar for each series, as it is now."""
    panel = _fill(bargauge.Panel(), title, why, unit, queries, size)
    panel = panel.thresholds(steps(*(tuple(edges) or CALM))).min(0).no_value("no traffic")
    panel = panel.orientation(looks.VizOrientation.HORIZONTAL).display_mode(looks.BarGaugeDisplayMode.BASIC)
    panel = panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(values=False))
    if most is not None:
        panel = panel.max(most)
    return panel if digits is None else panel.decimals(digits)


def columns(
    title: str,
    why: str,
    unit: str,
    field: str,
    named: dict[str, str],
    *queries: Query,
    size: tuple[int, int] = (12, 8),
) -> barchart.Panel:
    """Return columns side by side for each value of a label; `named` names each query's column by its letter."""
    panel = _fill(barchart.Panel(), title, why, unit, queries, size)
    panel = panel.thresholds(steps(*CALM)).min(0).x_field(field).fill_opacity(60).bar_width(0.85).group_width(0.75)
    return _joined(panel, field, named)


def listing(
    title: str,
    why: str,
    unit: str,
    field: str,
    named: dict[str, str],
    *queries: Query,
    size: tuple[int, int] = (24, 9),
    units: Iterable[tuple[str, str]] = (),
) -> table.Panel:
    """Return a table with a row for each value of a label and a column for each query; `units` differ by column."""
    panel = _fill(table.Panel(), title, why, unit, queries, size).thresholds(steps(*CALM))
    for column, its_unit in units:
        panel = panel.override_by_name(column, [model.DynamicConfigValue(id_val="unit", value=its_unit)])
    return _joined(panel, field, named)


def _joined(panel: Joined, field: str, named: dict[str, str]) -> Joined:
    """Bring the answers of several queries together by a label, and name the columns."""
    renamed = {f"Value #{letter}": name for letter, name in named.items()}
    if len(named) == 1:  # then the answer is not lettered
        renamed["Value"] = named["A"]
    join = {"byField": field, "mode": "outer"}
    hidden = {f"Time {place}": True for place in range(1, len(named) + 1)} | {"Time": True}
    panel = panel.with_transformation(model.DataTransformerConfig(id_val="joinByField", options=join))
    order = {"excludeByName": hidden, "renameByName": renamed}
    panel = panel.with_transformation(model.DataTransformerConfig(id_val="organize", options=order))
    sort = {"sort": [{"field": field}]}
    return panel.with_transformation(model.DataTransformerConfig(id_val="sortBy", options=sort))


def states(
    title: str,
    why: str,
    unit: str,
    *queries: Query,
    size: tuple[int, int] = (12, 6),
    edges: Iterable[tuple[float | None, str]] = ((None, GREEN), (1, RED)),
) -> statetimeline.Panel:
    """Return a band for each series, coloured by its state over time."""
    panel = _fill(statetimeline.Panel(), title, why, unit, queries, size)
    panel = panel.thresholds(steps(*edges)).show_value(looks.VisibilityMode.NEVER).merge_values(merge_values=True)
    color = dashboard.FieldColor().mode(model.FieldColorModeId.THRESHOLDS)
    return panel.color_scheme(color).row_height(0.8).fill_opacity(80)


def heats(title: str, why: str, unit: str, expr: str, *, size: tuple[int, int] = (12, 8)) -> heatmap.Panel:
    """Return a histogram's buckets over time, darker where more is."""
    query = Query(expr=expr, legend="{{le}}", form=PromQueryFormat.HEATMAP)
    panel = _fill(heatmap.Panel(), title, why, unit, [query], size).calculate(calculate=False)
    color = heatmap.HeatmapColorOptions().mode(heat.HeatmapColorMode.SCHEME).scheme("Blues").steps(32)
    color = color.fill("dark-blue").exponent(0.5).reverse(reverse=False)
    return panel.color(color).y_axis(heatmap.YAxisConfig().unit(unit))
