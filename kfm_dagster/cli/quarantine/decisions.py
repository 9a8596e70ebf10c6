"""`kfm release` and `kfm discard`: what a person decides on quarantined units.

It is all or none over the units that it names, compares and swaps, and stands in the governance log.
"""

from __future__ import annotations

import json
from typing import Any

import click

from kfm_dagster.cli.decision_options import (
    REPLAY_REASON,
    decision_of,
    decision_options,
    override_options,
    proposed_line,
    records_of,
)
from kfm_dagster.cli.numbers import POSITIVE
from kfm_dagster.cli.quarantine.commands import cases_of, json_option, wal_ids_argument
from kfm_dagster.cli.quarantine.output import say_outcome
from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.errors import ExitCode
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.policy import ReplayReason
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.recovery import work_orders
from kfm_dagster.recovery.quarantined import open_versions
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Transaction

version_option = click.option(
    "--version",
    type=POSITIVE,
    help="Only if the record still stands at this version (one WAL_ID only). Default: the version that is found.",
)


@click.command()
@wal_ids_argument
@version_option
@click.option("--replay-reason", default=ReplayReason.INCIDENT.value, show_default=True, help=REPLAY_REASON)
@click.option("--dry-run", "dry", is_flag=True, help="Only say what would be released.")
@override_options
@json_option
def release(
    *,
    wal_ids: tuple[str, ...],
    version: int | None,
    replay_reason: str,
    dry: bool,
    as_json: bool,
    **decided: Any,
) -> ExitCode:
    """Let quarantined units in again: each gets one more attempt, and comes back if that fails.

    All units are released or none; one that was discarded is never released. In prod it waits for a second person
    (kfm governance approve), and the exit code is 6.

    Example: kfm release 0b2f0c1e-5d7a-8c11-9a40-7f3e1d2c4b5a --reason "source fixed" --change-ref CHG-42
    """
    decision = decision_of(Settings.load(), **decided)
    decision.require_change_ref()
    with opened_pipeline() as pipeline, pipeline.database.transaction() as tx:
        records, seen = _quarantined(pipeline, wal_ids, version, to_status=Status.PENDING, tx=tx)
        if dry:
            say_outcome(records, Status.PENDING, as_json=as_json)
            return ExitCode.DONE
        proposal_id = work_orders.release(
            pipeline.ledger, seen, settings=pipeline.settings, decision=decision, replay_reason=replay_reason, tx=tx
        )
    if proposal_id is not None:
        proposed = json.dumps({"proposal_id": proposal_id, "units": len(seen)})
        click.echo(proposed if as_json else proposed_line(proposal_id, len(seen)))
        return ExitCode.WAITS_FOR_APPROVAL
    say_outcome(records, Status.PENDING, as_json=as_json)
    return ExitCode.DONE


@click.command()
@wal_ids_argument
@version_option
@decision_options
@json_option
def discard(*, wal_ids: tuple[str, ...], version: int | None, as_json: bool, **decided: Any) -> None:
    """Close the cases of quarantined units for good: they stay out, whatever is released later.

    There is no way back. A new version of the object is another unit, and is ingested as ever.

    Example: kfm discard 0b2f0c1e-5d7a-8c11-9a40-7f3e1d2c4b5a --reason "withdrawn by NOAA"
    """
    decision = decision_of(Settings.load(), **decided)
    with opened_pipeline() as pipeline, pipeline.database.transaction() as tx:
        records, seen = _quarantined(pipeline, wal_ids, version, to_status=Status.QUARANTINED, tx=tx)
        cases_of(pipeline).discard(seen, decision=decision, tx=tx)
    say_outcome(records, "discarded", as_json=as_json)


def _quarantined(
    pipeline: Pipeline, wal_ids: tuple[str, ...], version: int | None, *, to_status: Status, tx: Transaction
) -> tuple[list[NoddWalRecord], dict[WalId, int]]:
    """Return the named records and their versions, if each is quarantined with an open case, at the wanted version."""
    if version is not None and len(set(wal_ids)) > 1:
        raise click.UsageError("--version goes with one WAL_ID only")
    records = records_of(pipeline.ledger, wal_ids, tx)
    return records, open_versions(cases_of(pipeline), records, version=version, to_status=to_status, tx=tx)
