"""Names in Dagster: the assets and ops of the chain's nodes, by dataset."""

from __future__ import annotations

import dagster as dg

from kfm_dagster.ingest.node import ChainNode
from kfm_dagster.ingest.nodes import chain

QUEUE_KEY = dg.AssetKey(["queue"])


def asset_key(dataset: str, noun: str) -> dg.AssetKey:
    """Return the key `<dataset>/<noun>`, the dataset spelt as in groups, jobs and ops."""
    return dg.AssetKey([slug(dataset), noun])


def dataset_of(key: dg.AssetKey) -> str:
    """Return the id of the dataset that an asset of a chain, or one beside it, is of."""
    # No id has an underscore (contracts/model.py).
    return key.path[0].replace("_", "-")


def asset_keys(dataset: str) -> list[dg.AssetKey]:
    """Return the keys of a dataset's chain, upstream first."""
    return [asset_key(dataset, node.asset) for node in chain()]


def node_of(noun: str) -> type[ChainNode] | None:
    """Return the node that makes the asset of that noun; None for one beside the chain."""
    return next((node for node in chain() if node.asset == noun), None)


def op_name(dataset: str, operator: str) -> str:
    """Return the op's name `<dataset>__<operator>`."""
    return f"{slug(dataset)}__{operator}"


def slug(dataset: str) -> str:
    """Return the dataset id as a Dagster name, which takes no hyphen."""
    return dataset.replace("-", "_")
