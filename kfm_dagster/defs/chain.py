"""The chain's names: which noun (asset) each operator's verb (op) makes, in order."""

from __future__ import annotations

import dagster as dg

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.ingest.nodes import Operator
from kfm_dagster.ingest.path_arrivals import READER

CHAIN: dict[str, Operator] = {
    "envelopes": Operator.MESSAGE_PARSE,
    "integrity": Operator.INTEGRITY_CHECK,
    "metadata": Operator.METADATA_EXTRACT,
    "stac_items": Operator.STAC_REGISTER,
    "provenance": Operator.PROVENANCE_EMIT,
    "ledger": Operator.SETTLE,
}
"""Asset noun > operator, upstream first."""

QUEUE_KEY = dg.AssetKey(["queue"])


def asset_key(dataset: str, noun: str) -> dg.AssetKey:
    """Return the key `<dataset>/<noun>`."""
    return dg.AssetKey([dataset, noun])


def op_name(dataset: str, operator: Operator) -> str:
    """Return the op's name `<dataset>__<operator>`; Dagster names take no hyphen."""
    return f"{slug(dataset)}__{operator}"


def slug(dataset: str) -> str:
    """Return the dataset id as a Dagster name."""
    return dataset.replace("-", "_")


def radars(registry: ContractRegistry) -> list[DatasetContract]:
    """Return the datasets of radar volumes: those with beams."""
    return [contract for contract in registry if contract.metadata_extract.reader == READER]
