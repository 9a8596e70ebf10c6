"""A process that lists a day of a backfill and dies by SIGKILL: `python -m ... URL HOME BACKFILL OBJECTS AFTER`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.ingest.discovery import MessageParse, Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.recovery.backfill.days import DayListing
from kfm_dagster.storage.objects import ListedObject
from kfm_dagster_tests.integration.chain import open_pipeline

DAY = date(2025, 4, 2)
DATASET = "nexrad-l2"


def objects_of_a_day(number: int) -> Iterator[ListedObject]:
    """Objects as a listing finds them, one volume a second; no bytes stand behind them."""
    for index in range(number):
        start = datetime(DAY.year, DAY.month, DAY.day, tzinfo=UTC) + timedelta(seconds=index)
        yield ListedObject(
            uri=f"s3://unidata-nexrad-level2/{start:%Y/%m/%d}/KTLX/KTLX{start:%Y%m%d_%H%M%S}_V06",
            size=1000 + index,
            etag=f"{index:032x}",
            last_modified=start + timedelta(minutes=5),
        )


def listing(pipeline: Pipeline, run_id: str, *, backfill_id: str | None, limit: int) -> MessageParse:
    """The node that lists DAY."""
    account = None
    if backfill_id is not None:
        account = DayListing(clock=pipeline.clock, backfill_id=backfill_id, dataset=DATASET, day=DAY.isoformat())
    return MessageParse(
        pipeline=pipeline,
        dataset=DATASET,
        partition=DAY.isoformat(),
        run_id=run_id,
        source=Source.LISTING,
        limit=limit,
        lane=Lane.BULK,
        account=account,
    )


def main(url: str, home: str, backfill_id: str, number: int, after: int) -> None:
    """List and die when so many objects have been listed."""

    def list_day(contract: DatasetContract, day: date, **_: object) -> Iterator[ListedObject]:
        for index, found in enumerate(objects_of_a_day(number)):
            if index == after:
                os.kill(os.getpid(), signal.SIGKILL)
            yield found

    pipeline = open_pipeline(Path(home), Path(home), url=url)
    pipeline.objects.list_day = list_day  # type: ignore[method-assign]
    pipeline.stages.run(listing(pipeline, "dies", backfill_id=backfill_id, limit=10), run_id="dies", upstream=None)


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))
