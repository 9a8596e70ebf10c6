"""The IO manager's port to run-state: asked before an operator works, told of every outcome, shown where one skips."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import replace
from textwrap import dedent
from typing import Any

import pytest

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.defs import assets, path_arrival
from kfm_dagster.defs.run_tags import SKIPPED_TAG
from kfm_dagster.errors import ContractError
from kfm_dagster.ingest.node import ChainNode
from kfm_dagster.ingest.nodes import ProvenanceEmit, chain, operators
from kfm_dagster.lineage.store import Lineage
from kfm_dagster.run_state.record import Outcome, RunState
from kfm_dagster.run_state.store import RelationalRunState
from kfm_dagster.stages.batch import SkipCause, StageBatch
from kfm_dagster.stages.port import RunStateKey, RunStatePort
from kfm_dagster.stages.store import StageAttempt, StageStore
from kfm_dagster.storage.database import Transaction
from kfm_dagster_tests.integration.chain import DAY, announce, missing, put, take, volumes
from kfm_dagster_tests.integration.face import Face

pytestmark = pytest.mark.one_database

JOB = "ingest_nexrad_l2"
PARTITION = DAY.isoformat()
NODES = [f"nexrad-l2.{operator}" for operator in operators()]


class Books:
    """Every record that is written, and every move of a stage, with their transactions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records: list[tuple[str, Outcome, Transaction]] = []
        self.moves: list[tuple[str, Transaction]] = []
        inside = ContextVar("inside the port", default=False)
        record_, put_, move_ = RunStatePort._record, RelationalRunState.put, StageStore.move

        def record(*given: Any, **more: Any) -> RunState:
            token = inside.set(True)
            try:
                return record_(*given, **more)
            finally:
                inside.reset(token)

        def put_record(store: RelationalRunState, state: RunState, tx: Transaction) -> None:
            assert inside.get(), f"{state.dataset_id} {state.outcome} is written beside the port"
            self.records.append((state.dataset_id, state.outcome, tx))
            put_(store, state, tx)

        def move(store: StageStore, attempt: StageAttempt, *given: Any, **more: Any) -> StageAttempt:
            self.moves.append((attempt.stage, more["tx"]))
            return move_(store, attempt, *given, **more)

        monkeypatch.setattr(RunStatePort, "_record", record)
        monkeypatch.setattr(RelationalRunState, "put", put_record)
        monkeypatch.setattr(StageStore, "move", move)

    def outcomes(self) -> list[tuple[str, Outcome]]:
        """Nodes and outcomes, each of them recorded in the transaction that moved its stage; then forget them."""
        for node, outcome, tx in self.records:
            assert [one for one, of in self.moves if one == node and of is tx], f"{node} {outcome}"
        found = [(node, outcome) for node, outcome, _ in self.records]
        self.records.clear()
        return found


@pytest.mark.clause("DAG-02")
def test_every_outcome_is_recorded_through_the_port_in_the_stage_s_own_transaction(
    face: Face, objects: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [*volumes(2), missing(volumes(3)[2])]
    put(objects, items)
    take(face.pipeline, announce([item.event() for item in items], registry=face.pipeline.registry))
    books = Books(monkeypatch)
    face.execute(JOB, partition=PARTITION)
    partial = {"nexrad-l2.integrity_check", "nexrad-l2.settle"}
    assert books.outcomes() == [(node, Outcome.PARTIAL if node in partial else Outcome.SUCCESS) for node in NODES]
    # What is left is handed on, and then somebody wants it done again, and it fails.
    face.execute("path_arrival", partition=PARTITION)
    face.execute("path_arrival", partition=PARTITION)
    arrival = [one for one in books.outcomes() if one[0] == "nexrad-l2.path_arrival"]
    assert [outcome for _, outcome in arrival] == [Outcome.SUCCESS, Outcome.SKIPPED]

    def wrong(*_: object, **__: object) -> Any:
        raise ContractError(observed="what trying again does not help with")

    with monkeypatch.context() as patch:
        patch.setattr(RunStatePort, "revoke", lambda *_, **__: None)  # a rollback's, which is no outcome of a stage
        patch.setattr(Lineage, "emit", wrong)
        face.execute(JOB, partition=PARTITION, tags={"kfm/force": "to see it fail"}, raise_on_error=False)
    assert books.outcomes()[-1] == (f"nexrad-l2.{ProvenanceEmit.operator}", Outcome.FAILED)


@pytest.mark.clause("DAG-02", "RSP-03")
def test_a_skip_is_asked_of_the_port_before_the_operator_works_and_only_there(
    face: Face, objects: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(objects, volumes(1))
    told: list[str] = []
    skip = RunStatePort.skip

    def asked(port: RunStatePort, key: RunStateKey, **more: Any) -> StageBatch | None:
        told.append(f"{key.dataset_id} asks")
        return skip(port, key, **more)

    monkeypatch.setattr(RunStatePort, "skip", asked)
    for kind in chain():

        def works(node: ChainNode, of: Any = kind.transform) -> Sequence[Envelope]:
            told.append(f"{node.kind} works")
            made: Sequence[Envelope] = of(node)
            return made

        monkeypatch.setattr(kind, "transform", works)
    first = face.execute(JOB, partition=PARTITION)
    assert told == [f"{node} {does}" for node in NODES for does in ("asks", "works")]
    told.clear()
    # A run that the port knows does nothing, whatever else the database holds.

    def says_so(port: RunStatePort, key: RunStateKey, **_: Any) -> StageBatch:
        found = port.load_output(key.dataset_id, first.dagster_run.run_id)
        assert found is not None
        return replace(found, state=replace(found.state, run_id=key.run_id), skipped=SkipCause.ALREADY_SUCCEEDED)

    monkeypatch.setattr(RunStatePort, "skip", says_so)
    face.execute(JOB, partition=PARTITION, tags={"kfm/force": "the port says no"})
    assert told == []


@pytest.mark.clause("DAG-02", "DAG-16")
def test_a_run_that_skips_says_so_in_the_run_list(face: Face, objects: Any) -> None:
    put(objects, volumes(1))
    for skipped in ((None, None), ("yes", str(len(NODES)))):
        result = face.execute(JOB, partition=PARTITION)
        run = face.instance.get_run_by_id(result.dagster_run.run_id)
        assert run is not None
        assert (run.tags.get(SKIPPED_TAG), run.tags.get(f"{SKIPPED_TAG}.nexrad-l2")) == skipped


@pytest.mark.parametrize("module", [assets, path_arrival])
def test_the_body_of_an_op_is_configuration_in_operator_and_result_out(module: Any) -> None:
    tree = ast.parse(dedent(inspect.getsource(module)))
    bodies = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and any(argument.arg == "context" for argument in node.args.args)
    ]
    assert bodies
    for body in bodies:
        assert (body.end_lineno or 0) - body.body[0].lineno < 15, body.name
