"""A day's table of arrivals: what is in it, when it is made anew, and what it leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pytest

from kfm_dagster.definitions import build_definitions
from kfm_dagster.defs.jobs import PATH_JOB
from kfm_dagster.idempotent_node.wal import IntentStatus
from kfm_dagster.ingest import path_arrivals
from kfm_dagster.ingest.path_arrivals import compute_path_arrivals, read_table
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.path.errors import PathError
from kfm_dagster.path.volume import PathArrival, VolumeFacts
from kfm_dagster.samples.nexrad_level2 import ELEVATIONS, FREQUENCY_MHZ
from kfm_dagster_tests.integration.chain import DAY, missing, open_pipeline, put, run_chain, volumes

DATASET, PARTITION = "nexrad-l2", DAY.isoformat()
RUNS = ["11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"]
BEAMS = len(set(ELEVATIONS))


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    opened = open_pipeline(tmp_path / "home", tmp_path / "objects")
    put(tmp_path / "objects", volumes(3))
    run_chain(opened, DATASET, PARTITION, RUNS[0])
    yield opened
    opened.close()


def compute(pipeline: Pipeline, run_id: str = RUNS[0]) -> path_arrivals.NodeResult:
    return compute_path_arrivals(pipeline, dataset=DATASET, partition=PARTITION, run_id=run_id)


@pytest.mark.clause("PCS-11")
def test_every_volume_of_the_day_has_a_row_for_each_elevation(pipeline: Pipeline) -> None:
    found = compute(pipeline)
    assert found.status is IntentStatus.APPLIED
    record = found.output.record
    assert (record["units"], record["rows"], record["refused"]) == (3, 3 * BEAMS, {})
    rows = read_table(pipeline, record)
    assert len({row["wal_id"] for row in rows}) == 3
    assert {row["delta_form"] for row in rows} == {"general"}
    for row in rows:
        assert row["t_arr_s"] == pytest.approx(row["optical_path_m"] / row["c_ref_m_s"], rel=1e-12, abs=0)
        assert row["lambda_ref_m"] == pytest.approx(299_792_458 / (FREQUENCY_MHZ * 1e6))
        assert row["frequency_stated"]
        assert len(row["t_arr_covariance_s2"]) == BEAMS
    assert [row["elevation_deg"] for row in rows[:BEAMS]] == sorted({row["elevation_deg"] for row in rows})


@pytest.mark.clause("IEN-07")
def test_the_same_metadata_are_not_computed_again_and_more_of_them_are(pipeline: Pipeline, tmp_path: Path) -> None:
    first = compute(pipeline)
    again = compute(pipeline, RUNS[1])
    assert again.status is IntentStatus.SKIPPED
    assert again.output.record == first.output.record
    # Another run of the day brings one more volume: the table is of both runs' units.
    put(tmp_path / "objects", volumes(4))
    run_chain(pipeline, DATASET, PARTITION, RUNS[1])
    more = compute(pipeline, RUNS[1])
    assert (more.status, more.output.record["units"]) == (IntentStatus.APPLIED, 4)


def test_a_volume_without_a_sound_path_is_left_out_and_named(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[VolumeFacts] = []
    facts_of = path_arrivals.facts_of

    def refusing(properties: dict[str, object]) -> VolumeFacts:
        calls.append(facts_of(properties))
        if len(calls) == 2:
            raise PathError("a volume tells no beam")
        return calls[-1]

    monkeypatch.setattr(path_arrivals, "facts_of", refusing)
    record = compute(pipeline).output.record
    assert (record["units"], list(record["refused"].values())) == (2, ["a volume tells no beam"])
    assert set(record["refused"]).isdisjoint(row["wal_id"] for row in read_table(pipeline, record))


def test_a_volume_that_fails_a_gate_is_left_out_and_the_gate_named(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    path_arrival, calls = path_arrivals.path_arrival, count()

    def singular(facts: VolumeFacts, **options: Any) -> PathArrival:
        found = path_arrival(facts, **options)
        return replace(found, t_covariance=np.ones_like(found.t_covariance)) if next(calls) == 1 else found

    monkeypatch.setattr(path_arrivals, "path_arrival", singular)
    record = compute(pipeline).output.record
    ((unit, why),) = record["refused"].items()
    assert why.startswith("G7: T_arr over the elevations: the least eigenvalue")
    assert record["units"] == 2
    assert unit not in {row["wal_id"] for row in read_table(pipeline, record)}


def test_a_unit_that_failed_has_no_path_and_a_day_without_units_an_empty_table(tmp_path: Path) -> None:
    opened = open_pipeline(tmp_path / "home", tmp_path / "objects")
    assert compute(opened).output.record["rows"] == 0
    put(tmp_path / "objects", [missing(volumes(1)[0])])
    run_chain(opened, DATASET, PARTITION, RUNS[0])
    assert compute(opened, RUNS[1]).output.record["units"] == 0
    opened.close()


def test_the_asset_shows_its_counts_and_a_plot(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kfm_dagster.defs.resources.open_pipeline", lambda _: pipeline)
    job = build_definitions(pipeline.settings).resolve_job_def(PATH_JOB)
    with dg.DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(partition_key=PARTITION, instance=instance)
    (event,) = result.get_asset_materialization_events()
    shown = event.materialization.metadata
    assert (shown["units"].value, shown["rows"].value) == (3, 3 * BEAMS)
    assert str(shown["arrivals"].value).startswith("![arrivals](data:image/svg+xml;base64,")
    assert shown["gate_G4"].value == "p_dim = 1 over 3 units"
