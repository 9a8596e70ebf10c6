"""Ignored records: what messages named that gave no unit, one by one and counted. Only reads."""

from __future__ import annotations

from pydantic import Field

from kfm_dagster.contracts.filters import OfDataset
from kfm_dagster.ledger.ignored import IgnoredCount, KeptIgnoredRecord
from kfm_dagster.operators.message_parse import IgnoreReason
from kfm_dagster.views.view import Page, Parts, View


class IgnoredFilter(OfDataset):
    """Ignored records."""

    reason: IgnoreReason | None = Field(None, description="Only for this reason.")
    bucket: str | None = Field(None, description="Only of this bucket.")
    key_prefix: str | None = Field(None, description="Only objects whose key begins so.")
    message_id: str | None = Field(None, description="Only of the SQS message whose id begins so.")


def _newest(parts: Parts, wanted: IgnoredFilter, _: str | None, limit: int) -> Page:
    with parts.database.snapshot() as tx:
        return Page(rows=tx.rows(KeptIgnoredRecord, "deliveries.ignored", dict(wanted), limit=limit))


def _counts(parts: Parts, wanted: IgnoredFilter, _: str | None, __: int) -> Page:
    with parts.database.snapshot() as tx:
        return Page(rows=tx.rows(IgnoredCount, "deliveries.ignored_counts", dict(wanted)))


IGNORED = View(
    name="ignored",
    summary="What messages named that gave no unit, the newest message first.",
    filter=IgnoredFilter,
    row=KeptIgnoredRecord,
    query=_newest,
    columns=("received_at", "dataset", "reason", "records", "bucket", "key", "message_id"),
)
IGNORED_COUNTS = View(
    name="ignored counts",
    summary="How many ignored records and messages there are by dataset and reason.",
    filter=IgnoredFilter,
    row=IgnoredCount,
    query=_counts,
    columns=("dataset", "reason", "records", "messages", "newest_at"),
)
