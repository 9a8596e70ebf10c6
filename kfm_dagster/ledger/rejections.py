"""Rejections: what gave no unit because nobody can understand it, or no record can hold it, and what is kept of it.

Belongs here: the bounds on what a rejection costs. Written together with the delivery (`Deliveries.reject`). Does not
belong here: why a record is rejected (`operators/message_parse.py`), records that were understood and are no units
(`ignored.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from kfm_dagster.contracts.filters import EXPECTED, Filter
from kfm_dagster.contracts.issues import ParseIssue
from kfm_dagster.ledger.search import END_OF_TIME
from kfm_dagster.redaction import redact
from kfm_dagster.storage.text import storable

MAX_BODY = 1024 * 1024
"""Characters of a body that are kept: SQS carries 1 MiB. The landed batch holds all of it."""
MAX_URI = 1400
"""Characters of an object's URI: a key has 1,024 bytes at most, a bucket's name 255, and a scheme stands before."""


MESSAGE_ID = r"[!-~]{1,100}"
_Message = Annotated[
    str, Field(pattern=f"^{MESSAGE_ID}$", json_schema_extra={EXPECTED: "the beginning of a message's id"})
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """One record of a message that gave no unit, or the first of `records` that gave none for one reason.

    `reason_code` is a parse issue, `body` the message as it came, which is kept once.
    """

    message_id: str
    record_index: int
    reason_code: str
    detail: str
    body: str = field(repr=False)
    records: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class RejectionPlace:
    """Where a rejection is among all: its time, then its message and record, or its dataset and object."""

    rejected_at: datetime
    message_id: str | None = None
    record_index: int | None = None
    dataset: str | None = None
    object_uri: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptRejection(RejectionPlace):
    """A rejection as the ledger has it: of a message's record, or of an object that a listing found."""

    reason_code: str
    records: int
    detail: str


class RejectionFilter(Filter):
    """Rejections; with `message` none of an object."""

    reason: ParseIssue | None = Field(None, description="Only for this reason.")
    message: _Message | None = Field(None, description="Only of the SQS message whose id begins so.")


ANY_REJECTION = RejectionFilter()


@dataclass(frozen=True, kw_only=True, slots=True)
class RejectedObject:
    """An object that a listing found, and why the database does not hold it."""

    dataset: str
    object_uri: str
    detail: str


def place_after(last: RejectionPlace | None) -> dict[str, Any]:
    """Return, for the statement that lists rejections, that it goes on behind one, or begins with the newest."""
    if last is None:
        return {"before": END_OF_TIME, "is_object": 0, "dataset": "", "place": "", "number": -1}
    return {
        "before": last.rejected_at,
        "is_object": int(last.message_id is None),
        "dataset": last.dataset or "",
        "place": last.message_id or last.object_uri,
        "number": last.record_index or 0,
    }


def body_rows(rejections: Iterable[Rejection]) -> list[dict[str, Any]]:
    """Return the rows of the bodies, one a message, in the order of the messages."""
    bodies = {entry.message_id: entry.body for entry in rejections}
    return [{"message_id": one, "body": storable(body, MAX_BODY)} for one, body in sorted(bodies.items())]


def rejection_rows(rejections: Iterable[Rejection]) -> list[dict[str, Any]]:
    """Return the rows of rejections, one a record; the last of a record counts."""
    rows = {
        (entry.message_id, entry.record_index): {
            "message_id": entry.message_id,
            "record_index": entry.record_index,
            "reason_code": entry.reason_code,
            "detail": redact(entry.detail),
            "records": entry.records,
        }
        for entry in rejections
    }
    return list(rows.values())


def object_rows(objects: Iterable[RejectedObject]) -> list[dict[str, Any]]:
    """Return the rows of refused objects, one each."""
    rows = {
        (entry.dataset, entry.object_uri): {
            "dataset": entry.dataset,
            "object_uri": storable(entry.object_uri, MAX_URI),
            "reason_code": ParseIssue.DATABASE_REFUSED,
            "detail": redact(entry.detail),
        }
        for entry in objects
    }
    return list(rows.values())
