"""A report as one HTML file that needs nothing else: figures, charts inside, tables, and how the figures came about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from html import escape
from typing import Final

from gateway.measure.report_charts import CHARTS, as_svg
from gateway.measure.report_facts import LABELS, Amounts, Facts

STYLE: Final = """
:root{color-scheme:light;--ink:#171a21;--dim:#596273;--line:#dfe3ea;--good:#117352;--bad:#b8232f}
*{box-sizing:border-box}body{margin:0 auto;max-width:1080px;padding:2rem clamp(1rem,4vw,3rem);color:var(--ink);
background:#fff;font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2.2rem 0 .6rem}p{margin:.4rem 0;max-width:72ch}.dim{color:var(--dim)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(11rem,1fr));gap:.8rem;margin:1.4rem 0}
.tile{border:1px solid var(--line);border-radius:12px;padding:.8rem 1rem;margin:0}.tile dt{color:var(--dim);font-size:.85rem}
.tile dd{margin:0;font-size:1.5rem;font-weight:650;font-variant-numeric:tabular-nums}
.tile dd+dd{font-size:.84rem;font-weight:400;color:var(--dim)}.good{color:var(--good)}.bad{color:var(--bad)}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(27rem,100%),1fr));gap:1.2rem}figure{margin:0}
figcaption{font-weight:600;margin-bottom:.3rem}svg{width:100%;height:auto}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.88rem}th{text-align:left;color:var(--dim);font-weight:600}
th,td{padding:.35rem .7rem .35rem 0;border-bottom:1px solid var(--line)}
td+td,th+th{text-align:right;font-variant-numeric:tabular-nums}
@media print{body{padding:0}.tile,figure,tr{break-inside:avoid}}
"""
_COLUMNS: Final = (
    ("Calls", "calls", ",.0f"),
    ("Output tokens", "completion_tokens", ",.0f"),
    ("Slot hours", "slot_seconds", ",.2f"),
    ("Spent, $", "cost_usd", ",.4f"),
    ("$ per 1M output tokens", "usd_per_million_output_tokens", ",.2f"),
    ("All baseline, $", "counterfactual_baseline_usd", ",.4f"),
    ("Saved, $", "saved_against_baseline_usd", ",.4f"),
)


def page(facts: Facts, *, written: datetime) -> str:
    """Return the report; `written` is when."""
    span = f"{facts.first:%d %B %Y} to {facts.last:%d %B %Y}"
    charts = "".join(figure(title, _said(title, facts), as_svg(draw, facts)) for title, draw in CHARTS.items())
    tables = "".join(f"<h2>By {label}</h2>{_table(label, facts.by[label])}" for label in LABELS)
    return document(
        f"Draftlane, {span}",
        "Cost and routing",
        f"{span}, UTC days. Written {written:%d %B %Y, %H:%M} UTC.",
        f"<p>{escape(headline(facts))}</p>{_tiles(facts)}"
        f"<h2>In pictures</h2><div class='charts'>{charts}</div>{tables}"
        f"<h2>How calls ended</h2>{_outcomes(facts)}<h2>How to read this</h2>{_NOTES}",
    )


def document(title: str, heading: str, under: str, main: str) -> str:
    """Return a page that needs nothing else; `main` is HTML, the others are text."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>"
        f"<header><h1>{escape(heading)}</h1><p class='dim'>{escape(under)}</p></header>"
        f"<main>{main}</main></body></html>\n"
    )


def figure(title: str, said: str, svg: str) -> str:
    """Return a chart with its title, and in words for those who do not see it."""
    return f'<figure><figcaption>{escape(title)}</figcaption><div role="img" aria-label="{escape(said)}">{svg}</div></figure>'


def headline(facts: Facts) -> str:
    """Return the report in a sentence."""
    if not facts.total["calls"]:
        return "No calls were counted in this time."
    price = facts.total["usd_per_million_output_tokens"]
    told = "" if price is None else f", {_usd(price)} per million output tokens"
    verb = "saved" if facts.saved >= 0 else "cost"
    than = "against" if facts.saved >= 0 else "more than"
    return (
        f"{facts.total['calls']:,.0f} calls cost {_usd(facts.total['cost_usd'])}{told}."
        f" Routing {verb} {_usd(abs(facts.saved))} {than} sending all to baseline;"
        f" {_usd(facts.idle_usd)} of the pools' {_usd(facts.capacity_usd)} lay idle."
    )


