"""A STAC API that is away costs no unit: runs settle as without it, and what it lacks comes later."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kfm_dagster.ingest.nodes import Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster_tests.integration.chain import DAY, FakeQueue, announce, put, run_chain, take, volumes

pytestmark = [pytest.mark.one_database, pytest.mark.clause("OPR-23")]

AWAY = "postgresql+psycopg2://kfm@127.0.0.1:1/stac"


def test_units_succeed_while_the_api_is_away(
    make_pipeline: Callable[..., Pipeline], database_url: str, objects: object, queue: FakeQueue
) -> None:
    pipeline = make_pipeline(url=database_url, queue=queue, stac_api_dsn=AWAY)
    found = volumes(3)
    put(pipeline.settings.object_root, found)  # type: ignore[arg-type]
    take(pipeline, announce([one.event() for one in found], registry=pipeline.registry))
    run_chain(pipeline, "nexrad-l2", DAY.isoformat(), "run-1", Source.LEDGER)
    assert pipeline.ledger.counts()["nexrad-l2"][Status.SUCCEEDED] == 3
    [place] = pipeline.following.places()
    assert (place.follower, place.behind, place.failures) == ("stac-api", 3, 1)
    assert len(queue.deleted) == 1
