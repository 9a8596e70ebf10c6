"""Stages and their audit in the database: changes by the store, and refused changes by plain SQL."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import DBAPIError

from kfm_dagster.errors import KfmError
from kfm_dagster.stages.audit import GENESIS, AuditEvent, AuditKind, as_jsonl, verify_chain
from kfm_dagster.stages.card import POSSIBLE, ErrorClass, StageState
from kfm_dagster.stages.store import StageAttempt, StageMoveError, StageStore
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.alerts.recorded import WAY
from kfm_dagster_tests.storage.test_constraints import STANDING, insert
from kfm_dagster_tests.transactions import own_tx

NOW = datetime(2026, 1, 1, tzinfo=UTC)
AT = "2026-01-01T00:00:00.000000Z"
STAGE = "nexrad-l2.integrity_check"
KEY, OTHER_KEY, INPUT = "a" * 64, "b" * 64, "c" * 64


@pytest.fixture
def store(database: Database) -> StageStore:
    ticks = itertools.count()
    return StageStore(database, clock=lambda: NOW + timedelta(seconds=next(ticks)))


def opened(store: StageStore, run_id: str = "run", stage: str = STAGE, **changes: Any) -> StageAttempt:
    values = {"idempotency_key": KEY, "input_hashes": [INPUT], **changes}
    return own_tx(store).open(run_id, stage, **values)


def moved(store: StageStore, attempt: StageAttempt, *states: StageState) -> StageAttempt:
    for state in states:
        attempt = own_tx(store).move(
            attempt,
            state,
            error_class=ErrorClass.E_GATE if state is StageState.FAILED else None,
            compensation={"undone": 0} if state is StageState.ROLLED_BACK else None,
        )
    return attempt


@pytest.mark.clause("PCS-01")
@pytest.mark.parametrize("origin", StageState)
def test_only_the_four_transitions_are_possible_through_the_store_and_by_plain_sql(
    database: Database, store: StageStore, origin: StageState
) -> None:
    attempt = moved(store, opened(store), *WAY[origin])
    for to in StageState:
        if (origin, to) in POSSIBLE:
            continue
        with pytest.raises(StageMoveError, match="the stage cannot make this move"):
            own_tx(store).move(attempt, to)
        with database.engine.connect() as connection, connection.begin() as writing:
            # Refused even with a matching line of the audit.
            _insert_line(connection, store, event=f"{origin.value}>{to.value}")
            with pytest.raises(DBAPIError, match=r"stage_state_(move_is_legal|error_is|times_fit|rollback)"):
                connection.execute(sa.text("UPDATE stage_state SET state = :to"), {"to": to.value})
            writing.rollback()
    for to in StageState:
        if (origin, to) in POSSIBLE:
            assert moved(store, attempt, to).state is to
            break
    assert verify_chain(store.audit.lines()) > 0 or origin is StageState.PENDING


@pytest.mark.clause("PCS-01")
def test_an_inserted_attempt_must_be_pending_and_have_the_next_number(database: Database, store: StageStore) -> None:
    opened(store)
    own = {"run_id": "run", "stage": STAGE, "input_hashes": f'["{INPUT}"]'}
    for changes in ({"state": "running", "started_at": AT}, {"attempt": 2}, {**own, "attempt": 2}):
        refused = pytest.raises(DBAPIError, match="stage_state_begins_pending")
        with refused, database.engine.begin() as connection:
            _insert_attempt(connection, **changes)


def test_an_inserted_line_cannot_break_the_chain_of_the_audit(database: Database, store: StageStore) -> None:
    moved(store, opened(store), StageState.RUNNING)
    for change in ({"seq": 3}, {"previous_hash": GENESIS}, {"previous_hash": "e" * 64}, {"seq": 0}):
        refused = pytest.raises(DBAPIError, match=r"stage_audit_(is_chained|does_not_fork)")
        with refused, database.engine.begin() as connection:
            _insert_line(connection, store, event="G1", **change)


@pytest.mark.clause("PCS-15")
def test_the_row_of_a_transition_includes_passed_gates_and_checkpoints_and_all_lines_are_in_the_chain(
    database: Database, store: StageStore
) -> None:
    attempt = opened(store)
    good, bad = {"outcome": "passed"}, {"outcome": "restrict"}
    entries = [
        attempt.event(AuditKind.GATE, "G1", good),
        attempt.event(AuditKind.GATE, "G5", bad),
        attempt.event(AuditKind.GATE, "G8", good),
        attempt.event(AuditKind.CHECKPOINT, "saved", {"sha256": "a"}),
    ]
    with database.transaction() as tx:
        store.move(attempt, StageState.RUNNING, lines=entries, tx=tx)
        store.audit.append([attempt.event(AuditKind.GATE, "G2", good)], tx=tx)
    with database.engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT seq, event FROM stage_audit ORDER BY seq").all()
    # A row's columns have its last line. So a gate that did not pass ends a row: a query by kind then finds it.
    assert [tuple(row) for row in rows] == [(2, "G5"), (5, "pending>running"), (6, "G2")]
    lines = list(store.audit.lines())
    assert [line["event"] for line in lines] == ["G1", "G5", "G8", "saved", "pending>running", "G2"]
    assert verify_chain(lines, head=own_tx(store.audit).head()[1]) == 6
    # Change the details of a line that is stored within another line's row.
    guard = (
        "stage_audit_is_not_changed" if database.dialect == "sqlite" else "stage_audit_is_append_only ON stage_audit"
    )
    with database.engine.begin() as connection:
        connection.exec_driver_sql(f"DROP TRIGGER {guard}")
        connection.exec_driver_sql(
            "UPDATE stage_audit SET earlier = replace(earlier, 'passed', 'failed') WHERE seq = 5"
        )
    with pytest.raises(KfmError, match="has been changed"):
        verify_chain(store.audit.lines())


@pytest.mark.clause("PCS-05", "PCS-06")
def test_a_retry_keeps_key_and_inputs_and_records_number_and_interval(database: Database, store: StageStore) -> None:
    states = (StageState.RUNNING, StageState.FAILED, StageState.ROLLED_BACK)
    before = moved(store, opened(store), *states)
    for change, column in (
        ({"idempotency_key": OTHER_KEY}, "another idempotency key"),
        ({"input_hashes": []}, "other inputs"),
    ):
        with pytest.raises(StageMoveError, match=f"a retry has {column} .* next: start a new run"):
            opened(store, **change)
    refused = pytest.raises(DBAPIError, match="stage_state_retry_keeps_key_and_inputs")
    with refused, database.engine.begin() as connection:
        _insert_attempt(connection, run_id="run", stage=STAGE, attempt=2)
    second = opened(store)
    assert second.attempt == 2
    assert opened(store) == second
    retry = [line for line in store.audit.of_stage("run", STAGE) if line["kind"] == "retry"]
    assert [(line["event"], line["details"]["after"]) for line in retry] == [
        ("attempt 2", "rolled_back"),
        ("attempt 2", "pending"),
    ]
    # The interval is counted from the end of the failed attempt, not from its start.
    waited = (datetime.fromisoformat(retry[0]["at"]) - before.ended_at).total_seconds()
    assert 0 < retry[0]["details"]["interval_seconds"] <= waited
    done = moved(store, second, StageState.RUNNING, StageState.SUCCEEDED)
    assert own_tx(store).newest("run", STAGE) == done
    # A succeeded stage can be opened again with other inputs under the same key.
    assert opened(store, input_hashes=[]).attempt == 3
    assert [row.state for row in own_tx(store).of_run("run")] == ["rolled_back", "succeeded", "pending"]


@pytest.mark.clause("PCS-06", "PCS-15")
def test_an_attempt_that_was_refused_is_retried_unchanged_and_the_interval_is_recorded(store: StageStore) -> None:
    waiting = opened(store)
    for _ in range(2):
        own_tx(store.audit).append([waiting.event(AuditKind.STOP, "E_SYNC")])
        assert opened(store) == waiting
    stop_1, retry_1, stop_2, retry_2 = store.audit.of_stage("run", STAGE)
    for stop, retry in ((stop_1, retry_1), (stop_2, retry_2)):
        assert (retry["kind"], retry["event"], retry["details"]["after"]) == ("retry", "attempt 1", "pending")
        waited = (datetime.fromisoformat(retry["at"]) - datetime.fromisoformat(stop["at"])).total_seconds()
        assert 0 < retry["details"]["interval_seconds"] <= waited


def test_an_attempt_of_a_dead_worker_fails_when_the_next_attempt_opens_and_cannot_resume(store: StageStore) -> None:
    lost = moved(store, opened(store), StageState.RUNNING)
    second = opened(store)
    assert [(row.state, row.error_class) for row in own_tx(store).of_run("run")] == [
        (StageState.FAILED, ErrorClass.E_INTERNAL),
        (StageState.PENDING, None),
    ]
    with pytest.raises(StageMoveError, match="another attempt has taken over"):
        moved(store, lost, StageState.SUCCEEDED)
    assert own_tx(store).newest("run", STAGE) == second
    assert "running>succeeded" not in [line["event"] for line in store.audit.lines()]
    moved(store, second, StageState.RUNNING, StageState.FAILED, StageState.ROLLED_BACK)
    assert [row.state for row in own_tx(store).of_run("run")] == ["failed", "rolled_back"]


def test_only_a_started_attempt_is_unfinished_and_only_a_run_with_a_success_has_begun(store: StageStore) -> None:
    opened(store, "waits")
    opened(store, "works", "d.another")
    moved(store, opened(store, "works"), StageState.RUNNING)
    assert [row.state for row in own_tx(store).of_run("works")] == ["pending", "running"]
    moved(store, opened(store, "ended"), StageState.RUNNING, StageState.FAILED)
    moved(store, opened(store, "claimed"), StageState.RUNNING, StageState.SUCCEEDED)
    assert store.unfinished_runs() == ["works"]
    assert store.begun_runs(["waits", "works", "ended", "claimed"]) == {"claimed"}
    assert store.begun_runs(["works"]) == store.begun_runs([]) == set()


def test_concurrent_writers_form_one_chain(store: StageStore) -> None:
    def write(number: int) -> None:
        facts: dict[str, Any] = {"run_id": f"r{number}", "stage": "s", "attempt": 1, "kind": AuditKind.GATE}
        for _ in range(5):
            own_tx(store.audit).append([AuditEvent(event=event, **facts) for event in ("G1", "G2")])

    with ThreadPoolExecutor(max_workers=4) as pool:
        list(pool.map(write, range(4)))
    lines = list(store.audit.lines())
    assert verify_chain(lines, head=lines[-1]["hash"]) == 40
    for first, second in zip(lines[::2], lines[1::2], strict=True):
        assert (first["run_id"], first["event"], second["event"]) == (second["run_id"], "G1", "G2")


def _chain() -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    previous = GENESIS
    for seq in range(1, 6):
        line: dict[str, Any] = {
            "seq": seq,
            "event": f"G{seq}",
            "details": {"a": [seq, None]},
            "previous_hash": previous,
        }
        previous = hashlib.sha256(orjson.dumps(line, option=orjson.OPT_SORT_KEYS)).hexdigest()
        lines.append({**line, "hash": previous})
    return lines


def _rewritten(line: dict[str, Any]) -> dict[str, Any]:
    """Return a forged line with a matching hash; only the next line reveals the forgery."""
    changed = {name: value for name, value in line.items() if name != "hash"} | {"event": "G8"}
    return {**changed, "hash": hashlib.sha256(orjson.dumps(changed, option=orjson.OPT_SORT_KEYS)).hexdigest()}


CHAIN = _chain()
TAMPER: dict[str, Callable[[list[dict[str, Any]], int], list[dict[str, Any]]]] = {
    "removed": lambda lines, at: lines[:at] + lines[at + 1 :],
    "duplicated": lambda lines, at: lines[: at + 1] + lines[at:],
    "changed": lambda lines, at: [*lines[:at], {**lines[at], "event": "G8"}, *lines[at + 1 :]],
    "other details": lambda lines, at: [*lines[:at], {**lines[at], "details": {"a": [0, None]}}, *lines[at + 1 :]],
    "rewritten with its hash": lambda lines, at: [*lines[:at], _rewritten(lines[at]), *lines[at + 1 :]],
    "with one more field": lambda lines, at: [*lines[:at], {**lines[at], "more": 1}, *lines[at + 1 :]],
    "swapped": lambda lines, at: [*lines[:at], *lines[at : at + 2][::-1], *lines[at + 2 :]],
}


@given(how=st.sampled_from(sorted(TAMPER)), at=st.integers(0, len(CHAIN) - 1))
def test_a_removed_or_changed_line_is_detected(how: str, at: int) -> None:
    assert verify_chain([orjson.loads(line) for line in as_jsonl(CHAIN)], head=CHAIN[-1]["hash"]) == 5
    tampered = TAMPER[how](CHAIN, at)
    if tampered == CHAIN:
        return
    with pytest.raises(KfmError, match=r"has been changed|has lost its end"):
        verify_chain(tampered, head=CHAIN[-1]["hash"])


def _insert_attempt(connection: sa.Connection, **changes: Any) -> None:
    """Insert a pending first attempt of another stage, with changes."""
    first = {"run_id": "r", "stage": "s", "attempt": 1, "state": "pending", "idempotency_key": KEY}
    insert(connection, "stage_state", first | {"input_hashes": "[]", "opened_at": AT} | changes)


def _insert_line(connection: sa.Connection, store: StageStore, **changes: Any) -> None:
    lines = list(store.audit.lines())
    previous = lines[-1]["hash"] if lines else GENESIS
    row = {**STANDING["stage_audit"][0], "kind": "transition", "seq": len(lines) + 1, "previous_hash": previous}
    insert(connection, "stage_audit", {**row, "run_id": "run", "stage": STAGE, "hash": "f" * 64, **changes})
