"""The run contract, with test nodes, on both databases."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError
from obstore.exceptions import GenericError
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sqlalchemy.exc import DBAPIError

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.errors import ArtifactError, ContractError
from kfm_dagster.idempotent_node.compute_hash import CodeFingerprint
from kfm_dagster.idempotent_node.wal import IntentStatus
from kfm_dagster.run_state.record import Outcome
from kfm_dagster.stages.audit import AuditKind
from kfm_dagster.stages.batch import SkipCause, StageBatch
from kfm_dagster.stages.failure import RolledBackError, StageFailedError, may_be_of_a_unit
from kfm_dagster.stages.run_contract import StageRunner
from kfm_dagster_tests.factories import envelope, failed
from kfm_dagster_tests.stages.fake_node import NOW, FakeNode, execute
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.one_database


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # The tracer provider is not set globally, because a process cannot replace it later.
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


@pytest.mark.clause("RSP-03", "RSP-04")
def test_each_later_call_is_skipped_and_returns_the_output(runner: StageRunner, spans: InMemorySpanExporter) -> None:
    first = execute(runner, FakeNode([envelope(1)]))
    spans.clear()
    for _ in range(3):
        node = FakeNode([envelope(2)])
        batch = execute(runner, node)
        assert node.calls == []
        assert batch.skipped is SkipCause.ALREADY_SUCCEEDED
        assert list(batch.envelopes) == list(first.envelopes)
        assert batch.state == first.state
    finished = spans.get_finished_spans()
    assert [dict(span.attributes or {})["kfm.outcome"] for span in finished] == ["skipped"] * 3
    assert [event.name for span in finished for event in span.events] == ["skipped"] * 3


@pytest.mark.clause("RSP-03")
@pytest.mark.parametrize("change", ["parameters", "upstream", "node"])
def test_a_node_with_another_name_upstream_or_parameter_is_executed(runner: StageRunner, change: str) -> None:
    upstream = execute(runner, FakeNode([envelope(0)], kind="nexrad-l2.message_parse"))
    second = execute(runner, FakeNode([envelope(9)], kind="nexrad-l2.message_parse", setting=2))
    execute(runner, FakeNode([envelope(1)]), upstream=upstream)
    node = FakeNode(
        [envelope(2)],
        setting=2 if change == "parameters" else 1,
        kind="nexrad-l2.stac_register" if change == "node" else "nexrad-l2.integrity_check",
    )
    batch = execute(runner, node, upstream=second if change == "upstream" else upstream)
    assert node.calls == ["transform", "apply", "after_commit"]
    assert batch.skipped is None


@pytest.mark.clause("RSP-18")
@pytest.mark.parametrize("holds", [False, True], ids=["no units left", "units left"])
def test_a_run_without_units_keeps_its_record_in_spite_of_other_inputs(runner: StageRunner, *, holds: bool) -> None:
    first = execute(runner, FakeNode([envelope(1)]))
    node = FakeNode([envelope(2)], setting=2, holds=holds)
    batch = execute(runner, node)
    recorded = runner.run_states.get("nexrad-l2.integrity_check", "run")
    lines = runner.lifecycle.store.audit.of_stage("run", "nexrad-l2.integrity_check")
    noted = [line["kind"] for line in lines if line["event"] == SkipCause.OTHER_INPUTS]
    if holds:
        assert (batch.skipped, noted) == (None, [])
        assert recorded == batch.state != first.state
    else:
        assert (batch.skipped, noted, node.calls) == (SkipCause.OTHER_INPUTS, [AuditKind.STOP], [])
        assert recorded == batch.state == first.state
        assert list(batch.envelopes) == list(first.envelopes)


@pytest.mark.clause("IEN-07")
def test_content_applied_by_another_run_is_reused_and_that_run_is_recorded(runner: StageRunner) -> None:
    first = execute(runner, FakeNode([envelope(1)]))
    node = FakeNode([envelope(2)])
    batch = execute(runner, node, run_id="other")
    assert node.calls == []
    assert (batch.skipped, batch.applied_by) == (SkipCause.CONTENT_APPLIED, "run")
    assert list(batch.envelopes) == list(first.envelopes)
    recorded = runner.run_states.get("nexrad-l2.integrity_check", "other")
    assert (recorded.outcome, recorded.artifact_sha256) == (Outcome.SKIPPED, first.state.artifact_sha256)
    assert recorded.validation_summary["applied_by"] == "run"
    assert runner.port.load_output("nexrad-l2.integrity_check", "other") is not None


@pytest.mark.parametrize(
    "why",
    ["its units are in progress", "it did not succeed", "it was revoked", "a person forces it", "the code has changed"],
)
def test_content_that_must_not_be_reused_is_computed_again(runner: StageRunner, why: str) -> None:
    bad = why == "it did not succeed"
    first = execute(runner, FakeNode([failed(envelope(1))] if bad else [envelope(1)]))
    if why == "it was revoked":
        with runner.database.transaction() as tx:
            runner.run_states.put(first.state.revoked(by="replay", at=NOW), tx)
    node = FakeNode([envelope(2)], is_finished=why != "its units are in progress")
    if why == "the code has changed":
        runner = replace(runner, code=CodeFingerprint(code_sha="decaf", lockfile_hash="10cc"))
    force = "the reader was wrong" if why == "a person forces it" else None
    batch = runner.commit(runner.run(node, run_id="other", upstream=None, force=force))
    assert node.calls == ["transform", "apply", "after_commit"]
    assert batch.skipped is None
    [intent] = runner.nodes.intents.of_run("other")
    assert intent.status is IntentStatus.APPLIED
    assert intent.payload["params"].get("kfm:forced", {}).get("reason") == force


def test_after_a_reused_batch_even_the_failed_output_of_the_next_node_is_reused(runner: StageRunner) -> None:
    def chain(run_id: str) -> list[FakeNode]:
        first = FakeNode([envelope(1)], kind="nexrad-l2.message_parse")
        second = FakeNode([failed(envelope(1))])
        upstream = execute(runner, first, run_id=run_id)
        execute(runner, second, run_id=run_id, upstream=upstream)
        return [first, second]

    assert all(node.calls for node in chain("run"))
    assert not any(node.calls for node in chain("other"))


@pytest.mark.clause("IEN-06")
@pytest.mark.parametrize("in_progress", [False, True])
def test_the_second_of_two_runs_with_equal_content_reuses_the_first_output_or_applies_its_own(
    runner: StageRunner, *, in_progress: bool
) -> None:
    nodes = {run_id: FakeNode([envelope(1)], is_finished=not in_progress) for run_id in ("run", "other")}
    stages = {run_id: runner.run(node, run_id=run_id, upstream=None) for run_id, node in nodes.items()}
    batches = {run_id: runner.commit(stage) for run_id, stage in stages.items()}
    assert batches["run"].skipped is None
    assert nodes["run"].calls == ["transform", "apply", "after_commit"]
    assert (batches["other"].skipped is None) == in_progress
    assert ("apply" in nodes["other"].calls) == in_progress
    ends = [intent.status for intent in runner.nodes.intents.of_run("other")]
    assert ends == ([IntentStatus.SKIPPED, IntentStatus.APPLIED] if in_progress else [IntentStatus.SKIPPED])


@pytest.mark.clause("RSP-05", "RSP-06")
@pytest.mark.parametrize(
    ("batch", "passed", "outcome"),
    [
        ([envelope(1)], 1, Outcome.SUCCESS),
        ([], 0, Outcome.SUCCESS),
        ([envelope(1), failed(envelope(2)), envelope(3)], 2, Outcome.PARTIAL),
        ([failed(envelope(2))], 0, Outcome.FAILED),
    ],
)
def test_an_executed_node_records_its_validations_and_only_success_causes_a_skip(
    runner: StageRunner, batch: list[Envelope], passed: int, outcome: Outcome
) -> None:
    state = execute(runner, FakeNode(batch)).state
    assert runner.run_states.get("nexrad-l2.integrity_check", "run") == state
    assert state.outcome is outcome
    assert state.validation_summary == {"checks": len(batch), "passed": passed, "failed": len(batch) - passed}
    repeated = FakeNode(batch)
    assert (execute(runner, repeated).skipped is not None) == (outcome is Outcome.SUCCESS)
    assert ("transform" in repeated.calls) == (outcome is not Outcome.SUCCESS)


@pytest.mark.clause("DAG-02", "PCS-04")
@pytest.mark.parametrize("output", ["nothing", "with a failed unit", "reused"])
def test_a_failure_before_an_attempt_starts_is_recorded_unless_an_earlier_attempt_has_output(
    runner: StageRunner, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    node = FakeNode([envelope(1), failed(envelope(2))] if output == "with a failed unit" else [envelope(1)])
    if output == "reused":
        execute(runner, node, run_id="before")
    before = None if output == "nothing" else execute(runner, node).state
    monkeypatch.setattr(node, "unlocked", lambda: 1 / 0)
    with pytest.raises(StageFailedError, match="ZeroDivisionError"):
        execute(runner, node)
    recorded = runner.run_states.get(node.kind, "run")
    assert recorded.outcome is Outcome.FAILED if before is None else recorded == before


@pytest.mark.clause("DAG-06")
def test_a_rolled_back_stage_is_not_repeated_in_its_run(runner: StageRunner) -> None:
    done = execute(runner, FakeNode([envelope(1)]))
    with runner.database.transaction() as tx:
        runner.port.revoke(done.state, by="nexrad-l2.stac_register", tx=tx)
    repeated = FakeNode([envelope(1)])
    with pytest.raises(StageFailedError) as refused:
        execute(runner, repeated)
    assert isinstance(refused.value.__cause__, RolledBackError)
    assert repeated.calls == []
    assert execute(runner, repeated, run_id="other").skipped is None


@pytest.mark.clause("RSP-03", "PCS-01")
@pytest.mark.parametrize("is_rolled_back", [False, True], ids=["done", "rolled back"])
def test_a_stage_ended_by_another_process_of_the_run_is_not_repeated(
    runner: StageRunner, monkeypatch: pytest.MonkeyPatch, is_rolled_back: bool
) -> None:
    prepare, ended = runner.nodes.meter.prepare, list[StageBatch]()

    def ends_first() -> None:
        prepare()
        monkeypatch.setattr(runner.nodes.meter, "prepare", prepare)
        ended.append(execute(runner, FakeNode([envelope(1)])))
        if is_rolled_back:
            with runner.database.transaction() as tx:
                runner.port.revoke(ended[0].state, by="nexrad-l2.stac_register", tx=tx)

    # The other process ends the stage after the late process has checked for a skip, and before it starts the stage.
    monkeypatch.setattr(runner.nodes.meter, "prepare", ends_first)
    late = FakeNode([envelope(2)])
    if is_rolled_back:
        with pytest.raises(StageFailedError) as refused:
            execute(runner, late)
        assert isinstance(refused.value.__cause__, RolledBackError)
    else:
        batch = execute(runner, late)
        assert (batch.skipped, list(batch.envelopes)) == (SkipCause.ALREADY_SUCCEEDED, list(ended[0].envelopes))
    assert late.calls == []
    assert [row.attempt for row in own_tx(runner.lifecycle.store).of_run("run")] == [1]


@pytest.mark.parametrize("lacking", ["attempt", "content", "intent", "gated"])
def test_a_stage_that_was_not_computed_cannot_commit(runner: StageRunner, lacking: str) -> None:
    node = FakeNode([envelope(1)])
    staged = runner.run(node, run_id="run", upstream=None)
    with pytest.raises(ValueError, match="has nothing to commit"):
        runner.commit(replace(staged, **{lacking: None}))
    assert "apply" not in node.calls


def test_a_corrupt_artifact_is_refused(runner: StageRunner, tmp_path: Path) -> None:
    batch = execute(runner, FakeNode([envelope(1)]))
    (tmp_path / "storage" / str(batch.state.artifact_uri)).write_bytes(b"other")
    with pytest.raises(ArtifactError, match="next: run the node again"):
        runner.port.load_output("nexrad-l2.integrity_check", "run")


def database_error(code: int) -> DBAPIError:
    original = sqlite3.OperationalError("x")
    original.sqlite_errorcode = code
    return DBAPIError("SELECT", {}, original)


@pytest.mark.clause("SEC-09")
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OverflowError(), True),
        (MemoryError(), True),
        (database_error(sqlite3.SQLITE_CONSTRAINT), True),
        (database_error(sqlite3.SQLITE_FULL), False),
        (OSError(28, "no space"), False),
        (GenericError("no answer"), False),
        (EndpointConnectionError(endpoint_url="http://x"), False),
        (ContractError("wrong"), False),
    ],
)
def test_errors_of_dependencies_and_refusals_are_not_the_fault_of_a_unit(error: Any, *, expected: bool) -> None:
    assert may_be_of_a_unit(error) is expected
    assert may_be_of_a_unit(StageFailedError(dataset_id="hrrr.settle", cause=error)) is expected
