"""Orphaned Items: those whose unit was given up after they were written and before their lineage stood (ADR 014).

The unit's next attempt would find such an Item and complete it; where none succeeds, nothing else takes it back.
Does not belong here: runs that failed (`rollback.py`), which take back their Items themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from kfm_dagster.catalog.store import Catalog, Orphan
from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.stages.audit import AuditKind
from kfm_dagster.stages.store import StageStore

_STAGE = "stac_register"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class OrphanedItems:
    """The Items of a catalog whose units were given up."""

    catalog: Catalog
    ledger: Ledger
    stages: StageStore

    def take_back(self, wal_ids: Iterable[WalId]) -> int:
        """Take back the Items without lineage of those of the given units that are in quarantine; return their number.

        One transaction per dataset and run, which holds the units in quarantine: none is let in again meanwhile. It may
        be repeated, also after a crash. Raises CatalogUndoError where the catalog's place fails, and the database's
        error.
        """
        taken, known = 0, {contract.id for contract in self.ledger.registry}
        for (dataset, run_id), units in groupby(
            self.catalog.orphans(wal_ids), key=lambda orphan: (orphan.dataset, orphan.run_id)
        ):
            if dataset in known:  # a collection without its contract cannot be written
                taken += self._take_back(dataset, run_id, list(units))
        return taken

    def _take_back(self, dataset: str, run_id: str, orphans: Sequence[Orphan]) -> int:
        with self.ledger.database.transaction() as tx:
            held = self.ledger.hold_quarantined([orphan.wal_id for orphan in orphans], tx=tx)
            promotions = {orphan.item_id: orphan.promotion_id for orphan in orphans if orphan.wal_id in held}
            undone = self.catalog.undo_items(dataset, promotions, tx=tx)
            counts = {"restored": len(undone.restored), "removed": len(undone.removed)}
            attempt = self.stages.newest(run_id, f"{dataset}.{_STAGE}", tx=tx)
            taken = sum(counts.values())
            if attempt is not None and taken:
                because = {"because": "units quarantined without lineage"}
                self.stages.audit.append([attempt.event(AuditKind.COMPENSATION, "done", counts | because)], tx=tx)
        if taken:
            _LOG.warning(
                "took back %d Items of %s, run %s: their units are quarantined without lineage", taken, dataset, run_id
            )
        return taken
