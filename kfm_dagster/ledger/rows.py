"""Envelopes to batch rows and back: what travels between the store and its statements.

Belongs here: pure conversions. A batch is one parameter. Does not belong here: SQL, transactions.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import cache
from typing import Any

import orjson
from sqlalchemy import CursorResult

from kfm_dagster.contracts.envelope import (
    CheckStatus,
    Envelope,
    Lane,
    Priority,
    ProvenanceStatus,
    RawReference,
    StacStatus,
    WalId,
)
from kfm_dagster.contracts.envelope_codec import Leaf, sections
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.storage.text import storable

PRIORITY_RANK = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}
"""Order of claims; the claim statement says the same in SQL."""
_PARSED = tuple(section for section in sections() if not section.optional)
"""The envelope's own leaves and those of where it came from: what a record has before any operator saw the unit."""
_OF_THE_LEDGER = frozenset({"lane", "replay_reason", "replay_run_id", "attempt", "record_version", "gate_issues"})
"""Leaves that no message says: the ledger gives them, or a gate."""
_RENAMED = {"attempt": "attempts", "record_version": "version"}
"""Columns of another name than the leaf's (NODD WAL specification, section 3)."""
MAX_TEXT = 320
"""Characters of a sender's free text that the ledger keeps: SNS allows 100 in a Subject and SQS 100 in a MessageId
(SNS API reference, Publish; SQS developer guide, "Message identifiers"), and a topic's name, the
longest part of its ARN, has at most 256."""


def bounded(text: str | None) -> str | None:
    """Return a sender's free text as the ledger keeps it."""
    return None if text is None else storable(text, MAX_TEXT)


def unit_row(envelope: Envelope, contract: DatasetContract) -> dict[str, Any]:
    """Row of a new record: what the message said, and in `extension` the dataset's own fields and the declared ones."""
    row: dict[str, Any] = {"partition_key": envelope.partition}
    extension: dict[str, Any] = dict(extension_fields(contract, envelope.key))
    for section in _PARSED:
        of_sender = section.member is not None
        for leaf, [value] in zip(section.leaves, section.columns([envelope]), strict=True):
            if leaf.extension and value is not None:
                extension[leaf.name] = value
            elif leaf.name not in _OF_THE_LEDGER and not leaf.extension:
                row[leaf.name] = bounded(value) if of_sender else value
    return {**row, "extension": extension}


def extension_fields(contract: DatasetContract, key: str) -> dict[str, str]:
    """Return the groups of the key that the contract declares as extension fields; a group without text is left out."""
    return key_groups(contract, key, contract.ledger.extension_fields)


def key_groups(contract: DatasetContract, key: str, names: Sequence[str]) -> dict[str, str]:
    """Return these groups of a key, in this order; one without text is left out."""
    found = _pattern(contract.storage.key_grammar.pattern).fullmatch(key) if names else None
    return {} if found is None else {name: found[name] for name in names if found[name] is not None}


@cache
def _pattern(pattern: str) -> re.Pattern[str]:
    # ASCII, as the key grammar reads it.
    return re.compile(pattern, re.ASCII)


def claimed_envelopes(result: CursorResult[Any]) -> list[Envelope]:
    """Envelopes of the records that a statement returns, as they were before any operator saw them."""
    # By place: looking a thousand rows' columns up by name takes longer than all the rest.
    place = {name: number for number, name in enumerate(result.keys())}
    parts = []
    for section in _PARSED:
        columns = ((leaf, place.get(_RENAMED.get(leaf.name, leaf.name))) for leaf in section.leaves)
        parts.append([(leaf.member, at, _reading(leaf)) for leaf, at in columns if at is not None])
    own, raw = parts
    extended = [leaf for section in _PARSED for leaf in section.leaves if leaf.extension]
    found = []
    for row in result:
        fields = {member: row[at] if read is None else read(row[at]) for member, at, read in own}
        reference = {member: row[at] if read is None else read(row[at]) for member, at, read in raw}
        fields["raw"] = RawReference(**reference)
        if extended:
            kept = row[place["extension"]]
            fields |= {leaf.member: _from_extension(leaf, kept.get(leaf.name)) for leaf in extended}
        found.append(Envelope(**fields))
    return found


def _reading(leaf: Leaf) -> Callable[[Any], Any] | None:
    decode = leaf.decode
    if decode is None or leaf.kind is datetime:
        return None
    return lambda value: None if value is None else decode(value)


def _from_extension(leaf: Leaf, value: Any) -> Any:
    if value is None:
        return None
    decode = datetime.fromisoformat if leaf.kind is datetime else leaf.decode
    return value if decode is None else decode(value)


def findings_row(envelope: Envelope) -> dict[str, Any]:
    """Outcome of one attempt: each operator's sub-status (unknown when it did not run) and the Item's place."""
    integrity, metadata, stac, provenance = (
        envelope.integrity,
        envelope.metadata,
        envelope.stac,
        envelope.provenance,
    )
    return {
        "wal_id": envelope.wal_id,
        "attempt": envelope.attempt,
        "integrity_status": integrity.status if integrity else CheckStatus.UNKNOWN,
        "metadata_status": metadata.status if metadata else CheckStatus.UNKNOWN,
        "stac_status": stac.write_status if stac else StacStatus.UNKNOWN,
        "provenance_status": provenance.status if provenance else ProvenanceStatus.UNKNOWN,
        "stac_item_id": stac.item_id if stac else None,
        "stac_collection_id": stac.collection_id if stac else None,
        "stac_item_href": stac.item_href if stac else None,
    }


def outcome_row(envelope: Envelope) -> dict[str, Any]:
    """Return what a success made: the Item's content hash, and a hash of the names of all that its lineage tells of."""
    stac, provenance = envelope.stac, envelope.provenance
    named = provenance and [
        provenance.activity_id,
        provenance.openlineage_run_id,
        *sorted(provenance.entity_ids),
        *sorted(provenance.agent_ids),
    ]
    return {
        "wal_id": envelope.wal_id,
        "attempt": envelope.attempt,
        "replay_run_id": envelope.replay_run_id,
        "item_sha256": stac and stac.content_sha256,
        "provenance_sha256": named and hashlib.sha256(orjson.dumps(named)).hexdigest(),
        "superseded": stac is not None and stac.superseded,
    }


def claim_order(envelope: Envelope) -> tuple[bool, int, datetime, str]:
    """Sort key of claims; RETURNING promises no order."""
    return envelope.lane is Lane.BULK, PRIORITY_RANK[envelope.priority], envelope.event_time, envelope.wal_id


def wal_ids_of(rows: Iterable[Any]) -> tuple[WalId, ...]:
    """Ids of rows, sorted, so that reports compare."""
    return tuple(sorted(WalId(row.wal_id) for row in rows))
