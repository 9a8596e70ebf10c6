"""Rejections: records of a message that have no readable unit, or one that no row can hold.

Belongs here: the bounds on a rejection's size. Rejections are written together with the delivery (`Deliveries.reject`).
Does not belong here: why a record is rejected (`operators/message_parse.py`), records that were understood and are not
units (`ignored.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
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
    """A rejected record of a message, or the first of `records` rejected for one reason.

    `reason_code` is a parse issue. The landed batch has the whole message.
    """

    message_id: str
    record_index: int
    reason_code: str
    detail: str
    records: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class RejectionPlace:
    """Position of a rejection in the list: its time, then its message and record."""

    rejected_at: datetime
    message_id: str
    record_index: int


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptRejection(RejectionPlace):
    """A rejection as the ledger has it."""

    reason_code: str
    records: int
    detail: str


class RejectionFilter(Filter):
    """Rejections of messages."""

    reason: ParseIssue | None = Field(None, description="Only for this reason.")
    message: _Message | None = Field(None, description="Only of the SQS message whose id begins so.")


ANY_REJECTION = RejectionFilter()


def place_after(last: RejectionPlace | None) -> dict[str, Any]:
    """Return the listing's start as parameters: behind `last`, or at the newest rejection."""
    if last is None:
        return {"before": END_OF_TIME, "place": "", "number": -1}
    return {"before": last.rejected_at, "place": last.message_id, "number": last.record_index}


def rejection_rows(rejections: Iterable[Rejection]) -> list[dict[str, Any]]:
    """Return the rows of rejections, one per record; the last rejection of a record wins."""
    rows = {
        (entry.message_id, entry.record_index): {**asdict(entry), "detail": redact(entry.detail)}
        for entry in rejections
    }
    return list(rows.values())
