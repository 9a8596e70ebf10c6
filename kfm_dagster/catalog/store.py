"""Register Items so that index and files agree despite concurrent writers and crashes.

The undo log is committed first (`undo.py`). Then one transaction checks the fence, compares and swaps the index,
promotes the staged files, and rewrites the documents that link to these files. A crash before the commit leaves files
that are not in the index; the next attempt writes the same files again. The lock order is claims, collection, root, so
that writers cannot deadlock.
Does not belong here: building an Item (`item.py`), queries (`index.py`), file operations (`publisher.py`), undoing
(`undo.py`), results of units (`outcomes.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.exc import DBAPIError

from kfm_dagster.catalog import documents, outcomes
from kfm_dagster.catalog.index import NO_PLACES, CatalogEntry, CollectionIndex, Page, Places, Write
from kfm_dagster.catalog.item import Candidate, content_of
from kfm_dagster.catalog.undo import PromotionLog, UndoReport, undo_items, undo_run
from kfm_dagster.catalog.validation import validate_item
from kfm_dagster.contracts.envelope import StacResult, StacStatus, WalId
from kfm_dagster.contracts.issues import StacIssue
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.errors import DependencyUnavailableError
from kfm_dagster.storage.database import Database, Transaction, is_conflict
from kfm_dagster.storage.fence import Fence
from kfm_dagster.storage.publisher import Publisher, PublishError, Staged, publish

PAGE_SIZE = 1000
"""Maximum Items that a page links: about 100 kB."""


class Catalog:
    """A static STAC catalog and its index. Any number of processes can register concurrently."""

    def __init__(
        self,
        database: Database,
        publisher: Publisher,
        registry: ContractRegistry,
        *,
        page_size: int = PAGE_SIZE,
        places: Places = NO_PLACES,
    ) -> None:
        self._database = database
        self._publisher = publisher
        self._registry = registry
        self._page_size = page_size
        self._places = places

    def register(self, candidates: Sequence[Candidate], *, fence: Fence) -> list[StacResult]:
        """Register a batch of a dataset; return results in the order of the candidates.

        A unit that cannot be registered, or that the fence refuses, gets FAILED with its issue and changes nothing.
        Raises ValueError for a batch of several datasets, and the database's errors; then no unit is registered.
        """
        results: dict[int, StacResult] = {}
        for position, candidate in enumerate(candidates):
            if reasons := validate_item(candidate.item):
                results[position] = outcomes.failed(candidate, StacIssue.STAC_VALIDATION_FAILED, "; ".join(reasons))
        valid = {position: candidate for position, candidate in enumerate(candidates) if position not in results}
        if not valid:
            return list(results.values())
        contract = self._contract(list(valid.values()))
        with self._database.transaction() as tx:
            # Check here, so that a unit that lost its claim is not chosen over another unit; `_commit` checks again.
            refused = fence(tx, outcomes.attempts_of(valid.values()))
            current = self._index(tx, contract).current({candidate.item_id for candidate in valid.values()})
        latest = outcomes.select_latest(candidate for candidate in valid.values() if candidate.wal_id not in refused)
        outcome = self._register_latest(contract, list(latest.values()), current, fence)
        for position, candidate in valid.items():
            if candidate.wal_id in refused:
                results[position] = outcomes.failed(candidate, refused[candidate.wal_id])
            else:
                winner = latest[candidate.item_id]
                result = outcome[candidate.item_id]
                results[position] = result if candidate is winner else outcomes.duplicate_of(candidate, winner, result)
        return [results[position] for position in range(len(candidates))]

    def verify(self, dataset: str, results: Iterable[StacResult]) -> None:
        """Read back the Items of results, and compare their hashes.

        If another writer has replaced an Item, its file must match the current index. Raises DependencyUnavailableError
        for an Item that differs or cannot be read, and the database's own error.
        """
        reported = {
            str(result.item_id): result
            for result in results
            if result.item_id and result.item_href and result.write_status is not StacStatus.FAILED
        }
        files = self._contents(str(result.item_href) for result in reported.values())
        differing = {
            item_id: str(result.item_href)
            for item_id, result in reported.items()
            if result.superseded or files[str(result.item_href)] != result.content_sha256
        }
        if not differing:
            return
        with self._database.transaction() as tx:
            index = self._index(tx, self._registry[dataset])
            # Other writers promote files shortly before they commit the index, so wait for the current writer.
            with index.only_writer():
                current = index.current(differing)
                files = self._contents(differing.values())
        for item_id, path in differing.items():
            indexed = current[item_id].content_sha256 if item_id in current else None
            if indexed is None or files[path] != indexed:
                raise DependencyUnavailableError(
                    "an Item in the catalog differs from the Item that was written",
                    observed=f"{path}: {files[path] or 'no Item'}",
                    expected=f"content {indexed or reported[item_id].content_sha256}",
                    next_step="find the other writer of the catalog; the next attempt writes the Item again",
                )

    def undo(self, dataset: str, run_id: str, *, tx: Transaction) -> UndoReport:
        """Undo a run's writes, byte for byte, except Items that a later run has replaced.

        Waits for the collection's current writer. After a crash a repeated call continues; after a success it does
        nothing. The caller has released the run's claims, because a run with claims can write again. Raises
        PublishError if the storage of KFM_CATALOG_URL fails, ContractError for an unknown dataset, and the database's
        own error; the call can be repeated after each of these.
        """
        contract = self._registry[dataset]
        return undo_run(self._index(tx, contract), PromotionLog(tx, contract), self._publisher, dataset, run_id)

    def undo_items(self, dataset: str, promotions: Mapping[str, int], *, tx: Transaction) -> UndoReport:
        """Undo single promotions, as `undo` does; `promotions` has their numbers by Item id.

        An Item whose current version is of another promotion is skipped.
        """
        contract = self._registry[dataset]
        return undo_items(self._index(tx, contract), PromotionLog(tx, contract), self._publisher, promotions)

    def orphans(self, wal_ids: Iterable[WalId]) -> list[Orphan]:
        """Return the Items without current lineage whose unit is quarantined and in `wal_ids`."""
        with self._database.snapshot() as view:
            return view.rows(Orphan, "catalog.orphans", wal_ids=sorted(wal_ids))

    def _contents(self, paths: Iterable[str]) -> dict[str, str | None]:
        """Return the current content hash of each file. Raises PublishError."""
        ordered_paths = list(paths)
        contents = self._publisher.read(ordered_paths)
        return {path: content_of(contents.get(path)) for path in ordered_paths}

    def _register_latest(
        self,
        contract: DatasetContract,
        candidates: Sequence[Candidate],
        current: Mapping[str, CatalogEntry],
        fence: Fence,
    ) -> dict[str, StacResult]:
        """Register valid candidates with distinct Item ids."""
        outcome: dict[str, StacResult] = {}
        writes: list[Write] = []
        unchanged: list[Write] = []
        for candidate in sorted(candidates, key=lambda candidate: candidate.item_id):
            base = current.get(candidate.item_id)
            write = Write(candidate=candidate, base=base)
            if base is None:
                writes.append(write)
            elif base.content_sha256 == candidate.content_sha256:
                unchanged.append(write)
            elif outcomes.is_older(candidate, base):
                outcome[candidate.item_id] = outcomes.superseded(write, base)
            else:
                writes.append(write)
        try:
            files = self._publisher.read([write.path for write in unchanged])
        except PublishError as error:
            outcome |= outcomes.all_failed(unchanged, error)
        else:
            for write in unchanged:
                # A crash or a person can have removed or replaced the file.
                if content_of(files.get(write.path)) == write.candidate.content_sha256:
                    outcome[write.candidate.item_id] = outcomes.unchanged(write, current[write.candidate.item_id])
                else:
                    writes.append(write)
        return outcome | self._publish(contract, writes, fence)

    def _publish(self, contract: DatasetContract, writes: Sequence[Write], fence: Fence) -> dict[str, StacResult]:
        if not writes:
            return {}
        files = {write.path: write.candidate.content for write in writes}
        overwritten = [write.path for write in writes if write.base and not outcomes.is_restoration(write)]
        try:
            before = self._publisher.read(overwritten) if overwritten else {}
            # Commit the current contents before any file is replaced.
            with self._database.transaction() as tx:
                writes = PromotionLog(tx, contract).enter(writes, before)
            with self._publisher.staging(files) as staged, self._database.transaction() as tx:
                return self._commit(tx, contract, writes, staged, fence)
        except PublishError as error:
            return outcomes.all_failed(writes, error)
        except DBAPIError as error:
            if not is_conflict(error):
                raise
            return outcomes.all_failed(
                writes, PublishError(StacIssue.CATALOG_CONFLICT, "another writer holds the catalog")
            )

    def _commit(
        self, tx: Transaction, contract: DatasetContract, offered: Sequence[Write], staged: Staged, fence: Fence
    ) -> dict[str, StacResult]:
        refused = fence(tx, outcomes.attempts_of(write.candidate for write in offered))
        outcome = {
            write.candidate.item_id: outcomes.failed(write.candidate, refused[write.candidate.wal_id])
            for write in offered
            if write.candidate.wal_id in refused
        }
        writes = [write for write in offered if write.candidate.item_id not in outcome]
        return outcome | self._swap(tx, contract, writes, staged) if writes else outcome

    def _swap(
        self, tx: Transaction, contract: DatasetContract, writes: Sequence[Write], staged: Staged
    ) -> dict[str, StacResult]:
        index = self._index(tx, contract)
        with index.only_writer() as is_new:
            pages, failures = _promote(tx, index, writes, staged)
            promoted = [write for on_page in pages.values() for write in on_page]
            if pages:
                index.recount(pages)
                restored = any(outcomes.is_restoration(write) for write in promoted)
                parents = documents.tree(index, {day for day, _ in pages}, pages=pages, root=is_new or restored)
                # Publish from the leaves up, so that no link ever points at a missing file.
                publish(self._publisher, parents[::-1])
                staged.settle()
        outcome = {write.candidate.item_id: outcomes.written(write) for write in promoted}
        for write in writes:
            if (failure := failures.get(write.path)) is not None:
                outcome[write.candidate.item_id] = outcomes.failed(write.candidate, failure.code, failure.reason)
        lost = [write for write in writes if write.candidate.item_id not in outcome]
        if lost:
            outcome |= outcomes.lost_race(lost, index.current(write.candidate.item_id for write in lost))
        return outcome

    def _index(self, tx: Transaction, contract: DatasetContract) -> CollectionIndex:
        owner = self._registry.owner(contract)
        versions_of = self._registry.versions
        return CollectionIndex(tx, owner, page_size=self._page_size, places=self._places, versions_of=versions_of)

    def _contract(self, candidates: Sequence[Candidate]) -> DatasetContract:
        datasets = {candidate.dataset for candidate in candidates}
        if len(datasets) != 1:
            raise ValueError(f"a batch holds one dataset, not {sorted(datasets)}")
        return self._registry[datasets.pop()]


@dataclass(frozen=True, kw_only=True, slots=True)
class Orphan:
    """A current Item of a quarantined unit, without current lineage.

    The unit's run died after it had written the Item, and before it recorded the lineage.
    """

    dataset: str
    run_id: str
    item_id: str
    wal_id: WalId
    promotion_id: int


def _promote(
    tx: Transaction, index: CollectionIndex, writes: Sequence[Write], staged: Staged
) -> tuple[dict[Page, list[Write]], Mapping[str, PublishError]]:
    """Swap the index and promote the winners.

    Return the promoted writes by page, and errors by path. A write whose file cannot be promoted is removed from the
    index. If a write is in neither result, another writer was faster.
    """
    with tx.connection.begin_nested() as savepoint:
        applied = index.apply(writes)
        winners = [write for on_page in applied.values() for write in on_page]
        failures = staged.promote([write.path for write in winners])
        if not failures:
            return applied, {}
        savepoint.rollback()
    promoted = [write for write in winners if write.path not in failures]
    return index.apply(promoted) if promoted else {}, failures
