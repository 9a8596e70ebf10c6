"""`kfm units` (alias `kfm wal`): units of the ledger, and the messages without a unit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

from kfm_dagster.cli.completion import REJECTED_MESSAGE, UNIT
from kfm_dagster.cli.decision_options import records_of
from kfm_dagster.cli.filter_options import filter_options, limit_option, lists, require_dataset
from kfm_dagster.cli.main import Lazy, LazyGroup
from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.cli.tables import (
    ids_option,
    list_command,
    object_as_json,
    rows_as_json,
    show_fields,
    show_rows,
    show_section,
)
from kfm_dagster.ledger.queries import LedgerQueries
from kfm_dagster.ledger.rejections import RejectionFilter
from kfm_dagster.ledger.search import UnitFilter
from kfm_dagster.views.feeds import IGNORED, IGNORED_COUNTS, REJECTIONS, IgnoredFilter, rejected_message
from kfm_dagster.views.units import UNITS
from kfm_dagster.views.view import Page, Parts, json_row

HISTORY_COLUMNS = ("version", "at", "from_status", "to_status", "actor", "reason", "run_id", "attempts")
SECTIONS = {
    "issues": ("operator", "code", "severity", "message"),
    "versions": ("wal_id", "object_version", "sequencer", "event_time", "status", "superseded_by"),
    "lease": ("run_id", "worker_id", "acquired_at", "renewed_at", "expires_at"),
    "cases": ("quarantined_version", "state", "reason", "opened_at", "closed_at", "closed_by", "closing_reason"),
    "governance": ("at", "actor", "action", "change", "change_ref", "reason"),
    "history": HISTORY_COLUMNS,
}
"""The sections of `kfm units show` besides the record, with the columns of their tables."""


def _records(parts: Parts, row_filter: UnitFilter, _: str | None, limit: int) -> Page:
    with parts.database.snapshot() as tx:
        return Page(rows=LedgerQueries(parts.database).find(limit=limit, tx=tx, **dict(row_filter)))


@click.group(
    cls=LazyGroup,
    lazy={
        "list": Lazy(f"{__name__}:list_records"),
        "show": Lazy(f"{__name__}:show"),
        "history": Lazy(f"{__name__}:history"),
        "cases": Lazy("kfm_dagster.cli.quarantine:list_cases"),
        "evidence": Lazy("kfm_dagster.cli.quarantine:show"),
        "quarantine": Lazy("kfm_dagster.cli.quarantine:add"),
        "discard": Lazy("kfm_dagster.cli.quarantine:discard"),
        "ignored": Lazy(f"{__name__}:ignored"),
        "rejected": Lazy(f"{__name__}:rejected"),
    },
)
def units() -> None:
    """List units of the ledger, show their history, and quarantine units.

    Example: kfm units list --status quarantined
    """


@click.command("list")
@lists(replace(UNITS, query=_records))
def list_records() -> None:
    """List records, the newest event first.

    Example: kfm units list --dataset goes-abi --status failed --json
    """


@click.command()
@click.argument("wal_id", type=UNIT)
@object_as_json
def show(*, wal_id: str, as_json: bool) -> None:
    """Show a unit: record, issues, versions of its object, lease, cases, decisions, changes.

    Example: kfm units show 0b2f0c1e-5d7a-8c11-9a40-7f3e1d2c4b5a
    """
    from kfm_dagster.exports.explanations.unit_history import unit_history  # noqa: PLC0415, imports the stages

    with opened_pipeline(read_only=True) as pipeline:
        with pipeline.database.snapshot() as tx:
            [record] = records_of(pipeline.ledger, [wal_id], tx)
        history = json_row(unit_history(pipeline, record))
    document = record.model_dump(mode="json")
    if as_json:
        click.echo(json.dumps(document | history))
        return
    show_fields(document)
    for title, columns in SECTIONS.items():
        show_section(title, history[title], columns)


@click.command()
@click.argument("wal_id", type=UNIT)
@rows_as_json
def history(*, wal_id: str, as_json: bool) -> None:
    """Show every transition of a record, oldest first.

    For a retry, the reason is the code of --replay-reason; kfm units show prints the text that the actor wrote.

    Example: kfm units history 0b2f0c1e-5d7a-8c11-9a40-7f3e1d2c4b5a
    """
    with opened_pipeline(read_only=True) as pipeline, pipeline.database.snapshot() as tx:
        [record] = records_of(pipeline.ledger, [wal_id], tx)
        rows = pipeline.ledger.history(record.wal_id, tx=tx)
    show_rows(rows, HISTORY_COLUMNS, as_json=as_json)


@click.command()
@filter_options(IGNORED)
@click.option("--counts", is_flag=True, help="Only the counts by dataset and reason.")
@limit_option
@rows_as_json
@ids_option
def ignored(*, row_filter: IgnoredFilter, counts: bool, limit: int, as_json: bool, ids: bool) -> None:
    """Count and list ignored entries of messages, with the reason, the newest message first.

    Example: kfm units ignored --dataset hrrr --reason sidecar --json
    """
    if ids and counts:
        raise click.UsageError("--ids and --counts exclude each other: counts have no ids")
    require_dataset(row_filter.dataset)
    with opened_pipeline(read_only=True) as pipeline:
        totals = IGNORED_COUNTS.query(pipeline, row_filter, None, limit).rows
        records = [] if counts else IGNORED.query(pipeline, row_filter, None, limit).rows
    if as_json or ids:
        show_rows(totals if counts else records, (), as_json=as_json, ids_of="message_id" if ids else None)
        return
    show_section("by dataset and reason", totals, IGNORED_COUNTS.columns, whole=False)
    if records:
        show_section("newest", records, IGNORED.columns, whole=False)


@click.command()
@filter_options(REJECTIONS)
@click.option("--body", is_flag=True, help="Print the message that --message names, unchanged.")
@limit_option
@list_command(*REJECTIONS.columns, ids_of="message_id")
def rejected(*, row_filter: RejectionFilter, body: bool, limit: int) -> Sequence[Any] | None:
    """List rejected messages and entries of messages, with the reason, the newest first.

    Example: kfm units rejected --reason malformed_json --json
    """
    if body and row_filter.message is None:
        raise click.UsageError("--body prints a single message: name it with --message ID")
    with opened_pipeline(read_only=True) as pipeline:
        if body and row_filter.message is not None:
            message_id = REJECTED_MESSAGE.whole_in(pipeline.database, row_filter.message)
            click.echo(rejected_message(pipeline.deliveries, pipeline.landing, message_id))
            return None
        return REJECTIONS.query(pipeline, row_filter, None, limit).rows
