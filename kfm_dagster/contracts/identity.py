"""Identity of an ingest unit: its deterministic id, abbreviated ids, and its allowed times.

`wal_id` is a UUIDv8 (RFC 9562, section 5.8: 122 bits free for the application) made of the first 128 bits of a SHA-256
over the identity fields, with version and variant bits set. The fields are encoded as canonical JSON, so a separator
inside a key cannot make two identities equal. A unique prefix abbreviates an id, as in Git. Does not belong here:
looking up existing ids; each package queries its own table.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import orjson

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.errors import KfmError

EARLIEST = datetime(1583, 1, 1, tzinfo=UTC)
"""First whole year of the Gregorian calendar, which RFC 3339 uses; earlier dates need an agreement (ISO 8601-1,
4.3.1). NOAA's oldest instrumental records begin in the 18th century."""
LATEST = datetime(2501, 1, 1, tzinfo=UTC)
"""End of the longest climate projections (CMIP6 extensions, to 2500). In many archives 9999 means "no time"."""

AHEAD = timedelta(days=2)
"""How far ahead a unit's day may be, because clocks of machines differ; the unit's run waits until the day begins."""
SHORTEST_PREFIX = 8
"""Minimum length of an abbreviated id: the first group of a UUID."""
MATCHES_ASKED = 6
"""Maximum ids that a look-up needs to return: one more than the error message lists."""


def uuid8(*fields: str | None) -> str:
    """Return the deterministic UUIDv8 of an ordered tuple of fields."""
    digest = bytearray(hashlib.sha256(orjson.dumps(fields)).digest()[:16])
    digest[6] = (digest[6] & 0x0F) | 0x80
    digest[8] = (digest[8] & 0x3F) | 0x80
    return str(uuid.UUID(bytes=bytes(digest)))


def pseudonym(dataset: str) -> str:
    """Return the public name of a governed dataset, the same in every release.

    The pseudonym identifies a dataset's records. It hides the dataset's name, but is not a secret, because a guessed
    name can be verified.
    """
    return f"governed-{hashlib.sha256(dataset.encode()).hexdigest()[:8]}"


def wal_id(*, dataset: str, object_uri: str, time_range_start: datetime, object_version: str | None) -> WalId:
    """Return the id of a unit: equal arguments give the same id in every process and release."""
    return WalId(uuid8(dataset, object_uri, rfc3339(time_range_start), object_version))


def rfc3339(value: datetime, *, timespec: str = "microseconds") -> str:
    """Return UTC text that sorts as time, such as `2025-12-03T00:00:00.000000Z`.

    The year has four digits. `timespec` is as in `datetime.isoformat`; columns of the database need the default.
    Raises ValueError for a naive time, or a year outside 1 to 9999 in UTC (RFC 3339, section 1).
    """
    if value.tzinfo is None:
        raise ValueError(f"naive datetime {value!r}")
    try:
        # strftime is not used, because its %Y writes year 999 in three digits.
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=timespec) + "Z"
    except OverflowError:
        raise ValueError(f"{value!r} is in no year of UTC from 1 to 9999") from None


def is_plausible(value: datetime) -> bool:
    """Return whether an external time is plausible for an observation, a forecast or an event."""
    return EARLIEST <= value < LATEST


@dataclass(frozen=True, kw_only=True, slots=True)
class DayWindow:
    """The days from the first partition to `today` plus AHEAD, both included."""

    first: date
    today: date

    def holds(self, day: date, *, sent_at: datetime | None) -> bool:
        """Return whether to admit a unit of a day; `sent_at` is when the queue received its message.

        The later of local clock and `sent_at` counts, so a slow clock refuses no unit. The sender's times are ignored.
        """
        # AHEAD is subtracted from `day`, because adding it to a `sent_at` on the calendar's last day would overflow.
        return self.first <= day and day - AHEAD <= max(self.today, sent_at.date() if sent_at else self.today)


def whole_id(prefix: str, matches: Collection[str], *, what: str) -> str | None:
    """Return the id in `matches` that begins with `prefix`; None without a match.

    `what` names the kind of id in a refusal. Raises KfmError for a prefix of several ids, or of
    fewer than SHORTEST_PREFIX characters.
    """
    if prefix in matches:
        return prefix
    if not matches or not prefix:
        return None
    if len(matches) > 1 or len(prefix) < SHORTEST_PREFIX:
        shown = sorted(matches)[: MATCHES_ASKED - 1]
        raise KfmError(
            "the prefix matches several ids" if len(matches) > 1 else f"the {what} is abbreviated too far",
            observed=f"{prefix}: {', '.join(shown)}",
            expected=f"a whole {what}, or a prefix of {SHORTEST_PREFIX} characters or more that is unique",
            next_step="give more of the id",
        )
    (match,) = matches
    return match
