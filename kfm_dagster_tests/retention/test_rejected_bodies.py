"""Bodies of rejected messages go when they are old enough; what was rejected, and why, stays."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.exc import DBAPIError

from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.deliveries import Deliveries, Delivery, Rejection
from kfm_dagster.retention import rejected_bodies
from kfm_dagster.retention.policy import KeptFor, RetentionKind, RetentionPolicy
from kfm_dagster.retention.pruning import Retention
from kfm_dagster.retention.rejected_bodies import RejectedBodies
from kfm_dagster.storage.database import Database

pytestmark = pytest.mark.clause("BEY-10", "SEC-08")

NOW = datetime.now(UTC)
AGES = {"old": timedelta(days=31), "older": timedelta(days=400), "young": timedelta(days=29)}


@pytest.fixture
def rejected(pipeline: Pipeline) -> Pipeline:
    """A pipeline that has rejected a message of each age."""
    for name, age in AGES.items():
        deliveries = Deliveries(pipeline.database, clock=lambda at=NOW - age: at)
        deliveries.record([Delivery(message_id=name, queue="q", receipt_handle="r", landing_sha256="a" * 64)])
        deliveries.reject(
            [Rejection(message_id=name, record_index=0, reason_code="malformed_json", detail="at byte 1", body="{" * 9)]
        )
    return pipeline


@pytest.fixture
def retention(rejected: Pipeline, retention_url: str) -> Iterator[Retention]:
    """Retention of bodies after 30 days, on PostgreSQL under its role."""
    database = Database.open(retention_url)
    yield Retention(
        policy=RetentionPolicy(version="1.0.0", keep=KeptFor.model_validate({"rejected_bodies": "30d"})),
        pruners={RetentionKind.REJECTED_BODIES: RejectedBodies(database=database)},
        database=database,
        clock=lambda: NOW,
    )
    database.dispose()


def test_old_bodies_go_and_the_rejections_stay(
    rejected: Pipeline, retention: Retention, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rejected_bodies, "BATCH", 1)
    before = rejected.deliveries.rejected()
    [plan] = retention.plan()
    assert (plan.old, plan.removed, plan.bytes) == (2, 2, 18)
    [done] = retention.run(actor="anna")
    assert (done.old, done.removed) == (2, 2)
    assert [name for name in AGES if rejected.deliveries.rejected_body(name) is not None] == ["young"]
    assert rejected.deliveries.rejected() == before
    [entry] = rejected.ledger.log.entries()
    assert (entry.actor, entry.action) == ("anna", "retention")
    assert [one.old for one in retention.plan()] == [0]


def test_no_body_that_a_queue_may_give_again_goes(rejected: Pipeline, retention: Retention) -> None:
    early = NOW - timedelta(days=14)
    Deliveries(rejected.database, clock=lambda: early).record(
        [Delivery(message_id="new", queue="q", receipt_handle="r", landing_sha256="a" * 64)]
    )
    Deliveries(rejected.database, clock=lambda: early).reject(
        [Rejection(message_id="new", record_index=0, reason_code="malformed_json", detail="at byte 1", body="{")]
    )
    bodies = RejectedBodies(database=retention.database)
    [batch] = bodies.batches(NOW)
    with pytest.raises(DBAPIError, match="rejected_bodies_are_kept"):
        bodies.remove(batch)
    assert rejected.deliveries.rejected_body("old") is not None
