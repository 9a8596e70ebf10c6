"""Run requests: what the sensors ask Dagster for, from what was planned.

Belongs here: configuration, tags and priority of a run, by its lane. Does not belong here: which runs are needed
(`ingest/plan.py`, `recovery/backfill/days.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.defs.chain import asset_keys, op_name
from kfm_dagster.defs.jobs import INGEST_JOB
from kfm_dagster.defs.run_tags import BACKFILL_TAG, LANE_TAG, SOURCE_TAG, dataset_tags
from kfm_dagster.ingest.nodes import MessageParse, Source
from kfm_dagster.ingest.plan import PlannedRun
from kfm_dagster.recovery.backfill.days import ListingRequest

PRIORITY_TAG = "dagster/priority"
PRIORITIES: Mapping[Lane, str] = {Lane.LIVE: "10", Lane.BULK: "-10"}
"""Of queued runs the highest number starts first; what a person starts has none, which is 0."""


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
