"""A claim that is lost while its dataset is switched off waits for the switch, and for nothing else."""

from __future__ import annotations

import pytest

from kfm_dagster_tests.factories import envelope
from kfm_dagster_tests.ledger.bench import DAY, PERSON, Bench


@pytest.mark.clause("WSM-11", "WAL-10")
@pytest.mark.parametrize("lost_by", ["a dead run", "an expired lease"])
def test_a_claim_lost_while_switched_off_is_retried_once_it_is_on(bench: Bench, lost_by: str) -> None:
    unit = envelope()
    bench.bring_to("pending", unit)
    bench.claim(unit, run_id="run-1")
    bench.ledger.switches.engage(unit.dataset, PERSON)
    if lost_by == "a dead run":
        bench.ledger.release_lost(run_ids=["run-1"])
    else:
        bench.clock.advance(24 * 3600)
        bench.ledger.release_lost()
    assert bench.ledger.retry_due(now=bench.clock.now, limit=10) == {}
    assert bench.ledger.get(unit.wal_id).status == "failed"
    bench.ledger.switches.release(unit.dataset, PERSON)
    assert bench.ledger.retry_due(now=bench.clock.now, limit=10) == {(unit.dataset, DAY): 1}
