"""Facts of ledger and catalog for the gates; one statement each, whatever the batch's size.

Belongs here: queries inside the caller's transaction. Does not belong here: the rules over their results
(`evaluate.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

from kfm_dagster.contracts.cadence import ProductCount
from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.ledger.gaps import followed_in
from kfm_dagster.stages.gates.subject import CatalogOwner, PartitionFacts
from kfm_dagster.storage.database import Transaction


def partition_facts(contract: DatasetContract, partition: str, *, tx: Transaction) -> PartitionFacts | None:
    """Count the objects of a partition (`YYYY-MM-DD`); None for a contract without coverage.

    This reads the partition's records, 50,000 of them on a full day of imagery: once in a run is enough.
    """
    if contract.coverage is None:
        return None
    rows = tx.run("gates.partition_products", dataset=contract.id, partition=partition)
    return PartitionFacts(
        day=date.fromisoformat(partition),
        counts=tuple(ProductCount(hour=row.hour, groups=row.extension, objects=row.objects) for row in rows),
        followed=followed_in(tx, contract.id, partition),
    )


def catalog_owners(
    contract: DatasetContract, units: Iterable[Envelope], *, tx: Transaction
) -> tuple[CatalogOwner, ...]:
    """Return the units of current and former Items under the Item ids of a registered batch."""
    registered = (unit.stac for unit in units if unit.stac is not None)
    item_ids = sorted({stac.item_id for stac in registered if stac.item_id is not None})
    if not item_ids:
        return ()
    return tuple(tx.rows(CatalogOwner, "catalog.owners", collection_id=contract.stac.collection, item_ids=item_ids))
