"""`kfm backfill`: list and ingest days of datasets, and follow the progress.

The commands record decisions; a running deployment (`kfm ui`, `kfm drain`, a Dagster daemon) carries them out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date
from typing import Any

import click
from rich.console import Console

from kfm_dagster.cli.completion import BACKFILL, DATASET, DAY, REPLAY
from kfm_dagster.cli.decision_options import decision_of, decision_options, dry_run_option
from kfm_dagster.cli.progress_bar import bar_of
from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.cli.tables import ids_option, rows_as_json, show_rows
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import ExitCode
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.plural import counted
from kfm_dagster.recovery.backfill.days import Backfills
from kfm_dagster.recovery.backfill.progress import (
    DayProgress,
    day_progress,
    days_left_out,
    find_backfill,
    newest_backfills,
)
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.recovery.replay.runs import ENDED
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database

LIST_COLUMNS = ("backfill_id", "state", "datasets", "first_day", "last_day", "days_listed", "days", "actor", "reason")
PLAN_COLUMNS = ("dataset", "first_day", "last_day", "days")
DAY_COLUMNS = (
    "day", "dataset", "state", "listed", "created", "requeued", "known", *(s.value for s in Status), "left_out"
)  # fmt: skip
POLL_SECONDS = 1.0


@click.group()
def backfill() -> None:
    """List and ingest past days, without delaying live messages.

    Example: kfm backfill run nexrad-l2 --from 2025-04-01 --to 2025-04-30 --reason "first fill"
    """


@backfill.command()
@click.argument("datasets", type=DATASET, nargs=-1, required=True, metavar="DATASET...")
@click.option("--from", "first", type=DAY, required=True, help="First day, UTC.")
@click.option("--to", "last", type=DAY, required=True, help="Last day, inclusive.")
@dry_run_option
@decision_options
def run(*, datasets: Sequence[str], first: date, last: date, dry: bool, **decided: Any) -> None:
    """Ingest every object of these days that is missing from the ledger or has failed.

    Example: kfm backfill run goes-abi hrrr --from 2025-04-01 --to 2025-04-03 --reason "outage of 2 April"
    """
    settings = Settings.load()
    # Refuse datasets that are not followed. A dry run would not, because its registry has all datasets.
    followed = ContractRegistry.load(settings.contracts_dir).only(settings.followed)
    for dataset in datasets:
        _ = followed[dataset]
    decision = None if dry else decision_of(settings, **decided)
    window: dict[str, Any] = {"datasets": datasets, "first_day": first, "last_day": last}
    with opened_pipeline(read_only=dry) as pipeline:
        before = pipeline.window.first_day()
        days = Backfills(pipeline).days(**window)
        started = None if decision is None else Backfills(pipeline).start(**window, decision=decision)
        first_day = pipeline.window.first_day()
        left_out = days_left_out(pipeline.registry, days, first)
    if started is None:
        rows = [
            {"dataset": name, "first_day": str(dates[0]), "last_day": str(dates[-1]), "days": len(dates)}
            for name, dates in days.items()
        ]
        show_rows(rows, PLAN_COLUMNS)
    else:
        click.echo(started.backfill_id)
    _show_left_out(left_out)
    if first_day < before:
        click.echo(
            f"the partitions begin on {first_day} now, not on {before}: a running deployment applies this within a "
            "minute; a separate code server or web server applies it when its code location is reloaded",
            err=True,
        )
    if started is not None:
        click.echo(
            f"the running deployment will list {counted(sum(map(len, days.values())), 'day')}; "
            f"kfm backfill status {started.backfill_id} --follow shows the progress",
            err=True,
        )


@backfill.command()
@click.argument("backfill_id", type=BACKFILL, required=False)
@click.option(
    "--follow", is_flag=True, help="Show a progress bar until the end; exit code 4 if any unit did not succeed."
)
@rows_as_json
@ids_option
@click.pass_context
def status(context: click.Context, *, backfill_id: str | None, follow: bool, as_json: bool, ids: bool) -> None:
    """List the newest backfills, or show the ledger's state of each day of a backfill.

    Example: kfm backfill status bf-20261121T135100-1f2e3d --follow
    """
    if follow and backfill_id is None:
        raise click.UsageError("--follow needs the id of a backfill")
    if ids and backfill_id is not None:
        raise click.UsageError("--ids lists all backfills: leave out the id")
    with opened_pipeline(read_only=True) as pipeline:
        if backfill_id is None:
            rows = [record.as_json() for record in newest_backfills(pipeline.database)]
            show_rows(rows, LIST_COLUMNS, as_json=as_json, ids_of="backfill_id" if ids else None)
            return
        backfill_id = REPLAY.whole_in(pipeline.database, backfill_id)
        record = find_backfill(pipeline.database, backfill_id)
        days = _follow(pipeline.database, backfill_id) if follow else day_progress(pipeline.database, backfill_id)
        left_out = days_left_out(pipeline.registry, record.datasets, record.run.selection.days[0])
    if not as_json:
        click.echo(f"{backfill_id}: {record.run.decision.reason} ({record.run.decision.actor})")
    _show_left_out(left_out)
    rows = [_day_row(day) for day in days]
    table = rows if as_json else [row | {"left_out": _summed(row["left_out"])} for row in rows]
    show_rows(table, DAY_COLUMNS, as_json=as_json)
    if follow and any(day.units[bad] for day in days for bad in (Status.FAILED, Status.QUARANTINED)):
        context.exit(ExitCode.FINISHED_WITH_FAILURES)


@backfill.command()
@click.argument("backfill_id", type=BACKFILL)
@decision_options
def cancel(*, backfill_id: str, **decided: Any) -> None:
    """Stop listing; objects already listed are ingested, unless kfm pause stops their dataset.

    Example: kfm backfill cancel bf-20261121T135100-1f2e3d --reason "wrong month"
    """
    decision = decision_of(Settings.load(), **decided)
    with opened_pipeline() as pipeline:
        backfill_id = find_backfill(pipeline.database, REPLAY.whole_in(pipeline.database, backfill_id)).backfill_id
        ReplayEngine(pipeline=pipeline).stop(backfill_id, decision)
        ended = find_backfill(pipeline.database, backfill_id)
    click.echo(f"{backfill_id} is stopped, {ended.days_listed} of {sum(ended.days.values())} days had been listed")


def _follow(database: Database, backfill_id: str) -> list[DayProgress]:
    bar = bar_of(Console(stderr=True), "units", "{task.fields[days]}")
    task = bar.add_task(backfill_id, total=None, days="")
    with bar:
        while True:
            backfill = find_backfill(database, backfill_id)
            days = day_progress(database, backfill_id)
            units = sum(sum(day.units.values()) for day in days)
            terminal = units - sum(day.open_units for day in days)
            text = f"{backfill.days_listed} of {sum(backfill.days.values())} days listed"
            bar.update(task, total=units or None, completed=terminal, days=text)
            if backfill.state in ENDED:
                return days
            time.sleep(POLL_SECONDS)


def _show_left_out(left_out: Mapping[str, str]) -> None:
    for days in left_out.values():
        click.echo(f"left out: {days}", err=True)


def _summed(left_out: Mapping[str, Any]) -> str:
    return ", ".join(f"{group['keys']} {reason} ({group['first']})" for reason, group in sorted(left_out.items()))


def _day_row(day: DayProgress) -> dict[str, Any]:
    row = asdict(day)
    units = row.pop("units")
    return {**row, "day": day.day.isoformat(), "known": day.known, **units}
