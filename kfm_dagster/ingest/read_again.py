"""Units that read an object again: for a sidecar that came late, or as the last chunk of a volume without an end.

Completion (ADR 019): a sidecar that is announced after its data object was read has the object read once more. Closing
(ADR 028): a volume that no chunk ended is closed by a later one of its radar, read from its newest chunk.
Belongs here: which arrivals ask for it, and the unit that does it. Does not belong here: the reading, which is the
chain's as for any unit, and what a closed volume's Item says (`readers/nexrad_chunk.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from kfm_dagster.contracts.envelope import CLOSED, COMPLETED_BY, Envelope, Lane, RawReference
from kfm_dagster.contracts.identity import wal_id
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.operators.message_parse import ParsedMessage
from kfm_dagster.storage.database import Transaction


def complete(ledger: Ledger, parsed: Iterable[ParsedMessage], tx: Transaction) -> int:
    """Make a pending unit for each object whose Item lacks a sidecar that these messages announce; return how many.

    An object that nobody has read yet, or that is to be read again, needs none: the run that reads it finds the
    sidecar, which was written before it was announced. One that is being read may have been looked at too early. The
    unit waits in the bulk lane, and the message waits for nothing: the record says what is to be done.
    """
    announced: dict[str, tuple[str, str, str]] = {}
    for message in parsed:
        for ignored in message.ignored:
            if ignored.sidecar_version is None or ignored.dataset is None or ignored.key is None:
                continue
            suffixes = [sidecar.suffix for sidecar in ledger.registry[ignored.dataset].storage.sidecars]
            suffix = next(suffix for suffix in suffixes if ignored.key.endswith(suffix))
            # Of several announcements of one object the last counts: reading it again finds every sidecar.
            uri = f"s3://{ignored.bucket}/{ignored.key.removesuffix(suffix)}"
            announced[uri] = (suffix, ignored.sidecar_version, message.message_id)
    if not announced:
        return 0
    lacking = ledger.lacking_sidecars(announced, tx=tx)
    units = [completion_of(unit, *announced[unit.object_uri]) for unit in lacking]
    return len(ledger.ensure(units, lane=Lane.BULK, tx=tx).created) if units else 0


def completion_of(unit: Envelope, suffix: str, version: str, message_id: str) -> Envelope:
    """Return the unit that reads an object again with a sidecar; the same one for the same version of both.

    The version is the sidecar's ETag, or nothing. The unit is of the same age as the object's own, so that whatever
    supersedes one supersedes both.
    """
    both = f"{unit.object_version or ''}{COMPLETED_BY}{suffix}={version}"
    return _read_again(unit, version=both, message_id=message_id)


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
    units = [_read_again(chunk, version=CLOSED, message_id=chunk.raw.sqs_message_id) for chunk in endless]
    return len(ledger.ensure(units, lane=Lane.BULK, tx=tx).created) if units else 0


def _read_again(unit: Envelope, *, version: str, message_id: str | None) -> Envelope:
    """Return the unit that reads an object once more, in the bulk lane, as that version and for that message."""
    return unit.evolve(
        wal_id=wal_id(
            dataset=unit.dataset,
            object_uri=unit.object_uri,
            time_range_start=unit.time_range_start,
            object_version=version,
        ),
        object_version=version,
        raw=RawReference(sqs_message_id=message_id),
        lane=Lane.BULK,
        replay_reason=None,
        replay_run_id=None,
        attempt=0,
        record_version=0,
    )
