"""A drain or a redrive that is killed at any of its seams loses nothing, and the next one does nothing twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from kfm_dagster.governance.log import GovernanceAction
from kfm_dagster.ledger.deliveries import DeliveryState
from kfm_dagster.notifications.sqs import Queue
from kfm_dagster.recovery.dead_letters.batches import Bounds, End
from kfm_dagster.recovery.dead_letters.drain import drain
from kfm_dagster.seams import Seam
from kfm_dagster_tests.patience import HANG_SECONDS
from kfm_dagster_tests.recovery.graveyard import DECISION, MALFORMED, Graveyard

LEASE_SECONDS = 2
"""What a killed process held comes back so soon."""
DRAIN_DEATHS = (
    (Seam.QUEUE_RECEIVE_AFTER, 1),
    (Seam.LANDING_PUT_AFTER, 1),
    (Seam.DATABASE_COMMIT_BEFORE, 1),
    (Seam.DATABASE_COMMIT_AFTER, 1),
    (Seam.QUEUE_DELETE_BEFORE, 1),
    (Seam.QUEUE_DELETE_AFTER, 1),
    (Seam.QUEUE_VISIBILITY_BEFORE, 1),
)
"""One process each; each begins where its predecessors have left off."""
REDRIVE_DEATHS = (
    (Seam.QUEUE_RECEIVE_AFTER, 1),
    (Seam.DATABASE_COMMIT_AFTER, 1),
    (Seam.QUEUE_DELETE_BEFORE, 1),
    (Seam.QUEUE_DELETE_AFTER, 2),
    (Seam.QUEUE_VISIBILITY_BEFORE, 1),
)
UNITS = 90


def die_while(act: str, seam: Seam, nth: int, graveyard: Graveyard) -> None:
    """Run a process until it is killed."""
    settings = graveyard.pipeline.settings
    environment = {
        **os.environ,
        **graveyard.cloud.environment(),
        "KFM_SNS_VERIFY": "off",  # the messages are made by hand
        "KFM_HOME": str(settings.home),
        "KFM_WAL_DSN": settings.wal_dsn,
        "KFM_SQS_PRIMARY_QUEUE": settings.sqs_primary_queue,
        "KFM_SQS_DLQ_QUEUE": settings.sqs_dlq_queue,
        "KFM_LEASE_SECONDS": str(LEASE_SECONDS),
    }
    command = [sys.executable, "-m", "kfm_dagster_tests.recovery.dying", act, seam, str(nth)]
    ended = subprocess.run(command, env=environment, timeout=120, check=False, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def wait_until_all_are_visible(queue: Queue) -> None:
    deadline = time.monotonic() + 60
    while queue.depth().in_flight:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def bury_every_class(graveyard: Graveyard) -> None:
    graveyard.receive_and_let_die([*(graveyard.body(number) for number in range(60)), MALFORMED])
    graveyard.bury([*(graveyard.body(number) for number in range(60, UNITS)), MALFORMED + "again"])
    graveyard.bring_to("succeeded", range(10))
    graveyard.bring_to("failed", range(10, 50))


@pytest.mark.clause("RPL-06", "WSM-12", "BEY-03")
@pytest.mark.timeout(HANG_SECONDS)
def test_a_drain_that_is_killed_again_and_again_loses_and_doubles_nothing(graveyard: Graveyard) -> None:
    bury_every_class(graveyard)
    for seam, nth in DRAIN_DEATHS:
        die_while("drain", seam, nth, graveyard)
        graveyard.assert_sound()
        wait_until_all_are_visible(graveyard.pipeline.dead_letters)
        # What is not on the queue is deleted, and only because nothing was left to do for it.
        gone = graveyard.pipeline.deliveries.counts()[DeliveryState.DELETED]
        assert graveyard.pipeline.dead_letters.depth().visible >= UNITS + 2 - 10
        assert gone <= 10

    last = drain(graveyard.pipeline, decision=DECISION, bounds=Bounds(batch_size=20))
    assert last.end is End.EMPTY
    assert graveyard.readmissions() == dict.fromkeys(graveyard.wal_ids(range(10, 50)), 1)
    discovered = graveyard.ask("SELECT count(*) AS rows FROM nodd_wal_transitions WHERE version = 1")
    assert discovered[0].rows == UNITS
    entries = graveyard.pipeline.ledger.log.entries(action=GovernanceAction.DLQ_DRAIN, limit=1000)
    audited = Counter({name: sum(entry.details[name] for entry in entries) for name in ("created", "readmitted")})
    assert audited == {"created": 30, "readmitted": 40}

    graveyard.finish_everything()
    assert sorted(graveyard.dead_bodies()) == [MALFORMED, MALFORMED + "again"]
    counts = graveyard.pipeline.deliveries.counts()
    assert (counts[DeliveryState.DELETED], counts[DeliveryState.DEAD_LETTERED]) == (UNITS, 2)


@pytest.mark.clause("RPL-06", "BEY-03")
@pytest.mark.timeout(HANG_SECONDS)
def test_a_redrive_that_is_killed_has_every_message_on_one_of_the_queues(graveyard: Graveyard) -> None:
    bury_every_class(graveyard)
    for seam, nth in REDRIVE_DEATHS:
        die_while("redrive", seam, nth, graveyard)
        wait_until_all_are_visible(graveyard.pipeline.dead_letters)
        dead = graveyard.pipeline.dead_letters.look(1000, budget_seconds=30)
        back = graveyard.pipeline.queue.depth()
        assert len(dead) + back.total >= UNITS + 2
    primary = graveyard.cloud.client("sqs")
    primary.set_queue_attributes(
        QueueUrl=graveyard.queues.queue_url, Attributes={"RedrivePolicy": ""}
    )  # so that looking moves nothing
    standing = graveyard.pipeline.queue.look(1000, budget_seconds=30)
    assert {message.body for message in (*dead, *standing)} == graveyard.bodies
