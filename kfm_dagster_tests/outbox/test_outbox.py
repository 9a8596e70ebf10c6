"""The outbox: order, leases, late workers and deferrals, on both databases."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest
import sqlalchemy as sa

from kfm_dagster.outbox import Entry, Outbox
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.alerts.recorded import NOON, Clock

pytestmark = pytest.mark.clause("PCS-18", "BEY-07")

LEASE = timedelta(minutes=5)


@pytest.fixture
def now() -> Clock:
    return Clock()


@pytest.fixture
def outbox(database: Database, now: Clock) -> Outbox:
    return Outbox(database, "alerts", lease=LEASE, clock=now)


def put(database: Database, outbox: Outbox, consumer: str, *subjects: str) -> None:
    with database.transaction() as tx:
        for subject in subjects:
            outbox.put(tx, consumer, subject, payload={"of": subject}, content=subject.encode())


def claimed(outbox: Outbox, consumer: str = "a") -> Entry:
    entry = outbox.claim([consumer])
    assert entry is not None
    return entry


def finish(database: Database, outbox: Outbox, entry: Entry) -> None:
    with database.transaction() as tx:
        outbox.done(tx, entry)


def test_a_consumer_gets_its_committed_entries_in_order_of_time(database: Database, outbox: Outbox, now: Clock) -> None:
    put(database, outbox, "a", "9")
    now.passes(seconds=1)
    put(database, outbox, "a", "2", "1")
    put(database, outbox, "b", "0")
    with suppress(RuntimeError), database.transaction() as tx:
        outbox.put(tx, "a", "3")
        raise RuntimeError
    received = []
    while (entry := outbox.claim(["a"])) is not None:
        received.append((entry.subject, entry.payload, entry.content, entry.position, entry.turn, entry.failures))
        finish(database, outbox, entry)
    assert received == [(subject, {"of": subject}, subject.encode(), 0, 1, 0) for subject in ("9", "1", "2")]
    assert outbox.claim([]) is None
    assert claimed(outbox, "b").subject == "0"


def test_a_subject_has_at_most_one_undelivered_entry(database: Database, outbox: Outbox, now: Clock) -> None:
    put(database, outbox, "a", "1")
    entry = claimed(outbox)
    put(database, outbox, "a", "1")
    if database.dialect == "sqlite":
        with database.engine.begin() as connection:
            columns = "topic, consumer, subject, payload, created_at"
            replaced = f"INSERT OR REPLACE INTO outbox ({columns}, next_attempt_at)"
            connection.exec_driver_sql(f"{replaced} SELECT {columns}, created_at FROM outbox")
    assert outbox.due(["a"]) is None
    finish(database, outbox, entry)
    assert outbox.claim(["a"]) is None
    put(database, outbox, "a", "1")
    assert claimed(outbox).turn == 1


def test_simultaneous_workers_deliver_each_entry_once(database: Database, outbox: Outbox, now: Clock) -> None:
    put(database, outbox, "a", *map(str, range(12)))
    together = threading.Barrier(4, timeout=60)

    def works(_: int) -> list[str]:
        worker = Outbox(database, "alerts", lease=LEASE, clock=now)
        together.wait()
        entries = list(iter(lambda: worker.claim(["a"]), None))
        for entry in entries:
            finish(database, worker, entry)
        return [entry.subject for entry in entries]

    with ThreadPoolExecutor(4) as pool:
        assert sorted(itertools.chain(*pool.map(works, range(4)))) == sorted(map(str, range(12)))
    with database.engine.connect() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM outbox")).scalar_one() == 0


def test_a_dead_workers_entry_is_claimed_again_when_the_lease_is_over(
    database: Database, outbox: Outbox, now: Clock
) -> None:
    put(database, outbox, "a", "1")
    late = claimed(outbox)
    now.at += LEASE - timedelta(microseconds=1)
    assert outbox.claim(["a"]) is None
    now.passes(microseconds=1)
    second = claimed(outbox)
    assert (second.turn, second.failures) == (2, 0)
    # The late worker's writes change nothing.
    assert not outbox.defer(late, "late")
    finish(database, outbox, late)
    assert outbox.defer(second, "down")
    now.passes(seconds=15)
    assert claimed(outbox).last_error == "down"


def test_a_late_worker_cannot_end_a_subject_s_newer_entry(database: Database, outbox: Outbox, now: Clock) -> None:
    put(database, outbox, "a", "1")
    late = claimed(outbox)
    now.at += LEASE
    finish(database, outbox, claimed(outbox))
    put(database, outbox, "a", "1")
    later = claimed(outbox)
    assert later.turn == late.turn
    finish(database, outbox, late)
    assert not outbox.defer(late, "late")
    assert outbox.defer(later, "down")


def test_the_wait_of_a_failing_entry_doubles_up_to_ten_minutes(database: Database, outbox: Outbox, now: Clock) -> None:
    put(database, outbox, "a", "1")
    tried = []
    for second in range(0, 2_500, 15):
        now.at = NOON + timedelta(seconds=second)
        if (entry := outbox.claim(["a"])) is not None:
            tried.append(second)
            assert (entry.failures, entry.last_error) == (len(tried) - 1, "x" * 500 if tried[1:] else None)
            assert outbox.defer(entry, "x" * 501)
    waits = [later - earlier for earlier, later in itertools.pairwise(tried)]
    assert waits == [15, 30, 60, 120, 240, 480, 600, 600]


def test_topic_subject_and_consumer_together_identify_an_entry(database: Database, outbox: Outbox, now: Clock) -> None:
    followers = Outbox(database, "catalog", lease=LEASE, clock=now)
    for consumer in ("b", "a"):
        put(database, outbox, consumer, "2", "1")
        follower = followers.take(consumer, "1")
        assert follower is not None
        assert followers.take(consumer, "2") is not None
    entries = list(iter(lambda: outbox.claim(["b", "a"]), None))
    assert [(entry.subject, entry.consumer) for entry in entries] == [("1", "a"), ("1", "b"), ("2", "a"), ("2", "b")]
    finish(database, outbox, entries[0])
    assert outbox.defer(entries[1], "down")
    now.passes(seconds=15)
    again = list(iter(lambda: outbox.claim(["a", "b"]), None))
    assert [(entry.subject, entry.consumer, entry.failures) for entry in again] == [("1", "b", 1)]
    assert followers.due(["a", "b"]) is None
    assert [outbox.renew(entry) for entry in entries] == [False, False, True, True]
    followers.release(follower)
    assert outbox.due(["a", "b"]) is None
    assert followers.due(["a", "b"]) is not None


def test_a_worker_that_renews_its_lease_keeps_the_entry_and_the_progress(
    database: Database, outbox: Outbox, now: Clock
) -> None:
    put(database, outbox, "a", "1")
    assert outbox.defer(claimed(outbox), "down")
    now.passes(seconds=15)
    entry = replace(claimed(outbox), position=3, payload=[1])
    now.at += LEASE - timedelta(seconds=1)
    assert outbox.renew(entry)
    now.passes(seconds=1)
    assert outbox.claim(["a"]) is None
    now.at += LEASE - timedelta(seconds=1)
    second = claimed(outbox)
    assert (second.position, second.payload, second.failures, second.last_error) == (3, [1], 1, "down")
    assert not outbox.renew(entry)
    outbox.release(entry)
    assert outbox.claim(["a"]) is None
    outbox.release(replace(second, position=4))
    third = claimed(outbox)
    assert (third.position, third.turn, third.failures) == (4, 4, 1)


def test_a_consumer_gets_subjects_after_the_consumer_it_follows(database: Database, outbox: Outbox, now: Clock) -> None:
    put(database, outbox, "b", "1")
    now.passes(seconds=1)
    put(database, outbox, "a", "1")
    put(database, outbox, "b", "2")
    assert Outbox(database, "catalog", lease=LEASE, clock=now).take("a", "2")
    entry = outbox.claim(["b"], after="a")
    assert entry.subject == "2"
    assert outbox.claim(["b"], after="a") is None
    finish(database, outbox, claimed(outbox))
    assert outbox.claim(["b"], after="a") is not None


def test_the_position_of_a_follower_is_created_by_its_first_claim_and_is_kept(database: Database, now: Clock) -> None:
    followers = Outbox(database, "catalog", lease=LEASE, clock=now)
    with database.transaction() as tx:
        tx.run("catalog.log_changes", collection_id="c", rows=[["i", "p", "withdrawn", None]] * 2, changed_at=now())
    late = followers.take("f", "c")
    assert late is not None
    assert followers.take("f", "c") is None
    now.at += LEASE
    entry = followers.take("f", "c")
    assert entry is not None
    followers.advance(late, 1)
    assert followers.defer(entry, "down")
    assert followers.take("f", "c") is None
    now.passes(seconds=15)
    again = followers.take("f", "c")
    assert (again.position, again.failures, again.turn) == (0, 1, 3)
    followers.advance(again, 2)
    last = followers.take("f", "c")
    assert (last.position, last.failures, last.last_error, last.turn) == (2, 0, None, 4)
