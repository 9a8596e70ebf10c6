"""`kfm release` and `kfm discard`: what a person decides on quarantined units.

It is all or none over the units that it names, compares and swaps, and stands in the governance log.
"""

from __future__ import annotations

import click

from kfm_dagster.cli.decision_options import (
    RecordMovedError,
    decision_of,
    decision_options,
    override_options,
    records_of,
)
from kfm_dagster.cli.quarantine.cases import cases_of
from kfm_dagster.cli.quarantine.options import json_option, wal_ids_argument
from kfm_dagster.cli.quarantine.output import say_outcome
from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.errors import IllegalTransitionError
from kfm_dagster.governance.log import GovernanceAction
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.cases import CaseConflictError, CaseState
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Transaction

version_option = click.option(
    "--version",
    type=click.IntRange(1),
    help="Only if the record still stands at this version (one WAL_ID only). Default: the version that is found.",
)


@click.command()
@wal_ids_argument
@version_option
@override_options
@json_option
def release(
    *,
    wal_ids: tuple[str, ...],
    version: int | None,
    reason: str,
    change_ref: str | None,
    actor: str | None,
    as_json: bool,
) -> None:
    """Let quarantined units in again: each gets one more attempt, and comes back if that fails.

    All units are released or none; one that was discarded is never released.

    Example: kfm release 0b2f0c1e-5d7a-8c11-9a40-7f3e1d2c4b5a --reason "source fixed" --change-ref CHG-42
    """
    decision = decision_of(Settings.load(), actor=actor, reason=reason, change_ref=change_ref)
    decision.require_change_ref()
    with opened_pipeline() as pipeline, pipeline.database.transaction() as tx:
        records = _quarantined(pipeline, wal_ids, version, to_status=Status.PENDING, tx=tx)
        seen = {WalId(record.wal_id): record.version for record in records}
        moved = pipeline.ledger.override(
            seen, from_status=Status.QUARANTINED, action=GovernanceAction.RELEASE, decision=decision, tx=tx
        )
        for wal_id in sorted(seen.keys() - moved):
            raise _moved(wal_id, seen[wal_id])
    say_outcome(records, Status.PENDING, as_json=as_json)


@click.command()
@wal_ids_argument
@version_option
@decision_options
@json_option
def discard(
    *,
    wal_ids: tuple[str, ...],
    version: int | None,
    reason: str,
    change_ref: str | None,
    actor: str | None,
    as_json: bool,
) -> None:
    """Close the cases of quarantined units for good: they stay out, whatever is released later.

    There is no way back. A new version of the object is another unit, and is ingested as ever.

    Example: kfm discard 0b2f0c1e-5d7a-8c11-9a40-7f3e1d2c4b5a --reason "withdrawn by NOAA"
    """
    decision = decision_of(Settings.load(), actor=actor, reason=reason, change_ref=change_ref)
    with opened_pipeline() as pipeline, pipeline.database.transaction() as tx:
        records = _quarantined(pipeline, wal_ids, version, to_status=Status.QUARANTINED, tx=tx)
        seen = {WalId(record.wal_id): record.version for record in records}
        cases_of(pipeline).discard(seen, decision=decision, tx=tx)
    say_outcome(records, "discarded", as_json=as_json)


def _quarantined(
    pipeline: Pipeline, wal_ids: tuple[str, ...], version: int | None, *, to_status: Status, tx: Transaction
) -> list[NoddWalRecord]:
    """Return the named records, if each is quarantined with an open case, at the wanted version."""
    if version is not None and len(set(wal_ids)) > 1:
        raise click.UsageError("--version goes with one WAL_ID only")
    records = records_of(pipeline, wal_ids, tx)
    for record in records:
        if version is not None and record.version != version:
            raise _moved(record.wal_id, version, found=record.version)
        if record.status is not Status.QUARANTINED:
            raise IllegalTransitionError(
                wal_id=record.wal_id,
                from_status=record.status,
                to_status=to_status,
                expected="a unit of kfm quarantine list",
                why="the unit is not quarantined",
            )
        if cases_of(pipeline).of(record.wal_id, tx=tx)[0].state is CaseState.DISCARDED:
            raise CaseConflictError(
                "the unit was discarded, and that is for good",
                observed=record.wal_id,
                next_step=f"kfm quarantine show {record.wal_id} tells who decided it and why",
            )
    return records


def _moved(wal_id: str, version: int, *, found: int | None = None) -> RecordMovedError:
    return RecordMovedError(
        "the record has changed since it was looked at",
        observed=f"{wal_id} at {'another version' if found is None else f'version {found}'}",
        expected=f"version {version}",
        next_step=f"kfm wal show {wal_id}, then decide again",
    )
