"""Entries of a message that give no unit: rejected or ignored, with the reason.

A rejected entry has no readable unit, or its unit does not fit a row. `Deliveries` writes these rows together with
the delivery, so that every received message leaves a trace. Belongs here: the bounds on the rows' sizes and on their
number per message. Does not belong here: why an entry is rejected or ignored (`operators/message_parse.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from kfm_dagster.contracts.filters import EXPECTED, Filter
from kfm_dagster.contracts.issues import ParseIssue
from kfm_dagster.ledger.search import END_OF_TIME
from kfm_dagster.redaction import redact

MESSAGE_ID = r"[!-~]{1,100}"
_Message = Annotated[
    str, Field(pattern=f"^{MESSAGE_ID}$", json_schema_extra={EXPECTED: "the beginning of a message's id"})
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """A rejected entry of a message, or the first of `records` entries with the same reason.

    `reason_code` is a parse issue. The landed batch has the whole message.
    """

    message_id: str
    record_index: int
    reason_code: str
    detail: str
    records: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class RejectionPlace:
    """Position of a rejection in the list: its time, then its message and entry."""

    rejected_at: datetime
    message_id: str
    record_index: int


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptRejection(RejectionPlace):
    """A rejection as the ledger stores it."""

    reason_code: str
    records: int
    detail: str


class RejectionFilter(Filter):
    """Rejections of messages."""

    reason: ParseIssue | None = Field(None, description="Only for this reason.")
    message: _Message | None = Field(None, description="Only of SQS messages whose id begins with this text.")


ANY_REJECTION = RejectionFilter()


def place_after(last: RejectionPlace | None) -> dict[str, Any]:
    """Return the listing's start as parameters: after `last`, or at the newest rejection."""
    if last is None:
        return {"before": END_OF_TIME, "place": "", "number": -1}
    return {"before": last.rejected_at, "place": last.message_id, "number": last.record_index}


def rejection_rows(rejections: Iterable[Rejection]) -> list[dict[str, Any]]:
    """Return a row per rejected entry, from the entry's last rejection in `rejections`."""
    rows = {
        (entry.message_id, entry.record_index): {**asdict(entry), "detail": redact(entry.detail)}
        for entry in rejections
    }
    return list(rows.values())


NAMED_PER_MESSAGE = 100
"""Entries of a message that get a row each; further entries are counted by reason and dataset. S3 sends one entry per
message, but 1 MiB can hold thousands."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IgnoredRecord:
    """An ignored entry, or `records` entries that are only counted; None marks unknown fields."""

    record_index: int = 0
    reason: str
    dataset: str | None = None
    bucket: str | None = None
    key: str | None = None
    records: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptIgnoredRecord(IgnoredRecord):
    """An ignored entry as the ledger stores it."""

    message_id: str
    received_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class IgnoredCount:
    """Entries and messages ignored for the same reason; `newest_at` is the last entry's time."""

    dataset: str | None
    reason: str
    records: int
    messages: int
    newest_at: datetime


def ignored_rows(message_id: str, records: Sequence[IgnoredRecord]) -> list[dict[str, Any]]:
    """Return a message's rows: NAMED_PER_MESSAGE entries, then a row per reason and dataset."""
    entries = list(records[:NAMED_PER_MESSAGE])
    beyond: dict[tuple[str, str | None], list[IgnoredRecord]] = {}
    for record in records[NAMED_PER_MESSAGE:]:
        beyond.setdefault((record.reason, record.dataset), []).append(record)
    entries += [
        IgnoredRecord(record_index=group[0].record_index, reason=reason, dataset=dataset, records=len(group))
        for (reason, dataset), group in beyond.items()
    ]
    return [{"message_id": message_id, **asdict(record)} for record in entries]
