"""Units that read an object again: with a late sidecar, or as a volume's last chunk.

Completion (ADR 019): after the late announcement of a sidecar, a unit reads the data object once more. Closing (ADR
028): a later volume of the radar closes a volume without an end chunk; a unit reads its newest chunk again.
Belongs here: which arrivals need such a unit, and creating it. Does not belong here: reading, which is the chain's as
for any unit, and the Item of a closed volume (`readers/nexrad_chunk.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from kfm_dagster.contracts.envelope import CLOSED, COMPLETED_BY, Envelope, Lane, RawReference
from kfm_dagster.contracts.identity import wal_id
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.operators.message_parse import ParsedMessage
from kfm_dagster.storage.database import Transaction


def complete(ledger: Ledger, parsed: Iterable[ParsedMessage], tx: Transaction) -> int:
    """Create a pending unit for each Item that lacks a sidecar of the messages; return how many.

    An object that is still to be read, or read again, needs no such unit: its run finds the sidecar, which was written
    before its announcement. An object in work may have been read too early. The unit waits in the bulk lane; the
    message need not wait, because the record has the work.
    """
    announced: dict[str, tuple[str, str, str]] = {}
    for message in parsed:
        for ignored in message.ignored:
            if ignored.sidecar_version is None or ignored.dataset is None or ignored.key is None:
                continue
            suffixes = [sidecar.suffix for sidecar in ledger.registry[ignored.dataset].storage.sidecars]
            suffix = next(suffix for suffix in suffixes if ignored.key.endswith(suffix))
            # The last announcement of an object counts: reading it again finds every sidecar.
            uri = f"s3://{ignored.bucket}/{ignored.key.removesuffix(suffix)}"
            announced[uri] = (suffix, ignored.sidecar_version, message.message_id)
    if not announced:
        return 0
    lacking = ledger.lacking_sidecars(announced, tx=tx)
    units = [completion_of(unit, *announced[unit.object_uri]) for unit in lacking]
    return len(ledger.ensure(units, lane=Lane.BULK, tx=tx).created) if units else 0


def completion_of(unit: Envelope, suffix: str, version: str, message_id: str) -> Envelope:
    """Return the unit that reads an object with a late sidecar, one per pair of versions.

    `version` is the sidecar's ETag, or empty. The unit has the age of the object's own unit, so that a newer unit
    supersedes both.
    """
    versions = f"{unit.object_version or ''}{COMPLETED_BY}{suffix}={version}"
    return _read_again(unit, version=versions, message_id=message_id)


def close(ledger: Ledger, created: Iterable[Envelope], tx: Transaction) -> int:
    """Create a pending unit for each endless volume that the new units close; return how many.

    Runs in the transaction that admits the units, in both directions: a chunk closes the volume before its own, and its
    own volume if a later one is known. So the volume that is admitted second finds the other. The closing unit has the
    age of its chunk, whose number with CLOSED is its precedence: it replaces the chunk's Item, and a later chunk
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
    """Return a bulk unit that reads an object once more, with another version and message."""
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
