"""Completion: a sidecar that is announced after its data object was read has the object read once more (ADR 019).

Belongs here: which announcements ask for it, and the unit that does it. Does not belong here: the reading, which is the
chain's as for any unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kfm_dagster.contracts.envelope import COMPLETED_BY, Envelope, Lane, RawReference
from kfm_dagster.contracts.identity import wal_id
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.operators.message_parse import ParsedMessage
from kfm_dagster.storage.database import Transaction


@dataclass(frozen=True, kw_only=True, slots=True)
class Announcement:
    """A sidecar that was written beside `object_uri`: its suffix, its ETag (or nothing), and the message."""

    object_uri: str
    suffix: str
    version: str
    message_id: str


def complete(ledger: Ledger, parsed: Iterable[ParsedMessage], tx: Transaction) -> int:
    """Make a pending unit for each object whose Item lacks a sidecar that these messages announce; return how many.

    An object that nobody has read yet, or that is to be read again, needs none: the run that reads it finds the
    sidecar, which was written before it was announced. One that is being read may have been looked at too early. The
    unit waits in the bulk lane, and the message waits for nothing: the record says what is to be done.
    """
    # Of several announcements of one object the last counts: reading it again finds every sidecar.
    announced = {one.object_uri: one for one in _announcements(parsed, ledger.registry)}
    if not announced:
        return 0
    lacking = ledger.lacking_sidecars(announced, tx=tx)
    units = [completion_of(unit, announced[unit.object_uri]) for unit in lacking]
    return len(ledger.ensure(units, lane=Lane.BULK, tx=tx).created) if units else 0


def completion_of(unit: Envelope, sidecar: Announcement) -> Envelope:
    """Return the unit that reads an object again with a sidecar; the same one for the same version of both.

    It is of the same age as the object's own unit, so that whatever supersedes one supersedes both.
    """
    both = f"{unit.object_version or ''}{COMPLETED_BY}{sidecar.suffix}={sidecar.version}"
    return read_again(unit, version=both, message_id=sidecar.message_id)


def read_again(unit: Envelope, *, version: str, message_id: str | None) -> Envelope:
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


def _announcements(parsed: Iterable[ParsedMessage], registry: ContractRegistry) -> Iterator[Announcement]:
    for message in parsed:
        for one in message.ignored:
            if one.sidecar_version is None or one.dataset is None or one.key is None:
                continue
            suffixes = [sidecar.suffix for sidecar in registry[one.dataset].storage.sidecars]
            suffix = next(suffix for suffix in suffixes if one.key.endswith(suffix))
            yield Announcement(
                object_uri=f"s3://{one.bucket}/{one.key.removesuffix(suffix)}",
                suffix=suffix,
                version=one.sidecar_version,
                message_id=message.message_id,
            )
