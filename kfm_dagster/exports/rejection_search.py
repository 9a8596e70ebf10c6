"""Searching rejections: pages of what came and could not be taken in, the newest first. Only reads.

Belongs here: the filter as the query of a URL, and where a page ended as text. Does not belong here: what is kept of a
rejection (`ledger/rejections.py`), how rows are shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from kfm_dagster.contracts.filters import BadFilterError
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.contracts.issues import ParseIssue
from kfm_dagster.errors import KfmError
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.rejections import KeptRejection, RejectionFilter, RejectionPlace

MOST_OF_MESSAGE_ID = 100
_MESSAGE_ID = rf"[!-~]{{1,{MOST_OF_MESSAGE_ID}}}"
_CURSOR = re.compile(
    r"(?P<at>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z)_"
    rf"(?:(?P<record>-?\d{{1,9}})_(?P<message>{_MESSAGE_ID})|(?P<dataset>[a-z0-9-]{{1,40}}) (?P<uri>[^\0]{{1,1400}}))",
    re.ASCII | re.DOTALL,
)


class UnknownMessageError(KfmError):
    """No message of that id was rejected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RejectionPage:
    """Rejections; with `after` there are more."""

    rows: Sequence[KeptRejection]
    after: str | None


def rejection_filter(given: Mapping[str, str]) -> RejectionFilter:
    """Read `reason` and `message` of a URL's query; an empty value is none. Raises BadFilterError."""
    reason, message = given.get("reason") or None, given.get("message") or None
    if reason is not None and reason not in set(ParseIssue):
        raise BadFilterError(observed=f"reason={reason[:80]!r}", expected=" or ".join(ParseIssue))
    if message is not None and not re.fullmatch(_MESSAGE_ID, message):
        raise BadFilterError(observed=f"message={message[:80]!r}", expected="the beginning of a message's id")
    return RejectionFilter(reason_code=reason, message_id=message)


def search_rejections(
    pipeline: Pipeline, wanted: RejectionFilter, *, after: str | None = None, limit: int
) -> RejectionPage:
    """Return rejections, the newest first; `after` of a page gives the next one. Raises BadFilterError."""
    place = None if after is None else _place(after)
    found = pipeline.deliveries.rejected(wanted, after=place, limit=limit + 1)
    return RejectionPage(rows=found[:limit], after=_cursor(found[limit - 1]) if len(found) > limit else None)


def rejected_message(pipeline: Pipeline, message_id: str) -> str:
    """Return a message as it came, of which a record was rejected. Raises UnknownMessageError."""
    body = pipeline.deliveries.rejected_body(message_id)
    if body is None:
        raise UnknownMessageError(observed=repr(message_id[:80]), next_step="kfm wal rejected")
    return body


def _cursor(last: RejectionPlace) -> str:
    where = f"{last.dataset} {last.object_uri}" if last.message_id is None else f"{last.record_index}_{last.message_id}"
    return f"{rfc3339(last.rejected_at)}_{where}"


def _place(after: str) -> RejectionPlace:
    match = _CURSOR.fullmatch(after)
    if match is None:
        raise BadFilterError(observed=f"after={after[:80]!r}", expected="what the page before gave")
    return RejectionPlace(
        rejected_at=datetime.fromisoformat(match["at"]),
        message_id=match["message"],
        record_index=None if match["record"] is None else int(match["record"]),
        dataset=match["dataset"],
        object_uri=match["uri"],
    )
