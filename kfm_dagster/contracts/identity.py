"""Identity of an ingest unit: its deterministic id, ids as people type them, and the times that a unit may be of.

`wal_id` is a UUIDv8 (RFC 9562, section 5.8: 122 bits free for the application) made of the first 128 bits of a SHA-256
over the identity fields, with version and variant bits set. The encoding is canonical JSON, so that no separator inside
a key can make two identities equal. A prefix that no other id has stands for an id, as Git takes its hashes. Does not
belong here: which ids there are; each room asks its own table.
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
"""First whole year of the Gregorian calendar, which RFC 3339 counts in; an earlier date is none by it without an
agreement (ISO 8601-1, 4.3.1). NOAA's oldest instrumental records begin in the 18th century."""
LATEST = datetime(2501, 1, 1, tzinfo=UTC)
"""End of the longest climate projections (CMIP6 extensions, to 2500). 9999 stands for "no time" in many archives."""

AHEAD = timedelta(days=2)
"""A unit may be of one of the next days: two machines' clocks differ, and its run comes when the day has begun."""
SHORTEST_PREFIX = 8
"""Characters of an id that may stand for it: the first group of a UUID."""
MATCHES_ASKED = 6
"""Ids that a look-up has to return at most: one more than a refusal names."""


def uuid8(*fields: str | None) -> str:
    """Deterministic UUIDv8 of an ordered tuple of fields."""
    digest = bytearray(hashlib.sha256(orjson.dumps(fields)).digest()[:16])
    digest[6] = (digest[6] & 0x0F) | 0x80
    digest[8] = (digest[8] & 0x3F) | 0x80
    return str(uuid.UUID(bytes=bytes(digest)))


def pseudonym(dataset: str) -> str:
    """Name a governed dataset in public: the same in every release, so that its records can still be followed.

    It keeps a name out of sight and no secret: a reader who guesses the name can compute the pseudonym.
    """
    return f"governed-{hashlib.sha256(dataset.encode()).hexdigest()[:8]}"


def wal_id(*, dataset: str, object_uri: str, time_range_start: datetime, object_version: str | None) -> WalId:
    """Id of the unit: same dataset, object, start and version give the same id in every process and release."""
    return WalId(uuid8(dataset, object_uri, rfc3339(time_range_start), object_version))


def rfc3339(value: datetime, *, timespec: str = "microseconds") -> str:
    """UTC text with a year of four digits, six decimals and Z: `2025-12-03T00:00:00.000000Z`; sorts as time.

    `timespec` as in `datetime.isoformat`, for a text that no column holds.
    Raises ValueError when naive, or when it is in no year from 1 to 9999 in UTC (RFC 3339, section 1).
    """
    if value.tzinfo is None:
        raise ValueError(f"naive datetime {value!r}")
    try:
        # Not strftime, whose %Y writes year 999 in three digits.
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=timespec) + "Z"
    except OverflowError:
        raise ValueError(f"{value!r} is in no year of UTC from 1 to 9999") from None


def is_plausible(value: datetime) -> bool:
    """Tell whether a time from outside can be one of an observation, a forecast or an event."""
    return EARLIEST <= value < LATEST


@dataclass(frozen=True, kw_only=True, slots=True)
class DayWindow:
    """From the first day of the partitions to AHEAD of `today`, both included."""

    first: date
    today: date

    def holds(self, day: date, *, sent_at: datetime | None) -> bool:
        """Return whether a unit of that day may come in, by a message that its queue received at `sent_at`.

        A clock that is behind loses nothing, because the queue's own clock counts, too. The sender's times do not.
        """
        # The day is moved, not the others: a queue's clock may be at the calendar's last day.
        return self.first <= day and day - AHEAD <= max(self.today, sent_at.date() if sent_at else self.today)


class AmbiguousIdError(KfmError):
    """This is the prefix of more than one id."""


def whole_id(given: str, matches: Collection[str], *, what: str) -> str | None:
    """Return the id that is meant, of those that begin with what was given; None where none does.

    `what` names the kind of id for a refusal. Raises AmbiguousIdError when several begin so, or when fewer characters
    than SHORTEST_PREFIX are given of a longer id.
    """
    if given in matches:
        return given
    if not matches or not given:
        return None
    if len(matches) > 1 or len(given) < SHORTEST_PREFIX:
        named = sorted(matches)[: MATCHES_ASKED - 1]
        raise AmbiguousIdError(
            None if len(matches) > 1 else f"this is too little of a {what}",
            observed=f"{given}: {', '.join(named)}",
            expected=f"a whole {what}, or a prefix of {SHORTEST_PREFIX} characters or more that no other has",
            next_step="give more of the id",
        )
    (found,) = matches
    return found
