"""Lineage of ended node steps (IEN-11) and of failed attempts (RSP-16), published once.

The end of a step writes a row, and so does a failed attempt. The process that publishes lineage turns the rows without
a batch into batches in one transaction. So after a crash either the rows remain, or the batches are in the outbox: no
lineage is lost or published twice, and no stage or settlement waits for publishing.
Belongs here: selecting the rows, their batches, and the events of a failed attempt. Does not belong here: documents of
a step (`steps.py`) or of registered units (`openlineage.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

from kfm_dagster.contracts.identity import rfc3339, uuid8
from kfm_dagster.lineage.batches import LineageBatches, batch_id_of
from kfm_dagster.lineage.openlineage import (
    Event,
    data_object,
    error_facet,
    event_lines,
    ingest_job,
    kfm_facet,
    run_event,
)
from kfm_dagster.lineage.prov import joined, jsonld
from kfm_dagster.lineage.steps import NAMESPACE, Step, step_agents, step_events, step_nodes
from kfm_dagster.lineage.unit import LineagePath
from kfm_dagster.storage.database import Database, Transaction

MOST = 500
"""Maximum rows that a transaction turns into batches: about the steps of 30 runs."""

PublicName = Callable[[str], str]
"""Returns the public name of a dataset."""


def publish_noted(database: Database, batches: LineageBatches, *, public: PublicName) -> None:
    """Record missing lineage of steps and failed attempts. Raises the database's errors."""
    # The rows of concurrent runs are mixed. `_take` sorts by run, and keeps the order within a run.
    steps, failures = partial(_record_steps, batches, public), partial(_record_failures, batches, public)
    _take(database, "lineage.unpublished_steps", attrgetter("run_id"), steps, lock="etl_steps")
    _take(database, "lineage.unpublished_failures", attrgetter("dataset", "run_id"), failures, lock="lineage_failures")


def _take(
    database: Database,
    statement: str,
    part: Callable[[Any], Any],
    record: Callable[[Transaction, Sequence[Any]], None],
    *,
    lock: str,
) -> None:
    while True:
        with database.snapshot() as tx:
            if tx.run(statement, most=1).first() is None:
                return
        with database.transaction() as tx:
            tx.lock(lock)
            rows = tx.run(statement, most=MOST).all()
            for _, group in groupby(sorted(rows, key=part), key=part):
                record(tx, list(group))


def _record_steps(batches: LineageBatches, public: PublicName, tx: Transaction, rows: Sequence[Any]) -> None:
    steps = [Step.of(row, public=public) for row in rows]
    nodes = [step_agents(steps), *map(step_nodes, steps)]
    contents = {
        LineagePath.OPENLINEAGE: (event_lines(event for step in steps for event in step_events(step)), "ndjson"),
        LineagePath.PROV: (jsonld(map(joined, nodes)), "jsonld"),
    }
    stem = batch_id_of(contents[LineagePath.OPENLINEAGE][0])
    for path, (content, suffix) in contents.items():
        batches.record(
            tx,
            content,
            batch_id=batch_id_of(content),
            path=path,
            dataset=NAMESPACE,
            run_id=steps[0].run_id,
            # Not in the units' folder, because its readers expect one event of each kind for each unit.
            href=f"steps/{path}/{steps[0].ended_at:%Y-%m-%d}/{stem}.{suffix}",
            units=len(steps),
        )
    marks = [{"wal_id": step.wal_id, "status": step.status, "batch_id": stem} for step in steps]
    tx.run_many("lineage.mark_step_published", marks)


def _record_failures(batches: LineageBatches, public: PublicName, tx: Transaction, rows: Sequence[Any]) -> None:
    dataset = public(rows[0].dataset)
    content = event_lines(event for row in rows for event in failure_events(row, dataset=dataset))
    batch_id = batch_id_of(content)
    batches.record(
        tx,
        content,
        batch_id=batch_id,
        path=LineagePath.OPENLINEAGE,
        dataset=rows[0].dataset,
        run_id=rows[0].run_id,
        # Not in the folder of the registered units, for the same reason.
        href=f"failures/openlineage/{dataset}/{rows[0].at:%Y-%m-%d}/{batch_id}.ndjson",
        units=len(rows),
    )
    marks = [{"wal_id": row.wal_id, "version": row.version, "batch_id": batch_id} for row in rows]
    tx.run_many("lineage.mark_failure_published", marks)


def failure_events(row: Any, *, dataset: str) -> tuple[Event, Event]:
    """Return START and FAIL of a row of `lineage.unpublished_failures`.

    `dataset` is the public name. The event has only the error's code; the error's message is in the record.
    """
    run_id = uuid8("openlineage-failure", row.wal_id, str(row.attempt))
    reason, code = row.fields["replay_reason"], row.fields["last_error_code"]
    replayed = {"replay_reason": reason} if reason else {}
    wal = kfm_facet("wal", wal_id=row.wal_id, dataset=dataset, attempt=row.attempt, **replayed)
    facets = {
        "kfmWal": {**wal, "last_error_code": code},
        "kfmRunState": kfm_facet("run-state", dataset_id=f"{dataset}.settle", run_id=row.run_id, outcome="failed"),
        "errorMessage": error_facet(code),
    }
    job, inputs = ingest_job(dataset), [data_object(row.object_uri)]
    started = rfc3339(datetime.fromisoformat(row.fields["last_attempt_at"]))
    return (
        run_event("START", started, run_id, {"kfmWal": wal}, job=job, inputs=inputs),
        run_event("FAIL", rfc3339(row.at), run_id, facets, job=job, inputs=inputs),
    )
