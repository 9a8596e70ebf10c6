"""The history is written by the database, complete, append-only, and enough to rebuild the record."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import DBAPIError

from kfm_dagster.ledger.record import replay_history
from kfm_dagster_tests.factories import envelope, failed
from kfm_dagster_tests.ledger.bench import Bench


@pytest.mark.clause("WSM-17")
def test_every_transition_leaves_who_when_from_to_version_reason_and_run(bench: Bench) -> None:
    unit = envelope()
    start = bench.clock.now
    bench.ledger.ensure([unit])
    bench.clock.advance(1)
    claimed = bench.claim(run_id="run-1")
    bench.clock.advance(1)
    bench.ledger.settle([failed(one) for one in claimed], run_id="run-1")
    bench.clock.advance(1)
    bench.ledger.requeue([unit.wal_id], reason="incident", run_id="replay-1", actor="jane")
    found = [
        (one.version, (one.at - start).seconds, one.actor, one.from_status, one.to_status, one.reason, one.run_id)
        for one in bench.ledger.history(unit.wal_id)
    ]
    assert found == [
        (1, 0, "worker-1", None, "pending", "discovered", None),
        (2, 1, "worker-1", "pending", "in_progress", "claimed", "run-1"),
        (3, 2, "worker-1", "in_progress", "failed", "missing_object", "run-1"),
        (4, 3, "jane", "failed", "pending", "incident", "replay-1"),
    ]


@pytest.mark.clause("WSM-17")
def test_a_change_typed_by_hand_has_its_history_too(bench: Bench) -> None:
    unit = envelope()
    bench.bring_to("pending", unit)
    bench.type_by_hand(
        "UPDATE nodd_wal_records SET status = 'quarantined', last_error_code = 'by_hand', version = version + 1,"
        " updated_at = '2025-12-03T13:00:00.000000Z', changed_by = 'jane', change_reason = 'CHG-7'"
    )
    last = bench.ledger.history(unit.wal_id)[-1]
    assert (last.actor, last.from_status, last.to_status, last.reason) == ("jane", "pending", "quarantined", "CHG-7")
    before = bench.ledger.history(unit.wal_id)
    assert replay_history(before) == bench.ledger.get(unit.wal_id)
    for version in (2, 3):
        forged = f"wal_id, {version}, at, 'mallory', from_status, to_status, reason, run_id, attempts, fields"
        with pytest.raises(DBAPIError, match=r"history_is_(append_only|written_by_the_ledger)"):
            bench.type_by_hand(
                "INSERT INTO nodd_wal_transitions (wal_id, version, at, actor, from_status, to_status, reason, run_id,"
                f" attempts, fields) SELECT {forged} FROM nodd_wal_transitions WHERE version = 2"
            )
    assert bench.ledger.history(unit.wal_id) == before


def test_a_history_with_a_hole_is_refused(bench: Bench) -> None:
    unit = envelope()
    bench.bring_to("failed", unit)
    bench.ledger.requeue([unit.wal_id])
    bench.ledger.settle([failed(one) for one in bench.claim(unit)], run_id="run-1")
    history = bench.ledger.history(unit.wal_id)
    # Without a whole attempt the statuses still follow one another.
    without_an_attempt = history[:2] + history[5:]
    for broken in (history[1:], history[:1] + history[2:], history[::-1], [], without_an_attempt):
        with pytest.raises(ValueError, match="history"):
            replay_history(broken)
