"""Restore Items to an earlier state, byte for byte, by the catalog's undo log (PCS-03).

An entry is committed before its file is put in place, so a crash leaves a file with its entry, or an entry without its
file. The index names the entry of each Item's current version. If the index never named a logged entry, the write that
the entry announces was not committed. Earlier bytes of a file are stored in the database under their hash, because then
one commit makes the bytes and the entries that name them durable. Rewritten Items are few and small (a kilobyte each,
compressed).

An undo is a transaction under the collection's lock. It changes the rows, then the documents from the root down, then
the Items, and at last deletes the files without a link. In this order no link ever leads to a missing file. A crash
before the commit leaves the index unchanged, and the undo can be repeated. The undo also restores files that a run
replaced before it died.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pyarrow as pa

from kfm_dagster.catalog import documents, layout, outcomes
from kfm_dagster.catalog.index import CatalogEntry, CollectionIndex, Write
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.storage.database import Transaction
from kfm_dagster.storage.publisher import Level, Publisher, publish

CODEC = "zstd"
"""Compression of earlier bytes, at level 1, Arrow's default, as in the lineage outbox."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Promotion:
    """An entry of the log: a run wrote an Item's file, or died before writing it.

    The `before_...` fields are None if the Item is new. `before_promotion_id` is also None if the Item's row is older
    than the log, `before_sha256` also if the Item's file was lost. `withdrawn`: the promotion was undone.
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
        """Return whether the promotion was to replace `current`, or to create the Item (None)."""
        before = (self.before_promotion_id, self.before_revision)
        return before == ((current.promotion_id, current.revision) if current else (None, None))


class PromotionLog:
    """The log of a collection within one transaction."""

    def __init__(self, tx: Transaction, contract: DatasetContract) -> None:
        self._tx = tx
        self._contract = contract
        self._collection = contract.stac.collection

    def enter(self, writes: Sequence[Write], files: Mapping[str, bytes]) -> list[Write]:
        """Log intended writes; return these with entries. `files` are the current files by path.

        Runs one statement; for overwritten Items one more, and another for each file. A write that only restores
        a lost file does not change the catalog's content. So it is not logged, and the Item keeps its entry.
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
        """Return the ids of the Items that a run's log entries name."""
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
        """Mark entries as undone, so that an undo of a later entry does not restore their versions."""
        self._tx.run("catalog.withdraw", promotion_ids=promotion_ids, withdrawn_at=datetime.now(UTC))

    def kept(self, digests: Iterable[str]) -> dict[str, bytes]:
        """Return earlier bytes by their SHA-256."""
        return {
            row.sha256: bytes(pa.decompress(bytes(row.content), row.content_bytes, codec=CODEC, asbytes=True))
            for row in self._tx.run("catalog.kept_files", digests=digests)
        }

    def _keep(self, writes: Sequence[Write], files: Mapping[str, bytes]) -> dict[str, str]:
        """Store the files that will be overwritten, and return their hashes by Item id.

        The file in place may be that of an earlier promotion, from the same version, that never committed. It was never
        current, so the hash of the file that it replaced is returned, from that promotion's entry.
        """
        overwritten = [(write, write.base) for write in writes if write.base and write.path in files]
        if not overwritten:
            return {}
        item_ids = [write.candidate.item_id for write, _ in overwritten]
        rivals: dict[tuple[str, str, int | None, int], str | None] = {
            (row.item_id, row.after_sha256, row.before_promotion_id, row.before_revision): row.before_sha256
            for row in self._tx.run("catalog.rivals", collection_id=self._collection, item_ids=item_ids)
        }
        before: dict[str, str | None] = {}
        contents: dict[str, bytes] = {}
        for write, base in overwritten:
            content = files[write.path]
            digest = sha256(content)
            key = (write.candidate.item_id, digest, base.promotion_id, base.revision)
            if key in rivals:
                before[write.candidate.item_id] = rivals[key]
            else:
                before[write.candidate.item_id] = digest
                contents[digest] = content
        self._tx.run_many(
            "catalog.keep_file",
            [
                # Write in the order of hashes, so that two writers cannot deadlock.
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


_PAGE_FILE = re.compile(r"page-(\d{4,})\.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class UndoReport:
    """Sorted ids of the Items whose promotions were undone, by result.

    `restored` Items have their earlier content again. `removed` Items did not exist before. `superseded` Items are
    unchanged, because a later promotion replaced the undone promotion; an undo of the later promotion restores the
    state before both. Items without a promotion to undo are not listed.
    """

    restored: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    superseded: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    """Planned return of an Item's file, and its row if `in_index`, to the state before `oldest`."""

    oldest: Promotion
    path: str
    in_index: bool


def undo_run(index: CollectionIndex, log: PromotionLog, publisher: Publisher, dataset: str, run_id: str) -> UndoReport:
    """Undo a run in the open transaction, which the caller must not commit after a PublishError."""
    if not log.items_of(run_id):
        return UndoReport()
    with index.only_writer():
        # Read again under the lock, because a promotion can have been logged during the wait.
        entries = log.of_items(log.items_of(run_id))
        return _undo(index, log, publisher, entries, lambda entry: entry.run_id == run_id and entry.dataset == dataset)


def undo_items(
    index: CollectionIndex, log: PromotionLog, publisher: Publisher, promotions: Mapping[str, int]
) -> UndoReport:
    """Undo single promotions in the open transaction; `promotions` has them by Item id.

    A promotion that is not current is skipped. After a PublishError the caller must not commit the transaction.
    """
    with index.only_writer():
        entries = log.of_items(
            item_id for item_id, entry in index.current(promotions).items() if entry.promotion_id == promotions[item_id]
        )
        if not entries:
            return UndoReport()
        return _undo(index, log, publisher, entries, lambda entry: entry.promotion_id == promotions[entry.item_id])


def _undo(
    index: CollectionIndex,
    log: PromotionLog,
    publisher: Publisher,
    entries: Mapping[str, Sequence[Promotion]],
    is_own: Callable[[Promotion], bool],
) -> UndoReport:
    """Undo, under the lock, entries that match `is_own`; `entries` has all entries of each Item."""
    own = {item_id: [entry for entry in of_item if is_own(entry)] for item_id, of_item in entries.items()}
    current = index.current(entries)
    steps: list[_Step] = []
    untouched: dict[str, CatalogEntry | None] = {}
    superseded: list[str] = []
    for item_id, logged in entries.items():
        row = current.get(item_id)
        ancestors = list(_ancestors(logged, row))
        oldest = _oldest_to_undo(ancestors, is_own)
        if oldest is not None:
            steps.append(_Step(oldest=oldest, path=_path(index, row, oldest), in_index=True))
        else:
            untouched[item_id] = row
            if any(map(is_own, ancestors)):  # the current version came after the promotions to undo
                superseded.append(item_id)
    steps += _files_without_row(index, publisher, own, untouched)
    # Before the rows, because an Item can leave the index only once its promotion is withdrawn.
    log.withdraw(entry.promotion_id for logged in own.values() for entry in logged)
    index.replace_rows(
        [step.oldest.item_id for step in steps if step.in_index],
        [step.oldest.promotion_id for step in steps if step.in_index and step.oldest.before_revision is not None],
    )
    days = {entry.partition for logged in own.values() for entry in logged} | {
        row.partition for row in current.values()
    }
    earlier = log.kept({step.oldest.before_sha256 for step in steps if step.oldest.before_sha256 is not None})
    items = {step.path: None if (sha := step.oldest.before_sha256) is None else earlier[sha] for step in steps}
    levels: list[Level] = [*documents.tree(index, days), items, _stray_pages(index, publisher, days)]
    published = publisher.read([path for level in levels for path in level])
    # A file to delete stays in the list even if it is absent: its deletion also removes its folder, and perhaps a
    # promotion created the folder before it died.
    publish(
        publisher,
        [
            {path: content for path, content in level.items() if content is None or published.get(path) != content}
            for level in levels
        ],
    )
    return UndoReport(
        restored=tuple(sorted(step.oldest.item_id for step in steps if step.oldest.before_revision is not None)),
        removed=tuple(sorted(step.oldest.item_id for step in steps if step.oldest.before_revision is None)),
        superseded=tuple(sorted(superseded)),
    )


def _ancestors(entries: Sequence[Promotion], shown: CatalogEntry | None) -> Iterator[Promotion]:
    """Yield the entry of an Item's current version, then each earlier entry."""
    by_id = {entry.promotion_id: entry for entry in entries}
    current = by_id.get(shown.promotion_id or 0) if shown else None
    while current is not None:
        yield current
        current = by_id.get(current.before_promotion_id or 0)


def _oldest_to_undo(ancestors: Iterable[Promotion], is_own: Callable[[Promotion], bool]) -> Promotion | None:
    """Return the oldest entry to undo, None if `is_own` rejects the first ancestor.

    Entries are undone from the first ancestor back, while `is_own` accepts them or they are withdrawn.
    """
    oldest = None
    for entry in ancestors:
        if not (is_own(entry) or (oldest is not None and entry.withdrawn)):
            break
        oldest = entry
    return oldest


def _files_without_row(
    index: CollectionIndex,
    publisher: Publisher,
    own: Mapping[str, Sequence[Promotion]],
    untouched: Mapping[str, CatalogEntry | None],
) -> list[_Step]:
    """Return steps for files that differ from the index, left by a promotion or undo that died."""
    paths = {item_id: _path(index, row, own[item_id][0]) for item_id, row in untouched.items()}
    files = publisher.read(list(paths.values()))
    steps: list[_Step] = []
    for item_id, path in paths.items():
        digest = sha256(files[path]) if path in files else None
        candidates = (entry for entry in own[item_id] if entry.after_sha256 == digest)
        if oldest := next((entry for entry in candidates if entry.came_after(untouched[item_id])), None):
            steps.append(_Step(oldest=oldest, path=path, in_index=False))
    return steps


def _stray_pages(index: CollectionIndex, publisher: Publisher, days: Iterable[str]) -> Level:
    """Return the pages that have a file but no Items, such as pages of a promotion that died."""
    stray: dict[str, None] = {}
    for day in sorted(days):
        folder = layout.day_path(index.contract.stac.collection, day).rpartition("/")[0]
        indexed = {layout.page_name(page) for page in index.pages(day)}
        for name in publisher.names(folder):
            if _PAGE_FILE.fullmatch(name) and name not in indexed:
                stray[f"{folder}/{name}"] = None
    return stray


def _path(index: CollectionIndex, shown: CatalogEntry | None, entry: Promotion) -> str:
    """Return the path of an Item's file; a later version of another day does not change it."""
    partition = shown.partition if shown else entry.partition
    return layout.item_path(index.contract.stac.collection, partition, entry.item_id)
