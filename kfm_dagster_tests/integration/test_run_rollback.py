"""A run that fails at any stage is rolled back completely; other runs keep their work.

Each test ends with a check of what a person sees: catalog, lineage and ledger are unchanged, or each succeeded unit
has its Item and lineage, and no other unit has any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from kfm_dagster.catalog import store as catalog_store
from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.contracts.issues import FenceIssue
from kfm_dagster.errors import DependencyUnavailableError, KfmError
from kfm_dagster.failpoints import Failpoint, Labels, install
from kfm_dagster.ingest.chain import ClaimsLostError, roll_back, roll_back_or_leave
from kfm_dagster.ingest.node import ChainNode
from kfm_dagster.ingest.nodes import (
    IntegrityCheck,
    MessageParse,
    MetadataExtract,
    ProvenanceEmit,
    Settle,
    StacRegister,
    chain,
    operators,
)
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.run_replay import ReplayedParse, compare_run
from kfm_dagster.ledger.policy import LedgerCode
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.run_state.object_store import ObjectRunState
from kfm_dagster.run_state.record import RunState
from kfm_dagster.stages.audit import verify_chain
from kfm_dagster.stages.batch import SkipCause, StageBatch
from kfm_dagster.stages.card import StageState
from kfm_dagster.stages.failure import StageFailedError
from kfm_dagster.stages.lifecycle import StageLifecycle
from kfm_dagster.stages.store import StageAttempt
from kfm_dagster_tests.catalog import trees
from kfm_dagster_tests.factories import repeat_units
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import (
    DATASET,
    PARTITION,
    CrashError,
    assert_conserved,
    deliver,
    node,
    renumbered,
    run_pending,
    step,
    steps,
    volumes,
)
from kfm_dagster_tests.integration.test_run_replay import PERSON, replayed
from kfm_dagster_tests.transactions import own_tx

EARLIER, REWRITTEN, UNITS = 4, 2, 3
KINDS = list(chain())
COMPENSATED = {
    ProvenanceEmit.operator: ["nexrad-l2.stac_register"],
    Settle.operator: ["nexrad-l2.provenance_emit", "nexrad-l2.stac_register"],
}
"""Failing stage > earlier stages that are rolled back, in this order."""


def state_of(pipeline: Pipeline) -> dict[str, Any]:
    """Return the published files, the lineage view, and the status of every unit."""
    records = own_tx(pipeline.ledger).find(limit=100)
    return {
        "files": trees.files(Path(pipeline.settings.catalog)),
        "lineage": {record.wal_id: pipeline.lineage.links_of(record.wal_id) for record in records},
        "ledger": {record.wal_id: record.status for record in records},
    }


def assert_whole(pipeline: Pipeline) -> None:
    """Check that every unit succeeded with Item and lineage, and that no other Item exists."""
    assert traces.statuses(pipeline) == {Status.SUCCEEDED: UNITS}
    records = traces.records(pipeline).values()
    items = traces.catalog_items(pipeline).values()
    assert sorted(item["id"] for item in items) == sorted(str(record.stac_item_id) for record in records)
    trees.assert_consistent(Path(pipeline.settings.catalog))
    assert all(len(pipeline.lineage.links_of(record.wal_id)) == 2 for record in records)
    assert_conserved(pipeline)


def compensations(pipeline: Pipeline) -> list[str]:
    return [line["event"] for line in traces.audited(pipeline, "compensation")]


class InjectedError(KfmError):
    """The stage's injected failure."""


WHY = InjectedError(observed="injected")
fail = Mock(side_effect=WHY)


def run_until(pipeline: Pipeline, last: str, *, point: str, run_id: str) -> ChainNode:
    """Run the chain up to a node that fails after its work (computed) or in its transaction."""
    batch: StageBatch | None = None
    for kind in KINDS:
        if kind.operator == last:
            break
        batch = step(pipeline, node(pipeline, kind, run_id), batch)
    failing = node(pipeline, kind, run_id)
    setattr(failing, "verify" if point == "computed" else "summarize", fail)
    with pytest.raises((StageFailedError, InjectedError)):
        step(pipeline, failing, batch)
    stage_node: ChainNode = node(pipeline, kind, run_id)
    return stage_node


