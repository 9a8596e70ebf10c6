"""Fences: who may still write for a unit, asked inside the transaction that writes.

Belongs here: the type that rooms without a ledger (catalog, lineage) take and the ledger gives. Does not belong here:
how a claim is checked (`ledger/leases.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.contracts.issues import FenceIssue
from kfm_dagster.storage.database import Transaction

Fence = Callable[[Transaction, Mapping[WalId, int]], Mapping[WalId, FenceIssue]]
"""Given units with the attempt that each was claimed with, lock their claims until the transaction ends and return
those that must not be written, with the reason; an empty mapping lets every unit through."""


def open_fence(tx: Transaction, attempts: Mapping[WalId, int]) -> Mapping[WalId, FenceIssue]:  # noqa: ARG001, a Fence
    """Let every unit through: for a catalog or a lineage store without a ledger."""
    return {}
