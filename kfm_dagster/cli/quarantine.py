"""`kfm retry`, and the commands of `kfm units` about quarantined units.

A decision applies to all its units, or to no unit if the version of one has changed. The governance log records the
decision. A running deployment replays failed units in batches; the command itself releases quarantined units, unless a
second person must approve. Does not belong here: collecting evidence (`ingest/evidence.py`), carrying out decisions
(`recovery/`, `ledger/cases.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from kfm_dagster.cli.completion import POSITIVE, UNIT
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
from kfm_dagster.cli.filter_options import filter_options, lists, require_dataset
from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.cli.tables import object_as_json, rows_as_json, show_fields, show_section
from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.contracts.filters import BadFilterError
from kfm_dagster.errors import ExitCode, KfmError, RecordMovedError
from kfm_dagster.exports.explanations.unit_history import evidence_of
from kfm_dagster.governance.log import Decision
from kfm_dagster.ledger.cases import CaseState, QuarantineCases
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
from kfm_dagster.views.decisions import CASES
from kfm_dagster.views.units import UNITS
from kfm_dagster.views.view import json_row

_REASON_CODE = re.compile(r"[a-z][a-z0-9_]{0,59}")
HISTORY_COLUMNS = ("version", "at", "from", "to", "actor", "reason", "error_code", "run_id", "attempts")
SHOWN_BYTES = 64
"""Bytes to print from each end of the object; `--json` has all stored bytes."""
MOST_UNITS = 10_000
"""Maximum units per call: as many as a replay's selection can name by id."""
RETRIED = (Status.FAILED, Status.QUARANTINED)
Choice = tuple[Sequence[NoddWalRecord], Mapping[WalId, int]]
"""The units to retry, and the versions of the quarantined units among them."""
wal_ids_argument = click.argument("wal_ids", type=UNIT, metavar="WAL_ID...", nargs=-1, required=True)
version_option = click.option(
    "--version",
    type=POSITIVE,
    help="Refuse if the record has another version; needs a single WAL_ID. Default: its current version.",
)


@click.group()
def quarantine() -> None:
    """List cases, show their evidence, or quarantine units.

    Example: kfm units cases
    """


@quarantine.command()
@wal_ids_argument
@click.option("--reason-code", required=True, help="Short code for lists and counts, e.g. suspect_content.")
@decision_options
@rows_as_json
def add(*, wal_ids: tuple[str, ...], reason_code: str, as_json: bool, **decided: Any) -> None:
    """Quarantine pending or failed units. Their evidence is collected at the next tick.

    Example: kfm units quarantine 0b2f0c1e-5d7a-8c11-9a40-7f3e1d2c4b5a --reason-code bad_site --reason "moved radar"
    """
    if not _REASON_CODE.fullmatch(reason_code):
        raise click.BadParameter(f"{reason_code!r} is not a code: small letters, digits, _", param_hint="--reason-code")
    decision = decision_of(Settings.load(), **decided)
    with opened_pipeline() as pipeline, pipeline.database.transaction() as tx:
        records = records_of(pipeline.ledger, wal_ids, tx)
        pipeline.ledger.quarantine(
            [record.wal_id for record in records], reason_code=reason_code, decision=decision, tx=tx
        )
    _show_outcome(records, Status.QUARANTINED, as_json=as_json)


@quarantine.command("list")
@lists(CASES, next_step="next: kfm units evidence WAL_ID, then kfm retry WAL_ID --reason ... --change-ref ...")
def list_cases() -> None:
    """List cases, the newest first.

    Example: kfm units cases --dataset goes-abi --reason attempts_exhausted
    """


@quarantine.command()
@click.argument("wal_id", type=UNIT)
@object_as_json
def show(*, wal_id: str, as_json: bool) -> None:
    """Show the evidence of a unit, for each time that it was quarantined.

    Example: kfm units evidence 0b2f0c1e-5d7a-8c11-9a40-7f3e1d2c4b5a
    """
    with opened_pipeline(read_only=True) as pipeline:
        with pipeline.database.snapshot() as tx:
            [record] = records_of(pipeline.ledger, [wal_id], tx)
            wal_id = record.wal_id
            records = QuarantineCases(pipeline.database, clock=pipeline.clock).of(wal_id, tx=tx)
        cases = [(json_row(case), evidence_of(case, pipeline.store)) for case in records]
    if not cases:
        raise KfmError("the unit was never quarantined", observed=wal_id, next_step=f"kfm units show {wal_id}")
    if as_json:
        click.echo(json.dumps({"wal_id": wal_id, "cases": [row | {"evidence": bundle} for row, bundle in cases]}))
        return
    for row, bundle in cases:
        _show_case(row, bundle)
    if records[0].state is CaseState.OPEN:
        click.echo(f"next: kfm retry {wal_id} --reason ... --change-ref ...")


@click.command()
@wal_ids_argument
@version_option
@decision_options
@rows_as_json
def discard(*, wal_ids: tuple[str, ...], version: int | None, as_json: bool, **decided: Any) -> None:
    """Close the cases of quarantined units for good.

    Later retries leave these units out, and this cannot be undone. A new version of the object is another unit, and
    is ingested as usual.

    Example: kfm units discard 0b2f0c1e-5d7a-8c11-9a40-7f3e1d2c4b5a --reason "withdrawn by NOAA"
    """
    _require_one_unit(wal_ids, version)
    decision = decision_of(Settings.load(), **decided)
    with opened_pipeline() as pipeline, pipeline.database.transaction() as tx:
        cases = QuarantineCases(pipeline.database, clock=pipeline.clock)
        records = records_of(pipeline.ledger, wal_ids, tx)
        versions = open_versions(cases, records, version=version, to_status=Status.QUARANTINED, tx=tx)
        cases.discard(versions, decision=decision, tx=tx)
    _show_outcome(records, "discarded", as_json=as_json)


