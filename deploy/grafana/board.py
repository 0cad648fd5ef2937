"""A whole dashboard: its variables, annotations, links to the others, and panels with ids in the order they are added."""

from __future__ import annotations

import json
from typing import Any, Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model

from deploy.grafana.parts import SOURCE

TAG: Final = "draftlane"
# What tenant, model and pool may be: those that have ever had a row of money.
VARIABLES: Final = ("tenant", "model", "pool")
_ICONS: Final = {"cost": "dollar", "routing": "code-branch", "latency": "clock", "engines": "cube"}
_REVISION: Final = "max by (pool, revision) (draftlane_pool_info)"
_FORMER: Final = "max by (pool, revision) (draftlane_pool_info offset 5m)"
_ANNOTATIONS: Final = (
    (
        "Reloads",
        "blue",
        "sum by (instance, result) (increase(draftlane_config_reloads_total[2m])) > 0",
        "Configuration of {{instance}}: {{result}}",
    ),
    (
        "Revisions",
        "purple",
        f"({_REVISION} unless {_FORMER}) and on (pool) max by (pool) (draftlane_pool_info offset 5m)",
        "Pool {{pool}} is now {{revision}}",
    ),
    ("Guards", "red", "max by (guard, pool) (draftlane_guard_active) == 1", "Guard {{guard}} holds {{pool}}"),
)


class Board:
    """A dashboard that is being put together; `uid` is its address, `draftlane-NAME`."""

    def __init__(self, name: str, title: str, about: str, *, since: str) -> None:
        self.name = name
        self._ids = 0
        self._board = (
            dashboard.Dashboard(f"Draftlane / {title}")
            .uid(f"{TAG}-{name}")
            .description(about)
            .tags([TAG])
            .time(since, "now")
            .timezone("browser")
            .refresh("30s")
            .tooltip(model.DashboardCursorSync.CROSSHAIR)
            .readonly()
        )
        self._variables()
        for label, color, expr, _ in _ANNOTATIONS:
            self._board = self._board.annotation(_annotation(label, color, expr))
        for other, icon in _ICONS.items():
            if other != name:
                self._board = self._board.link(_link(other.capitalize(), f"/d/{TAG}-{other}", icon))

    def _variables(self) -> None:
        source = dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
        self._board = self._board.with_variable(source)
        for name in VARIABLES:
            choice = (
                dashboard.QueryVariable(name)
                .label(name.capitalize())
                .query(f"label_values(draftlane_cost_usd_total, {name})")
                .datasource(SOURCE)
                .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
                .sort(model.VariableSort.ALPHABETICAL_ASC)
                .multi(multi=True)
                .include_all(include_all=True)
                .all_value(".+")
                .current(model.VariableOption(text="All", value="$__all"))
            )
            self._board = self._board.with_variable(choice)

    def row(self, title: str) -> Board:
        """Begin a row of panels."""
        self._ids += 1
        self._board = self._board.with_row(dashboard.Row(title).id(self._ids))
        return self

    def add(self, *panels: Any) -> Board:
        """Add panels from left to right, the next line where one is full."""
        for panel in panels:
            self._ids += 1
            self._board = self._board.with_panel(panel.id(self._ids))
        return self

    def render(self) -> str:
        """Return the JSON that Grafana's provisioning reads."""
        whole: dict[str, Any] = json.loads(JSONEncoder().encode(self._board.build()))
        for each, (_, _, _, text) in zip(whole["annotations"]["list"], _ANNOTATIONS, strict=True):
            each |= {"titleFormat": text, "step": "60s"}  # the Prometheus plugin's own fields, which the builders lack
        return json.dumps(whole, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _annotation(label: str, color: str, expr: str) -> dashboard.AnnotationQuery:
    return dashboard.AnnotationQuery().name(label).datasource(SOURCE).enable(enable=True).icon_color(color).expr(expr)


def _link(title: str, url: str, icon: str) -> dashboard.DashboardLink:
    link = dashboard.DashboardLink(title).type(model.DashboardLinkType.LINK).icon(icon).url(url)
    return (
        link.tooltip(f"The same time and choice on {title}").keep_time(keep_time=True).include_vars(include_vars=True)
    )
