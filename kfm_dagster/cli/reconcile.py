"""`kfm reconcile`: compare bucket, ledger, catalog and lineage, and repair differences."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

from kfm_dagster.cli.completion import DATASET, DAY, POSITIVE
from kfm_dagster.cli.decision_options import actor_option, change_ref_option, decision_of, proposed_line
from kfm_dagster.cli.progress_bar import bar_of
from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.cli.tables import show_rows
from kfm_dagster.contracts.cadence import days_between
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import DependencyUnavailableError, ExitCode
from kfm_dagster.governance.log import Decision
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.preflight import hold_roots, refuse_foreign_roots
from kfm_dagster.plural import counted
from kfm_dagster.recovery.reconcile import ComparedDay, Difference, compare_day, repair_day
from kfm_dagster.settings import Settings
from kfm_dagster.storage.object_handle import ObjectReadError

COLUMNS = ("dataset", "day", "objects", "units", "items", *(kind.value for kind in Difference))
REPAIRED = ("entered", "repeated", "left")
NAMED = 100
"""Maximum names per day and kind of difference in --json and --names."""


@click.command()
@click.option("--dataset", "datasets", type=DATASET, multiple=True, help="Only this dataset; may be repeated.")
@click.option("--days", type=click.IntRange(1, 366), default=2, show_default=True, help="Last days, including today.")
@click.option("--from", "first", type=DAY, help="First day (UTC), instead of --days.")
@click.option("--to", "last", type=DAY, help="Last day, inclusive. Default: today.")
@click.option("--repair", is_flag=True, help="Record missing objects, and repeat units whose Item is lost.")
@click.option("--reason", help="Reason, recorded in the governance log; needed with --repair.")
@click.option("--limit", default=10_000, show_default=True, type=POSITIVE, help="Maximum number of repairs per day.")
@change_ref_option
@actor_option
@click.option("--read", is_flag=True, help="Also read every Item; an Item whose content differs counts as lost.")
@click.option("--names", is_flag=True, help="Also list the names that differ.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per dataset and day, with names.")
def reconcile(
    *,
    datasets: Sequence[str],
    days: int,
    first: date | None,
    last: date | None,
    repair: bool,
    limit: int,
    read: bool,
    names: bool,
    as_json: bool,
    **decided: Any,
) -> int:
    """Compare days of buckets with ledger, catalog and lineage.

    Changes nothing without --repair. With --repair, objects without a unit enter the ledger in the bulk lane, and the
    running deployment ingests them. A replay, which needs a --change-ref, repeats units whose Item is lost and whose
    object is unchanged. Nothing is deleted.

    Exit code 0 if bucket, ledger, catalog and lineage agree or every difference is being repaired, else 4.

    Example: kfm reconcile --dataset hrrr --days 3 --repair --reason "queue was full on Monday"
    """
    if repair and decided["reason"] is None:
        raise click.UsageError("--repair needs a --reason")
    settings = Settings.load()
    decision = decision_of(settings, **decided) if repair else None
    rows, unrepaired, console = [], 0, Console(stderr=True)
    with opened_pipeline(settings, read_only=not repair) as pipeline:
        ids = [pipeline.registry[name].id for name in datasets] or [contract.id for contract in pipeline.registry]
        compared_days = _days(pipeline.registry, ids, _window(pipeline.clock().date(), days, first, last))
        (hold_roots if repair else refuse_foreign_roots)(pipeline.settings, pipeline.database)
        with bar_of(console, transient=True) as bar:  # refusals come before the bar
            for dataset, day in compared_days:
                compared = _compared(pipeline, dataset, day, bar, read=read)
                row: dict[str, Any] = {"dataset": dataset, "day": day.isoformat(), "objects": compared.objects}
                row |= {"units": compared.units, "items": compared.items, **compared.counts()}
                row["names"] = {
                    kind.value: list(entries[:NAMED]) for kind, entries in compared.named().items() if entries
                }
                if decision is None:
                    unrepaired += sum(compared.counts().values())
                else:
                    repaired = _repaired(pipeline, compared, decision, limit, bar)
                    unrepaired += repaired["left"]
                    row |= repaired
                rows.append(row)
    show_rows(rows, (*COLUMNS, *(REPAIRED if decision else ())), as_json=as_json)
    if not as_json:
        _show_repairs(rows, names=names)
    return ExitCode.FINISHED_WITH_FAILURES if unrepaired else ExitCode.DONE


def _window(today: date, days: int, first: date | None, last: date | None) -> list[date]:
    end = last or today
    begin = first or end - timedelta(days=days - 1)
    if begin > end or end > today:
        raise click.UsageError(f"{begin} to {end} is not a window of days up to today")
    return days_between(begin, end)


def _days(registry: ContractRegistry, datasets: Sequence[str], days: Sequence[date]) -> list[tuple[str, date]]:
    """Return (dataset, day) pairs; in some datasets, one day has all objects of a month or year."""
    return [
        (name, day) for name in datasets for day in sorted({registry.grammars[name].day_holding(day) for day in days})
    ]


def _compared(pipeline: Pipeline, dataset: str, day: date, bar: Progress, *, read: bool) -> ComparedDay:
    task = bar.add_task(f"comparing {dataset} {day}", total=None)
    try:
        return compare_day(pipeline, dataset, day, read=read)
    except ObjectReadError as error:
        raise DependencyUnavailableError(
            f"{dataset} {day} cannot be compared", observed=str(error), next_step="try again when the store answers"
        ) from None
    finally:
        bar.remove_task(task)


def _repaired(
    pipeline: Pipeline, compared: ComparedDay, decision: Decision, limit: int, bar: Progress
) -> dict[str, Any]:
    task = bar.add_task(f"repairing {compared.dataset} {compared.day}", total=min(limit, len(compared.missing_units)))
    try:
        return repair_day(
            pipeline, compared, decision, limit=limit, progress=lambda entered: bar.update(task, completed=entered)
        )
    finally:
        bar.remove_task(task)


def _show_repairs(rows: Sequence[dict[str, Any]], *, names: bool) -> None:
    for row in rows:
        if row.get("proposal_id") is not None:
            click.echo(proposed_line(row["proposal_id"], row["repeated"]))
        elif row.get("replay_run_id") is not None:
            click.echo(f"replay {row['replay_run_id']} repeats {counted(row['repeated'], 'unit')}", err=True)
        for kind, entries in row["names"].items() if names else ():
            for name in entries:
                click.echo(f"{kind} {row['dataset']} {row['day']} {name}")
    lost = sum(row[Difference.SUCCESS_WITHOUT_ITEM] for row in rows)
    if any(row.get("entered") for row in rows):
        click.echo("the running deployment ingests the entered units; kfm gaps shows missing objects", err=True)
    if lost and not any(row.get("repeated") for row in rows):
        click.echo(f"{counted(lost, 'unit')} without their Item: --repair with a --change-ref repeats them", err=True)
