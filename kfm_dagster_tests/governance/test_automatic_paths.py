"""Through the whole chain: a quarantined unit is left alone by everything that works by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kfm_dagster.contracts.issues import IntegrityIssue
from kfm_dagster.ingest.evidence import EvidenceCollector
from kfm_dagster.ingest.nodes import Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.cases import CaseState, QuarantineCases
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster_tests.integration.chain import (
    DAY,
    announce,
    missing,
    open_pipeline,
    put,
    run_chain,
    take,
    volumes,
    work_until_done,
)
from kfm_dagster_tests.transactions import own_tx

PARTITION = DAY.isoformat()


@pytest.fixture
def restarted(tmp_path: Path, objects: Path, database_url: str) -> Iterator[Callable[[], Pipeline]]:
    """The same deployment, opened by another process each time."""
    opened: list[Pipeline] = []

    def again() -> Pipeline:
        pipeline = open_pipeline(tmp_path / "home", objects, url=database_url)
        opened.append(pipeline)
        return pipeline

    yield again
    for pipeline in opened:
        pipeline.close()


@pytest.mark.clause("WSM-14", "WSM-10", "BEY-06")
def test_a_quarantined_unit_is_left_alone_by_everything_that_works_by_itself(
    restarted: Callable[[], Pipeline], objects: Path
) -> None:
    item = missing(volumes(1)[0])
    pipeline = restarted()
    message = announce([item.event()], registry=pipeline.registry)
    take(pipeline, message)
    work_until_done(pipeline)
    [record] = own_tx(pipeline.ledger).find()
    assert (record.status, record.last_error_code) == (Status.QUARANTINED, IntegrityIssue.MISSING_OBJECT)
    cases = QuarantineCases(pipeline.database, clock=pipeline.clock).find(CaseState.OPEN)
    # It is there now, and everything that could notice runs once more.
    put(objects, [volumes(1)[0]])
    pipeline = restarted()
    for delivery in (2, 3):
        take(pipeline, dataclasses.replace(message, receipt_handle=f"again-{delivery}", receive_count=delivery))
    run_chain(pipeline, "nexrad-l2", PARTITION, "backfill", Source.LISTING)
    own_tx(pipeline.ledger).release_lost(run_ids=[record.ingest_run_id])
    work_until_done(pipeline)
    assert EvidenceCollector(pipeline).collect() == 0
    after = {one.object_version: one for one in own_tx(pipeline.ledger).find()}
    assert after[record.object_version] == record
    assert QuarantineCases(pipeline.database, clock=pipeline.clock).find(CaseState.OPEN) == cases
    # The message is acknowledged: there is nothing that it could still bring about.
    assert pipeline.deliveries.due_for_deletion(limit=10) == []
