"""Two runs of one day that commit every stage at the same moment: neither waits for the other for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.ingest.nodes import MessageParse, Source, operators
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.stages.audit import verify_chain
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster_tests.catalog import trees
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import (
    DAY,
    ENRICHING,
    FakeQueue,
    announce,
    assert_conserved,
    put,
    take,
    volumes,
)

DATASET, PARTITION, RUNS, UNITS_EACH = "nexrad-l2", DAY.isoformat(), ("one", "two"), 3


@pytest.mark.clause("IEN-08")
def test_two_runs_that_commit_at_once_leave_one_open_window_of_each_stage(
    make_pipeline: Callable[..., Pipeline], database_url: str, queue: FakeQueue, objects: Path
) -> None:
    pipelines = [make_pipeline(url=database_url, queue=queue) for _ in RUNS]
    items = volumes(len(RUNS) * UNITS_EACH)
    put(objects, items)
    take(pipelines[0], announce([item.event() for item in items], registry=pipelines[0].registry))
    together = threading.Barrier(len(RUNS), timeout=120)

    def run(pipeline: Pipeline, run_id: str) -> None:
        shared: dict[str, Any] = {"pipeline": pipeline, "dataset": DATASET, "partition": PARTITION, "run_id": run_id}
        first = MessageParse(**shared, source=Source.LEDGER, limit=UNITS_EACH)
        batch: StageBatch | None = None
        try:
            for node in (first, *(kind(**shared) for kind in ENRICHING)):
                stage = pipeline.stages.run(node, run_id=run_id, upstream=batch)
                together.wait()
                batch = pipeline.stages.commit(stage)
        except BaseException:
            together.abort()
            raise

    with ThreadPoolExecutor(len(RUNS)) as pool:
        for ended in [pool.submit(run, *each) for each in zip(pipelines, RUNS, strict=True)]:
            ended.result()
    assert_conserved(pipelines[0])
    assert traces.statuses(pipelines[0]) == {Status.SUCCEEDED: len(items)}
    for operator in operators():
        node = f"{DATASET}.{operator}@{PARTITION}"
        earlier, later = sorted(pipelines[0].nodes.outputs_of(node), key=lambda output: output.valid_to is None)
        assert (earlier.valid_to is None, later.valid_to) == (False, None)
        assert pipelines[0].nodes.newest(node) == later
    trees.assert_consistent(Path(pipelines[0].settings.catalog))
    verify_chain(pipelines[0].stages.lifecycle.store.audit.lines())
