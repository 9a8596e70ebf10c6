"""The validation report for people: its figures as text, and all of it as one HTML page that makes no request.

Does not belong here: the counts (`validation.py`), or a terminal's tables (`cli/validate.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

OPENING = b'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Validation, '
"""What every page begins with."""
STYLE = (
    "body{font:15px/1.4 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;margin:.5rem 0 1.5rem}th,td{border:1px solid #bbb;padding:.2rem .6rem;"
    "text-align:left}td.number{text-align:right;font-variant-numeric:tabular-nums}"
)
"""The one style of a page; who serves it names its digest."""


def validation_page(report: Mapping[str, Any]) -> str:
    """Return the page of a report (`validation.validate_report`)."""
    span = escape(report_span(report))
    return (
        f"{OPENING.decode()}{span}</title><style>{STYLE}</style></head>"
        f"<body><h1>Validation, {span}</h1>{report_sections(report)}</body></html>\n"
    )


def report_span(report: Mapping[str, Any]) -> str:
    """Return what a report is about."""
    return f"{report['since']} to {report['at']}, delivery {report['delivery']}"


def report_sections(report: Mapping[str, Any]) -> str:
    """Return the tables of a report as HTML for a page."""
    states = sorted({state for counts in report["stages"].values() for state in counts})
    parts = [
        table("Units", ["what", "value"], ([name, figure(value)] for name, value in report["units"].items())),
        table(
            "Stages",
            ["stage", *states],
            ([stage, *map(counts.get, states)] for stage, counts in report["stages"].items()),
        ),
        table(
            "Gates",
            ["gate", "looked at", "pass rate", "outcomes"],
            (
                [f"{gate} {one['title']}", one["looked_at"], one["pass_rate"], figure(one["outcomes"])]
                for gate, one in report["gates"].items()
            ),
        ),
        table("Stops", ["stop", "times"], report["stops_triggered"].items()),
        table("Errors", ["class", "stages"], report["errors"].items()),
        table("[Restricted]", ["because of", "stages"], report["restricted"].items()),
        table(
            "Retries and replays",
            ["what", "count"],
            [
                ["retries", report["retries"]["count"]],
                ["rollbacks", report["rollbacks"]],
                ["replays", report["replays"]["count"]],
            ],
        ),
        table(
            "KPIs",
            ["KPI", "value", "is", "by"],
            (
                [name, figure(value), *report["kpi_definitions"][name].values()]
                for name, value in report["kpis"].items()
            ),
        ),
        table(
            "KPIs by day (UTC)",
            ["day", *report["kpis"]],
            (map(figure, day.values()) for day in report["kpis_by_day"]),
        ),
        f"<p>Audit: {report['audit']['lines']} lines, head <code>{escape(report['audit']['head'])}</code></p>",
    ]
    return "".join(parts)


def figure(value: Any) -> str:
    """Return a value of the report as text: six significant digits, and `none` for what was not there to count.

    A share that is not whole is never shown as whole.
    """
    if value is None or value == {}:
        return "none"
    if isinstance(value, float):
        text = f"{value:.6g}"
        return text if text != "1" or value == 1 else repr(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {figure(one)}" for name, one in value.items())
    return str(value)


def table(title: str, columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return a titled table; a row that says `none` where there is no row."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    nothing = f'<tr><td colspan="{len(columns)}">none</td></tr>'
    return f"<h2>{escape(title)}</h2><table><thead><tr>{head}</tr></thead><tbody>{body or nothing}</tbody></table>"


def _cell(value: Any) -> str:
    kind = ' class="number"' if isinstance(value, (int, float)) else ""
    return f"<td{kind}>{'' if value is None else escape(figure(value))}</td>"
