"""NEXRAD chunks and archive volumes that arrive in a folder, and runs that ingest them.

Belongs here: helpers of chunk tests. Does not belong here: the chain (`chain.py`), a run's results (`traces.py`).
"""

from __future__ import annotations

import json
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from kfm_dagster.contracts.identity import uuid8
from kfm_dagster.demo.feed import chunk_notification
from kfm_dagster.demo.samples.nexrad_chunks import BUCKET
from kfm_dagster.ingest.intake import IntakeReport
from kfm_dagster.ingest.nodes import Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster_tests.integration.chain import StoredObject, announce, put, raw_message, run_chain, take

CHUNKS, ARCHIVE = "nexrad-l2-chunks", "nexrad-l2"


def notice(pipeline: Pipeline, item: StoredObject, *, name: str = "") -> SqsMessage:
    """Return an object's announcement; another `name` gives another message."""
    if item.bucket != BUCKET:
        return announce([item.event()], registry=pipeline.registry, name=name + item.key)
    [topic] = pipeline.registry[CHUNKS].notifications.topics
    message = chunk_notification(item.event())
    body = {
        "Type": "Notification",
        "MessageId": uuid8("sns", name, item.key),
        "TopicArn": topic.arn,
        "Message": message,
        "Timestamp": f"{json.loads(message)['DateTime'][:10]}T23:59:59.000Z",
    }
    return raw_message(json.dumps(body), name=name + item.key)


def arrive(pipeline: Pipeline, objects: Path, *items: StoredObject, name: str = "") -> IntakeReport:
    """Store and announce objects in one batch."""
    put(objects, items)
    return take(pipeline, *(notice(pipeline, item, name=name) for item in items))


def ingest(pipeline: Pipeline, objects: Path, *items: StoredObject, run_id: str) -> None:
    """Store and announce objects in one batch, and run each dataset and day with pending units."""
    arrive(pipeline, objects, *items)
    work(pipeline, run_id)


def work(pipeline: Pipeline, run_id: str) -> None:
    """Run each dataset and day with pending units; the run ids of a dataset's further days are numbered."""
    waiting = sorted({(entry.dataset, entry.partition) for entry in pipeline.ledger.pending_by_partition()})
    for dataset, days in groupby(waiting, key=itemgetter(0)):
        for number, (_, partition) in enumerate(days):
            run_chain(pipeline, dataset, partition, f"{run_id}-{number}" if number else run_id, Source.LEDGER)
