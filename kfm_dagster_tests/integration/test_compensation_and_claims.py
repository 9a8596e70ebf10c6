"""What is undone is nobody else's by then: Items and lineage of units that another run, or attempt, has done.

Each test ends with what an operator looks at: whatever succeeded has its Item and its lineage, and nothing else has.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.catalog import store as catalog_store
from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.contracts.issues import FenceIssue
from kfm_dagster.governance.log import GovernanceAction
from kfm_dagster.ingest.node import ChainNode
from kfm_dagster.ingest.nodes import MessageParse, MetadataExtract, ProvenanceEmit, Source, StacRegister, operators
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.rollback import roll_back_or_leave
from kfm_dagster.ingest.run_comparison import compare_run
from kfm_dagster.ingest.run_replay import ReplayedParse
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.stages.batch import SkipCause, StageBatch
from kfm_dagster.stages.card import StageState
from kfm_dagster.stages.failure import StageFailedError
from kfm_dagster.stages.lifecycle import StageLifecycle
from kfm_dagster.stages.store import StageAttempt
from kfm_dagster_tests.catalog import trees
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import CrashError, announce, assert_conserved, put, run_chain, take, volumes
from kfm_dagster_tests.integration.test_run_replay import PARTITION, PERSON, replayed
from kfm_dagster_tests.integration.test_run_rollback import NODES, WHY, fail
from kfm_dagster_tests.transactions import own_tx

DATASET = "nexrad-l2"
UNITS = 3


def arrive(pipeline: Pipeline, objects: Path) -> None:
    items = volumes(UNITS)
    put(objects, items)
    take(pipeline, announce([item.event() for item in items], registry=pipeline.registry))


def ingest(pipeline: Pipeline, objects: Path, run_id: str = "original") -> None:
    arrive(pipeline, objects)
    run_chain(pipeline, DATASET, PARTITION, run_id, Source.LEDGER)


def work(pipeline: Pipeline, run_id: str, operators: Sequence[str], batch: StageBatch | None = None) -> StageBatch:
    """Do some stages of a run, one after the other."""
    for operator in operators:
        first = {"source": Source.LEDGER, "limit": 100} if operator == MessageParse.operator else {}
        stage = pipeline.stages.run(node(pipeline, operator, run_id, **first), run_id=run_id, upstream=batch)
        batch = pipeline.stages.commit(stage)
    assert batch is not None
    return batch


def node(pipeline: Pipeline, operator: str, run_id: str, **more: Any) -> Any:
    shared: dict[str, Any] = {"pipeline": pipeline, "dataset": DATASET, "partition": PARTITION, "run_id": run_id}
    return NODES[operator](**shared, **more)


def assert_whole(pipeline: Pipeline) -> None:
    """Every unit has succeeded, and has its Item and its lineage, and the catalog has nothing else."""
    assert traces.statuses(pipeline) == {Status.SUCCEEDED: UNITS}
    records = traces.records(pipeline).values()
    found = trees.walk(Path(pipeline.settings.catalog)).values()
    assert sorted(one["id"] for one in found if one["type"] == "Feature") == sorted(
        str(r.stac_item_id) for r in records
    )
    trees.assert_consistent(Path(pipeline.settings.catalog))
    assert all(len(pipeline.lineage.links_of(record.wal_id)) == 2 for record in records)
    assert_conserved(pipeline)


def compensations(pipeline: Pipeline) -> list[str]:
    return [line["event"] for line in pipeline.stages.lifecycle.store.audit.lines() if line["kind"] == "compensation"]


@pytest.mark.clause("PCS-03", "BEY-02")
@pytest.mark.parametrize("operator", [StacRegister.operator, ProvenanceEmit.operator])
def test_a_worker_that_wakes_after_its_lease_undoes_nothing_that_the_next_run_found_standing(
    pipeline: Pipeline, objects: Path, monkeypatch: pytest.MonkeyPatch, operator: str
) -> None:
    arrive(pipeline, objects)
    chain = list(operators())
    batch = work(pipeline, "slow", chain[: chain.index(operator)])
    stalled = node(pipeline, operator, "slow")

    def sleeps(_batch: Sequence[Envelope]) -> None:
        pipeline.clock.forward(2_000)  # type: ignore[attr-defined]  # a test's clock
        assert len(own_tx(pipeline.ledger).release_lost().requeued) == UNITS
        run_chain(pipeline, DATASET, PARTITION, "quick", Source.LEDGER)
        raise ConnectionError("the connection that it waited on is gone")

    monkeypatch.setattr(stalled, "verify", sleeps, raising=False)
    with pytest.raises(StageFailedError):
        pipeline.stages.run(stalled, run_id="slow", upstream=batch)
    assert roll_back_or_leave(stalled, WHY) is None
    assert_whole(pipeline)
    assert compensations(pipeline) == ["left"]
    newest = own_tx(pipeline.stages.lifecycle.store).newest("slow", stalled.kind)
    assert newest is not None
    assert newest.state is StageState.FAILED


def partial(pipeline: Pipeline, objects: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ingest, with one Item refused: registration is partial, and its unit failed."""
    validate, seen = catalog_store.validate_item, list[str]()

    def refuses_the_first(item: dict[str, Any]) -> list[str]:
        seen.append(item["id"])
        return ["injected"] if len(seen) == 1 else validate(item)

    monkeypatch.setattr(catalog_store, "validate_item", refuses_the_first)
    ingest(pipeline, objects)
    monkeypatch.setattr(catalog_store, "validate_item", validate)
    assert traces.statuses(pipeline) == {Status.SUCCEEDED: UNITS - 1, Status.FAILED: 1}


