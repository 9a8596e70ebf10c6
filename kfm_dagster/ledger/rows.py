"""Conversion of envelopes to batch rows and back, for the store's statements.

Belongs here: pure conversions. A batch is a single parameter. Does not belong here: SQL, transactions.
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
"""Order of claims, as in the claim statement."""
_PARSED = tuple(section for section in sections() if not section.optional)
"""The sections of the envelope itself and of its source, which a record has before any operator has run."""
_OF_THE_LEDGER = frozenset({"lane", "replay_reason", "replay_run_id", "attempt", "record_version", "gate_issues"})
"""Leaves that the ledger or a gate sets; a message has none of them."""
_RENAMED = {"attempt": "attempts", "record_version": "version"}
"""Columns whose name differs from the leaf's (NODD WAL specification, section 3)."""
MAX_TEXT = 320
"""Characters of a sender's free text that the ledger stores. No valid text is longer: SNS allows 100 in a Subject, SQS
100 in a MessageId (SNS API reference, Publish; SQS developer guide, "Message identifiers"), and the longest part of a
topic's ARN is its name, of at most 256."""


def bounded(text: str | None) -> str | None:
    """Return a sender's free text, storable and cut to MAX_TEXT."""
    return None if text is None else storable(text, MAX_TEXT)


def unit_row(envelope: Envelope, contract: DatasetContract) -> dict[str, Any]:
    """Return a new record's row; `extension` has the values that have no column."""
    row: dict[str, Any] = {"partition_key": envelope.partition}
    extension: dict[str, Any] = {**key_groups(contract, envelope.key, contract.ledger.extension_fields)}
    for section in _PARSED:
        of_sender = section.member is not None
        for leaf, values in section.values([envelope]):
            [value] = leaf.at_rest(values)
            if leaf.extension and value is not None:
                extension[leaf.name] = value
            elif leaf.name not in _OF_THE_LEDGER and not leaf.extension:
                row[leaf.name] = bounded(value) if of_sender else value
    return {**row, "extension": extension}


def key_groups(contract: DatasetContract, key: str, names: Sequence[str]) -> dict[str, str]:
    """Return the named groups of a key, in the order of `names`; omit groups without a match."""
    match = _pattern(contract.storage.key_grammar.pattern).fullmatch(key) if names else None
    return {} if match is None else {name: match[name] for name in names if match[name] is not None}


@cache
def _pattern(pattern: str) -> re.Pattern[str]:
    # ASCII, as in the key grammar.
    return re.compile(pattern, re.ASCII)


def claimed_envelopes(result: CursorResult[Any]) -> list[Envelope]:
    """Return the envelopes of a statement's records, as they were before any operator ran."""
    # By index, because looking up the columns of a thousand rows by name takes longer than the conversion.
    index = {name: number for number, name in enumerate(result.keys())}
    parts = []
    for section in _PARSED:
        columns = ((leaf, index.get(_RENAMED.get(leaf.name, leaf.name))) for leaf in section.leaves)
        parts.append([(leaf.member, at, _reading(leaf)) for leaf, at in columns if at is not None])
    own, raw = parts
    extended = [leaf for section in _PARSED for leaf in section.leaves if leaf.extension]
    envelopes = []
    for row in result:
        fields = {member: row[at] if read is None else read(row[at]) for member, at, read in own}
        reference = {member: row[at] if read is None else read(row[at]) for member, at, read in raw}
        fields["raw"] = RawReference(**reference)
        if extended:
            extension = row[index["extension"]]
            fields |= {leaf.member: _from_extension(leaf, extension.get(leaf.name)) for leaf in extended}
        envelopes.append(Envelope(**fields))
    return envelopes


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
    """Return an attempt's sub-statuses and Item location; missing sections give `unknown`."""
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
    """Return a success's result: the Item's content hash and a hash of the names in its lineage."""
    stac, provenance = envelope.stac, envelope.provenance
    names = provenance and [
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
        "provenance_sha256": names and hashlib.sha256(orjson.dumps(names)).hexdigest(),
        "superseded": stac is not None and stac.superseded,
    }


def claim_order(envelope: Envelope) -> tuple[bool, int, datetime, str]:
    """Return the sort key of claims, because the rows of RETURNING have no order."""
    return envelope.lane is Lane.BULK, PRIORITY_RANK[envelope.priority], envelope.event_time, envelope.wal_id


def wal_ids_of(rows: Iterable[Any]) -> tuple[WalId, ...]:
    """Return the ids of rows, sorted, so that reports are comparable."""
    return tuple(sorted(WalId(row.wal_id) for row in rows))
