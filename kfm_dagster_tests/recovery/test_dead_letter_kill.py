"""A drain or redrive killed at any failpoint loses no message; the next one repeats no work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from kfm_dagster.failpoints import Failpoint
from kfm_dagster.governance.log import GovernanceAction
from kfm_dagster.ledger.deliveries import DeliveryState
from kfm_dagster.notifications.sqs import Queue
from kfm_dagster.recovery.dead_letters.treatments import drain, redrive
from kfm_dagster.recovery.dead_letters.work import Bounds, End
from kfm_dagster_tests.moments import dying
from kfm_dagster_tests.recovery.dlq_fixture import DECISION, MALFORMED, DlqFixture, reopened
from kfm_dagster_tests.timeouts import HANG_SECONDS, until
from kfm_dagster_tests.transactions import own_tx

LEASE_SECONDS = 2
"""Messages held by a killed process become visible after this time."""
DRAIN_DEATHS = (
    (Failpoint.QUEUE_RECEIVE_AFTER, 1),
    (Failpoint.LANDING_PUT_AFTER, 1),
    (Failpoint.DATABASE_COMMIT_BEFORE, 1),
    (Failpoint.DATABASE_COMMIT_AFTER, 1),
    (Failpoint.QUEUE_DELETE_BEFORE, 1),
    (Failpoint.QUEUE_DELETE_AFTER, 1),
    (Failpoint.QUEUE_VISIBILITY_BEFORE, 1),
)
"""One process dies at each failpoint; the next process continues where it stopped."""
REDRIVE_DEATHS = (
    (Failpoint.QUEUE_RECEIVE_AFTER, 1),
    (Failpoint.DATABASE_COMMIT_AFTER, 1),
    (Failpoint.QUEUE_DELETE_BEFORE, 1),
    (Failpoint.QUEUE_DELETE_AFTER, 2),
    (Failpoint.QUEUE_VISIBILITY_BEFORE, 1),
)
UNITS = 90


def die_while(act: Callable[..., object], failpoint: Failpoint, nth: int, dlq_fixture: DlqFixture) -> None:
    """Act until the failpoint kills the process."""
    mortal = reopened(dlq_fixture, lease_seconds=LEASE_SECONDS)
    with dying(mortal.pipeline.database, at=nth, only=failpoint) as death:
        act(mortal.pipeline, decision=DECISION, bounds=Bounds(batch_size=20))
    assert death.died
    mortal.pipeline.close()


def wait_until_all_are_visible(queue: Queue) -> None:
    until(lambda: not queue.depth().in_flight)


def bury_every_class(dlq_fixture: DlqFixture) -> None:
    dlq_fixture.receive_and_let_die([*(dlq_fixture.body(number) for number in range(60)), MALFORMED])
    dlq_fixture.bury([*(dlq_fixture.body(number) for number in range(60, UNITS)), MALFORMED + "again"])
    dlq_fixture.bring_to("succeeded", range(10))
    dlq_fixture.bring_to("failed", range(10, 50))


@pytest.mark.clause("RPL-06", "WSM-12", "BEY-03")
@pytest.mark.timeout(HANG_SECONDS)
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_repeatedly_killed_drain_loses_and_duplicates_no_unit(dlq_fixture: DlqFixture) -> None:
    bury_every_class(dlq_fixture)
    for failpoint, nth in DRAIN_DEATHS:
        die_while(drain, failpoint, nth, dlq_fixture)
        dlq_fixture.assert_sound()
        wait_until_all_are_visible(dlq_fixture.pipeline.dead_letters)
        # Messages missing from the queue were deleted because their work was complete.
        gone = dlq_fixture.pipeline.deliveries.counts()[DeliveryState.DELETED]
        assert dlq_fixture.pipeline.dead_letters.depth().visible >= UNITS + 2 - 10
        assert gone <= 10

    last = drain(dlq_fixture.pipeline, decision=DECISION, bounds=Bounds(batch_size=20))
    assert last.end is End.EMPTY
    assert dlq_fixture.requeues() == dict.fromkeys(dlq_fixture.wal_ids(range(10, 50)), 1)
    discovered = dlq_fixture.ask("SELECT count(*) AS rows FROM nodd_wal_transitions WHERE version = 1")
    assert discovered[0].rows == UNITS
    entries = own_tx(dlq_fixture.pipeline.ledger.log).entries(action=GovernanceAction.DLQ_DRAIN, limit=1000)
    audited = Counter({name: sum(entry.details[name] for entry in entries) for name in ("created", "requeued")})
    assert audited == {"created": 30, "requeued": 40}

    dlq_fixture.finish_everything()
    assert sorted(dlq_fixture.dead_bodies()) == [MALFORMED, MALFORMED + "again"]
    counts = dlq_fixture.pipeline.deliveries.counts()
    assert (counts[DeliveryState.DELETED], counts[DeliveryState.DEAD_LETTERED]) == (UNITS, 2)


@pytest.mark.clause("RPL-06", "BEY-03")
@pytest.mark.timeout(HANG_SECONDS)
@pytest.mark.one_database
def test_a_killed_redrive_leaves_every_message_on_one_of_the_queues(dlq_fixture: DlqFixture) -> None:
    bury_every_class(dlq_fixture)
    for failpoint, nth in REDRIVE_DEATHS:
        die_while(redrive, failpoint, nth, dlq_fixture)
        wait_until_all_are_visible(dlq_fixture.pipeline.dead_letters)
        dead = dlq_fixture.pipeline.dead_letters.look(1000, budget_seconds=30)
        back = dlq_fixture.pipeline.queue.depth()
        assert len(dead) + back.total >= UNITS + 2
    primary = dlq_fixture.cloud.client("sqs")
    primary.set_queue_attributes(
        QueueUrl=dlq_fixture.queues.queue_url, Attributes={"RedrivePolicy": ""}
    )  # so that reading the queue moves no message
    queued = dlq_fixture.pipeline.queue.look(1000, budget_seconds=30)
    assert {message.body for message in (*dead, *queued)} == dlq_fixture.bodies
