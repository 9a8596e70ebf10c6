"""Orphaned Items: of units quarantined before their lineage was recorded (ADR 014).

The unit's next attempt would find and complete such an Item; if none succeeds, nothing else takes it back.
Does not belong here: failed runs (`rollback.py`), which take back their Items themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import groupby

from kfm_dagster.catalog.store import Orphan
from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.stages.audit import AuditKind

_STAGE = "stac_register"
_LOG = logging.getLogger(__name__)


def take_back_orphans(pipeline: Pipeline, wal_ids: Iterable[WalId]) -> int:
    """Take back Items without lineage of quarantined units in `wal_ids`; return the number.

    One transaction per dataset and run, which keeps the units in quarantine: none is requeued meanwhile. Safe to
    repeat, also after a crash. Raises CatalogUndoError if the catalog's storage fails, and the database's error.
    """
    taken, known = 0, {contract.id for contract in pipeline.registry}
    for (dataset, run_id), units in groupby(
        pipeline.catalog.orphans(wal_ids), key=lambda orphan: (orphan.dataset, orphan.run_id)
    ):
        if dataset in known:  # without its contract a collection cannot be written
            taken += _take_back(pipeline, dataset, run_id, list(units))
    return taken


def _take_back(pipeline: Pipeline, dataset: str, run_id: str, orphans: Sequence[Orphan]) -> int:
    stages = pipeline.stages.lifecycle.store
    with pipeline.database.transaction() as tx:
        held = pipeline.ledger.hold_quarantined([orphan.wal_id for orphan in orphans], tx=tx)
        promotions = {orphan.item_id: orphan.promotion_id for orphan in orphans if orphan.wal_id in held}
        undone = pipeline.catalog.undo_items(dataset, promotions, tx=tx)
        counts = {"restored": len(undone.restored), "removed": len(undone.removed)}
        attempt = stages.newest(run_id, f"{dataset}.{_STAGE}", tx=tx)
        taken = sum(counts.values())
        if attempt is not None and taken:
            because = {"because": "units quarantined without lineage"}
            stages.audit.append([attempt.event(AuditKind.COMPENSATION, "done", counts | because)], tx=tx)
    if taken:
        _LOG.warning(
            "took back %d Items of %s, run %s: their units are quarantined without lineage", taken, dataset, run_id
        )
    return taken
