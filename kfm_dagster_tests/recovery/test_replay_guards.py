"""Guards refuse by name with observed and expected values; the pace yields to live work."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.recovery.replay.limits import (
    HOLD_AT,
    LIMITS,
    QUEUE_AGE_SLO_SECONDS,
    SLOW_DOWN_AT,
    Guard,
    GuardError,
    Hold,
    HoldReason,
    Traffic,
    queue_age,
    reason_to_hold,
)
from kfm_dagster.recovery.replay.selection import Selection, selection_of
from kfm_dagster.settings import Environment
from kfm_dagster_tests.databases import every_row
from kfm_dagster_tests.factories import failed, repeat_units, with_section
from kfm_dagster_tests.recovery.replays import (
    NOW,
    PERSON,
    UNAPPROVED,
    WINDOW,
    Stand,
    document,
    open_stand,
    repair,
    selection,
)
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.one_database


def without(**filters: Any) -> Selection:
    """Return the test selection without some of its filters."""
    spec = document()
    spec["spec"]["filters"] = {name: value for name, value in spec["spec"]["filters"].items() if name not in filters}
    return selection_of(spec, source="the test")


def of_days(first: str, last: str | None) -> dict[str, Any]:
    """Return the filters of a selection only by days."""
    return {"event_time": {}, "days": {"first": first, "last": last}}


def in_prod(**changes: Any) -> Selection:
    """Return the test selection as prod accepts it."""
    return selection(env="prod", labels={"incident_id": "INC-1"}, **changes)


def since(start: str, **more: str) -> dict[str, Any]:
    """Return the filters of a selection by event time."""
    return {"event_time": {"start": start, **more}}


END = {"end": WINDOW["end"]}
ONE_UNIT = {"wal_ids": ["00000000-0000-8000-8000-000000000000"]}
NO_REPAIR = {"allow_repair_and_replace": False, "approval": "CHG-1"}
FAST_RECORDS = {"records_per_second": 1_000, "batches_per_minute": 121}
TRIPPED: dict[Environment, dict[str, tuple[Selection, Guard, str]]] = {
    # environment, name: selection, guard, observed text
    Environment.DEV: {
        "another environment": (selection(env="prod"), Guard.ENVIRONMENT, "metadata.env prod"),
        "no dataset": (without(datasets=0), Guard.SCOPE, "no dataset"),
        "no time": (without(event_time=0), Guard.SCOPE, "no time"),
        "no status": (without(status=0), Guard.SCOPE, "no status"),
        "nothing": (without(datasets=0, event_time=0, status=0), Guard.SCOPE, "no dataset, no time"),
        "many records": (selection(limits={"max_records": 50_001}), Guard.MAX_SELECTION_RECORDS, "50001"),
        "many records of open days": (
            selection(filters=of_days("2025-12-03", None), limits={"max_records": 50_001}),
            Guard.MAX_SELECTION_RECORDS, "50001",
        ),
        "large batches": (selection(limits={"batch_size": 1_001}), Guard.MAX_BATCH_SIZE, "1001"),
        "many batches": (selection(limits={"max_batches": 1_001}), Guard.MAX_BATCHES, "1001"),
        "fast records": (selection(options={"records_per_second": 1_001}), Guard.RATE, "1001"),
        "fast batches": (selection(options={"batches_per_minute": 121}), Guard.RATE, "121"),
        "fast batches beside records as fast as allowed": (selection(options=FAST_RECORDS), Guard.RATE, "121"),
        "no allowed repair": (repair(options=NO_REPAIR), Guard.APPROVAL, "no options.allow_repair_and_replace"),
        "a repair that nobody approved": (repair(), Guard.APPROVAL, "no approval reference"),
        "a downgrade that nobody approved": (
            selection(options={"allow_downgrade": True}), Guard.APPROVAL, "no approval reference",
        ),
    },
    Environment.PROD: {
        "everything": (in_prod(filters={"datasets": ["*"]}), Guard.GLOBAL_SCOPE, 'datasets "*"'),
        "an open end": (in_prod(filters=since(WINDOW["start"])), Guard.WINDOW, "an open end"),
        "a long time": (in_prod(filters=since("2025-10-01T00:00:00Z", **END)), Guard.WINDOW, "64 days"),
        "many days": (in_prod(filters=of_days("2025-11-03", "2025-12-04")), Guard.WINDOW, "32 days"),
        "an open day": (in_prod(filters=of_days("2025-11-03", None)), Guard.WINDOW, "an open end"),
        "many records": (in_prod(limits={"max_records": 5_001}), Guard.MAX_SELECTION_RECORDS, "5001"),
        "many records of days": (
            in_prod(filters=of_days("2025-12-03", "2025-12-03"), limits={"max_records": 100_001}),
            Guard.MAX_SELECTION_RECORDS, "100001",
        ),
        "large batches": (in_prod(limits={"batch_size": 501}), Guard.MAX_BATCH_SIZE, "501"),
        "fast records": (in_prod(options={"records_per_second": 101}), Guard.RATE, "101"),
        "no reference": (selection(env="prod"), Guard.CHANGE_REFERENCE, "none"),
    },
}  # fmt: skip
MOST_OF_DAYS = {"filters": of_days("2025-11-03", "2025-12-03"), "limits": {"max_records": 100_000, "max_batches": 200}}
ALLOWED: dict[Environment, dict[str, Selection]] = {
    Environment.DEV: {
        "as many records": selection(limits={"max_records": 50_000}),
        "as large batches": selection(limits={"batch_size": 1_000}),
        "as many batches": selection(limits={"max_batches": 1_000}),
        "as fast records": selection(options={"records_per_second": 1_000}),
        "as fast batches": selection(options={"batches_per_minute": 120}),
    },
    Environment.PROD: {
        "as long a time": in_prod(filters=since("2025-11-03T00:00:00Z", **END)),
        "units by name, whatever time is open": in_prod(filters=since(WINDOW["start"]) | ONE_UNIT),
        "an open end within days of creation": in_prod(
            filters=since(WINDOW["start"]) | {"created": {"after": WINDOW["start"], "before": WINDOW["end"]}}
        ),
        "as many days, with as many records in as many batches": in_prod(**MOST_OF_DAYS),
    },
}


@pytest.mark.clause("RPL-03", "RPL-07")
@pytest.mark.parametrize("env", TRIPPED)
def test_a_guard_refuses_by_name_and_changes_nothing(env: Environment, tmp_path: Path) -> None:
    stand = open_stand(tmp_path / "home", "", env=env)
    stand.bring("failed", 2)
    before = every_row(stand.pipeline.database)
    for name, (selected, guard, observed) in TRIPPED[env].items():
        with pytest.raises(GuardError) as refused:
            stand.engine.start(selected, UNAPPROVED)
        by_guard = {refusal.guard: refusal for refusal in refused.value.refusals}
        assert observed in str(by_guard[guard].observed), name
        assert (refused.value.exit_code, "\n" in str(refused.value)) == (3, False)
    assert every_row(stand.pipeline.database) == before
    # A selection at the limit is allowed.
    for name, allowed in ALLOWED[env].items():
        assert stand.engine.plan(allowed).refusals == (), name
    stand.pipeline.close()
    tripped = {guard for cases in TRIPPED.values() for _, guard, _ in cases.values()}
    assert tripped | {Guard.KILL_SWITCH, Guard.DOWNGRADE} == set(Guard)


@pytest.mark.clause("RPL-03")
def test_limits_become_stricter_from_dev_to_prod() -> None:
    for looser, stricter in pairwise([LIMITS[env] for env in Environment]):
        for name in (name for name, limit in asdict(looser).items() if type(limit) in {int, float}):
            assert getattr(looser, name) >= getattr(stricter, name), name
        assert looser.global_scope >= stricter.global_scope
        assert looser.needs_change_ref <= stricter.needs_change_ref
        assert (looser.max_window or timedelta.max) >= (stricter.max_window or timedelta.max)
    assert LIMITS[Environment.PROD] != LIMITS[Environment.DEV]


@pytest.mark.clause("RPL-03")
def test_units_and_batches_of_a_selection_are_checked_against_its_limits(stand: Stand) -> None:
    units = [unit.wal_id for unit in stand.bring("failed", 5)]
    # Units selected by id need no other scope.
    named = without(datasets=0, event_time=0, status=0).model_dump(mode="json")
    named["spec"]["filters"]["wal_ids"] = [units[1]]
    plan = stand.engine.plan(selection_of(named, source="the test"))
    assert (plan.refusals, [unit.wal_id for unit in plan.units]) == ((), [units[1]])
    assert stand.engine.plan(selection()).refusals == ()
    engine = stand.limited(max_selection_records=4)
    with pytest.raises(GuardError, match="max_selection_records"):
        engine.start(selection(), PERSON)
    plan = engine.plan(selection(limits={"max_records": 3}))
    assert (plan.refusals, plan.more, [unit.wal_id for unit in plan.units]) == ((), True, units[:3])
    with pytest.raises(GuardError, match="max_batches"):
        stand.engine.start(selection(limits={"batch_size": 2, "max_batches": 2}), PERSON)
    assert stand.engine.plan(selection(limits={"batch_size": 2, "max_batches": 3})).batches == 3


@pytest.mark.clause("RPL-03", "WAL-10")
def test_a_kill_switch_refuses_the_start_and_holds_a_running_replay(stand: Stand) -> None:
    stand.bring("failed", 4)
    switches = stand.pipeline.ledger.switches
    run = stand.engine.start(selection(limits={"batch_size": 2}), PERSON)
    assert stand.engine.advance(run.replay_run_id).admitted is not None
    switches.engage("nexrad-l2", PERSON)
    with pytest.raises(GuardError, match="kill_switch"):
        stand.engine.start(selection(), PERSON)
    for _ in range(3):
        stand.clock.forward(600)
        held = stand.engine.advance(run.replay_run_id).hold
        assert (held.reason, "nexrad-l2" in held.observed) == (HoldReason.GUARD, True)
    assert stand.statuses() == {"pending": 2, "failed": 2}
    assert not stand.engine.at_work()

    switches.release("nexrad-l2", PERSON)
    stand.carry_out(run.replay_run_id)
    assert stand.statuses() == {"succeeded": 4}


@pytest.mark.clause("WAL-10")
def test_no_option_readmits_a_unit_of_a_switched_off_dataset(stand: Stand) -> None:
    stand.bring("failed", 2)
    stand.pipeline.ledger.switches.engage("nexrad-l2", PERSON)
    run = stand.engine.start(selection(options={"respect_kill_switch": False}), PERSON)
    stand.carry_out(run.replay_run_id)
    assert stand.engine.report(run.replay_run_id).account.skipped == {"switched_off": 2}
    assert stand.statuses() == {"failed": 2}


def grant(stand: Stand, monkeypatch: pytest.MonkeyPatch, *, attempts: int) -> None:
    """Change the contract's attempts, as a release can, for all pipelines of the process."""
    changed = with_section(stand.pipeline.registry["nexrad-l2"], "retry", max_attempts=attempts)
    monkeypatch.setitem(stand.pipeline.registry.contracts, "nexrad-l2", changed)


