"""Masking in the chain: which rules a batch is held against, and what is written down of what they masked.

Belongs here: contract, sensitive areas and the secret of displacements, brought together for metadata_extract. Does not
belong here: the rules (`governance/rules.py`), areas (`governance/areas.py`), or how a place is generalised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.contracts.stewardship import Masking
from kfm_dagster.governance.areas import load_areas, salt_of
from kfm_dagster.governance.log import GovernanceAction
from kfm_dagster.governance.masking_decision import MASKING_DECISION, MaskingDecision
from kfm_dagster.governance.rules import Rules
from kfm_dagster.ingest.node import ChainNode
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Transaction


def rules_of(node: ChainNode) -> Rules | None:
    """Return the rules of governance as they are when the run claims its units; None where nothing can object."""
    areas = load_areas(node.pipeline.settings)
    if not Rules.any_of(node.contract) and not areas.areas:
        return None
    return Rules(
        governance=node.contract.governance,
        at=node.reference_time,
        dataset=node.contract.public_id,
        areas=areas,
        salt=salt_of(node.pipeline.settings),
    )


def masking_params(settings: Settings, contract: DatasetContract) -> dict[str, str]:
    """Return what changes a result besides the contract: areas, and the secret of displacements; nothing without."""
    areas, masking = load_areas(settings), contract.governance.masking
    displaced = masking is not None and masking.method == "donut"
    return {"masking": areas.fingerprint(salt_of(settings))} if areas.areas or displaced else {}


def record_maskings(node: ChainNode, made: Sequence[Envelope], tx: Transaction) -> None:
    """Write the decisions behind what was masked into the governance log, once in a run."""
    log = node.pipeline.ledger.log
    maskings = list(_maskings(node, made))
    # A run that is executed again may compute what it had computed: it is the same decision.
    if maskings and not log.holds(GovernanceAction.MASK, dataset=node.dataset, run_id=node.run_id, tx=tx):
        for masking, masked in maskings:
            details = {"run_id": node.run_id, "partition": node.partition, **masked}
            MaskingDecision.declared(masking, dataset=node.dataset).record(log, tx=tx, details=details)


def _maskings(node: ChainNode, made: Sequence[Envelope]) -> Iterator[tuple[Masking, dict[str, Any]]]:
    """Yield each masking of a batch, the contract's or else those of areas, and what it masked."""
    extracted = [unit.metadata.stac_properties for unit in made if unit.metadata]
    if (masking := node.contract.governance.masking) is not None:
        if extracted:
            yield masking, {"units": len(extracted)}
        return
    for area in load_areas(node.pipeline.settings):
        decided = MaskingDecision.declared(area.masking, dataset=node.contract.public_id).as_json()
        if units := sum(properties.get(MASKING_DECISION) == decided for properties in extracted):
            yield area.masking, {"area": area.name, "units": units}
