"""`kfm quarantine`, `kfm release`, `kfm discard`: units that a person has to judge, their evidence, and the judgement.

Every judgement is all or none over the units it names, compares and swaps, and stands in the governance log. Does not
belong here: collecting evidence (`ingest/evidence.py`).
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import click

from kfm_dagster.cli.decision_options import (
    RecordMovedError,
    decision_of,
    decision_options,
    override_options,
    records_of,
    unknown_record,
)
from kfm_dagster.cli.ids import whole_wal_id
from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.cli.tables import show_fields, show_rows, show_section
from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.errors import ArtifactError, IllegalTransitionError, KfmError
from kfm_dagster.governance.log import GovernanceAction
from kfm_dagster.ingest.evidence import read_evidence
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.cases import CaseConflictError, CaseState, QuarantineCase, QuarantineCases
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Transaction

CASE_COLUMNS = ("wal_id", "dataset", "reason", "error_code", "attempts", "opened_at", "object_uri")
HISTORY_COLUMNS = ("version", "at", "from", "to", "actor", "reason", "error_code", "run_id", "attempts")
SHOWN_BYTES = 64
"""Of each end of the object in a table; `--json` has all that is kept."""

_REASON_CODE = re.compile(r"[a-z][a-z0-9_]{0,59}")

wal_ids_argument = click.argument("wal_ids", metavar="WAL_ID...", nargs=-1, required=True)
version_option = click.option(
    "--version",
    type=click.IntRange(1),
    help="Only if the record still stands at this version (one WAL_ID only). Default: the version that is found.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")


@click.group()
def quarantine() -> None:
    """Look at units that were taken out of automatic flows, or take some out.

    Example: kfm quarantine list
    """


@quarantine.command()
@wal_ids_argument
@click.option("--reason-code", required=True, help="Short code for lists and counts, e.g. suspect_content.")
@decision_options
@json_option
def add(
    *,
    wal_ids: tuple[str, ...],
    reason_code: str,
    reason: str,
    change_ref: str | None,
    actor: str | None,
    as_json: bool,
) -> None:
    """Take pending or failed units out of automatic flows. Their evidence follows with the next tick.

    Example: kfm quarantine add 0b2f0c1e-5d7a-8c11-9a40-7f3e1d2c4b5a --reason-code bad_site --reason "moved radar"
    """
    if not _REASON_CODE.fullmatch(reason_code):
        raise click.BadParameter(f"{reason_code!r} is no code: small letters, digits and _", param_hint="--reason-code")
    decision = decision_of(Settings.load(), actor=actor, reason=reason, change_ref=change_ref)
    with opened_pipeline() as pipeline, pipeline.database.transaction() as tx:
        records = records_of(pipeline, wal_ids, tx)
        pipeline.ledger.quarantine(
            [record.wal_id for record in records], reason_code=reason_code, decision=decision, tx=tx
        )
    _say(records, Status.QUARANTINED, as_json=as_json)


@quarantine.command("list")
@click.option(
    "--state",
    type=click.Choice([state.value for state in CaseState]),
    default=CaseState.OPEN.value,
    show_default=True,
    help="Cases that stand so.",
)
@click.option("--dataset", help="Only this dataset.")
@click.option("--reason", help="Only units that were quarantined for this, e.g. attempts_exhausted.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="At most so many.")
@json_option
def list_cases(*, state: str, dataset: str | None, reason: str | None, limit: int, as_json: bool) -> None:
    """List cases, the newest first.

    Example: kfm quarantine list --dataset goes-abi --reason attempts_exhausted
    """
    with opened_pipeline(read_only=True) as pipeline:
        if dataset is not None:
            _ = pipeline.registry[dataset]
        found = _cases(pipeline).find(CaseState(state), dataset=dataset, reason=reason, limit=limit)
    show_rows([case_row(case) for case in found], CASE_COLUMNS, as_json=as_json)


@quarantine.command()
@click.argument("wal_id")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def show(*, wal_id: str, as_json: bool) -> None:
    """Show the evidence of a unit, of every time that it was quarantined.

    Example: kfm quarantine show 0b2f0c1e-5d7a-8c11-9a40-7f3e1d2c4b5a
    """
    with opened_pipeline(read_only=True) as pipeline:
        wal_id = whole_wal_id(pipeline.database, wal_id)
        if pipeline.ledger.get(wal_id) is None:
            raise unknown_record(wal_id)
        found = [(case_row(case), _evidence(pipeline, case)) for case in _cases(pipeline).of(wal_id)]
    if not found:
        raise KfmError("no such unit was ever quarantined", observed=wal_id, next_step=f"kfm wal show {wal_id}")
    if as_json:
        click.echo(json.dumps({"wal_id": wal_id, "cases": [row | {"evidence": bundle} for row, bundle in found]}))
        return
    for row, bundle in found:
        _show_case(row, bundle)


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
    _say(records, Status.PENDING, as_json=as_json)


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
        _cases(pipeline).discard(seen, decision=decision, tx=tx)
    _say(records, "discarded", as_json=as_json)


def case_row(case: QuarantineCase) -> dict[str, Any]:
    """Return the published form of a case."""
    return {
        "wal_id": case.key.wal_id,
        "quarantined_version": case.key.version,
        "dataset": case.dataset,
        "object_uri": case.object_uri,
        "reason": case.reason,
        "error_code": case.error_code,
        "attempts": case.attempts,
        "state": case.state.value,
        "opened_at": rfc3339(case.opened_at),
        "evidence_file": None if case.evidence is None else dataclasses.asdict(case.evidence),
        "collected_at": None if case.collected_at is None else rfc3339(case.collected_at),
        "closed_at": None if case.closed_at is None else rfc3339(case.closed_at),
        "closed_by": case.closed_by,
        "closing_reason": case.closing_reason,
        "change_ref": case.change_ref,
    }


def _cases(pipeline: Pipeline) -> QuarantineCases:
    return QuarantineCases(pipeline.database, clock=pipeline.clock)


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
        if _cases(pipeline).of(record.wal_id, tx=tx)[0].state is CaseState.DISCARDED:
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


def _say(records: Iterable[NoddWalRecord], outcome: str, *, as_json: bool) -> None:
    for record in records:
        row = {"wal_id": record.wal_id, "from": record.status, "to": outcome, "seen_version": record.version}
        # A transition is one version; a case that is closed leaves the record as it is.
        new = f" > {record.version + 1}" if isinstance(outcome, Status) else ""
        text = f"{record.wal_id}: {record.status} > {outcome} (version {record.version}{new})"
        click.echo(json.dumps(row) if as_json else text)


def _evidence(pipeline: Pipeline, case: QuarantineCase) -> dict[str, Any] | None:
    if case.evidence is None:
        return None
    try:
        return read_evidence(pipeline, case.evidence)
    except ArtifactError as error:
        # The rest of the case is worth seeing all the same.
        return {"lost": str(error.observed)}


def _show_case(row: Mapping[str, Any], bundle: Mapping[str, Any] | None) -> None:
    show_fields({name: value for name, value in row.items() if value is not None})
    if bundle is None:
        click.echo("evidence: not collected yet, the next tick of the sensor nodd_ledger does it")
        return
    if "lost" in bundle:
        click.echo(f"evidence: lost ({bundle['lost']})")
        return
    found, announced = bundle["found"], bundle["announced"]
    facts = {"error": bundle["error"], "operator": bundle["operator"], "code_version": bundle["code_version"]}
    facts |= {"run_id": bundle["run_id"], "message": bundle["message"]}
    show_fields(facts)
    rows = [
        {"object": name, "announced": announced.get(name), "found": found.get(name)}
        for name in ("version", "size", "sequencer", "event_time", "content_type", "last_modified", "state", "why")
    ]
    show_section("object", rows, ("object", "announced", "found"))
    for name in ("first", "last"):
        _show_bytes(name, bytes.fromhex(found[f"{name}_hex"]), size=found["size"])
    show_section("history", bundle["history"], HISTORY_COLUMNS)


def _show_bytes(name: str, content: bytes, *, size: int | None) -> None:
    shown = content[:SHOWN_BYTES] if name == "first" else content[-SHOWN_BYTES:]
    begin = 0 if name == "first" else (size or 0) - len(shown)
    click.echo(f"{name} bytes: {len(content)} kept" + (f", {len(shown)} shown" if shown else ""))
    for start in range(0, len(shown), 16):
        line = shown[start : start + 16]
        readable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
        click.echo(f"  {begin + start:08x}  {line.hex(' '):<47}  {readable}")
