"""The stage audit: a line per event of a stage (`AuditKind`), in a hash chain (PCS-15).

The lines form a chain: each line has its own SHA-256 and that of the line before, so that `verify_chain` detects a
changed, removed, inserted or moved line, in the database and in an exported `audit.jsonl`. Lines missing at the end are
detected only if the last line's hash was stored elsewhere, e.g. in a signed release. A database row stores
several events: passed gates and checkpoints, then at most one other event, such as a transition or a failed gate.
Belongs here: writing, reading and checking lines. Does not belong here: the events (`store.py`, `run_contract.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum, unique
from typing import Any

import orjson

from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.errors import KfmError
from kfm_dagster.storage.database import Database, Transaction
from kfm_dagster.telemetry.traces import span

GENESIS = "0" * 64
"""Previous hash of the first line."""
PAGE = 5_000
"""Rows per query."""


@unique
class AuditKind(StrEnum):
    """The kind of event that a line records."""

    TRANSITION = "transition"
    GATE = "gate"
    STOP = "stop"
    RETRY = "retry"
    CHECKPOINT = "checkpoint"
    COMPENSATION = "compensation"
    OVERRIDE = "override"
    REPLAY = "replay"


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditEvent:
    """An event of a stage's attempt; `event` is its transition, gate, stop, retry or outcome."""

    run_id: str
    stage: str
    attempt: int
    kind: AuditKind
    event: str
    details: Mapping[str, Any] = field(default_factory=dict)


class AuditLog:
    """The chain of lines; `append` locks it until the caller's transaction ends."""

    def __init__(self, database: Database, *, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._clock = clock

    @span("kfm.audit", {})
    def append(self, events: Iterable[AuditEvent], *, tx: Transaction) -> None:
        """Write events in their order, in a single statement; without events, do nothing."""
        blocks = list(_blocks(events))
        if not blocks:
            return
        tx.lock("kfm_dagster.stage_audit")
        seq, previous = self.head(tx=tx)
        at = rfc3339(self._clock())
        batch = []
        for block in blocks:
            before, parts, last = previous, [_part_of(event) for event in block], block[-1]
            attempt = {"run_id": last.run_id, "stage": last.stage, "attempt": last.attempt}
            for part in parts:
                seq += 1
                previous = _hash({"seq": seq, "at": at, **attempt, **part, "previous_hash": previous})
            row = {"seq": seq, "at": at, **attempt, **parts[-1], "previous_hash": before, "hash": previous}
            batch.append({**row, "details": _text(parts[-1]["details"]), "earlier": _text(parts[:-1])})
        tx.run("stages.append_audit", batch=batch)

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield all lines in order, in the form of `audit.jsonl`."""
        seq = 0
        while True:
            with self._database.snapshot() as tx:
                rows = tx.run("stages.audit_after", seq=seq, limit=PAGE).all()
            yield from _lines(rows)
            if len(rows) < PAGE:
                return
            seq = rows[-1].seq

    def since(self, moment: datetime, *, tx: Transaction) -> list[dict[str, Any]]:
        """Return the lines written since `moment`, in their order."""
        return list(_lines(tx.run("stages.audit_since", since=moment)))

    def head(self, *, tx: Transaction) -> tuple[int, str]:
        """Return the number of lines, and the hash of the last line."""
        row = tx.run("stages.audit_head").one_or_none()
        return (0, GENESIS) if row is None else (row.seq, row.hash)

    def of_stage(self, run_id: str, stage: str) -> Sequence[dict[str, Any]]:
        """Return the lines of a stage in their order, over all its attempts."""
        with self._database.snapshot() as tx:
            return list(_lines(tx.run("stages.audit_of_stage", run_id=run_id, stage=stage)))


def as_jsonl(lines: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """Yield lines as in `audit.jsonl`: JSON with sorted keys, an object per line."""
    for line in lines:
        yield orjson.dumps(line, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)


def verify_chain(lines: Iterable[Mapping[str, Any]], *, head: str | None = None) -> int:
    """Return the number of lines. Raises KfmError at the first line that breaks the chain.

    With `head` (the last line's hash, stored elsewhere), lines missing at the end are detected, too.
    """
    count, previous = 0, GENESIS
    for count, line in enumerate(lines, start=1):
        body = {name: value for name, value in line.items() if name != "hash"}
        if (line.get("seq"), line.get("previous_hash"), line.get("hash")) != (count, previous, _hash(body)):
            raise KfmError(
                "the audit has been changed",
                observed=f"line {count} does not follow from the line before it",
                expected="every line as it was written, and none missing",
                next_step="compare it with an earlier export (kfm export) to find what was changed",
            )
        previous = str(line["hash"])
    if head is not None and previous != head:
        raise KfmError(
            "the audit has lost its end",
            observed=f"line {count} is the last, its hash {previous[:12]}",
            expected=f"a last line with the hash {head[:12]}",
            next_step="compare it with an earlier export (kfm export) to find what is missing",
        )
    return count


def _blocks(events: Iterable[AuditEvent]) -> Iterator[list[AuditEvent]]:
    """Yield each row's events: passed gates and checkpoints, then at most one other event.

    A query by kind sees only the last event of a row, so each failure and each transition ends its row.
    """
    block: list[AuditEvent] = []
    for event in events:
        if block and (block[-1].run_id, block[-1].stage, block[-1].attempt) != (
            event.run_id,
            event.stage,
            event.attempt,
        ):
            yield block
            block = []
        block.append(event)
        passed = event.kind is AuditKind.GATE and event.details.get("outcome") == "passed"
        if not passed and event.kind is not AuditKind.CHECKPOINT:
            yield block
            block = []
    if block:
        yield block


def _part_of(event: AuditEvent) -> dict[str, Any]:
    return {"kind": event.kind.value, "event": event.event, "details": dict(event.details)}


def _text(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _hash(line: Mapping[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(line, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _lines(rows: Iterable[Any]) -> Iterator[dict[str, Any]]:
    for row in rows:
        last = {"kind": row.kind, "event": row.event, "details": orjson.loads(row.details)}
        earlier, previous = orjson.loads(row.earlier), row.previous_hash
        attempt = {"at": rfc3339(row.at), "run_id": row.run_id, "stage": row.stage, "attempt": row.attempt}
        for seq, part in enumerate([*earlier, last], start=row.seq - len(earlier)):
            line = {"seq": seq, **attempt, **part, "previous_hash": previous}
            # The last line of a row has the stored hash; `verify_chain` compares it with the computed hash.
            previous = row.hash if seq == row.seq else _hash(line)
            yield {**line, "hash": previous}
