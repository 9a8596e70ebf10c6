"""Rejections: what came and could not be taken in, the newest first. Only reads.

Does not belong here: what is kept of a rejection (`ledger/rejections.py`).
"""

from __future__ import annotations

import re
from datetime import datetime
from urllib.parse import quote

from kfm_dagster.contracts.filters import BadFilterError
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.errors import KfmError
from kfm_dagster.ledger.deliveries import Deliveries
from kfm_dagster.ledger.rejections import MESSAGE_ID, KeptRejection, RejectionFilter, RejectionPlace
from kfm_dagster.notifications.landing import Landing
from kfm_dagster.views.view import Page, Parts, View

_CURSOR = re.compile(
    r"(?P<at>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z)_"
    rf"(?P<record>-?\d{{1,9}})_(?P<message>{MESSAGE_ID})",
    re.ASCII,
)


class UnknownMessageError(KfmError):
    """No message of that id was rejected."""


def rejections(parts: Parts, wanted: RejectionFilter, after: str | None, limit: int) -> Page:
    """Return a page of rejections; `after` of a page gives the next one. Raises BadFilterError."""
    place = None if after is None else _place(after)
    rows = Deliveries(parts.database, clock=parts.clock).rejected(wanted, after=place, limit=limit + 1)
    return Page(rows=rows[:limit], after=_cursor(rows[limit - 1]) if len(rows) > limit else None)


def rejected_message(deliveries: Deliveries, landing: Landing, message_id: str) -> str:
    """Return a message with a rejected record, as it came. Raises UnknownMessageError, ArtifactError."""
    digest = deliveries.rejected_landing(message_id)
    if digest is None:
        raise UnknownMessageError(observed=repr(message_id[:80]), next_step="kfm wal rejected")
    return next(message.body for message in landing.read(digest) if message.message_id == message_id)


def _cursor(last: RejectionPlace) -> str:
    return f"{rfc3339(last.rejected_at)}_{last.record_index}_{last.message_id}"


def _place(after: str) -> RejectionPlace:
    match = _CURSOR.fullmatch(after)
    try:
        if match is not None:
            return RejectionPlace(
                rejected_at=datetime.fromisoformat(match["at"]),
                message_id=match["message"],
                record_index=int(match["record"]),
            )
    except ValueError:
        pass
    raise BadFilterError(observed=f"after={after[:80]!r}", expected="what the page before gave")


REJECTIONS = View(
    name="rejections",
    operation="searchRejections",
    tool="rejections",
    summary="What came and could not be taken in, with the reason, the newest first.",
    filter=RejectionFilter,
    row=KeptRejection,
    query=rejections,
    columns=("rejected_at", "reason_code", "records", "message_id", "detail"),
    links={"message_id": lambda row: f"/rejected/{quote(row.message_id)}"},
    end="next",
)
