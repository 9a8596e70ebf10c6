"""Masking in the chain: the rules for a batch, and the log of their maskings.

Belongs here: combining contract, sensitive areas and the secret of displacements for metadata_extract. Does not belong
here: the rules (`governance/rules.py`), areas (`governance/areas.py`), or how a place is generalised.
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
    """Return the governance rules at the time of the run's claims; None if no rule can apply."""
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
    """Return a result's parameters besides the contract: areas and the displacement secret."""
    areas, masking = load_areas(settings), contract.governance.masking
    displaced = masking is not None and masking.method == "donut"
    return {"masking": areas.fingerprint(salt_of(settings))} if areas.areas or displaced else {}


def record_maskings(node: ChainNode, made: Sequence[Envelope], tx: Transaction) -> None:
    """Write the decisions behind a batch's maskings into the governance log, once per run."""
    log = node.pipeline.ledger.log
    maskings = list(_maskings(node, made))
    # A re-execution of the run may compute the batch again: it is the same decision.
    if maskings and not log.holds(GovernanceAction.MASK, dataset=node.dataset, run_id=node.run_id, tx=tx):
        for masking, counts in maskings:
            details = {"run_id": node.run_id, "partition": node.partition, **counts}
            MaskingDecision.declared(masking, dataset=node.dataset).record(log, tx=tx, details=details)


def _maskings(node: ChainNode, made: Sequence[Envelope]) -> Iterator[tuple[Masking, dict[str, Any]]]:
    """Yield each masking of a batch, the contract's or else the areas', with its counts."""
    extracted = [unit.metadata.stac_properties for unit in made if unit.metadata]
    if (masking := node.contract.governance.masking) is not None:
        if extracted:
            yield masking, {"units": len(extracted)}
        return
    for area in load_areas(node.pipeline.settings):
        decision = MaskingDecision.declared(area.masking, dataset=node.contract.public_id).as_json()
        if units := sum(properties.get(MASKING_DECISION) == decision for properties in extracted):
            yield area.masking, {"area": area.name, "units": units}
