"""Publishing steps: each end of an intent once on both paths, in one batch per run and publication (IEN-11).

The stage that ends a step writes one row and nothing else; the process that publishes lineage takes the rows that are
not published, in one transaction with the batches that hold them. So a crash before it leaves the rows, and a crash
after it leaves the outbox: nothing is lost, nothing is published twice, and no stage waits for it.
Belongs here: which rows, and the batches. Does not belong here: what is said (`steps.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from itertools import groupby
from operator import attrgetter
from typing import Any

import orjson

from kfm_dagster.lineage.batches import BATCH_ID_DIGITS, Batch, LineageBatches
from kfm_dagster.lineage.prov import Node, jsonld
from kfm_dagster.lineage.steps import NAMESPACE, Step, StepRunState, step_agents, step_events, step_nodes
from kfm_dagster.lineage.unit import LineagePath
from kfm_dagster.storage.database import Database, Transaction
from kfm_dagster.telemetry.measures import MEASURES, inputs_of

MOST = 500
"""Steps that one transaction tells: some 30 runs."""
_RUN = attrgetter("run_id")


class StepEvents:
    """Tells the steps of a database. `public` gives the name that a dataset has in public."""

    def __init__(
        self,
        database: Database,
        batches: LineageBatches,
        *,
        public: Callable[[str], str],
    ) -> None:
        self._database = database
        self._batches = batches
        self._public = public

    def tell(self) -> int:
        """Record the lineage of every step that has none; return their number. Raises the database's errors."""
        told = 0
        while True:
            with self._database.snapshot() as tx:
                if tx.run("lineage.unpublished_steps", most=1).first() is None:
                    return told
            with self._database.transaction() as tx:
                tx.lock("etl_steps")
                steps = [self._step(row) for row in tx.run("lineage.unpublished_steps", most=MOST)]
                # Runs beside one another mix their steps; sorting keeps the order of each.
                for _, part in groupby(sorted(steps, key=_RUN), key=_RUN):
                    self._record(tx, list(part))
            told += len(steps)

    def _record(self, tx: Transaction, steps: Sequence[Step]) -> None:
        events = (event for step in steps for event in step_events(step))
        openlineage = b"".join(orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE) for event in events)
        nodes = [list(step_agents(steps)), *(list(step_nodes(step)) for step in steps)]
        stem = hashlib.sha256(openlineage).hexdigest()[:BATCH_ID_DIGITS]
        batch_id = self._put(tx, LineagePath.OPENLINEAGE, steps, openlineage, f"{stem}.ndjson")
        self._put(tx, LineagePath.PROV, steps, jsonld(map(_joined, nodes)), f"{stem}.jsonld")
        tx.run_many(
            "lineage.mark_step_told",
            [{"wal_id": step.wal_id, "status": step.status, "batch_id": batch_id} for step in steps],
        )

    def _put(self, tx: Transaction, path: LineagePath, steps: Sequence[Step], content: bytes, name: str) -> str:
        batch = Batch(
            batch_id=hashlib.sha256(content).hexdigest()[:BATCH_ID_DIGITS],
            path=path,
            dataset=NAMESPACE,
            run_id=steps[0].run_id,
            # Beside the units' files, so that who reads those reads one event of each kind per unit.
            href=f"steps/{path}/{steps[0].ended_at:%Y-%m-%d}/{name}",
            units=len(steps),
        )
        self._batches.record(tx, batch, content)
        return batch.batch_id

    def _step(self, row: Any) -> Step:
        measures = {name: value for name in MEASURES if (value := getattr(row, name)) is not None}
        # A replay carries out an intent long after it was written; what it measured began when it did.
        began = row.ended_at - timedelta(seconds=row.seconds) if row.seconds is not None else row.started_at
        kind, _, partition = row.node.partition("@")
        dataset, dot, rest = kind.partition(".")
        job = f"{self._public(dataset)}{dot}{rest}"
        return Step(
            run_id=str(row.run_id),
            wal_id=row.wal_id,
            node=f"{job}@{partition}" if partition else job,
            job=job,
            step=row.step,
            status=row.status,
            content_hash=row.content_hash,
            code_sha=row.payload["code"]["sha"],
            started_at=min(began, row.ended_at),
            ended_at=row.ended_at,
            inputs=inputs_of(row),
            artifact=_artifact(row.record),
            has_output=row.record is not None,
            measures=measures,
            error=row.error,
            run_state=_run_state(row),
        )


def _run_state(row: Any) -> StepRunState | None:
    """Return how a node that keeps run-state ended in it: what was applied says itself how much of it failed."""
    if "dataset_id" not in row.payload.get("context", {}):
        return None
    if row.status == "FAILED":
        return StepRunState(outcome="failed", validation_summary=None)
    if row.record is None:
        return StepRunState(outcome="skipped", validation_summary=None)
    outcome = "skipped" if row.status == "SKIPPED" else row.record["outcome"]
    return StepRunState(outcome=outcome, validation_summary=row.record["validation_summary"])


def _artifact(record: Any) -> tuple[str, str] | None:
    """Return the file that an output names, in our chain's form or as `{"artifact": {"uri": ..., "sha256": ...}}`."""
    if not isinstance(record, dict):
        return None
    named = record.get("artifact")
    if not isinstance(named, dict):
        named = {"uri": record.get("artifact_uri"), "sha256": record.get("artifact_sha256")}
    uri, digest = named.get("uri"), named.get("sha256")
    return (uri, digest) if isinstance(uri, str) and isinstance(digest, str) else None


def _joined(nodes: Iterable[Node]) -> bytes:
    return b",".join(map(orjson.dumps, nodes))
