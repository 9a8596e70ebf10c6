"""What `kfm replay inspect` shows: units of a replay, records of a selection, results that differ; and their fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.recovery.replay import runs
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.recovery.replay.selection import Selection

UNIT_FIELDS = ("position", "batch", "outcome", "skip_reason", "wal_id", "dataset", "last_error_code", "object_uri")
RECORD_FIELDS = ("wal_id", "dataset", "status", "attempts", "last_error_code", "event_time", "object_uri")
MISMATCH_FIELDS = ("wal_id", "dataset", "attempt", "earlier_attempt", "at", "replay_run_id", "permitted")


MOST_ROWS = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    """Rows to inspect, the fields that they have, and those that are shown unless others are asked for."""

    rows: Sequence[Mapping[str, Any]]
    known: Sequence[str]
    default: Sequence[str]


def units_of(engine: ReplayEngine, replay_run_id: str, rows: int) -> Inspection:
    """Return the units of a replay, in the order of its selection. Raises UnknownReplayError."""
    _ = engine.report(replay_run_id)
    with engine.pipeline.database.snapshot() as view:
        found = runs.unit_rows(view, replay_run_id, limit=rows)
    return Inspection(rows=found, known=tuple(found[0]) if found else UNIT_FIELDS, default=UNIT_FIELDS)


def records_of(engine: ReplayEngine, selection: Selection, rows: int) -> Inspection:
    """Return the records that a selection means now. Raises GuardError."""
    units = engine.plan(selection).units[:rows]
    records = [engine.pipeline.ledger.get(unit.wal_id) for unit in units]
    shown = [record.model_dump(mode="json") for record in records if record is not None]
    return Inspection(rows=shown, known=tuple(NoddWalRecord.model_fields), default=RECORD_FIELDS)


def mismatches_of(engine: ReplayEngine, replay_run_id: str | None, rows: int) -> Inspection:
    """Return what differs from an earlier success, the newest first: all, or what nobody permitted of one replay."""
    if replay_run_id is None:
        found = engine.pipeline.ledger.mismatches(limit=rows)
    else:
        own = {(one.wal_id, one.attempt) for one in engine.report(replay_run_id).differing}
        everything = engine.pipeline.ledger.mismatches(limit=MOST_ROWS)
        found = [one for one in everything if (one.wal_id, one.attempt) in own][:rows]
    shown = [{name: getattr(one, name) for name in MISMATCH_FIELDS} | {"at": rfc3339(one.at)} for one in found]
    return Inspection(rows=shown, known=MISMATCH_FIELDS, default=MISMATCH_FIELDS)


def chosen(fields: str | None, found: Inspection) -> Sequence[str]:
    """Return the fields to show. Raises click.BadParameter for one that the rows do not have."""
    wanted = [part.strip() for part in (fields or "").split(",") if part.strip()]
    if unknown := [name for name in wanted if name not in found.known]:
        raise click.BadParameter(f"{', '.join(unknown)}; known are {', '.join(found.known)}", param_hint="--fields")
    return wanted or found.default
