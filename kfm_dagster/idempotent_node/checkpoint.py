"""Checkpoints (`etl_checkpoint`): each node's last applied content, to detect changes.

Belongs here: reading, locking and advancing a checkpoint in the caller's transaction. Does not belong here: the order
of these calls (`transaction.py`).
"""

from __future__ import annotations

from datetime import datetime

from kfm_dagster.storage.database import Transaction


def last_applied(node: str, *, tx: Transaction) -> str | None:
    """Return the hash of a node's last applied content, or None before the node's first effect."""
    content_hash: str | None = tx.run("idempotent_node.checkpoint", node=node).scalar_one_or_none()
    return content_hash


def lock_node(node: str, *, tx: Transaction) -> None:
    """Lock a node's checkpoint until the transaction ends; only this transaction can advance it.

    Lock order, also in transactions that skip the node: first the node, then locks that all nodes share.
    """
    tx.lock(f"etl_checkpoint/{node}")


def advance(node: str, content_hash: str, *, at: datetime, tx: Transaction) -> None:
    """Record the content that a node applied last, in the transaction that applies it."""
    tx.run("idempotent_node.advance_checkpoint", node=node, content_hash=content_hash, at=at)
