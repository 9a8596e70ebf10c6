"""Names in Dagster: assets and ops of the chain's nodes, by dataset, and their partitions.

Does not belong here: which day is the first (`ingest/window.py`).
"""

from __future__ import annotations

from datetime import date

import dagster as dg

from kfm_dagster.ingest.node import ChainNode
from kfm_dagster.ingest.nodes import chain

QUEUE_KEY = dg.AssetKey(["queue"])


def asset_key(dataset: str, noun: str) -> dg.AssetKey:
    """Return the key `<dataset>/<noun>`, the dataset spelt as in groups, jobs and ops."""
    return dg.AssetKey([slug(dataset), noun])


def dataset_of(key: dg.AssetKey) -> str:
    """Return the dataset id of an asset of a chain or beside it."""
    # No id has an underscore (contracts/model.py).
    return key.path[0].replace("_", "-")


def asset_keys(dataset: str) -> list[dg.AssetKey]:
    """Return the keys of a dataset's chain, upstream first."""
    return [asset_key(dataset, node.asset) for node in chain()]


def node_of(noun: str) -> type[ChainNode] | None:
    """Return the node of the asset with this noun; None for an asset beside the chain."""
    return next((node for node in chain() if node.asset == noun), None)


def op_name(dataset: str, operator: str) -> str:
    """Return the op's name `<dataset>__<operator>`."""
    return f"{slug(dataset)}__{operator}"


def slug(dataset: str) -> str:
    """Return the dataset id as a Dagster name, which takes no hyphen."""
    return dataset.replace("-", "_")


def daily_partitions(first_day: date) -> dg.DailyPartitionsDefinition:
    """Return the days (UTC) from `first_day` to today, whose objects arrive today.

    One definition, so that a run can cover several datasets. A unit belongs to the day of its key's own time, so that
    a day's objects can be listed by prefix.
    """
    return dg.DailyPartitionsDefinition(start_date=first_day.isoformat(), timezone="UTC", end_offset=1)
