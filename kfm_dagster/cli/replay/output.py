"""The output of the replay commands: plans, replays and units, as a table, JSON or YAML."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import click
import yaml

from kfm_dagster.cli.tables import show_fields, show_rows, show_section
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.recovery.replay.engine import Report
from kfm_dagster.recovery.replay.plan import PlannedReplay
from kfm_dagster.recovery.replay.runs import ReplayRun, outcome_line

RUN_COLUMNS = ("replay_run_id", "name", "mode", "state", "created_at", "actor", "reason")
EXAMPLE_COLUMNS = ("wal_id", "dataset", "status", "attempts", "last_error_code", "event_time")

INSTEAD = {
    Status.FAILED: "leave out what else the selection asks for (error codes, attempts, times of discovery)",
    Status.QUARANTINED: "kfm quarantine list says why they are, kfm release lets them in again",
    Status.PENDING: "a running deployment works them (kfm drain)",
    Status.IN_PROGRESS: "wait for the run that works them",
    Status.SUCCEEDED: "nothing, or --mode repair-and-replace to have successes done again",
}
"""Next steps when a selection matches none, by the status of other records, the most urgent first."""


def show(document: object, *, output: str, as_table: Callable[[], None]) -> None:
    """Print a document in the format `output`."""
    if output == "json":
        click.echo(json.dumps(document))
    elif output == "yaml":
        click.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), nl=False)
    else:
        as_table()


def show_plan(plan: PlannedReplay, *, output: str) -> None:
    """Print a plan: the units of a selection now."""
    show(plan.as_json(), output=output, as_table=lambda: _plan_table(plan))


def show_report(report: Report, *, output: str) -> None:
    """Print the progress of a replay."""
    show(report.as_json(), output=output, as_table=lambda: _report_table(report))


def show_runs(found: Sequence[ReplayRun], *, output: str) -> None:
    """Print replays."""
    rows = [run.as_json() for run in found]
    show(rows, output=output, as_table=lambda: show_rows(rows, RUN_COLUMNS))


def nothing_selected(plan: PlannedReplay) -> str:
    """Return a line on an empty selection: the records that the ledger has, and the next step."""
    others = ", ".join(f"{count} {status}" for status, count in plan.others.items())
    step = next((step for status, step in INSTEAD.items() if status in plan.others), "kfm wal list shows what there is")
    return f"nothing is selected; of these datasets and times there are {others or 'no records'}; next: {step}"


def _plan_table(plan: PlannedReplay) -> None:
    document = plan.as_json()
    if not plan.units and not plan.listings:
        click.echo(nothing_selected(plan))
    more = ", and more match" if plan.more else ""
    days = plan.partitions
    span = f"{len(days)} days, {min(days)} to {max(days)}" if days else ""
    fields = {
        "records": f"{len(plan.units)}{more}",
        "admissible": document["admissible"],
        "batches": f"{plan.batches} of {plan.batch_size}",
        "partitions": span,
        "at least": f"{plan.seconds:.0f} s",
        "spec_sha256": document["spec_sha256"],
    }
    show_fields(fields | ({"listings": plan.listings} if plan.listings else {}))
    show_section("breakdown", document["breakdown"], ("dataset", "status", "error_code", "units"))
    show_section("examples", document["examples"], EXAMPLE_COLUMNS)
    if plan.skipped:
        show_section(
            "would be skipped",
            [{"reason": reason, "units": units} for reason, units in document["skipped"].items()],
            ("reason", "units"),
        )
    if plan.refusals:
        show_section("a run would be refused", document["refusals"], ("guard", "what", "observed", "expected"))


def _report_table(report: Report) -> None:
    run = report.run.as_json()
    fields = {name: value for name, value in run.items() if value is not None}
    show_fields(
        fields
        | {"units": report.account.units, "outcomes": outcome_line(report.account.outcomes)}
        | ({"skipped": dict(report.account.skipped)} if report.account.skipped else {})
        | ({"held by": str(report.hold)} if report.hold else {})
    )
    if report.differing:
        show_section("results that differ", report.differing, ("wal_id", "dataset", "attempt", "at"))
