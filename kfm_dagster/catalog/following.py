"""Bring followers of the catalog up to date, with a cursor per follower and collection.

A collection has only one writer at a time. So its changes are committed in the order of their numbers, and a cursor
skips no change. Only one process at a time advances a follower in a collection.

Does not belong here: writing changes (`index.py`), types of changes and followers (`changes.py`), leases (`outbox.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property

from kfm_dagster.catalog import layout
from kfm_dagster.catalog.changes import ChangeKind, Follower, FollowError, ItemChange
from kfm_dagster.catalog.index import CollectionIndex
from kfm_dagster.catalog.item import content_of
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.outbox import Entry, Outbox
from kfm_dagster.redaction import error_text
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.publisher import Publisher, PublishError

_LOG = logging.getLogger(__name__)

BATCH = 1_000
"""Maximum changes that a follower receives at a time."""
LEASE = timedelta(minutes=10)
"""Time after which another process takes over an unfinished claim."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FollowerState:
    """A follower's position in a collection.

    `behind` counts the changes still to deliver; the last two fields are None without failures.
    """

    follower: str
    collection_id: str
    change_id: int
    behind: int
    failures: int
    next_attempt_at: datetime | None
    last_error: str | None


class FollowerRunner:
    """Brings followers up to date; any number of processes can do this at the same time."""

    def __init__(
        self, database: Database, registry: ContractRegistry, publisher: Publisher, *, clock: Callable[[], datetime]
    ) -> None:
        self._database = database
        self._registry = registry
        self._publisher = publisher
        self._clock = clock
        self._outbox = Outbox(database, "catalog", lease=LEASE, clock=clock)

    @cached_property
    def _owners(self) -> Mapping[str, DatasetContract]:
        return {contract.stac.collection: self._registry.owner(contract) for contract in self._registry}

    def catch_up(self, followers: Iterable[Follower], *, within: float = 10.0) -> int:
        """Advance followers for at most `within` seconds; return the number of accepted changes.

        A failing follower is deferred; other followers continue. Raises only the database's errors.
        """
        end = time.monotonic() + within
        delivered = 0
        for follower in followers:
            for contract in self._behind(follower):
                with suppress(FollowError):
                    while time.monotonic() < end and (changes := self._advance(follower, contract)):
                        delivered += changes
        return delivered

    def rebuild(self, follower: Follower, contract: DatasetContract) -> int:
        """Remove a collection from a follower's output, refill it, and return the number of changes.

        Raises FollowError if the follower fails, or if another process advances it. If the collection is already
        removed when an error occurs, `catch_up` refills it.
        """
        owner = self._owners[contract.stac.collection]
        entry = self._outbox.take(follower.name, owner.stac.collection)
        if entry is None:
            raise FollowError(
                observed=f"{follower.name} of {owner.stac.collection} is being brought up to date, or was deferred",
                next_step="try again in some minutes",
            )
        with self._deferring(entry):
            follower.forget(owner)
        self._outbox.advance(entry, 0)
        delivered = 0
        while changes := self._advance(follower, owner):
            delivered += changes
        return delivered

    def states(self) -> list[FollowerState]:
        """Return the position of each follower in each collection that it has begun to follow."""
        with self._database.snapshot() as view:
            return view.rows(FollowerState, "catalog.follower_states")

    def _behind(self, follower: Follower) -> list[DatasetContract]:
        with self._database.snapshot() as view:
            rows = view.run(
                "catalog.behind",
                follower=follower.name,
                collections=[[collection] for collection in self._owners],
                after_followers=follower.after,
                now=self._clock(),
            )
            return [self._owners[row.collection_id] for row in rows]

    def _advance(self, follower: Follower, contract: DatasetContract) -> int:
        """Advance a follower by a batch; return the number of changes, 0 if claimed or deferred."""
        entry = self._outbox.take(follower.name, contract.stac.collection)
        if entry is None:
            return 0
        changes = self._changes(follower, entry)
        if changes:
            with self._deferring(entry):
                follower.follow(contract, self._current(contract, changes))
        self._outbox.advance(entry, changes[-1].change_id if changes else entry.position)
        return len(changes)

    @contextmanager
    def _deferring(self, entry: Entry) -> Iterator[None]:
        """If the follower raises an error, defer the follower and raise FollowError."""
        try:
            yield
        except Exception as error:
            failure = error
            if isinstance(error, PublishError):
                next_step = "check that the follower's output is writable (KFM_CATALOG_URL, KFM_VIRTUAL_URL)"
                failure = FollowError(observed=error.reason, next_step=next_step)
            text = error_text(failure)
            _LOG.warning("%s of %s is deferred: %s", entry.consumer, entry.subject, text)
            self._outbox.defer(entry, text)
            raise FollowError(observed=text) from None

    def _changes(self, follower: Follower, entry: Entry) -> list[ItemChange]:
        """Return the next changes, without the Items' content."""
        with self._database.snapshot() as view:
            rows = view.run(
                "catalog.changes_after",
                collection_id=entry.subject,
                after=entry.position,
                after_followers=follower.after,
                most=BATCH,
            )
            return [
                ItemChange(
                    change_id=row.change_id,
                    item_id=row.item_id,
                    partition=row.partition_key,
                    kind=ChangeKind(row.kind),
                    path=layout.item_path(entry.subject, row.partition_key, row.item_id),
                    content=None,
                    content_sha256=row.content_sha256,
                    changed_at=row.changed_at,
                )
                for row in rows
            ]

    def _current(self, contract: DatasetContract, changes: Sequence[ItemChange]) -> list[ItemChange]:
        """Return each Item's last change of a batch, with content; leave out Items changed later.

        An Item changed later is delivered with that later change. An Item whose file is lost is delivered once
        the file has been written again.
        """
        confirmed, unsure = self._read(contract, _last(changes))
        if unsure:
            # Writers promote files shortly before they commit the index, so wait for the current writer.
            with self._database.transaction() as tx, CollectionIndex(tx, contract, page_size=1).only_writer():
                reread, missing = self._read(contract, unsure)
            confirmed += reread
            for change in missing:
                _LOG.warning("%s differs from the index: followers do not receive this Item", change.path)
        return sorted(confirmed, key=lambda change: change.change_id)

    def _read(
        self, contract: DatasetContract, changes: Sequence[ItemChange]
    ) -> tuple[list[ItemChange], list[ItemChange]]:
        """Return the current changes whose files match the index, and those whose files differ."""
        with self._database.snapshot() as view:
            rows = view.run(
                "catalog.contents",
                collection_id=contract.stac.collection,
                item_ids=[change.item_id for change in changes],
            )
            indexed = {row.item_id: row.content_sha256 for row in rows}
        current = [change for change in changes if indexed.get(change.item_id) == change.content_sha256]
        files = self._publisher.read([change.path for change in current if change.content_sha256])
        equal: list[ItemChange] = []
        unsure: list[ItemChange] = []
        for change in current:
            content = files.get(change.path)
            if content_of(content) == change.content_sha256:
                equal.append(replace(change, content=content))
            else:
                unsure.append(change)
        return equal, unsure


def _last(changes: Sequence[ItemChange]) -> list[ItemChange]:
    """Return each Item's last change; an update is CREATED if this batch also has the creation."""
    first: dict[str, ChangeKind] = {}
    last: dict[str, ItemChange] = {}
    for change in changes:
        first.setdefault(change.item_id, change.kind)
        last[change.item_id] = change
    return [
        replace(change, kind=ChangeKind.CREATED if first[item_id] is ChangeKind.CREATED else ChangeKind.UPDATED)
        if change.kind is not ChangeKind.WITHDRAWN
        else change
        for item_id, change in last.items()
    ]
