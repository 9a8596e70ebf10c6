"""`kfm wal`: look into the ledger."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import ConfigurationError, KfmError
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.settings import Settings

LIST_COLUMNS = ("wal_id", "dataset", "status", "attempts", "last_error_code", "updated_at", "object_uri")


@click.group()
def wal() -> None:
    """Look into the ledger (the NODD WAL).

    Example: kfm wal list --status quarantined
    """


@wal.command("list")
@click.option("--dataset", help="Only this dataset.")
@click.option("--status", type=click.Choice([status.value for status in Status]), help="Only this status.")
@click.option("--partition", type=click.DateTime(["%Y-%m-%d"]), help="Only this day, YYYY-MM-DD.")
@click.option("--error-code", help="Only this error code.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_records(
    *,
    dataset: str | None,
    status: str | None,
    partition: datetime | None,
    error_code: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List records, in the order of their ids.

    Example: kfm wal list --dataset goes-abi --status failed --json
    """
    if dataset is not None:
        _ = ContractRegistry.load(Settings.load().contracts_dir)[dataset]
    with _pipeline() as pipeline:
        records = pipeline.ledger.find(
            dataset=dataset,
            status=Status(status) if status else None,
            partition=partition.date().isoformat() if partition else None,
            error_code=error_code,
            limit=limit,
        )
        _show([record.model_dump(mode="json") for record in records], LIST_COLUMNS, as_json=as_json)


@wal.command()
@click.argument("wal_id")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def show(*, wal_id: str, as_json: bool) -> None:
    """Show one record with every field.

    Example: kfm wal show 0b2f0c1e-5d7a-8c11-9a40-7f3e1d2c4b5a
    """
    with _pipeline() as pipeline:
        record = pipeline.ledger.get(wal_id)
        if record is None:
            raise KfmError("there is no such record", observed=wal_id, next_step="kfm wal list")
        document = record.model_dump(mode="json")
        if as_json:
            click.echo(json.dumps(document))
            return
        table = Table("field", "value")
        for name, value in document.items():
            table.add_row(name, "" if value is None else str(value))
        Console().print(table)


@wal.command()
@click.argument("wal_id")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def history(*, wal_id: str, as_json: bool) -> None:
    """Show every transition of one record, oldest first.

    Example: kfm wal history 0b2f0c1e-5d7a-8c11-9a40-7f3e1d2c4b5a
    """
    with _pipeline() as pipeline:
        rows = pipeline.ledger.history(wal_id)
        if not rows:
            raise KfmError("there is no such record", observed=wal_id, next_step="kfm wal list")
        columns = ("version", "at", "from_status", "to_status", "actor", "reason", "run_id", "attempts")
        _show([row.model_dump(mode="json") for row in rows], columns, as_json=as_json)


@contextmanager
def _pipeline() -> Iterator[Pipeline]:
    settings = Settings.load()
    # Looking must not make what it looks for, least of all in a folder that a wrong KFM_HOME names.
    if not settings.wal_dsn and not (settings.home / "kfm.db").exists():
        raise ConfigurationError(
            "there is no ledger yet",
            observed=str(settings.home / "kfm.db"),
            expected="a database that an ingest has made",
            next_step="ingest something (kfm demo), or correct KFM_HOME or KFM_WAL_DSN",
        )
    opened = Pipeline.open(settings)
    try:
        yield opened
    finally:
        opened.close()


def _show(rows: list[dict[str, Any]], columns: tuple[str, ...], *, as_json: bool) -> None:
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
        return
    table = Table(*columns)
    for row in rows:
        table.add_row(*("" if row[name] is None else str(row[name]) for name in columns))
    Console().print(table)
