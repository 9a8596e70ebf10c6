"""`kfm retry` (alias `kfm release`): one more attempt for failed and quarantined units.

Failed units are replayed by a running deployment, at its pace; quarantined units are released at once. Does not
belong here: carrying either out (`recovery/`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import click

from kfm_dagster.cli.completion import UNIT
from kfm_dagster.cli.decision_options import (
    REPLAY_REASON,
    confirm_option,
    decision_of,
    decision_options,
    dry_run_option,
    proposed_line,
    records_of,
    require_confirmation,
)
from kfm_dagster.cli.filter_options import filter_options, require_dataset
from kfm_dagster.cli.quarantine import json_option, show_outcome, version_option
from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.contracts.filters import BadFilterError
from kfm_dagster.errors import ExitCode, RecordMovedError
from kfm_dagster.governance.log import Decision
from kfm_dagster.ledger.cases import QuarantineCases
from kfm_dagster.ledger.policy import ReplayReason
from kfm_dagster.ledger.queries import LedgerQueries
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.search import UnitFilter
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.plural import counted
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.recovery.replay.selection import selection_from
from kfm_dagster.recovery.work_orders import open_versions, plan_discard, release
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Transaction
from kfm_dagster.views.units import UNITS

MOST_UNITS = 10_000
"""Units of one call, as many as a selection may name."""
RETRIED = (Status.FAILED, Status.QUARANTINED)
Choice = tuple[Sequence[NoddWalRecord], Mapping[WalId, int]]
"""The units to retry, and the versions of the quarantined units among them."""


@click.command()
@click.argument("wal_ids", type=UNIT, metavar="[WAL_ID]...", nargs=-1)
@filter_options(UNITS)
@version_option
@click.option("--replay-reason", default=ReplayReason.INCIDENT.value, show_default=True, help=REPLAY_REASON)
@dry_run_option
@decision_options
@confirm_option
@json_option
def retry(
    *,
    wal_ids: tuple[str, ...],
    row_filter: UnitFilter,
    version: int | None,
    replay_reason: str,
    dry: bool,
    confirm: bool,
    as_json: bool,
    actor: str | None,
    reason: str,
    change_ref: str | None,
) -> ExitCode:
    """Give failed and quarantined units one more attempt.

    Named units, or the units of a filter, without discarded units. All are retried or none: a running deployment
    replays the failed units, and the quarantined units are released, which needs a change reference. In prod a release
    waits for a second person (kfm governance approve), and the exit code is 6. A released unit that fails again
    returns to quarantine.

    Example: kfm retry 0b2f0c1e-5d7a-8c11-9a40-7f3e1d2c4b5a --reason "source fixed" --change-ref CHG-42
    """
    _require_one_choice(wal_ids, row_filter, version)
    settings = Settings.load()
    decision = None if dry else decision_of(settings, actor=actor, reason=reason, change_ref=change_ref)
    with opened_pipeline(settings) as pipeline:
        cases = QuarantineCases(pipeline.database, clock=pipeline.clock)
        with pipeline.database.snapshot() as view:
            records, versions = (
                _named(pipeline.ledger, cases, wal_ids, version, view)
                if wal_ids
                else _matching(LedgerQueries(pipeline.database), row_filter, view)
            )
        if not records:
            click.echo("no failed or quarantined unit matches", err=True)
            return ExitCode.DONE
        if decision is None:
            show_outcome(records, Status.PENDING, as_json=as_json)
            click.echo("dry run: no unit is retried", err=True)
            return ExitCode.DONE
        if not wal_ids:
            require_confirmation(f"retry {counted(len(records), 'unit')}?", confirmed=confirm)
        failed = [record for record in records if record.status is Status.FAILED]
        replay_run_id = proposal_id = None
        with pipeline.database.transaction() as tx:
            if failed:
                replay_run_id = _replay(ReplayEngine(pipeline=pipeline), failed, decision, replay_reason, tx)
            if versions:
                proposal_id = release(
                    pipeline.ledger, versions, settings=settings, decision=decision, replay_reason=replay_reason, tx=tx
                )
    show_outcome(failed, Status.PENDING, as_json=as_json, replay_run_id=replay_run_id)
    if proposal_id is None:
        show_outcome([record for record in records if record.wal_id in versions], Status.PENDING, as_json=as_json)
        return ExitCode.DONE
    proposed = json.dumps({"proposal_id": proposal_id, "units": len(versions)})
    click.echo(proposed if as_json else proposed_line(proposal_id, len(versions)))
    return ExitCode.WAITS_FOR_APPROVAL


def _require_one_choice(wal_ids: Sequence[str], row_filter: UnitFilter, version: int | None) -> None:
    if bool(wal_ids) == (row_filter != UnitFilter()):
        raise click.UsageError("name units by WAL_ID, or choose them by a filter such as --dataset")
    if version is not None and len(set(wal_ids)) != 1:
        raise click.UsageError("--version goes with one WAL_ID only")
    if row_filter.status not in (None, *RETRIED):
        raise click.BadParameter(f"{row_filter.status} is neither failed nor quarantined", param_hint="--status")
    require_dataset(row_filter.dataset)


def _named(
    ledger: Ledger, cases: QuarantineCases, wal_ids: Sequence[str], version: int | None, tx: Transaction
) -> Choice:
    records = records_of(ledger, wal_ids, tx)
    for record in records:
        if record.status is Status.FAILED and version is not None and record.version != version:
            raise RecordMovedError(record.wal_id, version=version, current=record.version)
    others = [record for record in records if record.status is not Status.FAILED]
    return records, open_versions(cases, others, version=version, to_status=Status.PENDING, tx=tx)


def _matching(ledger: LedgerQueries, row_filter: UnitFilter, tx: Transaction) -> Choice:
    """Return the units of a filter, without discarded units. Raises BadFilterError for more than MOST_UNITS."""
    records = [
        record
        for status in ([row_filter.status] if row_filter.status else RETRIED)
        for record in ledger.find(limit=MOST_UNITS + 1, tx=tx, **dict(row_filter) | {"status": status})
    ]
    versions = plan_discard([record.wal_id for record in records], tx=tx).versions
    records = [record for record in records if record.status is Status.FAILED or record.wal_id in versions]
    if len(records) > MOST_UNITS:
        raise BadFilterError(
            "the filter matches too many units", observed=f"more than {MOST_UNITS}", expected="a narrower filter"
        )
    return records, versions


def _replay(
    engine: ReplayEngine, failed: Sequence[NoddWalRecord], decision: Decision, replay_reason: str, tx: Transaction
) -> str:
    units = {"wal_ids": [record.wal_id for record in failed], "replay_reason": replay_reason}
    selection = selection_from(engine.pipeline.settings.env, "kfm retry", name="retry", **units)
    return engine.start(selection, decision, tx=tx).replay_run_id
