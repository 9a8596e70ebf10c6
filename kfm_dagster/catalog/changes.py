"""Changes of the catalog: what a follower learns of an Item, and what a follower is.

Every change of an Item in the index is a row, written in the transaction of the change. A follower is a place that
shows the same Items in its own way (a search index, a receiver of announcements), and is brought up to date after the
commit (`following.py`), so that a place that is down costs no unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.errors import DependencyUnavailableError


class ChangeKind(StrEnum):
    """What happened to an Item."""

    CREATED = "created"
    UPDATED = "updated"
    WITHDRAWN = "withdrawn"


class FollowError(DependencyUnavailableError):
    """A follower of the catalog does not take its changes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemChange:
    """The last change of an Item among those that a follower gets.

    `change_id` grows within a collection, `partition` is the day under which the Item stands (YYYY-MM-DD), `path` that
    of its file below the catalog's root. `item` is what the file says, None once it is withdrawn, as `content_sha256`.
    An Item that came and went before a follower saw it is withdrawn, too.
    """

    change_id: int
    item_id: str
    partition: str
    kind: ChangeKind
    path: str
    item: Mapping[str, Any] | None
    content_sha256: str | None
    changed_at: datetime


class Follower(Protocol):
    """A place that shows the Items that stand, in its own way."""

    name: str
    """Key of its cursors."""
    after: Sequence[str]
    """Names of the followers that have a change before this one gets it."""

    def follow(self, contract: DatasetContract, changes: Sequence[ItemChange]) -> None:
        """Bring the place in line with these Items, each of which comes once, in the order of `change_id`.

        `contract` is that of the dataset that owns the collection. Each change comes at least once, from one caller at
        a time; one that stalled may still be at work. After any error all of it comes again.
        """
        ...

    def forget(self, contract: DatasetContract) -> None:
        """Empty the place of a collection, before all that stands is followed again."""
        ...
