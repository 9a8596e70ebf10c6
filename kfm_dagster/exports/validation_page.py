"""The validation report for people: its figures as text, and all of it as one HTML page that makes no request.

Does not belong here: the counts (`validation.py`), or a terminal's tables (`cli/validate.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

OPENING = b'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Validation, '
"""What every page begins with."""
STYLE = (
    "body{font:15px/1.4 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;margin:.5rem 0 1.5rem}th,td{border:1px solid #bbb;padding:.2rem .6rem;"
    "text-align:left}td.number{text-align:right;font-variant-numeric:tabular-nums}"
)
"""The one style of a page; who serves it names its digest."""


BY_DAY = "KPIs by day (UTC)"


class ReportTable(NamedTuple):
    """A titled table of the report's values."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


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


def report_tables(report: Mapping[str, Any]) -> Iterator[ReportTable]:
    """Yield the tables of a report, for a page and for a terminal; what needs care comes first."""
    states = sorted({state for counts in report["stages"].values() for state in counts})
    yield ReportTable("Units", ("what", "value"), list(report["units"].items()))
    yield ReportTable(
        "Stages",
        ("stage", *states),
        [(stage, *(counts.get(state, "") for state in states)) for stage, counts in report["stages"].items()],
    )
    yield ReportTable(
        "Gates",
        ("gate", "looked at", "pass rate", "outcomes"),
        [
            (f"{name} {gate['title']}", gate["looked_at"], gate["pass_rate"], gate["outcomes"])
            for name, gate in report["gates"].items()
        ],
    )
    yield ReportTable("Stops", ("stop", "times"), list(report["stops_triggered"].items()))
    yield ReportTable("Errors", ("class", "stages"), list(report["errors"].items()))
    yield ReportTable("[Restricted]", ("because of", "stages"), list(report["restricted"].items()))
    counts = {name: report[name]["count"] for name in ("retries", "replays")} | {"rollbacks": report["rollbacks"]}
    yield ReportTable("Retries and replays", ("what", "count"), list(counts.items()))
    yield ReportTable(
        "KPIs",
        ("KPI", "value", "is", "by"),
        [(name, value, *report["kpi_definitions"][name].values()) for name, value in report["kpis"].items()],
    )
    yield ReportTable(
        BY_DAY, ("day", *report["kpi_definitions"]), [tuple(day.values()) for day in report["kpis_by_day"]]
    )


def report_sections(report: Mapping[str, Any]) -> str:
    """Return the tables of a report as HTML for a page."""
    audit = f"<p>Audit: {report['audit']['lines']} lines, head <code>{escape(report['audit']['head'])}</code></p>"
    return "".join(map(_section, report_tables(report))) + audit


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


def _section(table: ReportTable) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table.rows)
    nothing = f'<tr><td colspan="{len(table.columns)}">none</td></tr>'
    return (
        f"<h2>{escape(table.title)}</h2><table><thead><tr>{head}</tr></thead><tbody>{body or nothing}</tbody></table>"
    )


def _cell(value: Any) -> str:
    kind = ' class="number"' if isinstance(value, (int, float)) else ""
    return f"<td{kind}>{escape(figure(value))}</td>"
