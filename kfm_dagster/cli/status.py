"""`kfm status`: the deployment's health and the next steps. Only reads."""

from __future__ import annotations

import json

import click

from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.cli.tables import object_as_json, show_rows, show_section
from kfm_dagster.errors import ExitCode
from kfm_dagster.exports.deployment_status import deployment_status
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.views.view import json_row

MATTER_COLUMNS = ("urgency", "since", "what", "next_step")
UNIT_COLUMNS = ("dataset", *Status)


@click.command()
@object_as_json
def status(*, as_json: bool) -> int:
    """Show what needs attention, and units by dataset and status.

    The list ends with notices that need no action. For queue, clock, stores and daemon, run kfm doctor.

    Exit code 4 when something needs attention, else 0.

    Example: kfm status
    """
    with opened_pipeline(read_only=True) as pipeline:
        report = deployment_status(pipeline)
    if as_json:
        click.echo(json.dumps(json_row(report)))
    else:
        click.echo(report.headline)
        if report.matters:
            show_rows(report.matters, MATTER_COLUMNS, whole=True)
        units = [{"dataset": name, **counts} for name, counts in report.units.items()]
        show_section("units", units, UNIT_COLUMNS)
    return ExitCode.DONE if report.well else ExitCode.FINISHED_WITH_FAILURES
