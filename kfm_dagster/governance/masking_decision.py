"""The decision to mask a dataset's or an area's places: for PROV, Items and governance log.

Belongs here: the requester of a mask, the published forms. Does not belong here: the masks (`masking.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kfm_dagster.contracts.identity import uuid8
from kfm_dagster.contracts.stewardship import Masking
from kfm_dagster.governance.log import Decision, GovernanceAction, GovernanceLog
from kfm_dagster.governance.masking import Mask, MaskingMethod
from kfm_dagster.storage.database import Transaction

MASKING, MASKING_DECISION = "kfm:masking", "kfm:masking_decision"
"""Properties of an Item whose footprint met a sensitive area: its masking and the decision."""
_DECIDED = ("actor", "reason", "change_ref")


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskingDecision:
    """The decision to mask a dataset's sensitive sites: method, requester, reason and change."""

    dataset: str
    method: MaskingMethod
    parameters: Mapping[str, float]
    decision: Decision

    @classmethod
    def of(cls, mask: Mask, *, dataset: str, decision: Decision) -> MaskingDecision:
        """Return the decision for a mask, with the mask's public parameters."""
        return cls(dataset=dataset, method=mask.method, parameters=dict(mask.parameters()), decision=decision)

    @classmethod
    def declared(cls, masking: Masking, *, dataset: str) -> MaskingDecision:
        """Return the decision behind the masking of a contract or an area."""
        return cls(
            dataset=dataset,
            method=MaskingMethod(masking.method),
            parameters=masking.parameters,
            decision=Decision(actor=masking.requested_by, reason=masking.reason, change_ref=masking.change_ref),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the decision as JSON values."""
        decision = {name: getattr(self.decision, name) for name in _DECIDED}
        return {"dataset": self.dataset, "method": self.method.value, "parameters": dict(self.parameters), **decision}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> MaskingDecision:
        """Read a document of `as_json`."""
        return cls(
            dataset=document["dataset"],
            method=MaskingMethod(document["method"]),
            parameters=dict(document["parameters"]),
            decision=Decision(**{name: value for name, value in document.items() if name in _DECIDED}),
        )

    def prov_nodes(self, masked_uris: list[str]) -> list[dict[str, Any]]:
        """Return PROV-O nodes (`lineage.prov.CONTEXT`): the masking, its requester, its entities.

        The sources of the entities are left out: they would name the place that the mask hides.
        """
        content = self.as_json()
        activity = "urn:uuid:" + uuid8("prov", "masking", json.dumps(content, sort_keys=True))
        agent = "urn:uuid:" + uuid8("prov", "agent", self.decision.actor)
        masking: dict[str, Any] = {
            "id": activity,
            "type": ["Activity", "kfm:Masking"],
            "wasAssociatedWith": [agent],
            "kfm:dataset": self.dataset,
            "kfm:method": self.method.value,
            **{f"kfm:{name}": value for name, value in sorted(self.parameters.items())},
            "kfm:reason": self.decision.reason,
        }
        if self.decision.change_ref is not None:
            masking["kfm:change_ref"] = self.decision.change_ref
        requester = {"id": agent, "type": ["Agent"], "kfm:name": self.decision.actor}
        entities = [
            {"id": uri, "type": ["Entity", "kfm:MaskedInput"], "wasGeneratedBy": activity}
            for uri in sorted(masked_uris)
        ]
        return [masking, requester, *entities]

    def record(self, log: GovernanceLog, *, tx: Transaction, details: Mapping[str, Any] | None = None) -> None:
        """Write the governance log, in the transaction that makes the masked output durable."""
        content = {"method": self.method.value, "parameters": dict(self.parameters), **(details or {})}
        log.record(GovernanceAction.MASK, self.decision, dataset=self.dataset, details=content, tx=tx)
