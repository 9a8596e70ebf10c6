"""Whatever a run dies of, or meets, the next one converges to what an undisturbed one leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import Retry
from kfm_dagster.ingest.nodes import MessageParse, Source, chain, operators
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.run_state.delta_store import DeltaRunState
from kfm_dagster.run_state.object_store import ObjectRunState
from kfm_dagster.run_state.record import Outcome
from kfm_dagster.stages.audit import verify_chain
from kfm_dagster.stages.batch import SkipCause, StageBatch
from kfm_dagster_tests.catalog import trees
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import (
    DATASET,
    PARTITION,
    CrashError,
    FakeQueue,
    assert_conserved,
    deliver,
    missing,
    node,
    notify_each,
    put,
    run_chain,
    run_pending,
    truncated,
    volumes,
    work_until_done,
)
from kfm_dagster_tests.transactions import own_tx

ITEMS = [*volumes(2), missing(volumes(3)[2]), truncated(volumes(4)[3])]
"""Two volumes that succeed and two that end in quarantine."""


def take_items(pipeline: Pipeline) -> None:
    put(pipeline.settings.object_root, ITEMS)
    notify_each(pipeline, *ITEMS)


def everything(pipeline: Pipeline) -> dict[str, Any]:
    """What two ways to one outcome must have in common."""
    told, edges = traces.told_once(pipeline)
    return {
        "ledger": traces.outcomes(pipeline),
        "catalog": traces.catalog_tree(Path(pipeline.settings.catalog)),
        "events": told,
        "edges": edges,
        "messages": pipeline.deliveries.counts(),
    }


@pytest.mark.clause("WAL-05", "WAL-06")
def test_ingesting_again_changes_nothing(pipeline: Pipeline, objects: Path) -> None:
    put(objects, ITEMS[:2])
    run_chain(pipeline, "nexrad-l2", PARTITION, "run-1", Source.LISTING)
    catalog = Path(pipeline.settings.catalog)
    before = (
        everything(pipeline),
        trees.files(catalog),
        {uri: r.version for uri, r in traces.records(pipeline).items()},
    )

    for number, source in enumerate(Source, start=2):
        batch = run_chain(pipeline, "nexrad-l2", PARTITION, f"run-{number}", source)
        if source is Source.LISTING:
            assert (batch.skipped, batch.applied_by) == (SkipCause.CONTENT_APPLIED, "run-1")
        else:
            assert not batch.envelopes
    notify_each(pipeline, *ITEMS[:2])
    work_until_done(pipeline)

    after = (
        everything(pipeline),
        trees.files(catalog),
        {uri: r.version for uri, r in traces.records(pipeline).items()},
    )
    assert {**after[0], "messages": None} == {**before[0], "messages": None}
    assert after[1:] == before[1:]


@pytest.mark.clause("RSP-18")
def test_a_finished_run_done_again_under_another_contract_keeps_its_record(pipeline: Pipeline) -> None:
    take_items(pipeline)
    run_pending(pipeline, "run-1")
    records = pipeline.stages.run_states.of_run("run-1")
    before = everything(pipeline)
    stricter = Retry(max_attempts=1, backoff=pipeline.registry["nexrad-l2"].retry.backoff)
    pipeline.registry = ContractRegistry.of(
        contract.model_copy(update={"retry": stricter}) for contract in pipeline.registry
    )
    skips: list[SkipCause | None] = []
    run_pending(pipeline, "run-1", seen=lambda batch: skips.append(batch.skipped))
    assert skips == [SkipCause.OTHER_INPUTS] * len(operators())
    assert pipeline.stages.run_states.of_run("run-1") == records
    assert everything(pipeline) == before


@pytest.mark.clause("RSP-18")
def test_a_settlement_done_again_counts_nothing_lost_that_is_its_runs_success(pipeline: Pipeline) -> None:
    deliver(pipeline, *volumes(2))
    batch = run_pending(pipeline, "run-1")
    again = own_tx(pipeline.ledger).settle(list(batch.envelopes), run_id="run-1")
    other = own_tx(pipeline.ledger).settle(list(batch.envelopes), run_id="run-2")
    assert (len(batch.envelopes), again.lost, len(other.lost)) == (2, (), 2)


RUN = "8a1c1a52-6b8f-4e56-9d5c-000000000001"


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
    pipeline.clock.forward(3600)
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


RUNS, UNITS_EACH = ("one", "two"), 3


@pytest.mark.clause("IEN-08")
def test_two_runs_that_commit_at_once_leave_one_open_window_of_each_stage(
    make_pipeline: Callable[..., Pipeline], database_url: str, queue: FakeQueue
) -> None:
    pipelines = [make_pipeline(url=database_url, queue=queue) for _ in RUNS]
    items = volumes(len(RUNS) * UNITS_EACH)
    deliver(pipelines[0], *items)
    together = threading.Barrier(len(RUNS), timeout=120)

    def run(pipeline: Pipeline, run_id: str) -> None:
        batch: StageBatch | None = None
        try:
            for kind in chain():
                first = {"limit": UNITS_EACH} if kind is MessageParse else {}
                stage = pipeline.stages.run(node(pipeline, kind, run_id, **first), run_id=run_id, upstream=batch)
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
        name = f"{DATASET}.{operator}@{PARTITION}"
        earlier, later = sorted(pipelines[0].nodes.outputs_of(name), key=lambda output: output.valid_to is None)
        assert (earlier.valid_to is None, later.valid_to) == (False, None)
        assert pipelines[0].nodes.newest(name) == later
    trees.assert_consistent(Path(pipelines[0].settings.catalog))
    verify_chain(pipelines[0].stages.lifecycle.store.audit.lines())
