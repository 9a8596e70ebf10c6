"""Keeping leases and messages: long work is not taken, work that ended is, and keeping never harms the work."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import DatabaseUnavailableError, QueueUnavailableError
from kfm_dagster.ingest.node import Heartbeat
from kfm_dagster.ingest.nodes import IntegrityCheck, MessageParse, Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.leases import Leases
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import (
    PARTITION,
    Clock,
    CrashError,
    Failpoint,
    FakeQueue,
    announce,
    put,
    run_chain,
    take,
    volumes,
)
from kfm_dagster_tests.transactions import own_tx

LEASE = 960
TIMEOUT = 900
"""Visibility timeout of the built-in contracts."""
CLAIMED = Failpoint(operator=MessageParse.operator, point="committed")


@pytest.fixture
def claimed(pipeline: Pipeline, contracts: ContractRegistry) -> Clock:
    """Two units of two messages, claimed by `run-1`; the clock that they were claimed by."""
    items = volumes(2)
    put(pipeline.settings.object_root, items)
    take(pipeline, *(announce([item.event()], registry=contracts) for item in items))
    with pytest.raises(CrashError):
        run_chain(pipeline, "nexrad-l2", PARTITION, "run-1", Source.LEDGER, dies_at=CLAIMED)
    assert traces.statuses(pipeline) == {Status.IN_PROGRESS: 2}
    return pipeline.clock


def keeper_of(pipeline: Pipeline, *, run_id: str = "run-1") -> Heartbeat:
    """A heartbeat of the claimed units, whichever run holds them."""
    attempts = {record.wal_id: record.attempts for record in own_tx(pipeline.ledger).find(limit=9)}
    return Heartbeat(pipeline, run_id=run_id, attempts=attempts)


@pytest.mark.clause("BEY-02")
def test_work_that_lasts_many_leases_keeps_its_claims_and_its_messages(
    pipeline: Pipeline, queue: FakeQueue, claimed: Clock
) -> None:
    lifecycle = keeper_of(pipeline)
    assert lifecycle.interval_seconds == TIMEOUT / 3
    hidden_until = claimed.now.timestamp() + TIMEOUT
    for _ in range(20):
        claimed.forward(lifecycle.interval_seconds)
        assert claimed.now.timestamp() < hidden_until
        queue.visibility.clear()
        lifecycle.tick()
        assert own_tx(pipeline.ledger).release_lost().requeued == ()
        if queue.visibility:
            assert len(queue.visibility) == 2
            assert {seconds for _, seconds in queue.visibility} == {TIMEOUT}
            hidden_until = claimed.now.timestamp() + TIMEOUT
    assert traces.statuses(pipeline) == {Status.IN_PROGRESS: 2}

    claimed.forward(LEASE + 1)  # nobody works any more
    assert len(own_tx(pipeline.ledger).release_lost().requeued) == 2


@pytest.mark.clause("BEY-02")
def test_messages_are_left_alone_until_half_of_their_timeout_is_over(
    pipeline: Pipeline, queue: FakeQueue, claimed: Clock
) -> None:
    lifecycle = keeper_of(pipeline)
    claimed.forward(TIMEOUT / 2 - 1)
    lifecycle.tick()
    assert queue.visibility == []
    claimed.forward(1)
    keeper_of(pipeline, run_id="another run").tick()
    assert queue.visibility == []
    lifecycle.tick()
    assert len(queue.visibility) == 2


@pytest.mark.clause("BEY-02")
def test_every_node_renews_when_it_begins(pipeline: Pipeline, claimed: Clock) -> None:
    """Many short nodes after one another hold a batch as long as one long one does."""
    expires: list[float] = []

    def seen(_: object) -> None:
        expires.extend(
            lease.expires_at.timestamp() - claimed.now.timestamp() for lease in own_tx(pipeline.ledger.leases).all()
        )
        claimed.forward(LEASE - 1)

    run_chain(pipeline, "nexrad-l2", PARTITION, "run-1", Source.LEDGER, seen=seen)
    # The first node had succeeded and was skipped; a lease is whole after each of the others.
    assert expires[1:] == [float(LEASE)] * 5
    assert traces.statuses(pipeline) == {Status.SUCCEEDED: 2}


@pytest.mark.clause("BEY-02")
def test_a_thread_renews_while_the_work_lasts_and_ends_with_it(
    pipeline: Pipeline, claimed: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed = threading.Semaphore(0)
    threads: set[str] = set()

    def renew(self: Leases, run_id: str, *_: Any) -> int:
        threads.add(threading.current_thread().name)
        renewed.release()
        return 1

    monkeypatch.setattr(Leases, "renew", renew)
    monkeypatch.setattr(Heartbeat, "interval_seconds", 0.001)
    lifecycle = keeper_of(pipeline)
    with lifecycle.keeping():
        for _ in range(3):
            assert renewed.acquire(timeout=60)
    with pytest.raises(CrashError), lifecycle.keeping():
        raise CrashError
    assert "heartbeat-run-1" in threads
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("heartbeat")] == []


@pytest.mark.clause("BEY-02")
def test_work_goes_on_when_nothing_can_be_renewed(
    pipeline: Pipeline, claimed: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> Any:
        raise DatabaseUnavailableError

    def refuse(*_: object) -> Any:
        raise QueueUnavailableError

    claimed.forward(TIMEOUT / 2)
    monkeypatch.setattr(Leases, "renew", fail)
    monkeypatch.setattr(FakeQueue, "change_visibility", refuse)
    node = IntegrityCheck(pipeline=pipeline, dataset="nexrad-l2", partition=PARTITION, run_id="run-1")
    with caplog.at_level(logging.WARNING), node.working():
        pass
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "run run-1 could not renew its leases",
        "run run-1 could not renew its messages",
    ]
