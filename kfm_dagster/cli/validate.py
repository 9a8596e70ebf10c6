"""`kfm validate`: how the stages went under the pipeline card. Only reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from kfm_dagster.cli.files import NewFile
from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.cli.tables import show_fields, show_section
from kfm_dagster.errors import ExitCode
from kfm_dagster.exports.atomic_files import ExportFile, atomic_files
from kfm_dagster.exports.validation import DAYS, MOST_DAYS, validate_report
from kfm_dagster.exports.validation_page import OPENING, figure, validation_page
from kfm_dagster.stages.gates.verdict import OnFailure

SHOWN_BY_DAY = ("latency_p95_seconds", "throughput_units_per_second", "retry_count", "Q_res", "p_dim")
"""KPIs of each day that a terminal has room for; page and JSON have all."""


@click.command()
@click.option("--days", type=click.IntRange(1, MOST_DAYS), default=DAYS, show_default=True, help="So many days back.")
@click.option("--html", type=NewFile(), help="Write the report as a page, too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def validate(*, days: int, html: Path | None, as_json: bool) -> int:
    """Show units, stage states, gate pass rates, stops, retries, dimensional closure and KPIs of the last days.

    KPIs are shown over all of them, and day by day.

    Exit code 4 when a stop was triggered, a gate stopped a batch or a quantity does not close, else 0.

    Example: kfm validate --days 1 --html validate.html
    """
    with opened_pipeline(read_only=True) as pipeline:
        report = validate_report(pipeline, since=pipeline.clock() - timedelta(days=days))
    if html is not None:
        with atomic_files(html.parent, [ExportFile(name=html.name, opening=OPENING)], option="--html") as [file]:
            file.write(validation_page(report).removeprefix(OPENING.decode()).encode())
    if as_json:
        click.echo(json.dumps(report))
    else:
        click.echo("units")
        show_fields(_as_text(report["units"]))
        states = sorted({state for counts in report["stages"].values() for state in counts})
        none = dict.fromkeys(states)
        rows = [{"stage": stage, **none, **counts} for stage, counts in report["stages"].items()]
        show_section("stages", rows, ("stage", *states))
        gates = [{**_as_text(gate), "gate": f"{name} {gate['title']}"} for name, gate in report["gates"].items()]
        show_section("gates", gates, ("gate", "looked_at", "pass_rate", "outcomes"))
        counts = {name: report[name] for name in ("stops_triggered", "errors", "restricted")}
        show_fields(_as_text({**counts, **report["kpis"]}))
        show_section("KPIs by day", [_as_text(day) for day in report["kpis_by_day"]], ("day", *SHOWN_BY_DAY))
    # G1, G6 and G8 have no stop of their own, and the card may let them stop all the same.
    stopped = any(OnFailure.STOP in gate["outcomes"] for gate in report["gates"].values())
    fine = not (stopped or report["stops_triggered"]) and report["dimensional_closure"]["ok"]
    return ExitCode.DONE if fine else ExitCode.FINISHED_WITH_FAILURES


def _as_text(figures: Mapping[str, Any]) -> dict[str, str]:
    return {name: figure(value) for name, value in figures.items()}
