"""Undoing a run's promotions, or single promotions: each Item regains its earlier state, byte for byte (PCS-03).

A transaction under the collection's lock changes first rows, then the documents from the root down, then Items, and at
last files without a link, so that no link ever leads to a missing file. A crash before the commit leaves the index
unchanged, and undoing can be repeated. Visible files of a promotion that died before its commit are undone, too.
Does not belong here: the log itself (`promotions.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kfm_dagster.catalog import documents, layout
from kfm_dagster.catalog.index import CatalogEntry, CollectionIndex
from kfm_dagster.catalog.promotions import Promotion, PromotionLog, sha256
from kfm_dagster.catalog.publisher import Level, Publisher, publish

_PAGE_FILE = re.compile(r"page-(\d{4,})\.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class UndoReport:
    """Sorted ids of the Items whose promotions were undone, by result.

    `restored` Items have their earlier content again, `removed` Items did not exist before. `superseded` Items stay,
    because a later promotion replaced them; undoing that promotion restores the state before both. Items without a
    promotion to undo are not listed.
    """

    restored: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    superseded: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    """Planned undo of an Item to its state before `oldest`; not `in_index` if only the file differs."""

    oldest: Promotion
    path: str
    in_index: bool


def undo_run(index: CollectionIndex, log: PromotionLog, publisher: Publisher, dataset: str, run_id: str) -> UndoReport:
    """Undo a run in the open transaction, which must not be committed on PublishError."""
    if not log.items_of(run_id):
        return UndoReport()
    with index.only_writer():
        # Read again under the lock, because promotions may have been logged during the wait.
        entries = log.of_items(log.items_of(run_id))
        return _undo(index, log, publisher, entries, lambda entry: entry.run_id == run_id and entry.dataset == dataset)


def undo_items(
    index: CollectionIndex, log: PromotionLog, publisher: Publisher, promotions: Mapping[str, int]
) -> UndoReport:
    """Undo single promotions, by Item id, in the open transaction; skip outdated promotions.

    The transaction must not be committed on PublishError.
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
    """Undo promotions that match `is_own` among all `entries` of their Items, under the lock."""
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
    steps += _left_in_sight(index, publisher, own, untouched)
    # First, because an Item can leave the index only once its promotion is withdrawn.
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
    # Absent files stay in the list, because a promotion may have died after creating only the folder.
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
    """Go back from the newest entry over entries to undo and withdrawn entries; return the oldest."""
    oldest = None
    for entry in ancestors:
        if not (is_own(entry) or (oldest is not None and entry.withdrawn)):
            break
        oldest = entry
    return oldest


def _left_in_sight(
    index: CollectionIndex,
    publisher: Publisher,
    own: Mapping[str, Sequence[Promotion]],
    untouched: Mapping[str, CatalogEntry | None],
) -> list[_Step]:
    """Return steps for files without a row, which a promotion or an undo left by dying."""
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
    """Return the pages that have a file but no Items, including pages of a dead promotion."""
    stray: dict[str, None] = {}
    for day in sorted(days):
        folder = layout.day_path(index.contract.stac.collection, day).rpartition("/")[0]
        indexed = {layout.page_name(page) for page in index.pages(day)}
        for name in publisher.names(folder):
            if _PAGE_FILE.fullmatch(name) and name not in indexed:
                stray[f"{folder}/{name}"] = None
    return stray


def _path(index: CollectionIndex, shown: CatalogEntry | None, entry: Promotion) -> str:
    """Return the path of an Item's file, which never moves, even if a later issue's day differs."""
    partition = shown.partition if shown else entry.partition
    return layout.item_path(index.contract.stac.collection, partition, entry.item_id)