@click.command()
@click.argument("wal_ids", type=UNIT, metavar="[WAL_ID]...", nargs=-1)
@filter_options(UNITS)
@version_option
@click.option("--replay-reason", default=ReplayReason.INCIDENT.value, show_default=True, help=REPLAY_REASON)
@dry_run_option
@decision_options
@confirm_option
@rows_as_json
def retry(
    *,
    wal_ids: tuple[str, ...],
    row_filter: UnitFilter,
    version: int | None,
    replay_reason: str,
    dry: bool,
    confirm: bool,
    as_json: bool,
    **decided: Any,
) -> ExitCode:
    """Give failed and quarantined units one more attempt.

    Takes the named units, or the units of a filter that are not discarded. If one unit cannot be retried, no unit is.
    A running deployment replays failed units. Quarantined units are released, which needs a change reference. In prod,
    a release waits for a second person (kfm governance approve), and the exit code is 6. A released unit that fails
    again returns to quarantine.

    Example: kfm retry 0b2f0c1e-5d7a-8c11-9a40-7f3e1d2c4b5a --reason "source fixed" --change-ref CHG-42
    """
    _require_one_choice(wal_ids, row_filter, version)
    settings = Settings.load()
    decision = None if dry else decision_of(settings, **decided)
    with opened_pipeline(settings, read_only=dry) as pipeline:
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
            _show_outcome(records, Status.PENDING, as_json=as_json)
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
    _show_outcome(failed, Status.PENDING, as_json=as_json, replay_run_id=replay_run_id)
    if proposal_id is None:
        _show_outcome([record for record in records if record.wal_id in versions], Status.PENDING, as_json=as_json)
        return ExitCode.DONE
    proposed = json.dumps({"proposal_id": proposal_id, "units": len(versions)})
    click.echo(proposed if as_json else proposed_line(proposal_id, len(versions)))
    return ExitCode.WAITS_FOR_APPROVAL


def _require_one_choice(wal_ids: Sequence[str], row_filter: UnitFilter, version: int | None) -> None:
    if bool(wal_ids) == (row_filter != UnitFilter()):
        raise click.UsageError("name units by WAL_ID, or choose them by a filter such as --dataset")
    _require_one_unit(wal_ids, version)
    if row_filter.status not in (None, *RETRIED):
        raise click.BadParameter(f"{row_filter.status} is neither failed nor quarantined", param_hint="--status")
    require_dataset(row_filter.dataset)


def _require_one_unit(wal_ids: Sequence[str], version: int | None) -> None:
    if version is not None and len(set(wal_ids)) != 1:
        raise click.UsageError("--version needs a single WAL_ID")


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
    """Return a filter's units that are not discarded; raise BadFilterError beyond MOST_UNITS."""
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


def _show_outcome(
    records: Iterable[NoddWalRecord], outcome: str, *, as_json: bool, replay_run_id: str | None = None
) -> None:
    """Print a line or JSON object per record; `replay_run_id` is the replay that will change it."""
    for record in records:
        row = {"wal_id": record.wal_id, "from": record.status, "to": outcome, "seen_version": record.version}
        # A transition adds 1 to the version; closing a case does not change the record.
        new = f" > {record.version + 1}" if isinstance(outcome, Status) else ""
        how = f"version {record.version}{new}" if replay_run_id is None else f"by replay {replay_run_id}"
        row |= {} if replay_run_id is None else {"replay_run_id": replay_run_id}
        text = f"{record.wal_id}: {record.status} > {outcome} ({how})"
        click.echo(json.dumps(row) if as_json else text)


def _show_case(row: Mapping[str, Any], bundle: Mapping[str, Any] | None) -> None:
    """Print a case with its evidence; `bundle` is None before the evidence is collected."""
    show_fields({name: value for name, value in row.items() if value is not None})
    if bundle is None:
        click.echo("evidence: not collected yet; the next tick of the sensor nodd_ledger requests it")
        return
    if "lost" in bundle:
        click.echo(f"evidence: lost ({bundle['lost']})")
        return
    observed, announced = bundle["found"], bundle["announced"]
    show_fields({name: bundle[name] for name in ("error", "operator", "code_version", "run_id", "message")})
    rows = [
        {"object": name, "announced": announced.get(name), "found": observed.get(name)}
        for name in ("version", "size", "sequencer", "event_time", "content_type", "last_modified", "state", "why")
    ]
    show_section("object", rows, ("object", "announced", "found"))
    for name in ("first", "last"):
        _show_bytes(name, bytes.fromhex(observed[f"{name}_hex"]), size=observed["size"])
    show_section("history", bundle["history"], HISTORY_COLUMNS)


def _show_bytes(name: str, content: bytes, *, size: int | None) -> None:
    excerpt = content[:SHOWN_BYTES] if name == "first" else content[-SHOWN_BYTES:]
    begin = 0 if name == "first" else (size or 0) - len(excerpt)
    click.echo(f"{name} bytes: {len(content)} kept" + (f", {len(excerpt)} shown" if excerpt else ""))
    for start in range(0, len(excerpt), 16):
        line = excerpt[start : start + 16]
        readable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
        click.echo(f"  {begin + start:08x}  {line.hex(' '):<47}  {readable}")
