"""Closing: a volume that no chunk ended is closed by a later one of its radar, read from its newest chunk (ADR 028).

Belongs here: which new units ask for it, and the unit that does it. Does not belong here: the reading, which is the
chain's as for any unit, and what a closed volume's Item says (`readers/nexrad_chunk.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from kfm_dagster.contracts.envelope import CLOSED, Envelope, Lane
from kfm_dagster.ingest.late_sidecar import read_again
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.storage.database import Transaction


def close(ledger: Ledger, created: Iterable[Envelope], tx: Transaction) -> int:
    """Make a pending unit for each volume without an end that these new units show to be over; return how many.

    In the transaction that admits them, and in both directions: a chunk closes the volume before its own, and its own
    where a later one is known. So of two volumes whichever is admitted second finds the other. The closing is of the
    same age as its chunk, whose number and CLOSED are its precedence: it replaces the chunk's Item, and a later chunk
    replaces both.
    """
    feeds = ledger.registry.chunk_feeds
    chunks = [unit.wal_id for unit in created if unit.dataset in feeds]
    if not chunks:
        return 0
    endless = ledger.endless_volumes(chunks, tx=tx)
    units = [read_again(chunk, version=CLOSED, message_id=chunk.raw.sqs_message_id) for chunk in endless]
    return len(ledger.ensure(units, lane=Lane.BULK, tx=tx).created) if units else 0
