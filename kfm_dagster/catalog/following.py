"""Following: followers of the catalog are brought up to date, with a cursor for each follower and collection.

Changes of a collection are committed in the order of their numbers, because it has one writer at a time: so a cursor
is enough, and no change is skipped. One process at a time advances a follower in a collection.

Does not belong here: writing changes (`index.py`), what a change and a follower are (`changes.py`), leases and retries
(`outbox/`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import orjson

from kfm_dagster.catalog import layout
from kfm_dagster.catalog.changes import ChangeKind, Follower, FollowError, ItemChange
from kfm_dagster.catalog.index import CollectionIndex
from kfm_dagster.catalog.item import content_sha256
from kfm_dagster.catalog.publisher import Publisher
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.outbox import Entry, Outbox
from kfm_dagster.redaction import error_text
from kfm_dagster.storage.database import Database

_LOG = logging.getLogger(__name__)

BATCH = 1_000
"""Changes that a follower gets at a time."""
TURN = timedelta(minutes=10)
"""After so long another process takes over from one that has not ended its turn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """How far a follower has come in a collection; `behind` counts changes, `last_error` is None when all is well."""

    follower: str
    collection_id: str
    change_id: int
    behind: int
    failures: int
    next_attempt_at: datetime
    last_error: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Turn:
    """The right to bring a follower on in a collection."""

    follower: Follower
    contract: DatasetContract
    entry: Entry


