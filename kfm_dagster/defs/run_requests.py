"""Run requests: the sensors' requests to Dagster, from planned runs.

Belongs here: configuration, tags and priority of a run, by its lane. Does not belong here: planning runs
(`ingest/plan.py`, `ingest/path_arrivals.py`, `recovery/backfill/days.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import dagster as dg

from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.defs.chain import asset_key, asset_keys, op_name
from kfm_dagster.defs.jobs import EVIDENCE_JOB, INGEST_JOB, PATH_JOB
from kfm_dagster.defs.run_tags import BACKFILL_TAG, LANE_TAG, SOURCE_TAG, dataset_tags
from kfm_dagster.ingest.nodes import MessageParse, Source
from kfm_dagster.ingest.path_arrivals import PathArrivals, days_to_compute
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.plan import PlannedRun
from kfm_dagster.ledger.cases import QuarantineCases
from kfm_dagster.recovery.backfill.days import ListingRequest

PRIORITY_TAG = "dagster/priority"
PRIORITIES: Mapping[Lane, str] = {Lane.LIVE: "10", Lane.BULK: "-10"}
"""The queued run with the highest number starts first; a run started by a person has none, which is 0."""
EVIDENCE_SECONDS = 600
"""Seconds after which a run is requested again for a case whose evidence could not be collected."""


def planned_run(run: PlannedRun) -> dg.RunRequest:
    """Return the request for a planned run."""
    config = {"source": Source.LEDGER.name, "lane": run.lane.name}
    tags = {SOURCE_TAG: Source.LEDGER.value}
    return _request(run.run_key, run.partition, run.lane, dict.fromkeys(run.datasets, config), tags=tags)


def listing_run(request: ListingRequest) -> dg.RunRequest:
    """Return the request for the run that lists a day of a backfill."""
    config = {"source": Source.LISTING.name, "lane": Lane.BULK.name, "backfill_id": request.backfill_id}
    tags = {SOURCE_TAG: Source.LISTING.value, BACKFILL_TAG: request.backfill_id}
    return _request(request.run_key, request.day, Lane.BULK, dict.fromkeys(request.datasets, config), tags=tags)


def path_runs(pipeline: Pipeline, days: dg.PartitionsDefinition) -> tuple[list[dg.RunRequest], str]:
    """Return the requests for the days whose beams are due, and the reason where there are none."""
    due = days_to_compute(pipeline.ledger, pipeline.nodes, at=pipeline.clock())
    requests = [
        dg.RunRequest(
            # Each state of a day's metadata is requested once: nodd_ledger replays failures.
            run_key=f"{path_day.dataset}/{path_day.day}/{path_day.content_hash}",
            job_name=PATH_JOB,
            partition_key=path_day.day,
            asset_selection=[asset_key(path_day.dataset, PathArrivals.asset)],
            tags=dataset_tags([path_day.dataset]),
        )
        for path_day in due
        if days.has_partition_key(path_day.day)
    ]
    return requests, "every day whose units have ended has its arrivals"


def evidence_runs(cases: QuarantineCases, *, at: datetime) -> list[dg.RunRequest]:
    """Return the request of the job where cases lack evidence, keyed by the oldest case."""
    turn = int(at.timestamp()) // EVIDENCE_SECONDS
    return [
        dg.RunRequest(run_key=f"{oldest.wal_id}@{oldest.version}/{turn}", job_name=EVIDENCE_JOB)
        for oldest in cases.due(limit=1)
    ]


def _request(
    run_key: str, partition: str, lane: Lane, configs: Mapping[str, Mapping[str, Any]], *, tags: Mapping[str, str]
) -> dg.RunRequest:
    return dg.RunRequest(
        run_key=run_key,
        job_name=INGEST_JOB,
        partition_key=partition,
        asset_selection=[key for dataset in configs for key in asset_keys(dataset)],
        run_config={
            "ops": {op_name(dataset, MessageParse.operator): {"config": config} for dataset, config in configs.items()}
        },
        tags={**dataset_tags(configs), LANE_TAG: lane.value, PRIORITY_TAG: PRIORITIES[lane], **tags},
    )
