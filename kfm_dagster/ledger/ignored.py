"""Ignored records: records of a message that give no unit, with reason and number.

Belongs here: the bound on the rows of one message, and reading them. They are written together with the delivery
(`Deliveries.record`), so that every received message leaves a trace. Does not belong here: why a record is ignored
(`operators/message_parse.py`), records that could not be understood (`Deliveries.reject`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

NAMED_PER_MESSAGE = 100
"""Records of one message that get a row each; further ones are counted by reason and dataset. S3 sends one record a
message; 1 MiB would hold thousands."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IgnoredRecord:
    """A record without a unit, or `records` of them without a key; None marks unknown fields."""

    record_index: int
    reason: str
    dataset: str | None = None
    bucket: str | None = None
    key: str | None = None
    records: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptIgnoredRecord(IgnoredRecord):
    """The same as the ledger has it."""

    message_id: str
    received_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class IgnoredCount:
    """Records and messages ignored for one reason; `newest_at` is when the last one came."""

    dataset: str | None
    reason: str
    records: int
    messages: int
    newest_at: datetime


def ignored_rows(message_id: str, records: Sequence[IgnoredRecord]) -> list[dict[str, Any]]:
    """Return a message's rows: NAMED_PER_MESSAGE records, then one per reason and dataset."""
    entries = list(records[:NAMED_PER_MESSAGE])
    beyond: dict[tuple[str, str | None], list[IgnoredRecord]] = {}
    for record in records[NAMED_PER_MESSAGE:]:
        beyond.setdefault((record.reason, record.dataset), []).append(record)
    entries += [
        IgnoredRecord(record_index=group[0].record_index, reason=reason, dataset=dataset, records=len(group))
        for (reason, dataset), group in beyond.items()
    ]
    return [{"message_id": message_id, **asdict(record)} for record in entries]
