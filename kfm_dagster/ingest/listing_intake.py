"""Listed objects on their way into the ledger: the one way in for what no message announced.

Belongs here: what backfills, runs that a person starts and `kfm reconcile` share. Does not belong here: listing
(`storage/objects.py`), and who wants it (`discovery.py`, `recovery/`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kfm_dagster.contracts.envelope import Envelope, Lane, WalId
from kfm_dagster.ingest.volume_end import close
from kfm_dagster.ledger.policy import ReplayReason
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.storage.database import Transaction

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entered:
    """What became of a chunk of listed objects; the rest was known."""

    created: Collection[WalId]
    requeued: Collection[WalId]
    refused: Collection[Envelope]
    """Units that no record can hold."""


def enter_listed(ledger: Ledger, chunk: Sequence[Envelope], tx: Transaction) -> Entered:
    """Give listed objects their records, in the bulk lane, and let failed ones in again. Entering twice is no harm."""
    ensured = ledger.ensure(chunk, lane=Lane.BULK, tx=tx)
    failed = [wal_id for wal_id, status in ensured.existing.items() if status is Status.FAILED]
    requeued = ledger.requeue(failed, reason=ReplayReason.BACKFILL, tx=tx)
    close(ledger, (unit for unit in chunk if unit.wal_id in ensured.created), tx)
    refused = [unit for unit in chunk if unit.wal_id in ensured.refused]
    for unit in refused:
        _LOG.warning("the database refuses %s: %s", unit.object_uri, ensured.refused[unit.wal_id])
    return Entered(created=ensured.created, requeued=requeued, refused=refused)