@pytest.mark.clause("PCS-03")
@pytest.mark.parametrize(
    ("last", "point", "database_url"),
    [
        *((operator, "computed", "sqlite") for operator in operators()),
        (StacRegister.operator, "committing", "sqlite"),
        *((Settle.operator, "committing", database) for database in ("sqlite", "postgresql")),
    ],
    indirect=["database_url"],
)
def test_a_run_that_fails_at_any_stage_changes_nothing(pipeline: Pipeline, last: str, point: str) -> None:
    items = volumes(2 * EARLIER)
    deliver(pipeline, *items[:EARLIER])
    run_pending(pipeline, "earlier")
    later = [*(renumbered(item) for item in items[:REWRITTEN]), *items[EARLIER:]]
    deliver(pipeline, *later)
    before = state_of(pipeline)
    assert list(before["ledger"].values()).count(Status.PENDING) == len(later)

    failed = run_until(pipeline, last, point=point, run_id="failing")
    rollback = roll_back(failed, WHY)

    assert state_of(pipeline) == before
    assert_conserved(pipeline)
    store = pipeline.stages.lifecycle.store
    assert own_tx(store).newest("failing", failed.kind).state is StageState.ROLLED_BACK
    if last == MessageParse.operator:
        assert rollback is None
    else:
        assert list(rollback.compensated) == COMPENSATED.get(last, [])
        assert compensations(pipeline) == ["done", *["done"] * len(rollback.compensated), "run rolled back"]
        unit = own_tx(pipeline.ledger).find(status=Status.PENDING, limit=1)[0]
        codes = [change.reason for change in own_tx(pipeline.ledger).history(unit.wal_id)]
        assert codes[-3:] == ["claimed", LedgerCode.ROLLED_BACK, "retry"]
        assert unit.last_error_message == f"the run was rolled back: {WHY}"
        parsed = pipeline.stages.run_states.get("nexrad-l2.message_parse", "failing")
        assert (parsed.artifact_uri, parsed.rolled_back_by) == (None, failed.kind)
    verify_chain(store.audit.lines())

    run_pending(pipeline, "next")
    assert set(traces.statuses(pipeline)) == {Status.SUCCEEDED}
    trees.assert_consistent(Path(pipeline.settings.catalog))
    assert all(len(pipeline.lineage.links_of(record.wal_id)) for record in own_tx(pipeline.ledger).find(limit=100))


