"""The evidence job: asked for once for the oldest case that lacks its evidence, and again after a while."""

from __future__ import annotations

from pathlib import Path

import pytest

from kfm_dagster.defs.jobs import EVIDENCE_JOB
from kfm_dagster.defs.sensors import EVIDENCE_SECONDS, evidence_runs
from kfm_dagster.governance.log import Decision
from kfm_dagster.ledger.cases import QuarantineCases
from kfm_dagster_tests.integration.chain import announce, open_pipeline, take, volumes
from kfm_dagster_tests.transactions import own_tx

JANE = Decision(actor="jane", reason="looked odd", change_ref="CHG-7")


@pytest.mark.clause("SEC-12")
def test_a_case_without_evidence_is_asked_for_once_in_a_while(tmp_path: Path) -> None:
    pipeline = open_pipeline(tmp_path, tmp_path)
    clock = pipeline.clock
    cases = QuarantineCases(pipeline.database, clock=clock)
    assert evidence_runs(cases, at=clock()) == []
    take(pipeline, *(announce([item.event()], registry=pipeline.registry) for item in volumes(2)))
    first, second = (record.wal_id for record in own_tx(pipeline.ledger).find())
    own_tx(pipeline.ledger).quarantine([first], reason_code="looked_odd", decision=JANE)
    [asked] = evidence_runs(cases, at=clock())
    clock.forward(EVIDENCE_SECONDS - 1)
    own_tx(pipeline.ledger).quarantine([second], reason_code="looked_odd", decision=JANE)
    assert (asked.job_name, evidence_runs(cases, at=clock())) == (EVIDENCE_JOB, [asked])
    clock.forward(1)
    [again] = evidence_runs(cases, at=clock())
    assert again.run_key != asked.run_key
    pipeline.close()
