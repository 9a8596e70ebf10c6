"""The inputs_hash of the first node includes query, window and results of the node's source."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.contracts.issues import IntegrityIssue
from kfm_dagster.ingest.discovery import DayListing, MessageParse, Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.run_state.record import InputReference, Outcome
from kfm_dagster.stages.failure import StageFailedError
from kfm_dagster.storage.object_handle import ObjectReadError
from kfm_dagster_tests.integration.chain import DAY, good, open_pipeline, put, volumes

DATASET = "nexrad-l2"
WINDOW = ("2025-04-02T00:00:00.000000Z", "2025-04-03T00:00:00.000000Z")


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    put(tmp_path / "objects", volumes(2))
    return open_pipeline(tmp_path / "home", tmp_path / "objects")


def node(pipeline: Pipeline, source: Source, run_id: str = "run-1", **more: Any) -> MessageParse:
    return MessageParse(
        pipeline=pipeline, dataset=DATASET, partition=DAY.isoformat(), run_id=run_id, source=source, limit=9, **more
    )


def references(pipeline: Pipeline, source: Source, **more: Any) -> Sequence[InputReference]:
    stage_node = node(pipeline, source, **more)
    assert [entry.uri for entry in stage_node.inputs()] != []
    return stage_node.references()


@pytest.mark.clause("RSP-17")
def test_each_source_is_referenced_with_query_and_window(pipeline: Pipeline) -> None:
    [bucket] = pipeline.registry[DATASET].storage.buckets
    prefix = f"{DAY:%Y/%m/%d}/"
    [listing] = references(pipeline, Source.LISTING)
    assert (listing.uri, listing.query, listing.window) == (
        f"s3://{bucket}/{prefix}",
        {"list-type": "2", "prefix": prefix},
        WINDOW,
    )
    assert listing.checksum is not None
    # A backfill records objects while it lists them, so its reference has no checksum.
    account = DayListing(clock=pipeline.clock, backfill_id="bf-1", dataset=DATASET, day=DAY.isoformat())
    [backfill] = references(pipeline, Source.LISTING, account=account)
    assert backfill == InputReference(uri=listing.uri, query=listing.query, window=WINDOW)
    expected_query = {"status": "pending", "lane": "live", "limit": "9"}
    assert references(pipeline, Source.LEDGER, lane=Lane.LIVE) == [
        InputReference(uri=f"ledger:{DATASET}@{DAY}", query=expected_query, window=WINDOW)
    ]


@pytest.mark.clause("RSP-17")
def test_a_listing_is_hashed_with_etag_and_last_modified_of_each_object(pipeline: Pipeline, tmp_path: Path) -> None:
    first, _, third = volumes(3)
    path = tmp_path / "objects" / first.bucket / first.key
    status = path.stat()
    listed = []
    for change in ("", "none", "etag", "last_modified", "another object"):
        if change == "etag":
            put(tmp_path / "objects", [good(first.bucket, first.key, first.announced[:-1] + b"?")])
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        elif change == "last_modified":
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000_000))
        elif change == "another object":
            put(tmp_path / "objects", [third])
        listed += references(pipeline, Source.LISTING, run_id=f"run {change}")
    assert [after == before for before, after in pairwise(listed)] == [True, False, False, False]


@pytest.mark.clause("RSP-17")
def test_a_failed_listing_fails_the_stage_and_the_next_attempt_lists_again(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: Any) -> Any:
        raise ObjectReadError(IntegrityIssue.STORAGE_UNAVAILABLE, "s3://bucket", "the store does not answer")

    with monkeypatch.context() as away:
        away.setattr(pipeline.objects, "list_day", silent)
        listing = node(pipeline, Source.LISTING)
        with pytest.raises(StageFailedError):
            pipeline.stages.run(listing, run_id="run-1", upstream=None)
    assert pipeline.stages.run_states.get(listing.kind, "run-1").outcome is Outcome.FAILED
    listing = node(pipeline, Source.LISTING)
    batch = pipeline.stages.commit(pipeline.stages.run(listing, run_id="run-1", upstream=None))
    assert len(batch.envelopes) == 2


@pytest.mark.clause("OPR-27", "BEY-05")
def test_a_day_before_the_beginning_of_the_dataset_is_not_recorded_as_listed(pipeline: Pipeline) -> None:
    begins = pipeline.registry[DATASET].storage.first_day
    before = begins - timedelta(days=1)
    for day in (before, begins):
        listing = replace(node(pipeline, Source.LISTING), partition=day.isoformat(), run_id=f"run-{day}")
        pipeline.stages.commit(pipeline.stages.run(listing, run_id=listing.run_id, upstream=None))
    assert pipeline.gaps.listed_days(before, begins) == {(DATASET, begins)}