@pytest.mark.clause("PCS-08")
def test_a_stage_that_is_executed_again_after_its_run_was_settled_keeps_what_had_come_of_it(
    pipeline: Pipeline, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial(pipeline, objects, monkeypatch)
    recorded = pipeline.stages.run_states.get(f"{DATASET}.{StacRegister.operator}", "original")
    upstream = pipeline.stages.port.load_output(f"{DATASET}.{MetadataExtract.operator}", "original")
    again = node(pipeline, StacRegister.operator, "original")
    batch = pipeline.stages.commit(pipeline.stages.run(again, run_id="original", upstream=upstream))
    assert (batch.state, batch.skipped) == (recorded, SkipCause.ALREADY_SUCCEEDED)
    plan = pipeline.card.replay_plan.replay
    compared = list(compare_run(pipeline, dataset=DATASET, run_id="original"))
    assert [comparison.diverges(plan) for comparison in compared] == [False] * len(compared)


@pytest.mark.clause("PCS-03")
def test_an_attempt_that_failed_undoes_nothing_once_the_next_one_has_begun(
    pipeline: Pipeline, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrive(pipeline, objects)
    chain = list(operators())
    batch = work(pipeline, "run", chain[: chain.index(StacRegister.operator)])
    roll_back = StageLifecycle._roll_back

    def late(lifecycle: StageLifecycle, of: ChainNode, failed: StageAttempt, received: StageBatch | None) -> None:
        work(pipeline, "run", chain[chain.index(StacRegister.operator) :], batch)
        roll_back(lifecycle, of, failed, received)

    monkeypatch.setattr(StageLifecycle, "_roll_back", late)
    first = node(pipeline, StacRegister.operator, "run")
    monkeypatch.setattr(first, "verify", fail)
    with pytest.raises(StageFailedError):
        pipeline.stages.run(first, run_id="run", upstream=batch)
    assert_whole(pipeline)
    assert compensations(pipeline) == []


@pytest.mark.clause("PCS-08")
def test_a_replay_leaves_items_that_a_repeat_of_one_unit_relies_on(pipeline: Pipeline, objects: Path) -> None:
    ingest(pipeline, objects)
    unit = own_tx(pipeline.ledger).find(status=Status.SUCCEEDED, limit=1)[0]
    versions = {unit.wal_id: unit.version}
    repeat = {"from_status": Status.SUCCEEDED, "action": GovernanceAction.REPEAT, "decision": PERSON}
    assert own_tx(pipeline.ledger).override(versions, **repeat) == {unit.wal_id}  # type: ignore[arg-type]
    run_chain(pipeline, DATASET, PARTITION, "repeat", Source.LEDGER)
    replayed(pipeline)
    assert_whole(pipeline)
    assert compensations(pipeline) == ["left"]


@pytest.mark.clause("PCS-08")
@pytest.mark.parametrize("end", [CrashError, ConnectionError])
def test_a_replay_that_ends_before_its_commit_leaves_the_original_as_it_was(
    pipeline: Pipeline, objects: Path, monkeypatch: pytest.MonkeyPatch, end: type[BaseException]
) -> None:
    ingest(pipeline, objects)
    before = trees.files(Path(pipeline.settings.catalog))
    replay = ReplayedParse(
        pipeline=pipeline, dataset=DATASET, partition=PARTITION, run_id="replay", original="original", decision=PERSON
    )

    def ends(_batch: Sequence[Envelope]) -> None:
        raise end

    monkeypatch.setattr(replay, "summarize", ends, raising=False)
    with pytest.raises(end):
        pipeline.stages.commit(pipeline.stages.run(replay, run_id="replay", upstream=None))
    pipeline.stages.lifecycle.close(["replay"])
    own_tx(pipeline.ledger).release_lost(run_ids=["replay"])
    assert trees.files(Path(pipeline.settings.catalog)) == before
    assert_whole(pipeline)


@pytest.mark.clause("PCS-08")
def test_a_replay_whose_dataset_is_switched_off_before_its_compensation_leaves_the_items(
    pipeline: Pipeline, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(pipeline, objects)
    before = trees.files(Path(pipeline.settings.catalog))
    after_commit = ReplayedParse.after_commit

    def late(replay: ReplayedParse, batch: Sequence[Envelope]) -> None:
        pipeline.ledger.switches.engage(DATASET, PERSON, expires_at=pipeline.clock() + timedelta(hours=1))
        after_commit(replay, batch)

    monkeypatch.setattr(ReplayedParse, "after_commit", late)
    replay = ReplayedParse(
        pipeline=pipeline, dataset=DATASET, partition=PARTITION, run_id="replay", original="original", decision=PERSON
    )
    pipeline.stages.commit(pipeline.stages.run(replay, run_id="replay", upstream=None))
    assert trees.files(Path(pipeline.settings.catalog)) == before
    [line] = [line for line in pipeline.stages.lifecycle.store.audit.lines() if line["kind"] == "compensation"]
    assert (line["event"], line["details"]["reason"]) == ("left", FenceIssue.KILL_SWITCH)


@pytest.mark.clause("PCS-08")
def test_a_replay_whose_compensation_fails_half_way_writes_again_what_is_gone(
    pipeline: Pipeline, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(pipeline, objects)
    undo = type(pipeline.catalog).undo

    def breaks(*given: Any, **more: Any) -> None:
        undo(*given, **more)
        raise OSError("the catalog's place is gone")

    monkeypatch.setattr(type(pipeline.catalog), "undo", breaks)
    replayed(pipeline)
    assert_whole(pipeline)
    assert compensations(pipeline) == ["failed"]
