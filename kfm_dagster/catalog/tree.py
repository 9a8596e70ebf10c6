"""The tree above the Items: the documents that lead to pages and days, as the index says at this moment.

Belongs here: which documents there are, checked and in their canonical bytes. Does not belong here: what one says
(`documents.py`), or putting them in their places (`store.py`, `undo.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kfm_dagster.catalog import documents, layout
from kfm_dagster.catalog.index import CollectionIndex, Page
from kfm_dagster.catalog.item import canonical
from kfm_dagster.catalog.publisher import PublishError
from kfm_dagster.catalog.validation import validate_document
from kfm_dagster.contracts.issues import StacIssue
from kfm_dagster.contracts.model import DatasetContract

Level = Mapping[str, bytes | None]
"""Documents of one depth by path; None for one that must not be there."""


def leading_to(
    index: CollectionIndex, contract: DatasetContract, pages: Sequence[Page], *, root: bool
) -> list[dict[str, bytes]]:
    """Return what leads to pages that have Items, one level after the other, leaf first. Raises PublishError."""
    collection = contract.stac.collection
    days = sorted({day for day, _ in pages})
    levels: list[Mapping[str, Mapping[str, object]]] = [
        _pages(index, contract, pages),
        _days(index, contract, days),
        _years(index, contract, sorted({day[:4] for day in days})),
        {layout.collection_path(collection): _collection(index, contract, index.years())},
    ]
    if root:
        levels.append({layout.ROOT: documents.root_document(index.collections())})
    return [_checked(level) for level in levels]


def around(index: CollectionIndex, contract: DatasetContract, days: Iterable[str]) -> list[Level]:
    """Return every document from the root down to the pages of these days, root first. Raises PublishError.

    A collection, year or day without Items has none.
    """
    collection = contract.stac.collection
    asked = sorted(set(days))
    pages = {day: index.pages(day) for day in asked}
    years = index.years()
    collections = index.collections()
    absent: list[dict[str, None]] = [
        {} if collections else {layout.ROOT: None},
        {} if years else {layout.collection_path(collection): None},
        {layout.year_path(collection, year): None for year in {day[:4] for day in asked} - set(years)},
        {layout.day_path(collection, day): None for day in asked if not pages[day]},
        {},
    ]
    present: list[Mapping[str, Mapping[str, object]]] = [
        {layout.ROOT: documents.root_document(collections)} if collections else {},
        {layout.collection_path(collection): _collection(index, contract, years)} if years else {},
        _years(index, contract, sorted({day[:4] for day in asked} & set(years))),
        _days(index, contract, [day for day in asked if pages[day]]),
        _pages(index, contract, [(day, page) for day in asked for page in pages[day]]),
    ]
    return [{**_checked(there), **gone} for there, gone in zip(present, absent, strict=True)]


def _collection(index: CollectionIndex, contract: DatasetContract, years: Sequence[str]) -> Mapping[str, object]:
    return documents.collection_document(
        contract,
        extent=index.extent(),
        summaries=index.summaries(),
        years=years,
        run_id=index.newest_run(),
        mirrored=index.mirrored,
    )


def _years(
    index: CollectionIndex, contract: DatasetContract, years: Sequence[str]
) -> Mapping[str, Mapping[str, object]]:
    return {
        layout.year_path(contract.stac.collection, year): documents.year_document(
            contract, year=year, days=index.days(year)
        )
        for year in years
    }


def _days(index: CollectionIndex, contract: DatasetContract, days: Sequence[str]) -> Mapping[str, Mapping[str, object]]:
    return {
        layout.day_path(contract.stac.collection, day): documents.day_document(
            contract, day=day, pages=index.pages(day)
        )
        for day in days
    }


def _pages(
    index: CollectionIndex, contract: DatasetContract, pages: Sequence[Page]
) -> Mapping[str, Mapping[str, object]]:
    return {
        layout.page_path(contract.stac.collection, day, page): documents.page_document(
            contract, day=day, page=page, item_ids=index.page_items(day, page)
        )
        for day, page in pages
    }


def _checked(level: Mapping[str, Mapping[str, object]]) -> dict[str, bytes]:
    for path, document in level.items():
        if reasons := validate_document(document):
            raise PublishError(StacIssue.STAC_VALIDATION_FAILED, f"{path}: {'; '.join(reasons)}")
    return {path: canonical(document) for path, document in level.items()}
