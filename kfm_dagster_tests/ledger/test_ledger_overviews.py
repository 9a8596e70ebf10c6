"""What waits, what fails and what attempts came to, over the whole ledger, as status and metrics ask for it."""

from __future__ import annotations

from datetime import timedelta

from kfm_dagster.ledger.reports import FailingUnits
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.telemetry.totals import Total, kept_totals
from kfm_dagster_tests.factories import envelope
from kfm_dagster_tests.ledger.bench import PERSON, Bench

RADAR = "nexrad-l2"


def test_what_waits_and_what_fails_is_counted_within_the_caller_s_transaction(bench: Bench) -> None:
    begun = bench.clock.now
    bench.bring_to("failed", envelope(0))
    bench.bring_to("quarantined", envelope(1))
    bench.bring_to("pending", envelope(2))
    bench.clock.advance(60)
    groups = [
        FailingUnits(dataset=RADAR, status=Status.FAILED, code="missing_object", units=1, retried=1, first_at=begun),
        FailingUnits(dataset=RADAR, status=Status.QUARANTINED, code="test", units=1, retried=0, first_at=begun),
    ]
    assert bench.ledger.failing() == groups
    with bench.database.transaction() as tx:
        bench.ledger.ensure([envelope(3)], tx=tx)
        bench.ledger.quarantine([envelope(2).wal_id], reason_code="test", decision=PERSON, tx=tx)
        assert tx.run("ledger.pending_units").all() == [(RADAR, 1, bench.clock.now)]
        assert [(one.code, one.units, one.first_at) for one in bench.ledger.failing(tx=tx)] == [
            ("missing_object", 1, begun),
            ("test", 2, begun),
        ]


def test_how_long_live_units_have_waited_is_said_by_shares_of_them(bench: Bench) -> None:
    units = [envelope(number, event_time=bench.clock.now - timedelta(seconds=number)) for number in range(100)]
    bench.ledger.ensure(units)

    def ago(seconds: int) -> object:
        return bench.clock.now - timedelta(seconds=seconds)

    with bench.database.snapshot() as tx:
        [found] = tx.run("ledger.waiting").mappings()
    waited = {"half_at": ago(49), "most_at": ago(89), "nearly_all_at": ago(98), "oldest_at": ago(99)}
    assert found == {"queue": units[0].queue, **waited}


def test_attempts_are_added_up_by_how_they_ended(bench: Bench) -> None:
    bench.bring_to("succeeded", envelope(0))
    bench.bring_to("failed", envelope(1))
    with bench.database.snapshot() as view:
        kept = {(total, label): amount for (total, _, label), amount in kept_totals(view).items()}
    assert kept[Total.VALIDATION_ERRORS, "missing_object"] == 1
    assert [name for total, name in kept if total is Total.VALIDATION_ERRORS] == ["missing_object"]
    assert kept[Total.STAC_WRITES, "created"] == 1
    assert kept[Total.BYTES_INGESTED, ""] > 0
