"""The operators with run-state outside the database: a worker that dies between commit and record loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.ingest.nodes import operators
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.run_state.delta_store import DeltaRunState
from kfm_dagster.run_state.object_store import ObjectRunState
from kfm_dagster.run_state.record import Outcome
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import DAY, CrashError, put, run_chain, volumes, work_until_done
from kfm_dagster_tests.transactions import own_tx

DATASET, PARTITION, RUN = "nexrad-l2", DAY.isoformat(), "8a1c1a52-6b8f-4e56-9d5c-000000000001"


@pytest.mark.clause("RSP-07", "RSP-10")
@pytest.mark.parametrize("operator", operators())
@pytest.mark.parametrize(("prefix", "store"), [("", ObjectRunState), ("delta+", DeltaRunState)])
def test_the_same_worker_goes_on_and_everything_is_there_once(
    make_pipeline: Callable[..., Pipeline],
    objects: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prefix: str,
    store: Any,
    operator: str,
) -> None:
    put(objects, volumes(2))
    pipeline = make_pipeline(run_state=f"{prefix}{tmp_path / 'runs'}")
    put_record = store.put

    def dies(self: Any, record: Any, tx: Any) -> None:
        if record.dataset_id == f"{DATASET}.{operator}":
            tx.after_commit(lambda: (_ for _ in ()).throw(CrashError(operator)))
        put_record(self, record, tx)

    with monkeypatch.context() as patch:
        patch.setattr(store, "put", dies)
        with pytest.raises(CrashError):
            run_chain(pipeline, DATASET, PARTITION, RUN)
    assert pipeline.stages.run_states.get(f"{DATASET}.{operator}", RUN) is None

    run_chain(pipeline, DATASET, PARTITION, RUN)
    # What message_parse had claimed is nobody's batch now; its lease runs out, as that of any lost worker.
    pipeline.clock.forward(3600)  # type: ignore[attr-defined]
    own_tx(pipeline.ledger).release_lost()
    work_until_done(pipeline)
    assert traces.statuses(pipeline) == {Status.SUCCEEDED: 2}
    traces.assert_once(traces.events(Path(pipeline.settings.lineage)))
    states = pipeline.stages.run_states.of_run(RUN)
    assert {state.dataset_id for state in states} == {f"{DATASET}.{one}" for one in operators()}
    assert {state.outcome for state in states} <= {Outcome.SUCCESS, Outcome.SKIPPED}
    tree = traces.catalog_tree(Path(pipeline.settings.catalog))

    run_chain(pipeline, DATASET, PARTITION, RUN)
    assert pipeline.stages.run_states.of_run(RUN) == states
    assert traces.catalog_tree(Path(pipeline.settings.catalog)) == tree
