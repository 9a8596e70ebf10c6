"""The run contract under the pipeline card: effects of gates, stops, retries, rollback."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy.exc import OperationalError

from kfm_dagster.configs import own_folder
from kfm_dagster.contracts.issues import GateIssue
from kfm_dagster.errors import ContractError, DatabaseUnavailableError, StoreAccessError
from kfm_dagster.idempotent_node.checkpoint import lock_node
from kfm_dagster.idempotent_node.wal import IntentStatus
from kfm_dagster.run_state.record import Outcome
from kfm_dagster.stages.audit import AuditKind, verify_chain
from kfm_dagster.stages.batch import SkipCause, StageBatch
from kfm_dagster.stages.card import Card, ErrorClass, StageState
from kfm_dagster.stages.failure import StageFailedError
from kfm_dagster.stages.gates.verdict import STOPS, Finding, Gate, Verdict
from kfm_dagster.stages.lifecycle import StageLifecycle
from kfm_dagster.stages.run_contract import StageRunner
from kfm_dagster.stages.store import StageStore
from kfm_dagster_tests.factories import envelope, failed
from kfm_dagster_tests.stages.fake_node import NOW, FakeEffectNode, FakeNode, execute, machine_with
from kfm_dagster_tests.timeouts import await_a_wait
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.one_database

FIRST, SECOND = "nexrad-l2.message_parse", "nexrad-l2.integrity_check"
CLASSES = {Gate.G1: ErrorClass.E_INPUT, Gate.G4: ErrorClass.E_DIM, Gate.G7: ErrorClass.E_UQ}
ROLLBACK = '{from: failed, to: rolled_back, when: "has_checkpoint && do_compensate"}'
Under = Callable[..., StageRunner]


@pytest.fixture
def under(runner: StageRunner) -> Under:
    """Return a function that gives the runner another card or time."""

    def changed(*changes: tuple[str, str], after: timedelta = timedelta()) -> StageRunner:
        return replace(runner, card=machine_with(*changes), clock=lambda: NOW + after)

    return changed


def first(runner: StageRunner, run_id: str = "run", units: int = 2) -> StageBatch:
    node = FakeNode([envelope(number) for number in range(units)], kind=FIRST)
    return execute(runner, node, run_id=run_id)


def fault(gate: Gate, *numbers: int) -> Verdict:
    findings = [Finding(wal_id=envelope(number).wal_id, what="wrong") for number in numbers] or [
        Finding(what="all wrong")
    ]
    return Verdict(gate=gate, rule="a rule", observed="wrong", expected="right", findings=tuple(findings))


def details(runner: StageRunner, kind: AuditKind) -> list[dict[str, Any]]:
    return [line["details"] for line in runner.lifecycle.store.audit.of_stage("run", SECOND) if line["kind"] == kind]


def lines(runner: StageRunner, stage: str = SECOND, run_id: str = "run") -> list[tuple[str, str]]:
    return [(line["kind"], line["event"]) for line in runner.lifecycle.store.audit.of_stage(run_id, stage)]


def state(runner: StageRunner, stage: str = SECOND, run_id: str = "run") -> StageState | None:
    newest = own_tx(runner.lifecycle.store).newest(run_id, stage)
    return newest.state if newest else None


@pytest.mark.clause("PCS-01", "PCS-07", "PCS-15")
def test_each_change_of_a_stage_is_one_line_of_the_audit(runner: StageRunner) -> None:
    batch = execute(runner, FakeNode([envelope(1)], verdicts=[fault(Gate.G6)]), upstream=first(runner))
    newest = own_tx(runner.lifecycle.store).newest("run", SECOND)
    assert newest.state is StageState.SUCCEEDED
    assert (newest.checkpoint_uri, newest.output_sha256) == (batch.state.artifact_uri, batch.state.artifact_sha256)
    saved = {"uri": batch.state.artifact_uri, "sha256": batch.state.artifact_sha256}
    assert details(runner, AuditKind.CHECKPOINT) == [saved]
    assert lines(runner) == [
        ("transition", "pending>running"),
        ("gate", "G6"),
        ("checkpoint", "saved"),
        ("transition", "running>succeeded"),
    ]
    assert verify_chain(runner.lifecycle.store.audit.lines()) == 7
    forced = FakeNode([envelope(1)], setting=2)
    runner.commit(runner.run(forced, run_id="other", upstream=first(runner, "other"), force="the reader was wrong"))
    assert lines(runner, run_id="other")[:2] == [("override", "forced"), ("transition", "pending>running")]
    [override, *_] = runner.lifecycle.store.audit.of_stage("other", SECOND)
    assert override["details"] == {"reason": "the reader was wrong"}


@pytest.mark.clause("PCS-02", "PCS-15")
def test_a_stage_stays_pending_until_its_upstream_has_succeeded(runner: StageRunner) -> None:
    upstream = first(runner)
    broken = FakeNode([], fails=RuntimeError("x"))
    with pytest.raises(StageFailedError):
        execute(runner, broken, upstream=upstream)
    failed_upstream = replace(upstream, state=replace(upstream.state, dataset_id=SECOND))
    node = FakeNode([envelope(1)], kind="nexrad-l2.metadata_extract")
    with pytest.raises(StageFailedError, match="its upstream has not succeeded") as refused:
        execute(runner, node, upstream=failed_upstream)
    assert refused.value.error_class is ErrorClass.E_GATE
    assert node.calls == []
    assert state(runner, node.kind) is StageState.PENDING
    [line_of_wait] = runner.lifecycle.store.audit.of_stage("run", node.kind)
    assert (line_of_wait["kind"], line_of_wait["event"], line_of_wait["details"]) == (
        "stop", "deps_succeeded", {"reason": "its upstream has not succeeded"},
    )  # fmt: skip
    # Once the upstream has succeeded, the same attempt starts.
    execute(runner, FakeNode([envelope(1)]), upstream=upstream)
    execute(runner, node, upstream=failed_upstream)
    assert [row.attempt for row in own_tx(runner.lifecycle.store).of_run("run") if row.stage == node.kind] == [1]


@pytest.mark.clause("PCS-02")
@pytest.mark.parametrize("gate", [Gate.G1, Gate.G2, Gate.G3])
def test_an_output_loaded_from_the_store_is_checked_before_use(runner: StageRunner, gate: Gate) -> None:
    first(runner)
    recalled = runner.port.load_output(FIRST, "run")
    # G8 does not apply to a stage's input, so it is not recorded either.
    node = FakeNode([envelope(1)], verdicts=[fault(gate), fault(Gate.G8)], of_input=True)
    with pytest.raises(StageFailedError, match=f"may not start; observed {gate}: wrong"):
        execute(runner, node, upstream=recalled)
    assert node.calls == []
    expected = [("gate", gate.value)] + ([("stop", STOPS[gate].value)] if gate in STOPS else [])
    assert lines(runner) == expected


@pytest.mark.clause("PCS-02")
def test_a_reused_output_of_an_earlier_run_is_not_checked_again(runner: StageRunner) -> None:
    upstream = first(runner)
    reused = replace(upstream, skipped=SkipCause.CONTENT_APPLIED, applied_by="earlier", decision=None)
    node = FakeNode([envelope(1)], kind="nexrad-l2.metadata_extract", verdicts=[fault(Gate.G1)], of_input=True)
    with pytest.raises(StageFailedError, match="may not succeed"):
        execute(runner, node, upstream=reused)
    assert "transform" in node.calls


@pytest.mark.clause("PCS-02")
@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.PARTIAL])
def test_an_upstream_known_only_to_run_state_must_not_have_failed(runner: StageRunner, outcome: Outcome) -> None:
    upstream = first(runner)
    upstream_of_old = replace(upstream, state=replace(upstream.state, dataset_id="nexrad-l2.older", outcome=outcome))
    node = FakeNode([envelope(1)])
    if outcome is Outcome.PARTIAL:
        execute(runner, node, upstream=upstream_of_old)
        return
    with pytest.raises(StageFailedError, match="its upstream has not succeeded"):
        execute(runner, node, upstream=upstream_of_old)
    assert node.calls == []


@pytest.mark.clause("PCS-07")
def test_a_stage_without_a_checkpoint_keeps_only_the_digest_of_its_output(under: Under) -> None:
    runner = under(("integrity_check, metadata", "metadata"))
    batch = execute(runner, FakeNode([envelope(1)]), upstream=first(runner))
    newest = own_tx(runner.lifecycle.store).newest("run", SECOND)
    assert (newest.checkpoint_uri, newest.output_sha256) == (None, batch.state.artifact_sha256)
    assert "checkpoint" not in [kind for kind, _ in lines(runner)]


@pytest.mark.clause("PCS-04", "PCS-05")
def test_a_retry_with_other_inputs_is_an_input_error_that_waits_for_a_person(runner: StageRunner) -> None:
    at_work = runner.run(FakeNode([envelope(1)]), run_id="run", upstream=first(runner))
    changed = execute(runner, FakeNode([envelope(5)], kind=FIRST, setting=2), run_id="other")
    node = FakeNode([envelope(2)])
    with pytest.raises(StageFailedError, match="a retry has other inputs") as refused:
        execute(runner, node, upstream=changed)
    assert refused.value.error_class is ErrorClass.E_INPUT
    assert node.calls == []
    # The refused retry writes no run-state: the first worker, which is still at work, does.
    assert runner.run_states.get(SECOND, "run") is None
    batch = runner.commit(at_work)
    assert runner.run_states.get(SECOND, "run") == batch.state


@pytest.mark.clause("PCS-06")
def test_a_success_is_never_retried_and_the_caller_counts_attempts_that_were_not_opened(
    runner: StageRunner,
) -> None:
    execute(runner, FakeNode([envelope(1)]), upstream=first(runner))
    assert runner.lifecycle.retry_in("run", SECOND, ErrorClass.E_INTERNAL) is None
    retries = runner.card.retry_policy.max_retries
    with pytest.raises(StageFailedError):
        execute(runner, FakeNode([], fails=OSError("away"), setting=4), run_id="other", upstream=first(runner, "other"))
    # The caller's count applies whether or not an attempt is recorded.
    for (run_id, stage), tries in product((("run", "nexrad-l2.settle"), ("other", SECOND)), (1, retries, retries + 1)):
        wait = runner.lifecycle.retry_in(run_id, stage, ErrorClass.E_INTERNAL, tries=tries)
        assert (wait is None) == (tries > retries), (run_id, tries)


@pytest.mark.clause("PCS-15")
def test_the_audit_names_a_hundred_faulty_units_and_counts_all(runner: StageRunner) -> None:
    node = FakeNode([envelope(n) for n in range(102)], verdicts=[fault(Gate.G4, *range(101))])
    execute(runner, node, upstream=first(runner))
    [line] = [line for line in runner.lifecycle.store.audit.of_stage("run", SECOND) if line["kind"] == "gate"]
    recorded = line["details"]
    assert (recorded["outcome"], recorded["units_at_fault"], len(recorded["units"])) == ("fail_units", 101, 100)
    assert recorded["units"] == sorted(envelope(n).wal_id for n in range(101))[:100]


@pytest.mark.clause("PCS-02", "PCS-20")
@pytest.mark.parametrize("units", [(), (1,)], ids=["batch", "unit"])
@pytest.mark.parametrize("gate", Gate)
def test_under_the_strict_card_every_gate_stops_its_stage_and_rolls_it_back(
    runner: StageRunner, gate: Gate, units: tuple[int, ...]
) -> None:
    strict = replace(runner, card=Card.load(own_folder() / "strict").machine)
    node = FakeEffectNode([envelope(number) for number in range(3)], verdicts=[fault(gate, *units)])
    with pytest.raises(StageFailedError) as failed:
        execute(strict, node, upstream=first(strict, units=3))
    assert failed.value.decision.stops == ({STOPS[gate]} if gate in STOPS else set())
    assert failed.value.error_class is CLASSES.get(gate, ErrorClass.E_GATE)
    assert node.calls == ["transform", "compensate"]
    assert lines(strict)[1:] == [
        ("gate", gate.value),
        *([("stop", STOPS[gate].value)] if gate in STOPS else []),
        ("transition", "running>failed"),
        ("compensation", "done"),
        ("transition", "failed>rolled_back"),
    ]
    assert own_tx(strict.lifecycle.store).newest("run", SECOND).compensation == {"undone": 1}
    recorded = strict.run_states.get(SECOND, "run")
    assert (recorded.outcome, recorded.artifact_uri) == (Outcome.FAILED, None)


@pytest.mark.clause("PCS-20")
def test_faulty_units_get_the_code_of_the_gate_and_their_batch_is_not_a_success(runner: StageRunner) -> None:
    node = FakeNode([envelope(n) for n in range(3)], verdicts=[fault(Gate.G4, 1)])
    batch = execute(runner, node, upstream=first(runner))
    assert [unit.failure.code if unit.failure else None for unit in batch.envelopes] == [None, GateIssue.G4, None]
    assert batch.state.outcome is Outcome.PARTIAL
    summary = batch.state.validation_summary
    assert (summary["checks"], summary["passed"], summary["failed"]) == (3, 2, 1)
    # Faulty units do not stop the stage, so the audit has no stop.
    assert [event for kind, event in lines(runner) if kind == "stop"] == []
    assert list(runner.port.load_output(SECOND, "run").envelopes) == list(batch.envelopes)
    # A unit that has failed before keeps its first reason.
    gone = failed(envelope(1))
    both = FakeNode([gone], verdicts=[fault(Gate.G1, 1), fault(Gate.G8, 1)], setting=3)
    [unit] = execute(runner, both, run_id="third", upstream=first(runner, "third", units=4)).envelopes
    assert unit == gone
    # A stage with effects outside the database fails as a whole.
    effects = FakeEffectNode([envelope(n) for n in range(3)], verdicts=[fault(Gate.G4, 1)], setting=2)
    with pytest.raises(StageFailedError):
        execute(runner, effects, run_id="other", upstream=first(runner, "other", units=3))
    assert "compensate" in effects.calls


@pytest.mark.clause("PCS-06")
def test_a_gate_that_restricts_marks_the_output_and_everything_derived_from_it(runner: StageRunner) -> None:
    late = execute(runner, FakeNode([envelope(1)], verdicts=[fault(Gate.G6)]), upstream=first(runner))
    assert late.restricted == (Gate.G6,)
    node = FakeNode([envelope(1)], kind="nexrad-l2.metadata_extract", verdicts=[fault(Gate.G5, 1)])
    after = execute(runner, node, upstream=late)
    assert after.restricted == (Gate.G5, Gate.G6)
    newest = own_tx(runner.lifecycle.store).newest("run", node.kind)
    assert newest.restricted == after.restricted
    [*_, moved] = runner.lifecycle.store.audit.of_stage("run", node.kind)
    assert moved["details"]["restricted"] == ["G5", "G6"]
    # A gate that restricts does not count as a stop.
    assert [event for kind, event in lines(runner) if kind in {"gate", "stop"}] == ["G6"]


@pytest.mark.clause("PCS-05", "PCS-06")
def test_the_card_sets_the_pauses_the_number_and_the_deadline_of_retries(under: Under) -> None:
    policy = ("retry_policy: {max_retries: 3, backoff: exp+jitter", "retry_policy: {max_retries: 2, backoff: exp")
    upstream = first(under())
    for attempt, wait in ((1, 1.0), (2, 2.0), (3, None)):
        runner = under(policy, after=timedelta(seconds=attempt))
        with pytest.raises(StageFailedError):
            execute(runner, FakeNode([], fails=OSError("away")), upstream=upstream)
        assert runner.lifecycle.retry_in("run", SECOND, ErrorClass.E_INTERNAL) == wait
        newest = own_tx(runner.lifecycle.store).newest("run", SECOND)
        assert newest.attempt == attempt
    # The first attempt opened after one second. A retry can start at the deadline, ten minutes later, and no later.
    constant = ("max_retries: 3, backoff: exp+jitter", "max_retries: 9, backoff: const, base: 1m")
    for second, wait in ((1, 60.0), (2, None)):
        at = under(constant, after=timedelta(minutes=9, seconds=second))
        assert at.lifecycle.retry_in("run", SECOND, ErrorClass.E_INTERNAL) == wait
    attempts = [row for row in own_tx(runner.lifecycle.store).of_run("run") if row.stage == SECOND]
    assert len({(entry.idempotency_key, entry.input_hashes) for entry in attempts}) == 1
    assert [event for kind, event in lines(runner) if kind == "retry"] == ["attempt 2", "attempt 3"]


@pytest.mark.clause("PCS-04", "PCS-06", "RSP-05", "IEN-06")
@pytest.mark.parametrize(
    ("trouble", "error_class", "is_retried"),
    [
        ({"fails": OSError("away")}, ErrorClass.E_INTERNAL, True),
        ({"fails": RuntimeError("wrong")}, ErrorClass.E_INTERNAL, True),
        ({"fails": DatabaseUnavailableError()}, ErrorClass.E_INTERNAL, True),
        ({"verification_fails": OSError("away")}, ErrorClass.E_INTERNAL, True),
        ({"fails": StoreAccessError()}, ErrorClass.E_INPUT, False),
        ({"fails": ContractError("wrong")}, ErrorClass.E_INPUT, False),
        ({"verdicts": [fault(Gate.G1)]}, ErrorClass.E_INPUT, False),
        ({"verdicts": [fault(Gate.G4)]}, ErrorClass.E_DIM, False),
        ({"verdicts": [fault(Gate.G7)]}, ErrorClass.E_UQ, False),
        ({"verdicts": [fault(Gate.G8)]}, ErrorClass.E_GATE, False),
    ],
)
def test_stages_with_transient_errors_are_retried_and_stages_with_other_errors_wait_for_a_person(
    runner: StageRunner, trouble: dict[str, Any], error_class: ErrorClass, *, is_retried: bool
) -> None:
    def intents() -> list[IntentStatus]:
        return [intent.status for intent in runner.nodes.intents.of_run("run") if intent.node == node.name]

    node, upstream = FakeNode([envelope(1)], **trouble), first(runner)
    with pytest.raises(StageFailedError) as failed:
        execute(runner, node, upstream=upstream)
    assert failed.value.error_class is error_class
    assert (runner.lifecycle.retry_in("run", SECOND, error_class) is not None) == is_retried
    assert state(runner) is StageState.ROLLED_BACK
    assert (runner.run_states.get(SECOND, "run").outcome, intents()) == (Outcome.FAILED, [IntentStatus.FAILED])
    # The next attempt resumes the intent.
    assert execute(runner, FakeNode([envelope(1)]), upstream=upstream).state.outcome is Outcome.SUCCESS
    assert intents() == [IntentStatus.APPLIED]


@pytest.mark.clause("PCS-03", "PCS-15")
def test_a_stage_without_claimed_units_is_not_compensated_and_the_audit_records_why(runner: StageRunner) -> None:
    node = FakeEffectNode([], fails=OSError("away"), is_owned=False)
    with pytest.raises(StageFailedError):
        execute(runner, node, upstream=first(runner))
    assert "compensate" not in node.calls
    assert state(runner) is StageState.FAILED
    assert [event for kind, event in lines(runner) if kind == "compensation"] == ["left"]
    assert details(runner, AuditKind.COMPENSATION) == [{"reason": "its units have ended, or another run holds them"}]


@pytest.mark.clause("PCS-02")
@pytest.mark.parametrize("lacking", ["message_parse, ", f"\n  - {ROLLBACK}"], ids=["checkpoint", "transition"])
def test_a_rollback_needs_an_earlier_checkpoint_and_a_successful_compensation(under: Under, lacking: str) -> None:
    runner = under((lacking, ""))
    with pytest.raises(StageFailedError):
        execute(runner, FakeEffectNode([], fails=OSError("away")), upstream=first(runner))
    assert state(runner) is StageState.FAILED
    # The compensation is recorded, even if the stage is not rolled back.
    assert lines(runner)[-1] == ("compensation", "done")
    assert details(runner, AuditKind.COMPENSATION) == [{"undone": 1}]
    node = FakeEffectNode([], fails=OSError("away"), compensation_fails=OSError("gone, too"))
    with pytest.raises(StageFailedError, match="away"):
        execute(under(), node, run_id="other", upstream=first(under(), "other"))
    assert state(runner, run_id="other") is StageState.FAILED
    assert lines(runner, run_id="other")[-1] == ("compensation", "failed")


@pytest.mark.clause("DAG-02")
def test_a_commit_that_fails_rolls_its_stage_back_and_the_next_attempt_succeeds(
    runner: StageRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = first(runner)
    node = FakeNode([envelope(1)])
    with monkeypatch.context() as broken:
        broken.setattr(node, "apply", lambda tx, batch: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            execute(runner, node, upstream=upstream)
    assert state(runner) is StageState.ROLLED_BACK
    recorded = runner.run_states.get(SECOND, "run")
    assert (recorded.outcome, recorded.artifact_uri) == (Outcome.FAILED, None)
    execute(runner, FakeNode([envelope(1)]), upstream=upstream)
    assert [row.state for row in own_tx(runner.lifecycle.store).of_run("run") if row.stage == SECOND] == [
        StageState.ROLLED_BACK,
        StageState.SUCCEEDED,
    ]


def test_a_resumed_worker_commits_nothing_after_another_worker_took_over_its_stage(runner: StageRunner) -> None:
    upstream = first(runner)
    slow, quick = FakeNode([envelope(1)]), FakeNode([envelope(2)])
    computed = runner.run(slow, run_id="run", upstream=upstream)
    batch = runner.commit(runner.run(quick, run_id="run", upstream=upstream))
    # Other content, so that only the attempt identifies the worker.
    late = replace(computed, content=replace(computed.content, params={"other": 1}) if computed.content else None)
    with pytest.raises(Exception, match="another attempt has taken over"):
        runner.commit(late)
    assert runner.run_states.get(SECOND, "run") == batch.state
    assert state(runner) is StageState.SUCCEEDED


def test_a_worker_that_fails_after_a_takeover_keeps_the_record_of_the_other_worker(
    runner: StageRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = first(runner)
    slow, quick = FakeEffectNode([envelope(1)]), FakeNode([envelope(2)], setting=2)

    def overtaken(_batch: object) -> None:
        execute(runner, quick, upstream=upstream)
        raise ConnectionError("gone")

    monkeypatch.setattr(slow, "verify", overtaken)
    with pytest.raises(StageFailedError):
        runner.run(slow, run_id="run", upstream=upstream)
    recorded = runner.run_states.get(SECOND, "run")
    assert recorded.outcome is Outcome.SUCCESS
    assert recorded.artifact_uri is not None
    assert "compensate" not in slow.calls


@pytest.mark.clause("PCS-04", "PCS-06")
@pytest.mark.parametrize("failing", ["the intent", "the attempt", "the record", "all of them"])
def test_a_failure_that_cannot_be_recorded_still_requests_a_retry(
    runner: StageRunner, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    refuse = Mock(side_effect=OperationalError("UPDATE", {}, Exception("connection refused")))
    upstream = first(runner)
    with monkeypatch.context() as broken:
        for name, (owner, attribute) in {
            "the intent": (runner.nodes, "fail"),
            "the attempt": (StageLifecycle, "fail"),
            "the record": (type(runner.run_states), "put"),
        }.items():
            if failing in {name, "all of them"}:
                broken.setattr(owner, attribute, refuse)
        with pytest.raises(StageFailedError) as failed:
            execute(runner, FakeNode([], fails=OSError("away")), upstream=upstream)
        assert isinstance(failed.value.cause, OSError)
        assert failed.value.error_class is ErrorClass.E_INTERNAL
        assert runner.lifecycle.retry_in("run", SECOND, failed.value.error_class) is not None
        if failing == "all of them":
            broken.setattr(StageStore, "newest", refuse)
            policy = runner.card.retry_policy
            tries = range(1, policy.max_retries + 2)
            waits = [runner.lifecycle.retry_in("run", SECOND, ErrorClass.E_INTERNAL, tries=tried) for tried in tries]
            assert [wait is None for wait in waits] == [False] * policy.max_retries + [True]
    batch = execute(runner, FakeNode([envelope(1)]), upstream=upstream)
    assert batch.state.outcome is Outcome.SUCCESS


@pytest.mark.clause("PCS-03", "DAG-02")
def test_a_failure_that_external_run_state_cannot_record_is_still_compensated(
    runner: StageRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = first(runner)
    refuse = Mock(side_effect=ConnectionError("the bucket is away"))
    monkeypatch.setattr(type(runner.run_states), "put", lambda _, __, tx: tx.after_commit(refuse))
    node = FakeEffectNode([], fails=OSError("away"))
    with pytest.raises(StageFailedError, match="OSError: away"):
        execute(runner, node, upstream=upstream)
    assert node.calls == ["transform", "compensate"]
    assert state(runner) is StageState.ROLLED_BACK


def test_recovery_closes_the_other_attempts_although_one_worker_ends_meanwhile(
    runner: StageRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = first(runner)
    runner.run(FakeNode([envelope(1)]), run_id="run", upstream=upstream)
    runner.run(FakeNode([envelope(1)]), run_id="other", upstream=first(runner, "other"))
    running = own_tx(runner.lifecycle.store).unfinished(["run", "other"], limit=10)
    own_tx(runner.lifecycle.store).move(running[0], StageState.SUCCEEDED)
    # Recovery gets the attempts as the sensor had read them before the first one ended.
    monkeypatch.setattr(StageStore, "unfinished", lambda *_, **__: running)
    runner.lifecycle.close(["run", "other"])
    ended = [own_tx(runner.lifecycle.store).newest(attempt.run_id, attempt.stage) for attempt in running]
    assert [attempt and attempt.state for attempt in ended] == [StageState.SUCCEEDED, StageState.FAILED]
    lines = list(runner.lifecycle.store.audit.lines())
    assert lines[-1]["details"]["reason"] == "its run is dead"
    verify_chain(lines)


@pytest.mark.clause("IEN-07")
@pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
def test_a_stage_that_reuses_output_waits_for_its_node_s_commit_before_locking_the_audit(runner: StageRunner) -> None:
    for run_id, setting in (("run", 1), ("other", 2)):
        execute(runner, FakeNode([envelope(1)], setting=setting), run_id=run_id, upstream=first(runner, run_id))
    # The content is that of the first run, so its output is reused without a computation.
    node, upstream = FakeNode([], setting=1), first(runner, "third")
    newest = own_tx(runner.lifecycle.store).newest("run", SECOND)
    with ThreadPoolExecutor(1) as pool:
        with runner.database.transaction() as committing:
            lock_node(node.name, tx=committing)
            reusing = pool.submit(runner.run, node, run_id="third", upstream=upstream)
            await_a_wait(runner.database, reusing)
            runner.lifecycle.store.audit.append([newest.event(AuditKind.GATE, "G1")], tx=committing)
        skipped = reusing.result().skipped
    assert skipped.applied_by == "run"


@pytest.mark.clause("PCS-14")
def test_thresholds_and_actions_of_the_card_are_part_of_the_inputs_of_a_stage(under: Under) -> None:
    node = FakeNode([envelope(1)], verdicts=[fault(Gate.G6)])
    assert execute(under(), node, upstream=first(under())).restricted == (Gate.G6,)
    strict = under(("G6: {on_failure: restrict, min_coverage: 0.9}", "G6: {on_failure: stop, min_coverage: 0.9}"))
    # The same run with other inputs, so nothing is skipped.
    with pytest.raises(StageFailedError):
        execute(strict, FakeNode([envelope(1)], verdicts=[fault(Gate.G6)]), upstream=first(under()))


@pytest.mark.clause("PCS-10")
def test_an_unsynchronised_clock_restricts_or_rejects_the_stage_as_the_card_states(under: Under) -> None:
    wrong = "kernel gives an offset of 5.000 s"
    batch = execute(under(), FakeNode([envelope(1)], clock=wrong), upstream=first(under()))
    assert batch.restricted == (ErrorClass.E_SYNC,)
    strict = under(("unlocked: restrict", "unlocked: reject"))
    node = FakeNode([envelope(1)], clock=wrong)
    with pytest.raises(
        StageFailedError, match=r"may not write; observed kernel gives .* next: see kfm clock"
    ) as failed:
        execute(strict, node, run_id="other", upstream=first(strict, "other"))
    assert failed.value.error_class is ErrorClass.E_SYNC
    assert node.calls == []
    assert lines(strict, run_id="other") == [("stop", "E_SYNC")]
    execute(strict, FakeNode([envelope(1)]), run_id="other", upstream=first(strict, "other"))
