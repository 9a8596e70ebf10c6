"""Checkpoints (`etl_checkpoint`): the content that each node applied last, for the question "did anything change"."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from kfm_dagster.storage.database import Database, Transaction
from kfm_dagster.storage.joining import reading


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """One row of `etl_checkpoint`."""

    node: str
    last_applied_hash: str
    updated_at: datetime


class Checkpoints:
    """The checkpoints of a database."""

    def __init__(self, database: Database, *, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._clock = clock

    def get(self, node: str, *, tx: Transaction | None = None) -> Checkpoint | None:
        """Return a node's checkpoint, or None before its first effect."""
        with reading(self._database, tx) as view:
            return view.row(Checkpoint, "idempotent_node.checkpoint", node=node)

    def advance(self, node: str, content_hash: str, *, tx: Transaction) -> None:
        """Name the content that a node applied last, in the transaction that applies it."""
        tx.run("idempotent_node.advance_checkpoint", node=node, content_hash=content_hash, at=self._clock())
