"""A run that fails at any stage is taken back whole: catalog, lineage and ledger are what they were."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.demo.samples.nexrad_level2 import nexrad_level2_samples
from kfm_dagster.errors import DependencyUnavailableError, KfmError
from kfm_dagster.failpoints import Failpoint, Labels, install
from kfm_dagster.ingest.node import ChainNode
from kfm_dagster.ingest.nodes import (
    IntegrityCheck,
    MessageParse,
    MetadataExtract,
    ProvenanceEmit,
    Settle,
    Source,
    StacRegister,
    chain,
    operators,
)
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.rollback import ClaimsLostError, roll_back, roll_back_or_leave
from kfm_dagster.ledger.policy import LedgerCode
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.run_state.object_store import ObjectRunState
from kfm_dagster.run_state.record import RunState
from kfm_dagster.stages.audit import verify_chain
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster.stages.card import StageState
from kfm_dagster.stages.failure import StageFailedError
from kfm_dagster_tests.catalog import trees
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import (
    DAY,
    StoredObject,
    announce,
    assert_conserved,
    good,
    put,
    replaced,
    run_chain,
    take,
)
from kfm_dagster_tests.transactions import own_tx

PARTITION = DAY.isoformat()
MOST_UNITS = 500
FEW_UNITS = 20
EARLIER = 20
REWRITTEN = 5
NODES: dict[str, type[ChainNode]] = {node.operator: node for node in chain()}
COMPENSATED = {
    ProvenanceEmit.operator: ["nexrad-l2.stac_register"],
    Settle.operator: ["nexrad-l2.provenance_emit", "nexrad-l2.stac_register"],
}
"""Stage that fails > stages before it whose effects are taken back, in this order."""


@cache
def volumes_of_the_day() -> tuple[StoredObject, ...]:
    return tuple(
        good(bucket, key, content) for bucket, key, content in nexrad_level2_samples(DAY, EARLIER + MOST_UNITS)
    )


def renumbered(item: StoredObject) -> StoredObject:
    """The volume under another volume number (ICD 2620010, volume header, bytes 9 to 11)."""
    return replaced(item, item.announced[:9] + b"777" + item.announced[12:])


def arrive(pipeline: Pipeline, root: Path, objects: list[StoredObject], name: str) -> None:
    put(root, objects)
    take(pipeline, announce([item.event() for item in objects], registry=pipeline.registry, name=name))


def state_of(pipeline: Pipeline) -> dict[str, Any]:
    """What stands: published files, the lineage view, and the status of every unit."""
    records = own_tx(pipeline.ledger).find(limit=10_000)
    return {
        "files": trees.files(Path(pipeline.settings.catalog)),
        "lineage": {record.wal_id: pipeline.lineage.links_of(record.wal_id) for record in records},
        "ledger": {record.wal_id: record.status for record in records},
    }


class InjectedError(KfmError):
    """The stage fails here."""


WHY = InjectedError(observed="injected")


def fail(*_: object) -> Any:
    raise InjectedError(observed="injected")


def run_until(pipeline: Pipeline, last: str, *, point: str, run_id: str) -> ChainNode:
    """Run the chain up to a node that fails after its work (computed), or inside its transaction (committing)."""
    shared: dict[str, Any] = {"pipeline": pipeline, "dataset": "nexrad-l2", "partition": PARTITION, "run_id": run_id}
    batch: StageBatch | None = None
    for operator, kind in NODES.items():
        first = {"source": Source.LEDGER, "limit": 10_000} if operator == MessageParse.operator else {}
        node: Any = kind(**shared, **first)
        if operator == last:
            setattr(node, "verify" if point == "computed" else "summarize", fail)
        try:
            batch = pipeline.stages.commit(pipeline.stages.run(node, run_id=run_id, upstream=batch))
        except (StageFailedError, InjectedError):
            assert operator == last
            return kind(**shared, **first)
    raise AssertionError("nothing failed")


@pytest.mark.clause("PCS-03")
@pytest.mark.parametrize(
    ("last", "point"),
    [
        *((operator, "computed") for operator in operators()),
        (StacRegister.operator, "committing"),
        (Settle.operator, "committing"),
    ],
)
def test_a_run_that_fails_at_any_stage_leaves_everything_as_it_was(
    pipeline: Pipeline, objects: Path, last: str, point: str
) -> None:
    # Every stage has its part in what the last one takes back, so a large run fails there.
    units = MOST_UNITS if (last, point) == (Settle.operator, "computed") else FEW_UNITS
    items = list(volumes_of_the_day())
    arrive(pipeline, objects, items[:EARLIER], "earlier")
    run_chain(pipeline, "nexrad-l2", PARTITION, "earlier", Source.LEDGER)
    rewritten = [renumbered(item) for item in items[:REWRITTEN]]
    arrive(pipeline, objects, [*rewritten, *items[EARLIER : EARLIER + units - REWRITTEN]], "later")
    before = state_of(pipeline)
    assert list(before["ledger"].values()).count(Status.PENDING) == units

    node = run_until(pipeline, last, point=point, run_id="failing")
    rollback = roll_back(node, WHY)

    assert state_of(pipeline) == before
    assert_conserved(pipeline)
    store = pipeline.stages.lifecycle.store
    newest = own_tx(store).newest("failing", node.kind)
    assert newest is not None
    assert newest.state is StageState.ROLLED_BACK
    if last == MessageParse.operator:
        assert rollback is None
    else:
        assert rollback is not None
        assert list(rollback.compensated) == COMPENSATED.get(last, [])
        told = [line["event"] for line in store.audit.lines() if line["kind"] == "compensation"]
        assert told == ["done", *["done"] * len(rollback.compensated), "run rolled back"]
        unit = own_tx(pipeline.ledger).find(status=Status.PENDING, limit=1)[0]
        codes = [change.reason for change in own_tx(pipeline.ledger).history(unit.wal_id)]
        assert codes[-3:] == ["claimed", LedgerCode.ROLLED_BACK, "retry"]
        assert unit.last_error_message == f"the run was taken back: {WHY}"
        parsed = pipeline.stages.run_states.get("nexrad-l2.message_parse", "failing")
        assert parsed is not None
        assert (parsed.artifact_uri, parsed.rolled_back_by) == (None, node.kind)
    verify_chain(store.audit.lines())

    run_chain(pipeline, "nexrad-l2", PARTITION, "next", Source.LEDGER)
    assert set(traces.statuses(pipeline)) == {Status.SUCCEEDED}
    trees.assert_consistent(Path(pipeline.settings.catalog))
    assert all(len(pipeline.lineage.links_of(record.wal_id)) for record in own_tx(pipeline.ledger).find(limit=10_000))


@pytest.mark.clause("PCS-03")
def test_a_run_whose_re_execution_fails_sooner_is_taken_back_whole(
    pipeline: Pipeline, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an earlier process of the run did after the stage that fails stayed in run-state and catalog."""
    arrive(pipeline, objects, list(volumes_of_the_day()[:3]), "three")
    before = state_of(pipeline)
    run_until(pipeline, ProvenanceEmit.operator, point="computed", run_id="twice")
    states = pipeline.stages.run_states
    registered = states.get("nexrad-l2.stac_register", "twice")
    assert registered is not None
    assert registered.artifact_uri is not None
    # With other parameters the stage is done again, and fails.
    monkeypatch.setattr(MetadataExtract, "params", lambda _: {"other": True})
    node = run_until(pipeline, MetadataExtract.operator, point="computed", run_id="twice")

    rollback = roll_back(node, WHY)

    assert rollback is not None
    assert list(rollback.compensated) == ["nexrad-l2.stac_register"]
    assert state_of(pipeline) == before
    taken_back = states.get("nexrad-l2.stac_register", "twice")
    assert taken_back is not None
    assert (taken_back.artifact_uri, taken_back.rolled_back_by) == (None, node.kind)
    run_chain(pipeline, "nexrad-l2", PARTITION, "next", Source.LEDGER)
    assert traces.statuses(pipeline) == {Status.SUCCEEDED: 3}