@pytest.mark.clause("PCS-03")
def test_a_run_whose_re_execution_fails_at_an_earlier_stage_is_rolled_back_completely(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run-state and catalog still contain what the first execution wrote in stages after the failed one."""
    deliver(pipeline, *volumes(UNITS))
    before = state_of(pipeline)
    run_until(pipeline, ProvenanceEmit.operator, point="computed", run_id="twice")
    states = pipeline.stages.run_states
    registered = states.get("nexrad-l2.stac_register", "twice")
    assert registered.artifact_uri is not None
    # With other parameters the stage is executed again, and fails.
    monkeypatch.setattr(MetadataExtract, "params", lambda _: {"other": True})
    failed = run_until(pipeline, MetadataExtract.operator, point="computed", run_id="twice")

    assert list(roll_back(failed, WHY).compensated) == ["nexrad-l2.stac_register"]
    assert state_of(pipeline) == before
    revoked = states.get("nexrad-l2.stac_register", "twice")
    assert (revoked.artifact_uri, revoked.rolled_back_by) == (None, failed.kind)
    run_pending(pipeline, "next")
    assert traces.statuses(pipeline) == {Status.SUCCEEDED: 3}


@pytest.mark.clause("PCS-03", "BEY-02")
def test_effects_that_another_run_can_rely_on_are_not_rolled_back(pipeline: Pipeline) -> None:
    deliver(pipeline, *volumes(UNITS))
    failed = run_until(pipeline, Settle.operator, point="computed", run_id="slow")
    released = own_tx(pipeline.ledger).release_lost(run_ids=["slow"])
    run_pending(pipeline, "quick")
    after = state_of(pipeline)
    with pytest.raises(ClaimsLostError, match="3 of 3 claims"):
        roll_back(failed, WHY)
    assert roll_back_or_leave(failed, WHY) is None
    assert state_of(pipeline) == after
    assert len(released.requeued) == 3
    last = list(pipeline.stages.lifecycle.store.audit.lines())[-1]
    assert (last["event"], last["details"]) == ("run not rolled back", {"error": "ClaimsLostError"})


@pytest.mark.clause("PCS-03")
def test_a_run_is_not_rolled_back_while_another_process_has_taken_over_the_failed_stage(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver(pipeline, *volumes(UNITS))
    failed = run_until(pipeline, IntegrityCheck.operator, point="computed", run_id="twice")
    load, work = pipeline.stages.port.load_output, list[StageBatch]()

    def after_the_other(dataset_id: str, run_id: str) -> StageBatch | None:
        claimed = load(dataset_id, run_id)
        if not work:
            work.append(step(pipeline, node(pipeline, IntegrityCheck, "twice"), claimed))
        return claimed

    # The other process executes the stage after the rollback has read the stage's state, and before its transaction.
    monkeypatch.setattr(type(pipeline.stages.port), "load_output", lambda _, *key: after_the_other(*key))
    assert roll_back(failed, WHY) is None
    assert traces.statuses(pipeline) == {Status.IN_PROGRESS: 3}
    steps(pipeline, "twice", KINDS[KINDS.index(IntegrityCheck) + 1 :], work[0])
    assert traces.statuses(pipeline) == {Status.SUCCEEDED: 3}


@pytest.mark.clause("PCS-03")
def test_claims_stay_while_the_catalog_is_unreachable_and_a_rollback_survives_an_unanswered_commit(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver(pipeline, *volumes(UNITS))
    failed = run_until(pipeline, Settle.operator, point="computed", run_id="failing")
    links = state_of(pipeline)["lineage"]
    monkeypatch.setattr(type(pipeline.catalog), "undo", fail)
    assert roll_back_or_leave(failed, WHY) is None
    assert traces.statuses(pipeline) == {Status.IN_PROGRESS: 3}
    assert state_of(pipeline)["lineage"] == links
    monkeypatch.undo()
    commits = count(1)

    def lost(failpoint: Failpoint, _: Labels) -> None:
        if failpoint is Failpoint.DATABASE_COMMIT_AFTER and next(commits) == 1:
            raise ConnectionError("the server closed the connection")

    install(lost)
    try:
        assert roll_back_or_leave(failed, WHY) is not None
    finally:
        install(None)
    assert traces.statuses(pipeline) == {Status.PENDING: 3}
    assert list(pipeline.stages.lifecycle.store.audit.lines())[-1]["event"] == "run rolled back"


@pytest.mark.clause("PCS-03", "RSP-07")
@pytest.mark.parametrize(
    "unanswered", [{1}, {2}, set(range(1, 11))], ids=["first write", "second write", "every write"]
)
def test_a_rollback_rewrites_run_state_outside_the_database_or_audits_that_this_failed(
    make_pipeline: Callable[..., Pipeline],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unanswered: set[int],
) -> None:
    pipeline = make_pipeline(run_state=str(tmp_path / "runs"))
    deliver(pipeline, *volumes(UNITS))
    failed = run_until(pipeline, Settle.operator, point="computed", run_id="failing")
    write, calls = ObjectRunState._write, count(1)

    def sometimes(self: ObjectRunState, record: RunState, content: bytes) -> None:
        if next(calls) in unanswered:
            raise DependencyUnavailableError(observed="503")
        write(self, record, content)

    monkeypatch.setattr(ObjectRunState, "_write", sometimes)
    assert list(roll_back_or_leave(failed, WHY).compensated) == COMPENSATED[Settle.operator]
    assert traces.statuses(pipeline) == {Status.PENDING: 3}
    is_rewritten = len(unanswered) == 1
    assert compensations(pipeline) == ["done"] * 3 + ["run rolled back"] + (
        [] if is_rewritten else ["run-state not revoked"]
    )
    upstream = [state for state in pipeline.stages.run_states.of_run("failing") if state.dataset_id != failed.kind]
    assert [state.rolled_back_by for state in upstream] == [failed.kind if is_rewritten else None] * 5


@pytest.mark.clause("PCS-03", "BEY-02")
@pytest.mark.parametrize("kind", [StacRegister, ProvenanceEmit])
def test_a_worker_that_resumes_after_its_lease_undoes_nothing_of_the_next_run(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, kind: type[ChainNode]
) -> None:
    deliver(pipeline, *volumes(UNITS))
    batch = steps(pipeline, "slow", KINDS[: KINDS.index(kind)])
    stalled = node(pipeline, kind, "slow")

    def sleeps(_batch: Sequence[Envelope]) -> None:
        pipeline.clock.forward(2_000)
        assert len(own_tx(pipeline.ledger).release_lost().requeued) == UNITS
        run_pending(pipeline, "quick")
        raise ConnectionError("the connection that it waited on is gone")

    monkeypatch.setattr(stalled, "verify", sleeps, raising=False)
    with pytest.raises(StageFailedError):
        pipeline.stages.run(stalled, run_id="slow", upstream=batch)
    assert roll_back_or_leave(stalled, WHY) is None
    assert_whole(pipeline)
    assert compensations(pipeline) == ["left"]
    assert own_tx(pipeline.stages.lifecycle.store).newest("slow", stalled.kind).state is StageState.FAILED


def ingest(pipeline: Pipeline) -> None:
    deliver(pipeline, *volumes(UNITS))
    run_pending(pipeline, "original")


@pytest.mark.clause("PCS-08")
def test_a_stage_executed_again_after_its_run_was_settled_keeps_its_results(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    validate, refusals = catalog_store.validate_item, iter([["injected"]])
    with monkeypatch.context() as patched:
        # One Item is refused, so registration is partial and the unit failed.
        patched.setattr(catalog_store, "validate_item", lambda item: next(refusals, None) or validate(item))
        ingest(pipeline)
    assert traces.statuses(pipeline) == {Status.SUCCEEDED: UNITS - 1, Status.FAILED: 1}
    recorded = pipeline.stages.run_states.get(f"{DATASET}.{StacRegister.operator}", "original")
    upstream = pipeline.stages.port.load_output(f"{DATASET}.{MetadataExtract.operator}", "original")
    rerun = node(pipeline, StacRegister, "original")
    batch = step(pipeline, rerun, upstream)
    assert (batch.state, batch.skipped) == (recorded, SkipCause.ALREADY_SUCCEEDED)
    plan = pipeline.card.replay_plan.replay
    compared = list(compare_run(pipeline, dataset=DATASET, run_id="original"))
    assert [comparison.diverges(plan) for comparison in compared] == [False] * len(compared)


@pytest.mark.clause("PCS-08")
def test_the_replay_of_a_run_keeps_its_items_if_a_later_run_has_ingested_a_unit_again(pipeline: Pipeline) -> None:
    ingest(pipeline)
    unit = own_tx(pipeline.ledger).find(status=Status.SUCCEEDED, limit=1)[0]
    repeat_units(pipeline.ledger, unit.wal_id)
    run_pending(pipeline, "repeat")
    replayed(pipeline)
    assert_whole(pipeline)
    assert compensations(pipeline) == ["left"]


@pytest.mark.clause("PCS-08")
def test_a_replay_keeps_the_items_if_its_dataset_is_switched_off_before_the_compensation(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(pipeline)
    before = trees.files(Path(pipeline.settings.catalog))
    after_commit = ReplayedParse.after_commit

    def late(replay: ReplayedParse, batch: Sequence[Envelope]) -> None:
        pipeline.ledger.switches.engage(DATASET, PERSON, expires_at=pipeline.clock() + timedelta(hours=1))
        after_commit(replay, batch)

    monkeypatch.setattr(ReplayedParse, "after_commit", late)
    replay = node(pipeline, ReplayedParse, "replay", original="original", decision=PERSON)
    step(pipeline, replay)
    assert trees.files(Path(pipeline.settings.catalog)) == before
    [line] = traces.audited(pipeline, "compensation")
    assert (line["event"], line["details"]["reason"]) == ("left", FenceIssue.KILL_SWITCH)


@pytest.mark.clause("PCS-08")
def test_a_replay_whose_compensation_fails_halfway_restores_the_removed_items(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(pipeline)
    undo = type(pipeline.catalog).undo

    def breaks(*arguments: Any, **more: Any) -> None:
        undo(*arguments, **more)
        raise OSError("the catalog's place is gone")

    monkeypatch.setattr(type(pipeline.catalog), "undo", breaks)
    replayed(pipeline)
    assert_whole(pipeline)
    assert compensations(pipeline) == ["failed"]


@pytest.mark.clause("PCS-03")
def test_a_failed_attempt_undoes_nothing_once_the_next_attempt_has_started(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver(pipeline, *volumes(UNITS))
    register = list(operators()).index(StacRegister.operator)
    batch = steps(pipeline, "run", KINDS[:register])
    roll_back = StageLifecycle._roll_back

    def late(lifecycle: StageLifecycle, of: ChainNode, failed: StageAttempt, received: StageBatch | None) -> None:
        steps(pipeline, "run", KINDS[register:], batch)
        roll_back(lifecycle, of, failed, received)

    monkeypatch.setattr(StageLifecycle, "_roll_back", late)
    first = node(pipeline, KINDS[register], "run")
    monkeypatch.setattr(first, "verify", fail)
    with pytest.raises(StageFailedError):
        pipeline.stages.run(first, run_id="run", upstream=batch)
    assert_whole(pipeline)
    assert compensations(pipeline) == []


@pytest.mark.clause("PCS-08")
@pytest.mark.parametrize("end", [CrashError, ConnectionError])
def test_a_replay_that_ends_before_its_commit_leaves_the_original_unchanged(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, end: type[BaseException]
) -> None:
    ingest(pipeline)
    before = trees.files(Path(pipeline.settings.catalog))
    replay = ReplayedParse(
        pipeline=pipeline, dataset=DATASET, partition=PARTITION, run_id="replay", original="original", decision=PERSON
    )

    monkeypatch.setattr(replay, "summarize", Mock(side_effect=end), raising=False)
    with pytest.raises(end):
        step(pipeline, replay)
    pipeline.stages.lifecycle.close(["replay"])
    own_tx(pipeline.ledger).release_lost(run_ids=["replay"])
    assert trees.files(Path(pipeline.settings.catalog)) == before
    assert_whole(pipeline)
