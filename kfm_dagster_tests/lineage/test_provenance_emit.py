"""provenance-emit over a batch of registered, failed and refused units."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kfm_dagster.contracts.envelope import CheckStatus, Envelope, Integrity, ProvenanceStatus, StacResult, StacStatus
from kfm_dagster.contracts.issues import Issue, Severity
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.lineage.store import Lineage
from kfm_dagster.operators.provenance_emit import provenance_emit
from kfm_dagster.storage.fence import open_fence
from kfm_dagster_tests.lineage.units import readable, registered

NOW = datetime(2025, 12, 3, 0, 5, tzinfo=UTC)


@pytest.mark.clause("OPR-11")
def test_only_registered_units_get_lineage_in_unchanged_order(
    lineage: Lineage, root: Path, contract: DatasetContract
) -> None:
    issue = Issue(code="missing_object", severity=Severity.FAILED, message="gone")
    failed = Integrity(status=CheckStatus.FAILED, issues=(issue,))
    refused = Issue(code="stac_validation_failed", severity=Severity.FAILED, message="no")
    stac = registered().stac

    def item(number: int, status: StacStatus) -> Envelope:
        return registered(number, stac=dataclasses.replace(stac, write_status=status, item_id=f"scan-{number}"))

    batch = [
        registered(0),
        registered(1, integrity=failed, metadata=None, stac=None),
        registered(2, stac=StacResult(write_status=StacStatus.FAILED, issues=(refused,))),
        item(3, StacStatus.NO_OP),
        item(4, StacStatus.UPDATED),
        item(5, StacStatus.CREATED).evolve(integrity=failed),
    ]
    times = {"occurred_at": NOW, "started_at": NOW - timedelta(minutes=1)}
    emitted_units = provenance_emit(batch, contract=contract, lineage=lineage, fence=open_fence, run_id="run", **times)
    assert [unit.wal_id for unit in emitted_units] == [unit.wal_id for unit in batch]
    assert [unit.provenance and unit.provenance.status for unit in emitted_units] == [
        ProvenanceStatus.OK, None, None, ProvenanceStatus.OK, ProvenanceStatus.OK, None,
    ]  # fmt: skip
    # Only the operator's own section changed.
    assert [unit.evolve(provenance=None) for unit in emitted_units] == batch
    emitted = {wal_id for _, wal_id in readable(root)}
    assert emitted == {batch[index].wal_id for index in (0, 3, 4)}
