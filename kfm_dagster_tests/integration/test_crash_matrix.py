"""Crashes after each statement, transaction and file operation of each operator, and re-execution.

The re-execution has the run's id, as in Dagster, so it resumes the run's intents and claims; the result must equal
that of a run without a crash.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from datetime import date, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from kfm_dagster.demo.samples.nexrad_level2 import nexrad_level2_samples
from kfm_dagster.idempotent_node.wal import IntentStatus, run_uuid
from kfm_dagster.ingest.nodes import MessageParse, Source, chain, operators
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster_tests.catalog import trees
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import LIMIT, assert_conserved, good, put
from kfm_dagster_tests.moments import Death, dying
from kfm_dagster_tests.transactions import own_tx

FIRST_DAY = date(2025, 4, 1)
CLEAN_DAY = date(2025, 3, 1)
STRIDE = {
    dialect: int(os.environ.get("KFM_CRASH_STRIDE", default)) for dialect, default in (("sqlite", 1), ("postgresql", 3))
}
"""Every moment on SQLite and every third on PostgreSQL, since the code is the same; `make soak` runs all."""


def run_day(pipeline: Pipeline, day: date, *, target: str | None = None, at: int = 0) -> Death:
    """Run a day's chain, which dies in `target`; return the death and the reached moments."""
    shared: dict[str, Any] = {
        "pipeline": pipeline,
        "dataset": "nexrad-l2",
        "partition": day.isoformat(),
        "run_id": run_of(day),
    }
    death = Death(at)
    batch: StageBatch | None = None
    nodes = [MessageParse(**shared, source=Source.LISTING, limit=LIMIT), *(kind(**shared) for kind in chain()[1:])]
    for node in nodes:
        with dying(pipeline.database, at=at) if node.operator == target else nullcontext(death) as death:
            stage = pipeline.stages.run(node, run_id=run_of(day), upstream=batch)
            batch = pipeline.stages.commit(stage)
        if node.operator == target and death.died:
            break
    return death


def run_of(day: date) -> str:
    return run_uuid(f"the run of {day}")


def bring(objects: Path, day: date) -> None:
    put(objects, [good(*sample) for sample in nexrad_level2_samples(day, 1)])


def story(pipeline: Pipeline, day: date) -> dict[str, Any]:
    """Return a day's results without the values that depend on the day."""
    [record] = own_tx(pipeline.ledger).find(partition=day.isoformat())
    outcome = {name: getattr(record, name) for name in traces.OUTCOME if not name.startswith("stac_item")}
    intents = pipeline.nodes.intents.of_run(run_of(day))
    return {
        **outcome,
        "attempts": record.attempts,
        "history": [(entry.from_status, entry.to_status) for entry in own_tx(pipeline.ledger).history(record.wal_id)],
        "intents": [(intent.node.split("@")[0], intent.status) for intent in intents],
        "outputs": [pipeline.nodes.newest(intent.node).content_hash == intent.content_hash for intent in intents],
        "run_states": [(state.dataset_id, state.outcome) for state in pipeline.stages.run_states.of_run(run_of(day))],
        "steps": _ends(pipeline, day),
        "lineage": sorted((link.path, link.state) for link in pipeline.lineage.links_of(record.wal_id)),
    }


def _ends(pipeline: Pipeline, day: date) -> list[tuple[str, str]]:
    """Return the end of each of the day's intents, by its step."""
    query = sa.text(
        "SELECT i.node, s.status FROM etl_steps AS s JOIN etl_wal AS i ON i.wal_id = s.wal_id "
        "WHERE CAST(i.run_id AS text) = :run_id ORDER BY s.wal_id, s.status"
    )
    with pipeline.database.engine.connect() as connection:
        rows = connection.execute(query, {"run_id": run_of(day)}).all()
    return [(row.node.split("@")[0], row.status) for row in rows]


@pytest.mark.clause("IEN-06", "IEN-09", "IEN-11", "RSP-10", "WAL-08")
@pytest.mark.parametrize("operator", operators(), ids=str)
def test_a_run_that_dies_anywhere_in_an_operator_equals_a_clean_run_after_re_execution(
    operator: str, pipeline: Pipeline, objects: Path
) -> None:
    bring(objects, CLEAN_DAY)
    run_day(pipeline, CLEAN_DAY)
    expected = story(pipeline, CLEAN_DAY)
    assert expected["status"] is Status.SUCCEEDED
    assert [status for _, status in expected["intents"]] == [IntentStatus.APPLIED] * len(operators())
    assert [status for _, status in expected["steps"]] == [IntentStatus.APPLIED] * len(operators())
    for number, at in enumerate(count(1, STRIDE[pipeline.database.dialect])):
        day = FIRST_DAY + timedelta(days=number)
        bring(objects, day)
        death = run_day(pipeline, day, target=operator, at=at)
        assert_conserved(pipeline)
        run_day(pipeline, day)
        assert story(pipeline, day) == expected, f"{operator} {death}"
        if not death.died:
            break
    assert len(death.reached) > 15, "an operator has more than 15 moments"
    trees.assert_consistent(Path(pipeline.settings.catalog))
    assert not list(pipeline.nodes.intents.unresolved())
