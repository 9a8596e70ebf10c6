"""The log of intents (`etl_wal`): recorded before a node's work begins, and never deleted.

    PENDING > APPLIED | SKIPPED | FAILED        FAILED > APPLIED | SKIPPED

Belongs here: intents and their changes. Does not belong here: the transaction around an effect (`transaction.py`), and
the records of ingest units (`ledger/`).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum, unique
from typing import Any

from kfm_dagster.idempotent_node.compute_hash import ManifestEntry
from kfm_dagster.idempotent_node.steps import DIED, StepEnd
from kfm_dagster.storage.database import Database, Transaction

PAGE = 500
"""Intents per query."""


@unique
class IntentStatus(StrEnum):
    """Status of an intent."""

    PENDING = "PENDING"
    """Written; the effect may be in progress, or the worker may have died."""
    APPLIED = "APPLIED"
    """Its effect is durable."""
    SKIPPED = "SKIPPED"
    """The same content, or later content of the node, took effect, or another intent has taken over the work."""
    FAILED = "FAILED"
    """The attempt ended with an error; a replay retries it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Intent:
    """A row of `etl_wal`: a `payload` that suffices for a rerun, and the units `claimed`."""

    wal_id: int
    run_id: str
    node: str
    step: str
    payload: Mapping[str, Any]
    content_hash: str
    status: IntentStatus
    started_at: datetime
    applied_at: datetime | None
    claimed: Mapping[str, Any] | None = None


class Intents:
    """The intents of a database."""

    def __init__(self, database: Database, *, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._clock = clock

    def append(
        self,
        *,
        run_id: str,
        node: str,
        step: str,
        payload: Mapping[str, Any],
        content_hash: str,
        tx: Transaction,
    ) -> Intent:
        """Write an intent as PENDING, or return the run's unresolved intent for the same content."""
        key = {"run_id": run_uuid(run_id), "node": node, "step": step, "content_hash": content_hash}
        if (unresolved := tx.row(Intent, "idempotent_node.unresolved_of", key)) is not None:
            return unresolved
        document = json.dumps(payload, sort_keys=True, allow_nan=False)
        [intent] = tx.rows(Intent, "idempotent_node.append", key, payload=document, at=self._clock())
        return intent

    def resolve(
        self,
        intent: Intent,
        status: IntentStatus,
        *,
        end: StepEnd | None = None,
        claimed: ManifestEntry | None = None,
        tx: Transaction,
    ) -> bool:
        """Resolve an intent and record its end; False if it is resolved or has this status already.

        `claimed`: the units that the node claimed in the ledger, known only after the effect.
        """
        at = self._clock()
        resolved = tx.run(
            "idempotent_node.resolve",
            wal_id=intent.wal_id,
            status=status.value,
            applied_at=at if status is IntentStatus.APPLIED else None,
            claimed=None if claimed is None else claimed.canonical(),
        )
        moved = resolved.rowcount == 1
        if moved:
            (end or StepEnd()).write(tx, wal_id=intent.wal_id, status=status.value, at=at)
        return moved

    def applied(self, content_hash: str, *, tx: Transaction) -> Intent | None:
        """Return the intent that applied this content, or None."""
        return tx.row(Intent, "idempotent_node.applied", content_hash=content_hash)

    def of_run(self, run_id: str) -> list[Intent]:
        """Return the intents of a run, oldest first."""
        with self._database.snapshot() as tx:
            return tx.rows(Intent, "idempotent_node.of_run", run_id=run_uuid(run_id))

    def pending_runs(self) -> list[str]:
        """Return the runs that have PENDING intents."""
        with self._database.snapshot() as tx:
            return [str(run_id) for run_id in tx.run("idempotent_node.pending_runs").scalars()]

    def fail_runs(self, run_ids: Iterable[str]) -> int:
        """Mark the PENDING intents of dead runs FAILED; return their number."""
        died = StepEnd(error=DIED)
        with self._database.transaction() as tx:
            failed = [
                wal_id
                for run_id in run_ids
                for wal_id in tx.run("idempotent_node.fail_run", run_id=run_uuid(run_id)).scalars().all()
            ]
            for wal_id in failed:
                died.write(tx, wal_id=wal_id, status=IntentStatus.FAILED.value, at=self._clock())
        return len(failed)

    def give_up_overtaken(self) -> int:
        """Mark failed intents SKIPPED if their node has applied later content; return their number."""
        with self._database.transaction() as tx:
            skipped = tx.run("idempotent_node.skip_overtaken").scalars().all()
            for wal_id in skipped:
                StepEnd().write(tx, wal_id=wal_id, status=IntentStatus.SKIPPED.value, at=self._clock())
        return len(skipped)

    def unresolved(self, node: str | None = None) -> Iterator[Intent]:
        """Yield every PENDING and FAILED intent, of a node or of all nodes, oldest first."""
        after = 0
        while True:
            with self._database.snapshot() as tx:
                intents = tx.rows(Intent, "idempotent_node.unresolved", node=node, after=after, limit=PAGE)
            if not intents:
                return
            after = intents[-1].wal_id
            yield from intents


def run_uuid(run_id: str) -> str:
    """Return the UUID of a run for `etl_wal`: its id, or the UUIDv5 of an id that is not a UUID."""
    try:
        return str(uuid.UUID(run_id))
    except ValueError:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"urn:kfm:run:{run_id}"))
