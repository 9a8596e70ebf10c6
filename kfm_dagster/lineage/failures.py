"""Failed attempts as OpenLineage has them: START and FAIL under the unit's wal_id, each once (RSP-16).

The database notes each attempt that fails, whatever failed it: an operator, a lease that ran out, a rollback. The
process that publishes lineage takes the notes that no batch holds, in one transaction with the batch; so a crash before
it leaves the notes and a crash after it the outbox, and no settlement waits for it.
Belongs here: which attempts, and what is said of them. Does not belong here: units that were registered
(`openlineage.py`), or steps of batches (`steps.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Any

import orjson

from kfm_dagster import __version__
from kfm_dagster.contracts.identity import rfc3339, uuid8
from kfm_dagster.lineage.batches import BATCH_ID_DIGITS, Batch, LineageBatches
from kfm_dagster.lineage.openlineage import JOB_NAMESPACE, RUN_EVENT_SCHEMA, Event, data_object
from kfm_dagster.lineage.unit import PRODUCER, SCHEMAS, LineagePath
from kfm_dagster.storage.database import Database, Transaction

MOST = 1_000
"""Attempts that one transaction publishes."""
_PRODUCER = PRODUCER + __version__
_ERROR = "https://openlineage.io/spec/facets/1-0-1/ErrorMessageRunFacet.json#/$defs/ErrorMessageRunFacet"
_PART = attrgetter("dataset", "run_id")


class FailureEvents:
    """Publishes the failed attempts of a database. `public` gives the name that a dataset has in public."""

    def __init__(self, database: Database, batches: LineageBatches, *, public: Callable[[str], str]) -> None:
        self._database = database
        self._batches = batches
        self._public = public

    def publish(self) -> int:
        """Record every failed attempt that lineage has not; return their number. Raises the database's errors."""
        published = 0
        while True:
            with self._database.snapshot() as tx:
                if tx.run("lineage.unpublished_failures", most=1).first() is None:
                    return published
            with self._database.transaction() as tx:
                tx.lock("lineage_failures")
                rows = tx.run("lineage.unpublished_failures", most=MOST).all()
                for _, part in groupby(sorted(rows, key=_PART), key=_PART):
                    self._record(tx, list(part))
            published += len(rows)

    def _record(self, tx: Transaction, rows: Sequence[Any]) -> None:
        public = self._public(rows[0].dataset)
        events = (event for row in rows for event in failure_events(row, dataset=public))
        content = b"".join(orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE) for event in events)
        stem = hashlib.sha256(content).hexdigest()[:BATCH_ID_DIGITS]
        batch = Batch(
            batch_id=stem,
            path=LineagePath.OPENLINEAGE,
            dataset=rows[0].dataset,
            run_id=rows[0].run_id,
            # Beside the registered units' files, so that who reads those reads one event of each kind per unit.
            href=f"failures/openlineage/{public}/{rows[0].at:%Y-%m-%d}/{stem}.ndjson",
            units=len(rows),
        )
        self._batches.record(tx, batch, content)
        tx.run_many(
            "lineage.mark_failure_published",
            [{"wal_id": row.wal_id, "version": row.version, "batch_id": stem} for row in rows],
        )


def failure_events(row: Any, *, dataset: str) -> tuple[Event, Event]:
    """Return START and FAIL of a row of `lineage.unpublished_failures`; `dataset` is the public name.

    The error is its code alone; what it says is in the record.
    """
    run_id = uuid8("openlineage-failure", row.wal_id, str(row.attempt))
    common = {
        "job": {"namespace": JOB_NAMESPACE, "name": f"kfm.nodd.ingest.{dataset}"},
        "inputs": [data_object(row.object_uri)],
        "outputs": [],
        "producer": _PRODUCER,
        "schemaURL": RUN_EVENT_SCHEMA,
    }
    wal = {
        "_producer": _PRODUCER,
        "_schemaURL": f"{SCHEMAS}kfm-wal-facet.schema.json",
        "wal_id": row.wal_id,
        "dataset": dataset,
        "attempt": row.attempt,
        **({"replay_reason": row.fields["replay_reason"]} if row.fields["replay_reason"] else {}),
    }
    code = row.fields["last_error_code"]
    run_state = {
        "_producer": _PRODUCER,
        "_schemaURL": f"{SCHEMAS}kfm-run-state-facet.schema.json",
        "dataset_id": f"{dataset}.settle",
        "run_id": row.run_id,
        "outcome": "failed",
    }
    error = {"_producer": _PRODUCER, "_schemaURL": _ERROR, "message": code, "programmingLanguage": "PYTHON"}
    facets = {"kfmWal": {**wal, "last_error_code": code}, "kfmRunState": run_state, "errorMessage": error}
    started = rfc3339(datetime.fromisoformat(row.fields["last_attempt_at"]))
    return (
        {"eventType": "START", "eventTime": started, "run": {"runId": run_id, "facets": {"kfmWal": wal}}, **common},
        {"eventType": "FAIL", "eventTime": rfc3339(row.at), "run": {"runId": run_id, "facets": facets}, **common},
    )
