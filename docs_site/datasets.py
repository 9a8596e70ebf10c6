"""The table of docs/datasets.md by the contracts; `python -m docs_site.datasets` writes it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

from docs_site.text import cell, code, table
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract

PAGE = Path(__file__).resolve().parents[1] / "docs" / "datasets.md"
HEADER = (
    "family", "buckets", "topics", "objects a day", "format", "every Item has", "opens with", "virtual", "status"
)  # fmt: skip
_DAY = timedelta(days=1)


def overview(contracts: Iterable[DatasetContract]) -> str:
    """Return the table, a row for each dataset."""
    return "\n".join(table(HEADER, map(_row, contracts)))


def with_overview(page: str, contracts: Iterable[DatasetContract]) -> str:
    """Return the page with its table replaced: the lines from the header to the next empty line."""
    before, header, rest = page.partition(f"| {' | '.join(HEADER)} |\n")
    _, end, after = rest.partition("\n\n")
    if not header or not end:
        raise ValueError(f"{PAGE.name} has no table with this header: {HEADER}")
    return f"{before}{overview(contracts)}\n{after}"


def _row(contract: DatasetContract) -> list[str]:
    storage, asset = contract.storage, contract.stac.data_asset
    topics = [
        code(topic.arn.rpartition(":")[2]) + (f" (until {topic.until})" if topic.until else "")
        for topic in contract.notifications.topics
    ]
    engine = asset.open_kwargs.get("engine")
    without_engine = "MetPy" if contract.metadata_extract.reader == "nexrad-level3" else "pandas"
    return [
        f"{code(contract.id)}: {cell(contract.metadata.title)}",
        ", ".join(map(code, storage.buckets)),
        ", ".join(topics) or "none",
        _rate(contract),
        asset.title.removesuffix(" file"),
        ", ".join(map(code, contract.metadata_extract.required)),
        f"xarray, engine {code(engine)}" if engine else without_engine,
        "yes" if contract.virtual else "no",
        contract.metadata.notice or contract.metadata.status,
    ]


def _rate(contract: DatasetContract) -> str:
    """Return the declared number of objects a day, or how often the bucket is listed."""
    listing = contract.storage.scheduled_listing
    if contract.metadata.retired:
        return "none"
    if contract.coverage:
        products = [product for product in contract.coverage.products if product.until is None]
        return f"{sum(product.per_hour * len(product.hours or range(24)) for product in products):,}"
    if listing:
        every = timedelta(seconds=listing.every_seconds)
        return f"listed every {every // _DAY} days" if every > _DAY else f"listed every {every // timedelta(hours=1)} h"
    return "not declared"


if __name__ == "__main__":
    text = with_overview(PAGE.read_text(encoding="utf-8"), ContractRegistry.load())
    PAGE.write_text(text, encoding="utf-8")