def _tiles(facts: Facts) -> str:
    low, high = (getattr(facts.policies[1], end) - facts.policies[0].usd for end in ("low", "high"))
    share = facts.saved / facts.policies[1].usd if facts.policies[1].usd else 0.0
    failed = facts.failed / (facts.total["calls"] or 1.0)
    return (
        "<div class='tiles'>"
        + "".join(
            f"<dl class='tile'><dt>{name}</dt><dd class='{state}'>{figure}</dd><dd>{under}</dd></dl>"
            for name, figure, under, state in (
                ("Spent", _usd(facts.total["cost_usd"]), f"{facts.total['calls']:,.0f} calls", ""),
                (
                    "Per million output tokens",
                    _usd(facts.total["usd_per_million_output_tokens"]),
                    f"{facts.total['completion_tokens']:,.0f} tokens",
                    "",
                ),
                (
                    "Saved against all-baseline",
                    _usd(facts.saved),
                    f"{share:.0%}; {_usd(low)} to {_usd(high)} in four of five cases",
                    "good" if facts.saved > 0 else "bad" if facts.saved < 0 else "",
                ),
                ("Idle", _usd(facts.idle_usd), f"of {_usd(facts.capacity_usd)} that the pools cost", ""),
                ("Failed calls", f"{failed:.2%}", "through no fault of the client", "bad" if failed > 0.01 else ""),
            )
        )
        + "</div>"
    )


def _said(title: str, facts: Facts) -> str:
    """Return a chart in words, for those who do not see it."""
    if title == "What the same calls would have cost":
        return f"{title}: " + ", ".join(f"{policy.name} {_usd(policy.usd)}" for policy in facts.policies)
    return f"{title}; the tables below hold the figures"


def _table(label: str, rows: Iterable[tuple[str, Amounts]]) -> str:
    heads = "".join(f"<th scope='col'>{head}</th>" for head in (label.capitalize(), *(head for head, _, _ in _COLUMNS)))
    lines = "".join(
        f"<tr><td>{escape(name or 'none')}</td>"
        + "".join(f"<td>{_cell(amounts, key, form)}</td>" for _, key, form in _COLUMNS)
        + "</tr>"
        for name, amounts in rows
    )
    return f"<div class='wide'><table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>"


def _cell(amounts: Mapping[str, float | None], key: str, form: str) -> str:
    amount = amounts[key]
    if amount is None:
        return "–"
    return format(amount / 3600 if key == "slot_seconds" else amount, form)


def _outcomes(facts: Facts) -> str:
    calls = facts.total["calls"] or 1.0
    lines = "".join(
        f"<tr><td>{escape(name.replace('_', ' '))}</td><td>{count:,.0f}</td><td>{count / calls:.2%}</td></tr>"
        for name, count in facts.outcomes
    )
    heads = "<th scope='col'>Outcome</th><th scope='col'>Calls</th><th scope='col'>Share</th>"
    return f"<div class='wide'><table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>"


def _usd(amount: float | None) -> str:
    if amount is None:
        return "–"
    digits = 2 if abs(amount) >= 1 or amount == 0 else 4
    return f"{'−' if amount < 0 else ''}${abs(amount):,.{digits}f}"


_NOTES: Final = """
<p><b>Spent</b> is the time that calls held a slot of an engine, at the pool's price per slot and second. Calls of a pool
whose slots are all busy pay exactly what it costs.</p>
<p><b>Idle</b> is what the pools cost and no call paid, at each day's price and the replicas that are configured now, from
the first day's midnight to the last day's end or to now. It belongs to no tenant.</p>
<p><b>Saved</b> compares with what the same answers would have cost on baseline, by its step time at the load it had and the
acceptance that the curve expected, without the queues that all calls there would have caused. The range bounds 80 % of what
the uncertainty of acceptance leaves.</p>
<p>Days are UTC. What engines told no usage for was counted from events.</p>
"""
