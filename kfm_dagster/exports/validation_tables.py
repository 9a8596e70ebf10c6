"""The tables of the validation report, and its figures as text, for pages and terminals.

Does not belong here: the counts (`validation.py`), a terminal's tables (`cli/validate.py`), pages (`console/pages.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

BY_DAY = "KPIs by day (UTC)"


class ReportTable(NamedTuple):
    """A titled table of the report's values."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


def report_span(report: Mapping[str, Any]) -> str:
    """Return the period and the delivery of a report, as text."""
    return f"{report['since']} to {report['at']}, delivery {report['delivery']}"


def report_tables(report: Mapping[str, Any]) -> Iterator[ReportTable]:
    """Yield the tables of a report, for a page and a terminal; urgent ones come first."""
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


def figure(value: Any) -> str:
    """Return a value of the report as text: six significant digits, `none` for a missing value.

    A share below 1 is never rounded to 1.
    """
    if value is None or value == {}:
        return "none"
    if isinstance(value, float):
        text = f"{value:.6g}"
        return text if text != "1" or value == 1 else repr(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {figure(entry)}" for name, entry in value.items())
    return str(value)
