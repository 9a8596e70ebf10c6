"""The catalog's store: register a batch of Items so that index and files agree, whoever writes and whatever crashes.

One transaction compares and swaps the index, promotes the staged files and rewrites the documents that lead to them.
A crash before its commit leaves files that the index does not know; the next attempt writes them again, the same.
Does not belong here: how an Item is built (`item.py`), queries (`index.py`), file operations (`publisher.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import orjson
from sqlalchemy.exc import DBAPIError

from kfm_dagster.catalog import documents, layout
from kfm_dagster.catalog.index import CollectionIndex, Page, Standing, Write
from kfm_dagster.catalog.item import Candidate, canonical, content_sha256
from kfm_dagster.catalog.publisher import Publisher, PublishError, Staged
from kfm_dagster.catalog.validation import validate_document, validate_item
from kfm_dagster.contracts.envelope import StacResult, StacStatus
from kfm_dagster.contracts.issues import Issue, Severity, StacIssue
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.storage.database import Database, Transaction, is_conflict

PAGE_SIZE = 1000
"""Items that one page links: about 100 kB."""


class Catalog:
    """A static STAC catalog and its index. Any number of processes may register at the same time."""

    def __init__(
        self, database: Database, publisher: Publisher, registry: ContractRegistry, *, page_size: int = PAGE_SIZE
    ) -> None:
        self._database = database
        self._publisher = publisher
        self._registry = registry
        self._page_size = page_size

    def register(self, candidates: Sequence[Candidate]) -> list[StacResult]:
        """Register a batch of one dataset; results stand in the order of the candidates.

        A unit that cannot be registered comes back FAILED with its issue. Raises ValueError for a batch of several
        datasets, and the database's error when the database is gone: then nothing was registered.
        """
        results: dict[int, StacResult] = {}
        for position, candidate in enumerate(candidates):
            if reasons := validate_item(candidate.item):
                results[position] = _failed(candidate, StacIssue.STAC_VALIDATION_FAILED, "; ".join(reasons))
        elected = _elect(candidate for position, candidate in enumerate(candidates) if position not in results)
        outcome = self._register_elected(list(elected.values())) if elected else {}
        for position, candidate in enumerate(candidates):
            if position not in results:
                result = outcome[candidate.item_id]
                if candidate is not elected[candidate.item_id] and result.write_status is not StacStatus.FAILED:
                    result = dataclasses.replace(result, write_status=StacStatus.NO_OP)
                results[position] = result
        return [results[position] for position in range(len(candidates))]

    def _register_elected(self, candidates: Sequence[Candidate]) -> dict[str, StacResult]:
        """Register valid candidates of which no two have one Item id."""
        contract = self._contract(candidates)
        with self._database.transaction() as tx:
            standing = self._index(tx, contract).standing(candidate.item_id for candidate in candidates)
        outcome: dict[str, StacResult] = {}
        writes: list[Write] = []
        unchanged: list[Write] = []
        for candidate in sorted(candidates, key=lambda candidate: candidate.item_id):
            base = standing.get(candidate.item_id)
            write = _write(candidate, base)
            if base is None:
                writes.append(write)
            elif base.content_sha256 == candidate.content_sha256:
                unchanged.append(write)
            elif _is_older(candidate, base):
                outcome[candidate.item_id] = _no_op(write, base)
            else:
                writes.append(write)
        try:
            intact = self._intact(unchanged)
        except PublishError as error:
            outcome |= _all_failed(unchanged, error)
        else:
            for write in unchanged:
                if write.path in intact:
                    outcome[write.candidate.item_id] = _no_op(write, write.candidate)
                else:
                    writes.append(write)
        return outcome | self._publish(contract, writes)

    def _intact(self, writes: Sequence[Write]) -> set[str]:
        """Paths whose file says what the index says: a crash or a person may have removed or replaced it."""
        files = self._publisher.read([write.path for write in writes])
        return {write.path for write in writes if _says(files.get(write.path)) == write.candidate.content_sha256}

    def _publish(self, contract: DatasetContract, writes: Sequence[Write]) -> dict[str, StacResult]:
        if not writes:
            return {}
        files = {write.path: write.candidate.content for write in writes}
        try:
            with self._publisher.staging(files) as staged, self._database.transaction() as tx:
                return self._commit(tx, contract, writes, staged)
        except PublishError as error:
            return _all_failed(writes, error)
        except DBAPIError as error:
            if not is_conflict(error):
                raise
            return _all_failed(writes, PublishError(StacIssue.CATALOG_CONFLICT, "another writer holds the catalog"))

    def _commit(
        self, tx: Transaction, contract: DatasetContract, writes: Sequence[Write], staged: Staged
    ) -> dict[str, StacResult]:
        index = self._index(tx, contract)
        promotion = _promote(tx, index, writes, staged)
        if promotion.applied:
            index.recount(promotion.applied)
            restored = any(_is_restoration(write) for write in promotion.writes)
            self._publish_documents(index, contract, promotion.applied, root=promotion.is_new or restored)
            staged.settle()
        outcome = {write.candidate.item_id: _written(write) for write in promotion.writes}
        for write in writes:
            if (failure := promotion.failures.get(write.path)) is not None:
                outcome[write.candidate.item_id] = _failed(write.candidate, failure.code, str(failure))
        lost = [write for write in writes if write.candidate.item_id not in outcome]
        if lost:
            outcome |= _settle_lost(lost, index.standing(write.candidate.item_id for write in lost))
        return outcome

    def _publish_documents(
        self, index: CollectionIndex, contract: DatasetContract, applied: Iterable[Page], *, root: bool
    ) -> None:
        """Rewrite what leads to the applied pages, from the leaf up: no link ever points at a file that is missing.

        Raises PublishError.
        """
        levels = _documents(index, contract, sorted(applied))
        if root:
            levels.append({layout.ROOT: documents.root_document(index.collections())})
        for path, document in (entry for level in levels for entry in level.items()):
            if reasons := validate_document(document):
                raise PublishError(StacIssue.STAC_VALIDATION_FAILED, f"{path}: {'; '.join(reasons)}")
        files = {path: canonical(document) for level in levels for path, document in level.items()}
        with self._publisher.staging(files) as staged:
            for level in levels:
                for failure in staged.promote(list(level)).values():
                    raise failure
            staged.settle()

    def _index(self, tx: Transaction, contract: DatasetContract) -> CollectionIndex:
        return CollectionIndex(tx, contract, page_size=self._page_size)

    def _contract(self, candidates: Sequence[Candidate]) -> DatasetContract:
        datasets = {candidate.dataset for candidate in candidates}
        if len(datasets) != 1:
            raise ValueError(f"a batch holds one dataset, not {sorted(datasets)}")
        return self._registry[datasets.pop()]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Promotion:
    """What became of the files of a batch; writes that are in neither lost against another writer."""

    applied: Mapping[Page, Sequence[Write]] = field(default_factory=dict)
    failures: Mapping[str, PublishError] = field(default_factory=dict)
    is_new: bool = False

    @property
    def writes(self) -> list[Write]:
        return [write for writes in self.applied.values() for write in writes]


def _promote(tx: Transaction, index: CollectionIndex, writes: Sequence[Write], staged: Staged) -> _Promotion:
    """Swap the index and promote the winners; the index forgets again whatever could not be promoted."""
    with tx.connection.begin_nested() as savepoint:
        found = _Promotion(is_new=index.open_collection(), applied=index.apply(writes))
        failures = staged.promote([write.path for write in found.writes])
        if not failures:
            return found
        savepoint.rollback()
    promoted = [write for write in found.writes if write.path not in failures]
    if not promoted:
        return _Promotion(failures=failures)
    return _Promotion(is_new=index.open_collection(), applied=index.apply(promoted), failures=failures)


def _documents(
    index: CollectionIndex, contract: DatasetContract, pages: Sequence[Page]
) -> list[dict[str, dict[str, object]]]:
    """Documents by path, one level of the tree after the other, leaf first."""
    collection = contract.stac.collection
    days = sorted({day for day, _ in pages})
    years = sorted({day[:4] for day in days})
    return [
        {
            layout.page_path(collection, day, page): documents.page_document(
                contract, day=day, page=page, item_ids=index.page_items(day, page)
            )
            for day, page in pages
        },
        {
            layout.day_path(collection, day): documents.day_document(contract, day=day, pages=index.pages(day))
            for day in days
        },
        {
            layout.year_path(collection, year): documents.year_document(contract, year=year, days=index.days(year))
            for year in years
        },
        {
            layout.collection_path(collection): documents.collection_document(
                contract, extent=index.extent(), summaries=index.summaries(), years=index.years()
            )
        },
    ]


def _elect(candidates: Iterable[Candidate]) -> dict[str, Candidate]:
    """Return one candidate per Item id: the newest, and of equals the last, as if they had come one after the other."""
    elected: dict[str, Candidate] = {}
    for candidate in candidates:
        rival = elected.get(candidate.item_id)
        if rival is None or not _is_older(candidate, rival):
            elected[candidate.item_id] = candidate
    return elected


def _is_older(candidate: Candidate, other: Candidate | Standing) -> bool:
    """Tell whether the candidate was issued before the other; False when nothing tells."""
    if candidate.precedence != other.precedence:
        return candidate.precedence < other.precedence
    if candidate.object_uri == other.object_uri and candidate.sequencer and other.sequencer:
        # S3 event notification message structure: pad the shorter sequencer with zeros on the right, compare as text.
        width = max(len(candidate.sequencer), len(other.sequencer))
        return candidate.sequencer.ljust(width, "0") < other.sequencer.ljust(width, "0")
    return False


def _write(candidate: Candidate, base: Standing | None) -> Write:
    partition = base.partition if base else candidate.partition
    path = layout.item_path(candidate.collection_id, partition, candidate.item_id)
    return Write(candidate=candidate, base=base, path=path)


def _is_restoration(write: Write) -> bool:
    return write.base is not None and write.base.content_sha256 == write.candidate.content_sha256


def _says(content: bytes | None) -> str | None:
    """Content hash of a file as it stands; None when it is no Item."""
    if content is None:
        return None
    try:
        return content_sha256(orjson.loads(content))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _settle_lost(lost: Iterable[Write], standing: Mapping[str, Standing]) -> dict[str, StacResult]:
    """Results of writes that came second: the same content is no loss."""
    outcome: dict[str, StacResult] = {}
    for write in lost:
        candidate = write.candidate
        now = standing[candidate.item_id]
        if now.content_sha256 == candidate.content_sha256:
            outcome[candidate.item_id] = _no_op(write, now)
        else:
            text = f"another writer changed the Item: revision {now.revision}, sha256 {now.content_sha256[:12]}"
            outcome[candidate.item_id] = _failed(candidate, StacIssue.CATALOG_CONFLICT, text)
    return outcome


def _written(write: Write) -> StacResult:
    if write.base is None:
        return _result(write, StacStatus.CREATED, write.candidate.content_sha256)
    status = StacStatus.NO_OP if _is_restoration(write) else StacStatus.UPDATED
    return _result(write, status, write.candidate.content_sha256)


def _no_op(write: Write, standing: Standing | Candidate) -> StacResult:
    return _result(write, StacStatus.NO_OP, standing.content_sha256)


def _result(write: Write, status: StacStatus, sha256: str) -> StacResult:
    return StacResult(
        write_status=status,
        item_id=write.candidate.item_id,
        collection_id=write.candidate.collection_id,
        item_href=write.path,
        content_sha256=sha256,
    )


def _all_failed(writes: Iterable[Write], error: PublishError) -> dict[str, StacResult]:
    return {write.candidate.item_id: _failed(write.candidate, error.code, str(error)) for write in writes}


def _failed(candidate: Candidate, code: StacIssue, message: str) -> StacResult:
    return StacResult(
        write_status=StacStatus.FAILED,
        item_id=candidate.item_id,
        collection_id=candidate.collection_id,
        issues=(Issue(code=code, severity=Severity.FAILED, message=message),),
    )