@pytest.mark.clause("WAL-10", "RPL-03")
def test_units_without_attempts_left_are_skipped_with_this_reason(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent, fresh = stand.bring("failed"), stand.bring("failed", first=1)
    granted = stand.pipeline.registry["nexrad-l2"].retry.attempts_for("missing_object")
    for number in range(1, granted - 1):
        own_tx(stand.pipeline.ledger).requeue([spent[0].wal_id], reason="test")
        stand.work(failed, run_id=f"again-{number}")
    # At the replay the contract allows fewer attempts, as after a release.
    grant(stand, monkeypatch, attempts=granted - 1)
    plan = stand.engine.plan(selection())
    assert (len(plan.units), plan.skipped) == (2, {"attempts_exhausted": 1})
    run = stand.engine.start(selection(), PERSON)
    stand.carry_out(run.replay_run_id)
    assert stand.engine.report(run.replay_run_id).account.skipped == {"attempts_exhausted": 1}
    assert stand.records()[fresh[0].wal_id].status == "succeeded"
    assert stand.records()[spent[0].wal_id].status == "failed"


@pytest.mark.clause("RPL-07")
def test_results_of_newer_code_are_not_replaced_by_older_code(stand: Stand) -> None:
    stand.bring("succeeded", 2)
    for code_version in ("0.1.0", "0.10.0", "1.0"):
        newer = ReplayEngine(pipeline=stand.pipeline, code_version=code_version)
        assert newer.plan(repair(), change_ref="CHG-1").refusals == (), code_version
    for code_version in ("0.1.0rc1", "0.0.9"):
        older = ReplayEngine(pipeline=stand.pipeline, code_version=code_version)
        with pytest.raises(GuardError, match="2 results newer than"):
            older.start(repair(), PERSON)
    run = older.start(repair(options={"allow_downgrade": True}), PERSON)
    assert str(older.advance(run.replay_run_id)).endswith("batch 1: 2 units admitted")


@pytest.mark.clause("RPL-07")
def test_a_result_written_by_newer_code_after_the_start_is_skipped(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    [unit] = stand.bring("failed")
    grant(stand, monkeypatch, attempts=9)
    older = ReplayEngine(pipeline=stand.pipeline, code_version="0.0.9")
    run = older.start(selection(), PERSON)
    # Before the replay's batch, a worker of another release retries the unit successfully; then the unit fails again.
    own_tx(stand.pipeline.ledger).requeue([unit.wal_id])
    stand.work()
    repeat_units(stand.pipeline.ledger, unit.wal_id)
    stand.work(failed, run_id="run-3")
    assert stand.statuses() == {"failed": 1}
    assert str(older.advance(run.replay_run_id)).endswith("skipped 1 downgrade")


CALM = Traffic(now=NOW, in_flight=[], recent=[], live_waits_since=None)
STRICT = LIMITS[Environment.PROD]


def traffic(
    *, age: float = 0, in_flight: int = 0, dataset: str = "goes-abi", recent: list[tuple[float, int]] | None = None
) -> Traffic:
    """Return traffic: seconds that live units wait, batches in flight, recent (age, records)."""
    return Traffic(
        now=NOW,
        in_flight=[("replay", number, dataset) for number in range(in_flight)],
        recent=[(NOW - timedelta(seconds=ago), records) for ago, records in recent or []],
        live_waits_since=NOW - timedelta(seconds=age) if age else None,
    )


SLOW, STOP = SLOW_DOWN_AT * QUEUE_AGE_SLO_SECONDS, HOLD_AT * QUEUE_AGE_SLO_SECONDS
PACES: dict[str, tuple[Traffic, HoldReason | None]] = {
    "nothing going on": (CALM, None),
    "live units wait a little": (traffic(age=SLOW - 1), None),
    "live units wait long": (traffic(age=STOP), HoldReason.QUEUE_AGE),
    "live units wait a second less": (traffic(age=STOP - 1), None),
    "few batches of the dataset": (traffic(in_flight=STRICT.batches_in_flight_per_dataset - 1), None),
    "many batches of the dataset": (traffic(in_flight=STRICT.batches_in_flight_per_dataset), HoldReason.IN_FLIGHT),
    "the same of another dataset": (traffic(in_flight=STRICT.batches_in_flight_per_dataset, dataset="hrrr"), None),
    "many batches of all datasets": (traffic(in_flight=STRICT.batches_in_flight, dataset="hrrr"), HoldReason.IN_FLIGHT),
    "500 records 4 s ago at 100 a second": (traffic(recent=[(4, 500)]), HoldReason.RATE),
    "500 records 5 s ago": (traffic(recent=[(5, 500)]), None),
    "500 records 5 s ago, live units wait": (traffic(recent=[(5, 500)], age=SLOW), HoldReason.RATE),
    "500 records 10 s ago, live units wait": (traffic(recent=[(10, 500)], age=SLOW), None),
    "an earlier batch whose pause is not over": (traffic(recent=[(1, 0), (4, 500)]), HoldReason.RATE),
    "30 batches within a minute": (traffic(recent=[(59, 1)] * 30), HoldReason.RATE),
    "29 batches within a minute": (traffic(recent=[(59, 1)] * 29), None),
    "15 batches within a minute, live units wait": (traffic(recent=[(59, 1)] * 15, age=SLOW), HoldReason.RATE),
    "30 batches a minute ago": (traffic(recent=[(60, 1)] * 30), None),
}  # fmt: skip


@pytest.mark.clause("RPL-03", "RPL-05")
def test_the_next_batch_waits_for_the_rate_limit_for_other_batches_and_for_live_work() -> None:
    for name, (seen, reason) in PACES.items():
        held: Hold | None = reason_to_hold(seen, limits=STRICT, datasets={"goes-abi"})
        assert (held and held.reason) == reason, name
        assert held is None or "expected" in str(held)
    # If this machine's clock is behind, the age of the queue is zero, not negative.
    ahead = Traffic(now=NOW, in_flight=[], recent=[], live_waits_since=NOW + timedelta(seconds=30))
    assert queue_age(ahead) == 0


@pytest.mark.clause("RPL-05")
def test_a_replay_pauses_for_pending_live_units_and_resumes_by_itself(stand: Stand) -> None:
    stand.bring("failed", 4)
    run = stand.engine.start(selection(limits={"batch_size": 2}), PERSON)
    stand.bring("pending", first=50)
    stand.clock.forward(STOP + 1)
    held = stand.engine.advance(run.replay_run_id).hold
    assert held.reason is HoldReason.QUEUE_AGE
    assert stand.engine.report(run.replay_run_id).hold == held
    assert stand.engine.at_work()
    # Once the live unit has succeeded, the replay continues.
    stand.work()
    assert stand.engine.advance(run.replay_run_id).admitted is not None
    assert stand.statuses() == {"failed": 2, "pending": 2, "succeeded": 1}


@pytest.mark.clause("RPL-03", "RPL-05")
def test_batches_in_flight_hold_the_next_batch_until_they_are_done(stand: Stand) -> None:
    stand.bring("failed", 3)
    engine = stand.limited(batches_in_flight=1)
    run = engine.start(selection(limits={"batch_size": 1}), PERSON)
    assert engine.advance(run.replay_run_id).admitted is not None
    stand.clock.forward(600)
    held = engine.advance(run.replay_run_id).hold
    assert held.reason is HoldReason.IN_FLIGHT
    claimed = stand.claim(run_id="run-2")
    assert engine.advance(run.replay_run_id).hold == held
    # A unit that waits for its retry does not hold the next batch.
    own_tx(stand.pipeline.ledger).settle([failed(unit) for unit in claimed], run_id="run-2")
    assert engine.advance(run.replay_run_id).admitted is not None


@pytest.mark.clause("RPL-03")
def test_a_limit_that_a_release_lowers_holds_a_running_replay(stand: Stand) -> None:
    stand.bring("failed", 2)
    run = stand.engine.start(selection(limits={"batch_size": 2}), PERSON)
    held = stand.limited(max_batch_size=1).advance(run.replay_run_id).hold
    assert (held.reason, "max_batch_size" in held.observed) == (HoldReason.GUARD, True)
