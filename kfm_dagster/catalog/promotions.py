"""Promotions: the catalog's undo log, which records the previous state of every Item that a run writes (PCS-03).

An entry is committed before its file is promoted, so that a crash can leave an entry without a file, but never a file
without an entry. A column of the index has the entry of an Item's current version; a promotion whose entry was never
in that column did not commit. Earlier bytes are kept in the database under their hash, because then one commit makes
them and the entries durable; rewritten Items are few and small (a kilobyte each, compressed).

Belongs here: writing the log and reading it. Does not belong here: undoing (`undo.py`).
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pyarrow as pa

from kfm_dagster.catalog import outcomes
from kfm_dagster.catalog.index import CatalogEntry, Write
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.storage.database import Transaction

CODEC = "zstd"
"""Level 1, Arrow's default, as in the lineage outbox."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Promotion:
    """An entry of the log: an Item's file that a run wrote, or died before writing.

    The `before_...` fields are None if the Item is new; before_promotion_id also if the Item's row is older than the
    log, and before_sha256 also if the Item's file was lost. `withdrawn`: the promotion was undone.
    """

    promotion_id: int
    run_id: str | None
    dataset: str
    item_id: str
    partition: str
    after_sha256: str
    before_promotion_id: int | None
    before_revision: int | None
    before_sha256: str | None
    withdrawn: bool

    def came_after(self, current: CatalogEntry | None) -> bool:
        """Return whether the promotion would replace the current version, or create the first."""
        before = (self.before_promotion_id, self.before_revision)
        return before == ((current.promotion_id, current.revision) if current else (None, None))


class PromotionLog:
    """The log of a collection within one transaction."""

    def __init__(self, tx: Transaction, contract: DatasetContract) -> None:
        self._tx = tx
        self._contract = contract
        self._collection = contract.stac.collection

    def enter(self, writes: Sequence[Write], files: Mapping[str, bytes]) -> list[Write]:
        """Log intended writes; return them with entries. `files` are the current files by path.

        Takes two statements, and another per overwritten Item. A write that only restores a lost file does not
        change the catalog's content, so it is not logged, and the Item keeps its entry.
        """
        logged = [write for write in writes if not outcomes.is_restoration(write)]
        if not logged:
            return list(writes)
        before = self._keep(logged, files)
        rows: list[list[str | int | None]] = [
            [
                write.candidate.run_id,
                write.candidate.item_id,
                write.partition,
                sha256(write.candidate.content),
                write.base.promotion_id if write.base else None,
                write.base.revision if write.base else None,
                before.get(write.candidate.item_id),
                write.candidate.wal_id,
            ]
            for write in logged
        ]
        logged_rows = self._tx.run(
            "catalog.log_promotions",
            collection_id=self._collection,
            dataset=self._contract.id,
            rows=rows,
            logged_at=datetime.now(UTC),
        )
        entries = {row.item_id: row.promotion_id for row in logged_rows}
        return [
            write if outcomes.is_restoration(write) else replace(write, promotion_id=entries[write.candidate.item_id])
            for write in writes
        ]

    def items_of(self, run_id: str) -> list[str]:
        """Return the ids of the Items that a run wrote, or died before writing."""
        rows = self._tx.run(
            "catalog.items_of_run", collection_id=self._collection, dataset=self._contract.id, run_id=run_id
        )
        return [row.item_id for row in rows]

    def of_items(self, item_ids: Iterable[str]) -> dict[str, list[Promotion]]:
        """Return all entries of each Item, oldest first, by Item id."""
        entries: dict[str, list[Promotion]] = defaultdict(list)
        for entry in self._tx.rows(
            Promotion, "catalog.promotions_of_items", collection_id=self._collection, item_ids=list(item_ids)
        ):
            entries[entry.item_id].append(entry)
        return entries

    def withdraw(self, promotion_ids: Iterable[int]) -> None:
        """Mark entries as undone, so that undoing a later entry does not restore their versions."""
        self._tx.run("catalog.withdraw", promotion_ids=promotion_ids, withdrawn_at=datetime.now(UTC))

    def kept(self, digests: Iterable[str]) -> dict[str, bytes]:
        """Return earlier bytes by their SHA-256."""
        return {
            row.sha256: bytes(pa.decompress(bytes(row.content), row.content_bytes, codec=CODEC, asbytes=True))
            for row in self._tx.run("catalog.kept_files", digests=digests)
        }

    def _keep(self, writes: Sequence[Write], files: Mapping[str, bytes]) -> dict[str, str]:
        """Store the files that will be overwritten, and return their hashes by Item id.

        A file that an uncommitted promotion of the same row has left was never current. In this case, the hash of the
        earlier file is returned, which that promotion's entry has.
        """
        overwritten = [write for write in writes if write.base and write.path in files]
        if not overwritten:
            return {}
        item_ids = [write.candidate.item_id for write in overwritten]
        rivals: dict[tuple[str, str, int | None, int], str | None] = {
            (row.item_id, row.after_sha256, row.before_promotion_id, row.before_revision): row.before_sha256
            for row in self._tx.run("catalog.rivals", collection_id=self._collection, item_ids=item_ids)
        }
        before: dict[str, str | None] = {}
        contents: dict[str, bytes] = {}
        for write in overwritten:
            if write.base is None:
                continue
            content = files[write.path]
            digest = sha256(content)
            key = (write.candidate.item_id, digest, write.base.promotion_id, write.base.revision)
            if key in rivals:
                before[write.candidate.item_id] = rivals[key]
            else:
                before[write.candidate.item_id] = digest
                contents[digest] = content
        self._tx.run_many(
            "catalog.keep_file",
            [
                # In the order of hashes, so that two writers cannot deadlock.
                {
                    "sha256": digest,
                    "content": pa.compress(contents[digest], codec=CODEC, asbytes=True),
                    "content_bytes": len(contents[digest]),
                }
                for digest in sorted(contents)
            ],
        )
        return {item_id: digest for item_id, digest in before.items() if digest is not None}


def sha256(content: bytes) -> str:
    """Return the SHA-256 of all bytes of a file, unlike an Item's content hash (`item.py`)."""
    return hashlib.sha256(content).hexdigest()
