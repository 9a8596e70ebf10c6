"""How long nodes took, from what they recorded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from kfm_dagster.exports.explanations.report import ledger_span, ms_per_unit, node_seconds
from kfm_dagster.run_state.record import Outcome, RunState
from kfm_dagster.storage.database import Database

START = datetime(2026, 1, 1, tzinfo=UTC)


def state(dataset: str, operator: str, seconds: float, *, run_id: str = "r", units: int = 4) -> RunState:
    return RunState(
        dataset_id=f"{dataset}.{operator}",
        run_id=run_id,
        lakefs_branch="main",
        inputs_hash="sha256:" + "0" * 64,
        validation_summary={"checks": units, "passed": units, "failed": 0},
        outcome=Outcome.SUCCESS,
        recorded_at=START + timedelta(seconds=seconds),
    )


def test_a_node_took_the_time_since_the_record_before_it() -> None:
    states = [
        state("a", "message_parse", 0),
        state("a", "integrity_check", 2),
        state("a", "settle", 5),
        state("a", "message_parse", 100, run_id="s"),
        state("a", "settle", 101, run_id="s"),
    ]
    assert node_seconds(states) == {("a", "integrity_check"): 2.0, ("a", "settle"): 4.0}


def test_milliseconds_count_the_units_that_were_settled() -> None:
    states = [
        state("a", "message_parse", 0),
        state("a", "settle", 1),
        state("b", "message_parse", 2),
        state("b", "settle", 2.5, units=0),
    ]
    assert ms_per_unit(states) == {"a": 250.0}


def test_an_empty_ledger_has_no_span(database: Database) -> None:
    with pytest.raises(ValueError, match="ledger is empty"):
        ledger_span(database)