@pytest.mark.clause("PCS-03", "BEY-02")
def test_nothing_is_taken_back_that_another_run_may_rely_on(pipeline: Pipeline, objects: Path) -> None:
    arrive(pipeline, objects, list(volumes_of_the_day()[:3]), "three")
    node = run_until(pipeline, Settle.operator, point="computed", run_id="slow")
    taken = own_tx(pipeline.ledger).release_lost(run_ids=["slow"])
    run_chain(pipeline, "nexrad-l2", PARTITION, "quick", Source.LEDGER)
    after = state_of(pipeline)
    with pytest.raises(ClaimsLostError, match="3 of 3 claims"):
        roll_back(node, WHY)
    assert roll_back_or_leave(node, WHY) is None
    assert state_of(pipeline) == after
    assert len(taken.requeued) == 3
    last = list(pipeline.stages.lifecycle.store.audit.lines())[-1]
    assert (last["event"], last["details"]) == ("run not rolled back", {"error": "ClaimsLostError"})


@pytest.mark.clause("PCS-03")
def test_a_run_is_not_taken_back_under_the_process_that_took_the_failed_stage_over(
    pipeline: Pipeline, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrive(pipeline, objects, list(volumes_of_the_day()[:3]), "three")
    failed = run_until(pipeline, IntegrityCheck.operator, point="computed", run_id="twice")
    load, work = pipeline.stages.load_output, list[StageBatch]()

    def after_the_other(dataset_id: str, run_id: str) -> StageBatch | None:
        claimed = load(dataset_id, run_id)
        if not work:
            again = IntegrityCheck(**shared)
            work.append(pipeline.stages.commit(pipeline.stages.run(again, run_id="twice", upstream=claimed)))
        return claimed

    shared: dict[str, Any] = {
        "pipeline": pipeline, "dataset": "nexrad-l2", "partition": PARTITION, "run_id": "twice",
    }  # fmt: skip
    # Between the look at the stage and the transaction.
    monkeypatch.setattr(type(pipeline.stages), "load_output", lambda _, *asked: after_the_other(*asked))
    assert roll_back(failed, WHY) is None
    assert traces.statuses(pipeline) == {Status.IN_PROGRESS: 3}
    batch = work[0]
    for kind in chain()[chain().index(IntegrityCheck) + 1 :]:
        batch = pipeline.stages.commit(pipeline.stages.run(kind(**shared), run_id="twice", upstream=batch))
    assert traces.statuses(pipeline) == {Status.SUCCEEDED: 3}


@pytest.mark.clause("PCS-03")
def test_a_catalog_that_cannot_be_reached_leaves_the_claims_to_the_units_next_attempt(
    pipeline: Pipeline, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrive(pipeline, objects, list(volumes_of_the_day()[:3]), "three")
    node = run_until(pipeline, Settle.operator, point="computed", run_id="failing")
    links = state_of(pipeline)["lineage"]
    monkeypatch.setattr(type(pipeline.catalog), "undo", fail)
    assert roll_back_or_leave(node, WHY) is None
    assert traces.statuses(pipeline) == {Status.IN_PROGRESS: 3}
    assert state_of(pipeline)["lineage"] == links
    monkeypatch.undo()
    assert roll_back(node, WHY) is not None
    assert traces.statuses(pipeline) == {Status.PENDING: 3}


@pytest.mark.clause("PCS-03", "RSP-07")
@pytest.mark.parametrize(
    "unanswered", [{1}, {2}, set(range(1, 11))], ids=["first write", "second write", "every write"]
)
def test_run_state_outside_the_database_is_told_again_or_the_audit_says_that_it_was_not(
    make_pipeline: Callable[..., Pipeline],
    objects: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unanswered: set[int],
) -> None:
    pipeline = make_pipeline(run_state=str(tmp_path / "runs"))
    arrive(pipeline, objects, list(volumes_of_the_day()[:3]), "three")
    node = run_until(pipeline, Settle.operator, point="computed", run_id="failing")
    write, calls = ObjectRunState._write, count(1)

    def sometimes(self: ObjectRunState, record: RunState, content: bytes) -> None:
        if next(calls) in unanswered:
            raise DependencyUnavailableError(observed="503")
        write(self, record, content)

    monkeypatch.setattr(ObjectRunState, "_write", sometimes)
    rollback = roll_back_or_leave(node, WHY)
    assert rollback is not None
    assert list(rollback.compensated) == COMPENSATED[Settle.operator]
    assert traces.statuses(pipeline) == {Status.PENDING: 3}
    told = [line["event"] for line in pipeline.stages.lifecycle.store.audit.lines() if line["kind"] == "compensation"]
    is_told = len(unanswered) == 1
    assert told == ["done"] * 3 + ["run rolled back"] + ([] if is_told else ["run-state not taken back"])
    upstream = [state for state in pipeline.stages.run_states.of_run("failing") if state.dataset_id != node.kind]
    assert [state.rolled_back_by for state in upstream] == [node.kind if is_told else None] * 5


@pytest.mark.clause("PCS-03")
def test_a_rollback_whose_commit_was_not_answered_is_done(pipeline: Pipeline, objects: Path) -> None:
    arrive(pipeline, objects, list(volumes_of_the_day()[:3]), "three")
    node = run_until(pipeline, Settle.operator, point="computed", run_id="failing")
    commits = count(1)

    def lost(failpoint: Failpoint, _: Labels) -> None:
        if failpoint is Failpoint.DATABASE_COMMIT_AFTER and next(commits) == 1:
            raise ConnectionError("the server closed the connection")

    install(lost)
    try:
        assert roll_back_or_leave(node, WHY) is not None
    finally:
        install(None)
    assert traces.statuses(pipeline) == {Status.PENDING: 3}
    assert list(pipeline.stages.lifecycle.store.audit.lines())[-1]["event"] == "run rolled back"
