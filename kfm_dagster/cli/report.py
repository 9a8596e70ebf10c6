"""`kfm report`: the results of the stages under the pipeline card. Only reads."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import click

from kfm_dagster.cli.files import NewFile
from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.cli.tables import object_as_json, show_section
from kfm_dagster.errors import ExitCode
from kfm_dagster.exports.atomic_files import write_document
from kfm_dagster.exports.validation import BY_DAY, DAYS, MOST_DAYS, figure, report_tables, validate_report
from kfm_dagster.stages.gates.verdict import OnFailure

SHOWN_BY_DAY = ("day", "latency_p95_seconds", "throughput_units_per_second", "retry_count", "Q_res", "p_dim")
"""Columns of the daily KPIs that fit into a terminal; page and JSON have all KPIs."""


@click.command()
@click.option("--days", type=click.IntRange(1, MOST_DAYS), default=DAYS, show_default=True, help="Number of days.")
@click.option("--html", type=NewFile(), help="Also write the report as an HTML page.")
@object_as_json
def report(*, days: int, html: Path | None, as_json: bool) -> int:
    """Report stages, gates, stops, retries and KPIs by day.

    Covers the last --days days: units, stage states, gate pass rates, stops, retries, dimensional closure, KPIs.

    Exit code 4 if a stop (S1 to S5) was triggered, another gate stopped a batch, or p_dim is below the card's minimum.

    Example: kfm report --days 1 --html report.html
    """
    with opened_pipeline(read_only=True) as pipeline:
        summary = validate_report(pipeline, since=pipeline.clock() - timedelta(days=days))
    if html is not None:
        # Imported here, because only a page needs the templates.
        from kfm_dagster.console.pages import REPORT_OPENING, validation_page  # noqa: PLC0415

        write_document(html, validation_page(summary), opening=REPORT_OPENING, option="--html")
    if as_json:
        click.echo(json.dumps(summary))
    else:
        for table in report_tables(summary):
            columns = [name for name in table.columns if table.title != BY_DAY or name in SHOWN_BY_DAY]
            rows = [dict(zip(table.columns, map(figure, row), strict=True)) for row in table.rows]
            show_section(table.title, rows, columns)
    # The gates G1, G6 and G8 trigger no stop (S1 to S5), but the card can make each of them stop a batch.
    stopped = any(OnFailure.STOP in gate["outcomes"] for gate in summary["gates"].values())
    fine = not (stopped or summary["stops_triggered"]) and summary["dimensional_closure"]["ok"]
    return ExitCode.DONE if fine else ExitCode.FINISHED_WITH_FAILURES
