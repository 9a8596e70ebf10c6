"""Undoing promotions, a run's or single ones: each Item goes back, byte for byte, to what stood before (PCS-03).

One transaction under the collection's lock: rows first, then the documents from the root down, so that no link ever
leads to a file that is gone, then Items, then what nothing leads to any more. A crash before its commit leaves the
index as it was, and undoing again does the same once more. What a dead promotion left in sight without coming through
goes as well.
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
    """What became of the Items whose promotions were undone, by Item id, sorted.

    `restored` say again what they said before, `removed` were not there before. `superseded` were replaced by a later
    promotion: they stay, and undoing that one goes back to what stood before both. Items of which nothing was left to
    undo are in none.
    """

    restored: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    superseded: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    """What to do with an Item: go back behind `oldest`; `in_index` is False where only the file is at odds."""

    oldest: Promotion
    path: str
    in_index: bool


def undo_run(index: CollectionIndex, log: PromotionLog, publisher: Publisher, dataset: str, run_id: str) -> UndoReport:
    """Undo a run in the open transaction. Raises PublishError, after which nothing of it may be committed."""
    if not log.items_of(run_id):
        return UndoReport()
    with index.only_writer():
        # Asked again: what was logged while this one waited for the lock is either through or will be refused.
        entries = log.of_items(log.items_of(run_id))
        return _undo(index, log, publisher, entries, lambda entry: entry.run_id == run_id and entry.dataset == dataset)


def undo_items(
    index: CollectionIndex, log: PromotionLog, publisher: Publisher, promotions: Mapping[str, int]
) -> UndoReport:
    """Undo single promotions, given by Item id, in the open transaction; one that its Item no longer stands by stays.

    Raises PublishError, after which nothing of it may be committed.
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
    """Undo the promotions that are `is_own` among all the `entries` of their Items, under the collection's lock."""
    own = {item_id: [entry for entry in of_item if is_own(entry)] for item_id, of_item in entries.items()}
    current = index.current(entries)
    steps: list[_Step] = []
    untouched: dict[str, CatalogEntry | None] = {}
    superseded: list[str] = []
    for item_id, found in entries.items():
        now = current.get(item_id)
        ancestors = list(_ancestors(found, now))
        oldest = _oldest_to_undo(ancestors, is_own)
        if oldest is not None:
            steps.append(_Step(oldest=oldest, path=_path(index, now, oldest), in_index=True))
        else:
            untouched[item_id] = now
            if any(map(is_own, ancestors)):  # what stands came after what is to be undone
                superseded.append(item_id)
    steps += _left_in_sight(index, publisher, own, untouched)
    # First, because an Item leaves the index only when its promotion is withdrawn.
    log.withdraw(entry.promotion_id for found in own.values() for entry in found)
    index.replace_rows(
        [step.oldest.item_id for step in steps if step.in_index],
        [step.oldest.promotion_id for step in steps if step.in_index and step.oldest.before_revision is not None],
    )
    days = {entry.partition for found in own.values() for entry in found} | {now.partition for now in current.values()}
    kept = log.kept({step.oldest.before_sha256 for step in steps if step.oldest.before_sha256 is not None})
    items = {step.path: None if (sha := step.oldest.before_sha256) is None else kept[sha] for step in steps}
    levels: list[Level] = [*documents.tree(index, days), items, _stray_pages(index, publisher, days)]
    shown = publisher.read([path for level in levels for path in level])
    # Absent files stay listed: a promotion may have died with no more than its folder made.
    publish(
        publisher,
        [
            {path: content for path, content in level.items() if content is None or shown.get(path) != content}
            for level in levels
        ],
    )
    return UndoReport(
        restored=tuple(sorted(step.oldest.item_id for step in steps if step.oldest.before_revision is not None)),
        removed=tuple(sorted(step.oldest.item_id for step in steps if step.oldest.before_revision is None)),
        superseded=tuple(sorted(superseded)),
    )


def _ancestors(entries: Sequence[Promotion], shown: CatalogEntry | None) -> Iterator[Promotion]:
    """Yield the entry by which an Item stands, then the one before each."""
    by_id = {entry.promotion_id: entry for entry in entries}
    current = by_id.get(shown.promotion_id or 0) if shown else None
    while current is not None:
        yield current
        current = by_id.get(current.before_promotion_id or 0)


def _oldest_to_undo(ancestors: Iterable[Promotion], is_own: Callable[[Promotion], bool]) -> Promotion | None:
    """Return the entry to go back behind: through those to undo, and through those undone before."""
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
    """Files that stand without their row: the promotion died between the two, or its undoing did."""
    paths = {item_id: _path(index, now, own[item_id][0]) for item_id, now in untouched.items()}
    files = publisher.read(list(paths.values()))
    steps: list[_Step] = []
    for item_id, path in paths.items():
        digest = sha256(files[path]) if path in files else None
        left = (entry for entry in own[item_id] if entry.after_sha256 == digest)
        if oldest := next((entry for entry in left if entry.came_after(untouched[item_id])), None):
            steps.append(_Step(oldest=oldest, path=path, in_index=False))
    return steps


def _stray_pages(index: CollectionIndex, publisher: Publisher, days: Iterable[str]) -> Level:
    """Return the pages that have a file and no Items, those of a dead promotion among them."""
    stray: dict[str, None] = {}
    for day in sorted(days):
        folder = layout.day_path(index.contract.stac.collection, day).rpartition("/")[0]
        indexed = {layout.page_name(page) for page in index.pages(day)}
        for name in publisher.names(folder):
            if _PAGE_FILE.fullmatch(name) and name not in indexed:
                stray[f"{folder}/{name}"] = None
    return stray


def _path(index: CollectionIndex, shown: CatalogEntry | None, entry: Promotion) -> str:
    """Return where an Item's file is: it never moves while it stands, whatever day a later issue of it says."""
    partition = shown.partition if shown else entry.partition
    return layout.item_path(index.contract.stac.collection, partition, entry.item_id)
