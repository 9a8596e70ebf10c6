"""Feeds: the datasets ingested here, their gaps, and messages without units. Only reads.

Does not belong here: the storage of rejections and ignored entries (`ledger/rejections.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import quote, urlencode

from pydantic import Field

from kfm_dagster.contracts.filters import MOST_DAYS, Days, Filter, Flag, OfDataset
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.errors import UnknownNameError
from kfm_dagster.governance.switches import EVERY_DATASET, KillSwitches
from kfm_dagster.ledger.deliveries import Deliveries
from kfm_dagster.ledger.gaps import Gap, Gaps
from kfm_dagster.ledger.rejections import (
    MESSAGE_ID,
    IgnoredCount,
    KeptIgnoredRecord,
    KeptRejection,
    RejectionFilter,
    RejectionPlace,
)
from kfm_dagster.notifications.landing import Landing
from kfm_dagster.operators.message_parse import IgnoreReason
from kfm_dagster.views.view import Page, Parts, View, place_of, require_contract

GAP_DAYS = 3
_CURSOR = re.compile(rf"(\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{{6}}Z)_(-?\d{{1,9}})_({MESSAGE_ID})", re.ASCII)


class GapFilter(OfDataset):
    """Gaps of the last days, and older ones if the product is still silent or slow."""

    days: Days = Field(GAP_DAYS, description=f"Number of days back, {MOST_DAYS} at most.")
    closed: Flag = Field(default=False, description="Also closed gaps.")


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestedDataset:
    """A dataset that is ingested here, and whether a kill switch stops it."""

    id: str
    title: str
    status: str
    collection: str
    switched_off: bool


def gaps(parts: Parts, row_filter: GapFilter, _: str | None, limit: int) -> Page:
    """Return gaps, with `after` if there are more. Raises ContractError for an unknown dataset."""
    require_contract(parts, row_filter.dataset)
    since = parts.clock() - timedelta(days=row_filter.days)
    rows = Gaps(database=parts.database).list(
        since=since, dataset=row_filter.dataset, closed=row_filter.closed, limit=limit + 1
    )
    return Page(rows=rows[:limit], after="more" if len(rows) > limit else None)


def _datasets(parts: Parts, _: Filter, __: str | None, ___: int) -> Page:
    with parts.database.snapshot() as tx:
        off = KillSwitches(parts.database, clock=parts.clock).engaged(tx=tx)
    return Page(
        rows=[
            IngestedDataset(
                id=contract.id,
                title=contract.metadata.title,
                status=contract.metadata.status,
                collection=contract.stac.collection,
                switched_off=not off.keys().isdisjoint({contract.id, EVERY_DATASET}),
            )
            for contract in parts.registry
        ]
    )


GAPS = View(
    name="gaps",
    operation="listGaps",
    tool="gaps",
    summary="Hours that lack objects, and products that are silent or slow now; `complete` is false if there are more.",
    filter=GapFilter,
    row=Gap,
    query=gaps,
    columns=("dataset", "product", "hour", "kind", "expected", "seen", "first_seen"),
    links={"hour": lambda gap: f"/units?{urlencode({'dataset': gap.dataset, 'since': rfc3339(gap.hour)})}"},
    end="complete",
)
DATASETS = View(
    name="datasets",
    operation="listDatasets",
    tool="datasets",
    summary="The datasets that are ingested here.",
    filter=Filter,
    row=IngestedDataset,
    query=_datasets,
)


class IgnoredFilter(OfDataset):
    """Ignored entries of messages."""

    reason: IgnoreReason | None = Field(None, description="Only entries that were ignored for this reason.")
    bucket: str | None = Field(None, description="Only objects of this bucket.")
    key_prefix: str | None = Field(None, description="Only objects whose key begins with this text.")
    message_id: str | None = Field(None, description="Only messages whose SQS id begins with this text.")


def _newest(parts: Parts, row_filter: IgnoredFilter, _: str | None, limit: int) -> Page:
    with parts.database.snapshot() as tx:
        return Page(rows=tx.rows(KeptIgnoredRecord, "deliveries.ignored", dict(row_filter), limit=limit))


def _counts(parts: Parts, row_filter: IgnoredFilter, _: str | None, __: int) -> Page:
    with parts.database.snapshot() as tx:
        return Page(rows=tx.rows(IgnoredCount, "deliveries.ignored_counts", dict(row_filter)))


def rejections(parts: Parts, row_filter: RejectionFilter, after: str | None, limit: int) -> Page:
    """Return a page of rejections; its `after` starts the next page. Raises BadFilterError."""
    place = place_of(after, _CURSOR, _place)
    rows = Deliveries(parts.database, clock=parts.clock).rejected(row_filter, after=place, limit=limit + 1)
    return Page(rows=rows[:limit], after=_cursor(rows[limit - 1]) if len(rows) > limit else None)


def rejected_message(deliveries: Deliveries, landing: Landing, message_id: str) -> str:
    """Return a rejected message's original text. Raises UnknownNameError, ArtifactError."""
    digest = deliveries.rejected_landing(message_id)
    if digest is None:
        raise UnknownNameError(
            "no message of that id was rejected", observed=repr(message_id[:80]), next_step="kfm units rejected"
        )
    return next(message.body for message in landing.read(digest) if message.message_id == message_id)


def _cursor(last: RejectionPlace) -> str:
    return f"{rfc3339(last.rejected_at)}_{last.record_index}_{last.message_id}"


def _place(at: str, record: str, message_id: str) -> RejectionPlace:
    return RejectionPlace(rejected_at=datetime.fromisoformat(at), message_id=message_id, record_index=int(record))


REJECTIONS = View(
    name="rejections",
    operation="searchRejections",
    tool="rejections",
    summary="Rejected messages and entries of messages with the reason, the newest first.",
    filter=RejectionFilter,
    row=KeptRejection,
    query=rejections,
    columns=("rejected_at", "reason_code", "records", "message_id", "detail"),
    links={"message_id": lambda row: f"/rejected/{quote(row.message_id)}"},
    end="next",
)
IGNORED = View(
    summary="Ignored entries of messages, the newest message first.",
    filter=IgnoredFilter,
    row=KeptIgnoredRecord,
    query=_newest,
    columns=("received_at", "dataset", "reason", "key", "bucket", "records", "message_id"),
)
IGNORED_COUNTS = View(
    summary="The numbers of ignored entries and of their messages, by dataset and reason.",
    filter=IgnoredFilter,
    row=IgnoredCount,
    query=_counts,
    columns=("dataset", "reason", "records", "messages", "newest_at"),
)
