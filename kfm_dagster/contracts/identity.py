"""Identity: the deterministic id of an ingest unit.

`wal_id` is a UUIDv8 (RFC 9562, section 5.8: 122 bits free for the application) made of the first 128 bits of a SHA-256
over the identity fields, with version and variant bits set. The encoding is canonical JSON, so that no separator inside
a key can make two identities equal.
"""

from __future__ import annotations

import hashlib
import uuid
from datetime import UTC, datetime

import orjson

from kfm_dagster.contracts.envelope import WalId


def uuid8(*fields: str | None) -> str:
    """Deterministic UUIDv8 of an ordered tuple of fields."""
    digest = bytearray(hashlib.sha256(orjson.dumps(fields)).digest()[:16])
    digest[6] = (digest[6] & 0x0F) | 0x80
    digest[8] = (digest[8] & 0x3F) | 0x80
    return str(uuid.UUID(bytes=bytes(digest)))


def pseudonym(dataset: str) -> str:
    """Name a governed dataset in public: the same in every release, so that its records can still be followed.

    It keeps a name out of sight and no secret: whoever guesses the name can compute the pseudonym.
    """
    return f"governed-{hashlib.sha256(dataset.encode()).hexdigest()[:8]}"


def wal_id(*, dataset: str, object_uri: str, time_range_start: datetime, object_version: str | None) -> WalId:
    """Id of the unit: same dataset, object, start and version give the same id in every process and release."""
    return WalId(uuid8(dataset, object_uri, rfc3339(time_range_start), object_version))


def rfc3339(value: datetime) -> str:
    """UTC text with six decimals and Z: `2025-12-03T00:00:00.000000Z`; sorts as time. Raises ValueError when naive."""
    if value.tzinfo is None:
        raise ValueError(f"naive datetime {value!r}")
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def moment(value: str | datetime) -> datetime:
    """Read a timestamp column: text in SQLite, an aware value in PostgreSQL."""
    return (datetime.fromisoformat(value) if isinstance(value, str) else value).astimezone(UTC)
