"""Jobs: one over all datasets for the sensors, and one per dataset for people, and what stands beside the chains."""

from __future__ import annotations

import dagster as dg

from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.defs.chain import asset_key, asset_keys, slug
from kfm_dagster.defs.run_tags import LANE_TAG, dataset_tags
from kfm_dagster.ingest.path_arrivals import NODE, radars

INGEST_JOB = "ingest"
PATH_JOB = "path_arrival"
GAP_JOB = "feed_gaps"

_BY_HAND = {LANE_TAG: Lane.BULK.value}
"""What a person or a backfill of the UI starts lists a day: bulk work. The sensors name the lane of each run."""


def ingest_jobs(registry: ContractRegistry) -> list[dg.UnresolvedAssetJobDefinition]:
    """Return `ingest` (every dataset) and `ingest_<dataset>` (one); both run with nothing typed."""
    keys = {contract.id: asset_keys(contract.id) for contract in registry}
    every = dg.define_asset_job(
        INGEST_JOB,
        selection=dg.AssetSelection.assets(*(key for chain in keys.values() for key in chain)),
        tags=_BY_HAND,
        description="Every dataset's chain for one day. The sensors ask for it with the datasets that have work.",
    )
    each = [
        dg.define_asset_job(
            f"{INGEST_JOB}_{slug(contract.id)}",
            selection=dg.AssetSelection.assets(*keys[contract.id]),
            tags={**_BY_HAND, **dataset_tags([contract.id])},
            description=f"Ingest what is missing of {contract.metadata.title} for one day: lists the bucket, works "
            "what the ledger does not know or has pending, and leaves alone what succeeded.",
        )
        for contract in registry
    ]
    return [every, *each]


def path_jobs(registry: ContractRegistry) -> list[dg.UnresolvedAssetJobDefinition]:
    """Return the job over what stands beside the chains of radar volumes; none without such a dataset."""
    keys = [asset_key(contract.id, NODE) for contract in radars(registry)]
    job = dg.define_asset_job(
        PATH_JOB,
        selection=dg.AssetSelection.assets(*keys),
        tags=_BY_HAND,
        description="Arrival times and phases of a day's radar beams, of all metadata that ingests have extracted. Run "
        "again after more of them, it makes the table again; otherwise it reuses the earlier one.",
    )
    return [job] if keys else []


def gap_job(check: dg.AssetCheckKey) -> dg.UnresolvedAssetJobDefinition:
    """Return the job that looks for gaps now."""
    return dg.define_asset_job(
        GAP_JOB,
        selection=dg.AssetSelection.checks(check),
        description="Look now whether something of the followed feeds is missing. The schedule nodd_gaps looks every "
        "hour by itself and needs no run.",
    )
