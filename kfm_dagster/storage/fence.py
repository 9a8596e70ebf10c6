"""Fences: the check, inside the writing transaction, that a run may still write for a unit.

Belongs here: the type that folders without a ledger (catalog, lineage) call and the ledger implements. Does not belong
here: how a claim is checked (`ledger/leases.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.contracts.issues import FenceIssue
from kfm_dagster.storage.database import Transaction

Fence = Callable[[Transaction, Mapping[WalId, int]], Mapping[WalId, FenceIssue]]
"""Takes units with the attempts of their claims, locks these claims until the transaction ends, and returns the units
that must not be written, with the reason; an empty mapping permits every unit."""


def open_fence(tx: Transaction, attempts: Mapping[WalId, int]) -> Mapping[WalId, FenceIssue]:  # noqa: ARG001, a Fence
    """Permit every unit, for a catalog or a lineage store without a ledger."""
    return {}
