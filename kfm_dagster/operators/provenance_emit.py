"""provenance-emit: emit the lineage of every unit of a batch whose Item is in the catalog.

The only operator that writes lineage. It covers units for which stac-register returned created, updated or no-op. A
failure rolls nothing back. A unit whose lineage failed on one of its two paths (OpenLineage, PROV-O) is `partial`; a
later replay emits the missing lineage.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.lineage.store import Lineage
from kfm_dagster.lineage.unit import REGISTERED, IngestRun, LineageUnit
from kfm_dagster.storage.fence import Fence


def provenance_emit(
    batch: Sequence[Envelope],
    *,
    contract: DatasetContract,
    lineage: Lineage,
    fence: Fence,
    run_id: str,
    occurred_at: datetime,
    started_at: datetime | None = None,
) -> list[Envelope]:
    """Return the batch in its order, with `provenance` on every unit that has lineage.

    `fence` checks, in the recording transaction, which claims are still valid. `occurred_at` is now, `started_at` is
    when the run claimed the batch (default: now).
    """
    units = [
        LineageUnit.of(envelope)
        for envelope in batch
        if envelope.failure is None and envelope.stac is not None and envelope.stac.write_status in REGISTERED
    ]
    run = IngestRun(
        run_id=run_id,
        started_at=rfc3339(started_at or occurred_at),
        occurred_at=rfc3339(occurred_at),
    )
    results = lineage.emit(units, run=run, contract=contract, fence=fence)
    return [
        envelope.evolve(provenance=results[envelope.wal_id]) if envelope.wal_id in results else envelope
        for envelope in batch
    ]
