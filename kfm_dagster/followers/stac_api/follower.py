"""The follower `stac-api`, which copies the catalog into the database of a STAC API.

One transaction under the collection's lock stages a batch in a temporary table, checks and applies it, reads it back,
and stores the number of the batch's last change. Each Item and each withdrawn Item is stored with the number of its
last change, so that a late caller with an older change has no effect.

Readers are blocked only by the removal of a collection, and by the creation of a partition. A partition is created once
a month for each collection, in its own transaction.
Does not belong here: the form of a row (`rows.py`), verifying equality (`comparison.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
from sqlalchemy.engine import Connection
from typing_extensions import override

from kfm_dagster.addresses import shown
from kfm_dagster.catalog import layout
from kfm_dagster.catalog.changes import Follower, FollowError, ItemChange
from kfm_dagster.catalog.follower_sources import FollowerContext, FollowerSource
from kfm_dagster.catalog.validation import validate_item
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.errors import KfmError
from kfm_dagster.followers.stac_api.database import DDL_LOCK_TIMEOUT, StacApiDatabase, StacApiTransaction
from kfm_dagster.followers.stac_api.rows import api_collection, stage_line
from kfm_dagster.storage.publisher import Publisher

PARTITION = "month"
"""The smallest partition that pgstac offers: its searches are fastest with some million Items per partition, and a GOES
satellite has three million a month."""


class StacApiSource(FollowerSource):
    """Creates the follower if KFM_STAC_API_DSN is set."""

    title = "STAC API"

    @override
    def followers(self, context: FollowerContext) -> Sequence[Follower]:
        dsn = self.settings.stac_api_dsn
        return [PgstacFollower(StacApiDatabase(dsn), context.catalog)] if dsn else ()

    @override
    def ask(self) -> Iterator[str | KfmError]:
        if dsn := self.settings.stac_api_dsn:
            with StacApiDatabase(dsn).connected():
                yield f"{shown(dsn)} has pgstac"


class PgstacFollower:
    """Follower that keeps the database of a STAC API equal to the catalog."""

    name = "stac-api"
    after: Sequence[str] = ()

    def __init__(self, api: StacApiDatabase, publisher: Publisher) -> None:
        self.api = api
        self._publisher = publisher

    def follow(self, contract: DatasetContract, changes: Sequence[ItemChange]) -> None:
        """Apply the changes that the API does not have yet, all or none. Raises FollowError."""
        if not changes:
            return
        collection_id = contract.stac.collection
        for change in changes:
            if (item := change.item) is not None and (reasons := validate_item(item)):
                raise FollowError(
                    observed=f"{change.path}: {'; '.join(reasons)}",
                    next_step="find the program that wrote this file of the catalog",
                )
        with self.api.connected() as connection:
            self._prepare(connection, contract, changes)
            with self.api.begin(connection) as tx:
                tx.run("lock", collection_id=collection_id)
                self._load(tx, contract, changes)
                tx.run(
                    "move",
                    collection_id=collection_id,
                    change_id=max(change.change_id for change in changes),
                    changed_at=max(change.changed_at for change in changes),
                )

    def forget(self, contract: DatasetContract) -> None:
        """Remove a collection from the API, with its Items and their records. Raises FollowError."""
        collection_id = contract.stac.collection
        with self.api.transaction(lock_timeout=DDL_LOCK_TIMEOUT) as tx:
            tx.run("lock", collection_id=collection_id)
            tx.run("drop_collection", collection_id=collection_id)
            tx.run("forget_collection", collection_id=collection_id)

    def collection(self, contract: DatasetContract) -> dict[str, Any] | None:
        """Return the Collection for the API; None if the catalog has none. Raises FollowError."""
        path = layout.collection_path(contract.stac.collection)
        try:
            content = self._publisher.read([path]).get(path)
            return None if content is None else api_collection(content, contract)
        except (ValueError, KeyError) as error:
            raise FollowError(
                observed=f"{path}: {error}",
                next_step="check that KFM_CATALOG_URL is reachable; the follower is retried",
            ) from error

    def _load(self, tx: StacApiTransaction, contract: DatasetContract, changes: Sequence[ItemChange]) -> None:
        collection_id = contract.stac.collection
        _refuse_another_history(tx, collection_id, changes)
        document = self.collection(contract)
        if document is not None:
            _put_collection(tx, document)
        _apply(tx, collection_id, changes)
        if document is None and not tx.run("has_items", collection_id=collection_id).scalar_one():
            tx.run("hurry", lock_timeout=DDL_LOCK_TIMEOUT)
            tx.run("drop_collection", collection_id=collection_id)

    def _prepare(self, connection: Connection, contract: DatasetContract, changes: Sequence[ItemChange]) -> None:
        """Create partitions of new Items in their own transaction, because this blocks readers."""
        days = {_start(item).date() for change in changes if (item := change.item) is not None}
        document = self.collection(contract) if days else None
        if document is None:
            return
        moments = [datetime(day.year, day.month, day.day, tzinfo=UTC) for day in sorted(days)]
        with self.api.begin(connection, lock_timeout=DDL_LOCK_TIMEOUT) as tx:
            tx.run("lock", collection_id=contract.stac.collection)
            if tx.run("collection", collection_id=contract.stac.collection).first() is None:
                _put_collection(tx, document)
            for step in ("make_partitions", "loosen_partitions"):
                tx.run(step, collection_id=contract.stac.collection, times=moments)


def _apply(tx: StacApiTransaction, collection_id: str, changes: Sequence[ItemChange]) -> None:
    """Stage the changes, apply the changes that the API lacks, and read the result back."""
    row = tx.run("base_item", collection_id=collection_id).one()
    base = orjson.loads(row.base_item or "{}")
    tx.run("make_stage")
    tx.run("look_up_by_id")
    tx.copy("kfm_stage", (stage_line(change, base, row.base_item_id) for change in changes))
    for step in (
        "skip_applied",
        "skip_withdrawn",
        "take_out",
        "put_in",
        "remember_withdrawn",
        "forget_withdrawn",
    ):
        tx.run(step, collection_id=collection_id)
    if differing := tx.run("differing", collection_id=collection_id).scalars().all():
        raise FollowError(
            observed=f"{collection_id}: {', '.join(differing)} differ from their written content",
            next_step="find out what else writes to the API's database (triggers, rules)",
        )


def _put_collection(tx: StacApiTransaction, document: Mapping[str, Any]) -> None:
    """Write the Collection only if it differs, because pgstac writes Collections slowly."""
    content = orjson.dumps(document).decode()
    if not tx.run("has_collection", collection_id=document["id"], content=content).scalar():
        tx.run("put_collection", content=content, partition_trunc=PARTITION)


def _refuse_another_history(tx: StacApiTransaction, collection_id: str, changes: Sequence[ItemChange]) -> None:
    """Refuse another ledger: its change is later than the API's last, but has a lower number."""
    row = tx.run("come_to", collection_id=collection_id).first()
    last = changes[-1]
    if row is not None and last.change_id < row.change_id and last.changed_at > row.changed_at:
        raise FollowError(
            "the STAC API follows another ledger, or a ledger that was restored to an earlier day",
            observed=f"{collection_id}: change {last.change_id} of {last.changed_at:%Y-%m-%d %H:%M:%S} UTC",
            expected=f"a number above {row.change_id}",
            next_step=f"kfm stac rebuild --collection {collection_id}",
        )


def _start(item: Mapping[str, Any]) -> datetime:
    properties = item["properties"]
    return datetime.fromisoformat(properties.get("start_datetime") or properties["datetime"]).astimezone(UTC)