class Following:
    """Brings followers up to date. Any number of processes may do so."""

    def __init__(
        self, database: Database, registry: ContractRegistry, publisher: Publisher, *, clock: Callable[[], datetime]
    ) -> None:
        self._database = database
        self._owners = {
            contract.stac.collection: registry.owner(contract) for contract in sorted(registry, key=lambda one: one.id)
        }
        self._publisher = publisher
        self._clock = clock
        self._outbox = Outbox(database, "catalog", lease=TURN, clock=clock)

    def catch_up(self, followers: Iterable[Follower], *, within: float = 10.0) -> int:
        """Bring followers up to date, and return how many changes they took; after `within` seconds the rest waits.

        One that fails is put off, and keeps no other from its changes. Raises the database's errors alone.
        """
        end = time.monotonic() + within
        taken = 0
        for follower in followers:
            for contract in self._behind(follower):
                with suppress(FollowError):
                    while time.monotonic() < end and (turn := self._take(follower, contract)) is not None:
                        found = self._bring_on(turn)
                        taken += found
                        if found == 0:
                            break
        return taken

    def rebuild(self, follower: Follower, contract: DatasetContract) -> int:
        """Empty a follower's place of a collection and follow all that stands; return the number of changes.

        Raises FollowError, also while another process is at it; what is left then comes as any other change.
        """
        owner = self._owners[contract.stac.collection]
        turn = self._take(follower, owner)
        if turn is None:
            raise FollowError(
                observed=f"{follower.name} of {owner.stac.collection} is being brought up to date, or was put off",
                next_step="try again in some minutes",
            )
        with self._or_put_off(turn):
            follower.forget(owner)
        self._outbox.advance(turn.entry, 0)
        taken = 0
        while (again := self._take(follower, owner)) is not None and (found := self._bring_on(again)):
            taken += found
        return taken

    def places(self) -> list[Place]:
        """Return how far every follower has come."""
        with self._database.snapshot() as view:
            return view.rows(Place, "catalog.places")

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

    def _take(self, follower: Follower, contract: DatasetContract) -> _Turn | None:
        entry = self._outbox.take(follower.name, contract.stac.collection)
        return None if entry is None else _Turn(follower=follower, contract=contract, entry=entry)

    def _bring_on(self, turn: _Turn) -> int:
        """Bring a follower on by a batch, and return how many changes that were. Raises FollowError."""
        changes = self._changes(turn)
        if changes:
            with self._or_put_off(turn):
                turn.follower.follow(turn.contract, self._standing(turn.contract, changes))
        self._outbox.advance(turn.entry, changes[-1].change_id if changes else turn.entry.position)
        return len(changes)

    @contextmanager
    def _or_put_off(self, turn: _Turn) -> Iterator[None]:
        """Put a follower off that fails, whatever it raises. Raises FollowError then."""
        try:
            yield
        except Exception as error:
            text = error_text(error)
            _LOG.warning("%s of %s is deferred: %s", turn.follower.name, turn.contract.stac.collection, text)
            self._outbox.defer(turn.entry, text)
            raise FollowError(observed=text) from None

    def _changes(self, turn: _Turn) -> list[ItemChange]:
        """Return what comes next, without the Items' content."""
        collection = turn.contract.stac.collection
        with self._database.snapshot() as view:
            rows = view.run(
                "catalog.changes_after",
                collection_id=collection,
                after=turn.entry.position,
                after_followers=turn.follower.after,
                most=BATCH,
            )
            return [
                ItemChange(
                    change_id=row.change_id,
                    item_id=row.item_id,
                    partition=row.partition_key,
                    kind=ChangeKind(row.kind),
                    path=layout.item_path(collection, row.partition_key, row.item_id),
                    item=None,
                    content_sha256=row.content_sha256,
                    changed_at=row.changed_at,
                )
                for row in rows
            ]

    def _standing(self, contract: DatasetContract, changes: Sequence[ItemChange]) -> list[ItemChange]:
        """Return the last change of each Item with its content, without Items that have changed again since.

        Those come with their later change. So does one whose file is lost, when it is written again.
        """
        last = _last(changes)
        found, unsure = self._read(contract, last)
        if unsure:
            # A writer's files are in their places a moment before its index is; it ends first.
            with self._database.transaction() as tx, CollectionIndex(tx, contract, page_size=1).only_writer():
                again, lost = self._read(contract, unsure)
            found += again
            for change in lost:
                _LOG.warning("%s is not what the index says: followers do not get it", change.path)
        return sorted(found, key=lambda change: change.change_id)

    def _read(
        self, contract: DatasetContract, changes: Sequence[ItemChange]
    ) -> tuple[list[ItemChange], list[ItemChange]]:
        """Return the changes whose Items stand as they say, and those whose file says something else."""
        with self._database.snapshot() as view:
            standing = {
                row.item_id: row.content_sha256
                for row in view.run(
                    "catalog.contents",
                    collection_id=contract.stac.collection,
                    item_ids=[change.item_id for change in changes],
                )
            }
        current = [change for change in changes if standing.get(change.item_id) == change.content_sha256]
        files = self._publisher.read([change.path for change in current if change.content_sha256])
        found: list[ItemChange] = []
        unsure: list[ItemChange] = []
        for change in current:
            item = _item(files.get(change.path)) if change.content_sha256 else None
            if change.content_sha256 == (content_sha256(item) if item else None):
                found.append(replace(change, item=item))
            else:
                unsure.append(change)
        return found, unsure


def _last(changes: Sequence[ItemChange]) -> list[ItemChange]:
    """One change an Item, its last; one that came among these is created, whatever came after."""
    first: dict[str, ItemChange] = {}
    last: dict[str, ItemChange] = {}
    for change in changes:
        first.setdefault(change.item_id, change)
        last[change.item_id] = change
    return [replace(change, kind=_net(first[change.item_id].kind, change.kind)) for change in last.values()]


def _net(first: ChangeKind, last: ChangeKind) -> ChangeKind:
    if last is ChangeKind.WITHDRAWN:
        return last
    return ChangeKind.CREATED if first is ChangeKind.CREATED else ChangeKind.UPDATED


def _item(content: bytes | None) -> dict[str, Any] | None:
    """Return what a file says; None when it is no Item."""
    try:
        found = orjson.loads(content or b"")
    except ValueError:
        return None
    return found if isinstance(found, dict) and "properties" in found else None
