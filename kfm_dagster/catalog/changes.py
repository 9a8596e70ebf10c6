"""Changes of the catalog: the record of an Item's change, and the interface of followers.

Every change of an Item in the index is recorded as a row, in the transaction of the change. A follower is an output
that has the same Items in another form (a search index, a receiver of announcements). Followers are updated after the
commit (`following.py`), so no unit fails because an output is unavailable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

import orjson

from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.errors import DependencyUnavailableError


class ChangeKind(StrEnum):
    """Kind of an Item's change."""

    CREATED = "created"
    UPDATED = "updated"
    WITHDRAWN = "withdrawn"


class FollowError(DependencyUnavailableError):
    """A follower does not accept changes of the catalog."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemChange:
    """The last change of an Item in a follower's batch.

    `change_id` grows within a collection, `partition` is the Item's day in the catalog (YYYY-MM-DD), `path` the path of
    the Item's file below the catalog's root. `content` is the content of the file; `content` and `content_sha256` are
    None once the Item is withdrawn. If an Item was withdrawn before a follower received its creation, only the
    withdrawal is delivered.
    """

    change_id: int
    item_id: str
    partition: str
    kind: ChangeKind
    path: str
    content: bytes | None
    content_sha256: str | None
    changed_at: datetime

    @property
    def item(self) -> Mapping[str, Any] | None:
        """The content, parsed at each use: parsed Items would take ten times the memory."""
        return None if self.content is None else orjson.loads(self.content)


class Follower(Protocol):
    """An output that has the current Items in another form."""

    name: str
    """Name under which the follower's position in each collection is stored."""
    after: Sequence[str]
    """Names of the followers that receive each change before this follower."""

    def follow(self, contract: DatasetContract, changes: Sequence[ItemChange]) -> None:
        """Update the output with these changes, at most one for each Item, in order of `change_id`.

        `contract` is the contract of the dataset that owns the Collection. Each change is delivered at least once.
        Calls follow each other; only a call that stalled past its lease can overlap the next. After any error the whole
        batch is delivered again.
        """
        ...

    def forget(self, contract: DatasetContract) -> None:
        """Remove a collection from the output, before all its current Items are delivered again."""
        ...
