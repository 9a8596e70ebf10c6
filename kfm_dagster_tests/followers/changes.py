"""Item changes as a follower receives them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from kfm_dagster.catalog.changes import ChangeKind, ItemChange
from kfm_dagster.catalog.item import canonical, content_sha256
from kfm_dagster.catalog.layout import item_path

T0 = datetime(2025, 12, 3, 12, tzinfo=UTC)


def change(
    number: int, item: Mapping[str, Any], *, kind: ChangeKind = ChangeKind.CREATED, day: str | None = None
) -> ItemChange:
    """Return a change with this number; a withdrawal carries only the Item's id."""
    day = day or str(item["properties"]["datetime"])[:10]
    gone = kind is ChangeKind.WITHDRAWN
    return ItemChange(
        change_id=number,
        item_id=item["id"],
        partition=day,
        kind=kind,
        path=item_path(item["collection"], day, item["id"]),
        content=None if gone else canonical(item),
        content_sha256=None if gone else content_sha256(item),
        changed_at=T0 + timedelta(seconds=number),
    )
