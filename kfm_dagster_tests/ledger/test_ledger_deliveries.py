"""Messages: when they are deleted, that none is unaccounted for, and how ignored records are stored."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import DBAPIError

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.ledger.deliveries import Delivery, DeliveryState, DueMessage, Rejection
from kfm_dagster.ledger.rejections import NAMED_PER_MESSAGE, IgnoredRecord, ignored_rows
from kfm_dagster.views.feeds import IGNORED, IGNORED_COUNTS, IgnoredFilter
from kfm_dagster.views.view import View
from kfm_dagster_tests.factories import envelope, failed, finished
from kfm_dagster_tests.ledger.bench import JANE, Bench
from kfm_dagster_tests.transactions import own_tx

SHA = "a" * 64


def message(
    number: int, *units: Envelope, receipt: str = "r", state: DeliveryState = DeliveryState.IN_FLIGHT
) -> Delivery:
    return Delivery(
        message_id=f"m{number}",
        queue="kfm-nodd-primary",
        receipt_handle=f"{receipt}-{number}",
        landing_sha256=SHA,
        wal_ids=tuple(unit.wal_id for unit in units),
        state=state,
    )


def receive(bench: Bench, *deliveries: Delivery, units: tuple[Envelope, ...] = ()) -> None:
    with bench.database.transaction() as tx:
        bench.ledger.ensure(units, tx=tx)
        bench.deliveries.record(deliveries, tx=tx)


def rejection(number: int, index: int = 0) -> Rejection:
    return Rejection(message_id=f"m{number}", record_index=index, reason_code="malformed_json", detail="at byte 7")


def due(bench: Bench) -> list[tuple[str, str]]:
    return [(entry.message_id, entry.receipt_handle) for entry in bench.deliveries.due_for_deletion(limit=100)]


@pytest.mark.clause("BEY-03")
def test_a_message_is_due_for_deletion_when_each_of_its_units_is_recorded_and_terminal(bench: Bench) -> None:
    first, second = envelope(1), envelope(2)
    receive(bench, message(1, first, second), message(2, state=DeliveryState.IGNORED), units=(first,))
    assert due(bench) == [("m2", "r-2")], "a message without units is due immediately"
    bench.deliveries.mark_deleted(["m2"])
    bench.ledger.settle([finished(unit) for unit in bench.claim(first)], run_id="run-1")
    assert due(bench) == [], "the second unit has no record"
    claimed = bench.claimed(second)
    assert due(bench) == []
    bench.ledger.settle([failed(unit) for unit in claimed], run_id="run-1")
    assert due(bench) == []
    bench.ledger.quarantine([second.wal_id], reason_code="x", decision=JANE)
    assert due(bench) == [("m1", "r-1")]
    bench.deliveries.mark_deleted(["m1"])
    assert due(bench) == []
    assert bench.deliveries.counts()[DeliveryState.DELETED] == 2


def test_a_rejected_record_keeps_its_message_on_the_queue_after_the_message_s_unit_ended(bench: Bench) -> None:
    unit = envelope()
    receive(bench, message(1, unit), units=(unit,))
    bench.deliveries.reject([rejection(1), rejection(1, 2)])
    bench.ledger.settle([finished(claimed) for claimed in bench.claim(unit)], run_id="run-1")
    assert due(bench) == []
    assert bench.deliveries.counts()[DeliveryState.REJECTED] == 1
    assert [entry.record_index for entry in bench.deliveries.rejected()] == [0, 2]


def test_a_rejection_is_redacted_and_stored_once_and_only_for_a_recorded_message(bench: Bench) -> None:
    receive(bench, message(1))
    entry = Rejection(message_id="m1", record_index=0, reason_code="signature_invalid", detail="from jane@noaa.gov")
    for _ in range(2):
        bench.deliveries.reject([entry])
    (kept,) = bench.deliveries.rejected()
    assert kept.detail == "from [redacted]"
    with pytest.raises(DBAPIError):
        bench.deliveries.reject([rejection(99)])


def test_a_redelivery_updates_the_receipt_and_sets_a_deleted_message_in_flight_again(bench: Bench) -> None:
    unit = envelope()
    receive(bench, message(1, unit), units=(unit,))
    bench.bring_to("succeeded", unit)
    bench.deliveries.mark_deleted(["m1"])
    first = bench.clock.now
    bench.clock.advance(900)
    # The same tick can even receive the message twice.
    receive(bench, message(1, unit, receipt="new"), message(1, unit, receipt="newest"), units=(unit,))
    (row,) = bench.ask("SELECT * FROM nodd_wal_deliveries")
    assert (row["state"], row["receive_count"], row["receipt_handle"]) == ("in_flight", 3, "newest-1")
    assert str(row["first_received_at"])[:16].replace("T", " ") == f"{first:%Y-%m-%d %H:%M}"
    assert due(bench) == [("m1", "newest-1")]
    assert bench.deliveries.duplicates() == {"nexrad-l2": 0}


@pytest.mark.clause("SEC-04", "SEC-11")
def test_a_redelivery_changes_neither_landing_nor_verification(bench: Bench) -> None:
    unchecked, verified = message(1), dataclasses.replace(message(2), authenticity="verified")
    receive(bench, unchecked, verified)
    for authenticity in ("verified", "unchecked"):
        changed = {"landing_sha256": "b" * 64, "authenticity": authenticity}
        receive(bench, dataclasses.replace(unchecked, **changed), dataclasses.replace(verified, **changed))
    rows = bench.ask("SELECT message_id, landing_sha256, signature, receive_count FROM nodd_wal_deliveries ORDER BY 1")
    assert [tuple(row.values()) for row in rows] == [("m1", SHA, "unchecked", 3), ("m2", SHA, "verified", 3)]
    assert bench.deliveries.verified(["m1", "m2"]) == {"m2"}


@pytest.mark.clause("BEY-03")
def test_a_deletion_with_an_older_receipt_leaves_the_message_due(bench: Bench) -> None:
    first, second = envelope(1), envelope(2)
    receive(bench, message(1, first), message(2, second), units=(first, second))
    bench.bring_to("succeeded", first)
    bench.bring_to("succeeded", second)
    due_messages = bench.deliveries.due_for_deletion(limit=10)
    # SQS accepts both receipts, but the second message was redelivered meanwhile.
    receive(bench, message(2, second, receipt="new"), units=(second,))
    bench.deliveries.mark_acknowledged(due_messages)
    assert bench.deliveries.states(["m1", "m2"]) == {"m1": DeliveryState.DELETED, "m2": DeliveryState.IN_FLIGHT}
    assert due(bench) == [("m2", "new-2")]
    bench.deliveries.mark_acknowledged(bench.deliveries.due_for_deletion(limit=10))
    assert due(bench) == []
    assert bench.deliveries.conservation().messages["deleted"] == 2


def test_each_further_message_of_a_unit_counts_as_a_duplicate(bench: Bench) -> None:
    unit, other = envelope(1), envelope(2)
    receive(bench, message(1, unit), message(2, unit, other), message(3, unit), units=(unit, other))
    assert bench.deliveries.duplicates() == {"nexrad-l2": 2}


def test_the_message_of_a_failed_unit_is_hidden_until_the_unit_s_next_attempt(bench: Bench) -> None:
    first, second, fine = envelope(1), envelope(2), envelope(3)
    receive(bench, message(1, first, second), message(2, fine), units=(first, second, fine))
    bench.ledger.settle([failed(unit) for unit in bench.claim(first)], run_id="run-1")
    bench.clock.advance(30.5)
    bench.ledger.settle([failed(unit) for unit in bench.claim(second)], run_id="run-1")
    bench.claim(fine)
    (entry,) = bench.deliveries.due_for_backoff([first.wal_id, second.wal_id, fine.wal_id])
    assert (entry.message_id, entry.receipt_handle, entry.seconds) == ("m1", "r-1", 60)
    (entry,) = bench.deliveries.due_for_backoff([first.wal_id])
    assert entry.seconds == 30
    bench.clock.advance(3600)
    assert [entry.seconds for entry in bench.deliveries.due_for_backoff([second.wal_id])] == [0]


@pytest.mark.clause("BEY-03")
def test_a_message_in_the_dlq_is_dead_lettered_unless_a_run_has_received_it_from_the_dlq(bench: Bench) -> None:
    unit = envelope()
    drained = dataclasses.replace(message(2, unit), queue="kfm-nodd-dlq")
    receive(bench, message(1, unit), drained, message(3, unit), message(4, unit), units=(unit,))
    bench.deliveries.reject([rejection(3)])
    bench.deliveries.mark_deleted(["m4"])  # recorded as deleted, although SQS still has it
    names = ["m1", "m2", "m3", "m4", "m5"]
    bench.deliveries.mark_dead_lettered(names, queue="kfm-nodd-dlq")
    assert bench.deliveries.states(names) == {
        "m1": DeliveryState.DEAD_LETTERED,
        "m2": DeliveryState.IN_FLIGHT,
        "m3": DeliveryState.DEAD_LETTERED,
        "m4": DeliveryState.DEAD_LETTERED,
    }
    assert bench.deliveries.conservation().residual_messages == 0


@pytest.mark.parametrize("what", ["deleted", "acknowledged", "rejected", "dead-lettered"])
def test_concurrent_updates_of_the_same_messages_do_not_deadlock(bench: Bench, what: str) -> None:
    deliveries = bench.deliveries
    names = [f"{random.Random(number).getrandbits(64):016x}" for number in range(1_500)]
    own_tx(deliveries).record(dataclasses.replace(message(0), message_id=name) for name in names)
    held = {name: DueMessage(message_id=name, queue="kfm-nodd-primary", receipt_handle="r-0") for name in names}
    updates: dict[str, Callable[[list[str]], None]] = {
        "deleted": deliveries.mark_deleted,
        "acknowledged": lambda part: deliveries.mark_acknowledged(held[name] for name in part),
        "rejected": lambda part: own_tx(deliveries).reject(
            dataclasses.replace(rejection(0), message_id=name) for name in part
        ),
        "dead-lettered": lambda part: own_tx(deliveries).mark_dead_lettered(part, queue="kfm-nodd-dlq"),
    }

    def repeat(seed: int) -> set[str]:
        updated: set[str] = set()
        for number in range(6):
            # The order in which the database reads rows depends on the number of rows.
            part = random.Random(seed * 10 + number).sample(names, 700 + 130 * number)
            updates[what](part)
            updated |= set(part)
        return updated

    with ThreadPoolExecutor(3) as pool:
        updated = set().union(*pool.map(repeat, range(3)))
    state = DeliveryState({"acknowledged": "deleted"}.get(what, what.replace("-", "_")))
    assert deliveries.states(names) == {name: state if name in updated else DeliveryState.IN_FLIGHT for name in names}


@pytest.mark.clause("BEY-03")
def test_conservation_holds_for_every_state_of_units_and_messages(bench: Bench) -> None:
    states = ("pending", "in_progress", "succeeded", "failed", "quarantined")
    units = tuple(envelope(number) for number in range(5))
    receive(bench, *(message(number, unit) for number, unit in enumerate(units)), units=units)
    for state, unit in zip(states, units, strict=True):
        bench.bring_to(state, unit) if state != "quarantined" else bench.ledger.quarantine(
            [unit.wal_id], reason_code="x", decision=JANE
        )
    receive(bench, message(10, units[0]), message(11), message(12, state=DeliveryState.IGNORED), message(13, units[1]))
    bench.deliveries.reject([rejection(11)])
    bench.deliveries.mark_deleted(["m2"])
    bench.deliveries.mark_dead_lettered(["m13"], queue="kfm-nodd-dlq")
    account = bench.deliveries.conservation()
    assert (account.residual_units, account.residual_messages) == (0, 0)
    assert (account.units_received, dict(account.units)) == (5, dict.fromkeys(states, 1))
    assert account.messages_received == 9
    assert account.messages == {"in_flight": 5, "rejected": 1, "ignored": 1, "deleted": 1, "dead_lettered": 1}


@pytest.mark.clause("BEY-03")
def test_conservation_counts_units_and_messages_that_cannot_end(bench: Bench) -> None:
    receive(bench, message(1, envelope(1)), message(2), message(3, envelope(1), envelope(2)))
    account = bench.deliveries.conservation()
    # Two units without a record, and a message in flight without a pending unit.
    assert (account.residual_units, account.residual_messages) == (2, 1)
    bench.ledger.ensure([envelope(1), envelope(2)])
    bench.deliveries.reject([rejection(2)])
    account = bench.deliveries.conservation()
    assert (account.residual_units, account.residual_messages) == (0, 0)
    bench.type_by_hand("UPDATE nodd_wal_deliveries SET state = 'rejected' WHERE message_id = 'm3'")
    assert bench.deliveries.conservation().residual_messages == 1


def sidecar(index: int, *, dataset: str = "hrrr") -> IgnoredRecord:
    return IgnoredRecord(record_index=index, reason="sidecar", dataset=dataset, bucket="b", key=f"k{index}")


def receive_ignored(bench: Bench, *records: IgnoredRecord) -> None:
    bench.deliveries.record([dataclasses.replace(message(1, state=DeliveryState.IGNORED), ignored=records)])


def rows(bench: Bench, view: View, *, limit: int = 10_000) -> Sequence[Any]:
    return view.query(cast("Any", bench), IgnoredFilter(), None, limit).rows


def kept(bench: Bench) -> list[IgnoredRecord]:
    names = [field.name for field in dataclasses.fields(IgnoredRecord)]
    ignored = rows(bench, IGNORED)
    return [IgnoredRecord(**{name: getattr(row, name) for name in names}) for row in ignored]


@pytest.mark.clause("OPR-19")
def test_a_redelivered_message_keeps_its_ignored_records_and_adds_only_new_ones(bench: Bench) -> None:
    receive_ignored(bench, sidecar(0))
    bench.clock.advance(900)
    receive_ignored(bench, sidecar(0), sidecar(1))
    assert kept(bench) == [sidecar(1), sidecar(0)]
    assert [row.received_at for row in rows(bench, IGNORED, limit=1)] == [bench.clock()]


@pytest.mark.clause("OPR-19")
@pytest.mark.parametrize("beyond", [0, 1, 4_000])
def test_ignored_records_beyond_a_message_s_limit_are_counted_by_reason_and_dataset(bench: Bench, beyond: int) -> None:
    named = [sidecar(index) for index in range(NAMED_PER_MESSAGE)]
    more = [sidecar(NAMED_PER_MESSAGE + index, dataset=f"d{index % 2}") for index in range(beyond)]
    receive_ignored(bench, *named, *more)
    groups = min(beyond, 2)
    assert len(kept(bench)) == NAMED_PER_MESSAGE + groups
    assert [record.key for record in kept(bench)[NAMED_PER_MESSAGE:]] == [None] * groups
    counts = {row.dataset: row.records for row in rows(bench, IGNORED_COUNTS)}
    assert counts.pop("hrrr") == NAMED_PER_MESSAGE
    assert sum(counts.values()) == beyond


@pytest.mark.clause("OPR-19")
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.sampled_from(["sidecar", "known_neighbour"]), st.sampled_from([None, "a", "b"])), max_size=300
    )
)
def test_each_ignored_record_is_counted_once(records: list[tuple[str, str | None]]) -> None:
    rows = ignored_rows(
        "m",
        [
            IgnoredRecord(record_index=index, reason=reason, dataset=dataset, key="k")
            for index, (reason, dataset) in enumerate(records)
        ],
    )
    assert len(rows) <= NAMED_PER_MESSAGE + 6
    assert len({row["record_index"] for row in rows}) == len(rows)
    for group in set(records):
        counted = sum(row["records"] for row in rows if (row["reason"], row["dataset"]) == group)
        assert counted == records.count(group)
