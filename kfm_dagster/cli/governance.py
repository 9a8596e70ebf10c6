"""`kfm governance`: who decided what, when, why, and under which change."""

from __future__ import annotations

from typing import Any

import click

from kfm_dagster.cli.ids import whole_wal_id
from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.cli.tables import show_rows
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.governance.log import GovernanceAction, GovernanceEntry
from kfm_dagster.governance.switches import EVERY_DATASET

COLUMNS = ("entry_id", "at", "actor", "action", "dataset", "wal_id", "change", "change_ref", "reason")


@click.group()
def governance() -> None:
    """Look into the governance log.

    Example: kfm governance log
    """


@governance.command()
@click.option("--action", type=click.Choice([action.value for action in GovernanceAction]), help="Only this action.")
@click.option("--dataset", help="Only this dataset (* for switches over all).")
@click.option("--wal-id", help="Only this unit.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def log(*, action: str | None, dataset: str | None, wal_id: str | None, limit: int, as_json: bool) -> None:
    """List decisions, the newest first.

    Example: kfm governance log --action release --dataset goes-abi
    """
    with opened_pipeline(read_only=True) as pipeline:
        if wal_id is not None:
            wal_id = whole_wal_id(pipeline.database, wal_id)
        entries = pipeline.ledger.log.entries(
            action=None if action is None else GovernanceAction(action), dataset=dataset, wal_id=wal_id, limit=limit
        )
        if not entries and dataset not in {None, EVERY_DATASET}:
            # A dataset that is no more has its decisions still; a misspelt one has neither.
            _ = pipeline.registry[dataset]
    show_rows([entry_row(entry) for entry in entries], COLUMNS, as_json=as_json)


def entry_row(entry: GovernanceEntry) -> dict[str, Any]:
    """Return the published form of an entry."""
    return {
        "entry_id": entry.entry_id,
        "at": rfc3339(entry.at),
        "actor": entry.actor,
        "action": entry.action,
        "dataset": entry.dataset,
        "wal_id": entry.wal_id,
        "record_version": entry.record_version,
        "from_status": entry.from_status,
        "to_status": entry.to_status,
        "change": _change(entry),
        "change_ref": entry.change_ref,
        "reason": entry.reason,
        "details": dict(entry.details),
    }


def _change(entry: GovernanceEntry) -> str | None:
    if entry.record_version is not None:
        return f"{entry.from_status} > {entry.to_status} (version {entry.record_version})"
    if entry.action == GovernanceAction.KILL_SWITCH_ON:
        return f"until {entry.details.get('expires_at') or 'it is taken back'}"
    return None
