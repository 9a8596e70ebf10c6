"""Under the deployment's role, which can alter no evidence, a day is ingested, retried, taken back and done again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster_tests.catalog import trees
from kfm_dagster_tests.integration.chain import (
    announce,
    missing,
    put,
    raw_message,
    take,
    truncated,
    volumes,
    work_until_done,
)
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.clause("SEC-07")


def test_a_day_is_ingested_and_every_message_ends(
    make_pipeline: Callable[..., Pipeline], deployment_url: str, objects: Path
) -> None:
    pipeline = make_pipeline(url=deployment_url)
    found = volumes(6)
    stored = [*found[:4], truncated(found[4]), missing(found[5])]
    put(objects, stored)
    message = announce([item.event() for item in stored], registry=pipeline.registry)
    take(pipeline, message, raw_message("no notification", name="broken"))
    take(pipeline, message)
    work_until_done(pipeline)
    counts = own_tx(pipeline.ledger).counts()["nexrad-l2"]
    assert {status: units for status, units in counts.items() if units} == {"succeeded": 4, "quarantined": 2}
    messages = pipeline.deliveries.counts()
    assert {state: count for state, count in messages.items() if count} == {"deleted": 1, "rejected": 1}
    assert len(trees.item_ids(Path(pipeline.settings.catalog))) == 4
