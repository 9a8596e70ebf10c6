"""A day's table of arrivals: its content, its recomputation, and volumes without a row."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kfm_dagster.demo.samples.nexrad_level2 import BUCKET, ELEVATIONS, FREQUENCY_MHZ, make_nexrad_level2
from kfm_dagster.exports.validation import dimensional_closure
from kfm_dagster.ingest import path_arrivals
from kfm_dagster.ingest.nodes import MetadataExtract
from kfm_dagster.ingest.path_arrivals import NODE, PathArrivals, product_of
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.path.refractivity import PathError
from kfm_dagster.path.volume import VolumeFacts
from kfm_dagster.run_state.record import Outcome
from kfm_dagster.stages.batch import SkipCause, StageBatch
from kfm_dagster.stages.failure import StageFailedError
from kfm_dagster_tests.integration.chain import DAY, good, missing, open_pipeline, put, run_chain, volumes
from kfm_dagster_tests.integration.gating import under
from kfm_dagster_tests.transactions import own_tx

DATASET, PARTITION = "nexrad-l2", DAY.isoformat()
RUNS = ["11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"]
BEAMS = len(set(ELEVATIONS))


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    opened = open_pipeline(tmp_path / "home", tmp_path / "objects")
    # A TDWR's volume has no arrivals: its band and gates differ.
    tdwr = good(BUCKET, *make_nexrad_level2(site="TMCI", start=datetime.combine(DAY, time(6), UTC)))
    put(tmp_path / "objects", [*volumes(3), tdwr])
    run_chain(opened, DATASET, PARTITION, RUNS[0])
    yield opened
    opened.close()


def compute(pipeline: Pipeline, run_id: str = RUNS[0]) -> StageBatch:
    node = PathArrivals(pipeline=pipeline, dataset=DATASET, partition=PARTITION, run_id=run_id)
    return pipeline.stages.commit(pipeline.stages.run(node, run_id=run_id, upstream=None))


def table(pipeline: Pipeline, batch: StageBatch, name: str = "product") -> list[dict[str, Any]]:
    content = pipeline.stages.artifacts.get(product_of(batch.state.validation_summary, name))
    rows: list[dict[str, Any]] = pq.read_table(pa.BufferReader(content)).to_pylist()
    return rows


@pytest.mark.clause("PCS-11")
def test_every_volume_of_the_day_has_one_row_per_elevation(pipeline: Pipeline) -> None:
    computed = compute(pipeline)
    assert (computed.state.outcome, len(computed.envelopes), computed.restricted) == (Outcome.SUCCESS, 3, ())
    assert computed.state.validation_summary["rows"] == 3 * BEAMS
    rows = table(pipeline, computed)
    assert {row["wal_id"] for row in rows} == {unit.wal_id for unit in computed.envelopes}
    assert {row["delta_form"] for row in rows} == {"general"}
    for row in rows:
        assert row["t_arr_s"] == pytest.approx(row["optical_path_m"] / row["c_ref_m_s"], rel=1e-12, abs=0)
        assert row["lambda_ref_m"] == pytest.approx(299_792_458 / (FREQUENCY_MHZ * 1e6))
        assert row["frequency_stated"]
        assert len(row["t_arr_covariance_s2"]) == BEAMS
    assert [row["elevation_deg"] for row in rows[:BEAMS]] == sorted({row["elevation_deg"] for row in rows})


@pytest.mark.clause("PCS-22")
def test_each_row_refers_to_the_path_along_which_it_was_integrated(pipeline: Pipeline) -> None:
    computed = compute(pipeline)
    paths = {row["path_id"]: row for row in table(pipeline, computed, "paths")}
    rows = table(pipeline, computed)
    # The volumes are of several sites; each site has paths of its own, and each path is listed once.
    assert set(paths) == {row["path_id"] for row in rows}
    starts = {unit.wal_id: unit.time_range_start for unit in computed.envelopes}
    for row in rows:
        path = paths[row["path_id"]]
        ell, gamma, d_ell, n_eff = (np.array(path[name]) for name in ("ell_m", "gamma_ell_m", "d_ell_m", "n_eff"))
        assert len(ell) == len(gamma) == len(d_ell) == len(n_eff) >= 2
        assert gamma[-1] == pytest.approx([row["end_distance_m"], row["end_height_m"]], rel=1e-12)
        assert d_ell.sum() == pytest.approx(row["extent_m"], rel=1e-12)
        # Within one sample light crosses a gate of 250 m and returns: 500 m in a vacuum. No path element is longer.
        assert row["f_s_hz"] == pytest.approx(299_792_458 / 500)
        assert d_ell.max() <= row["c_ref_m_s"] / row["f_s_hz"] / n_eff.max()
        assert row["t_arr_s"] == pytest.approx(float((n_eff * d_ell).sum()) / row["c_ref_m_s"], rel=1e-12)
        wave_number = 2 * math.pi / row["lambda_ref_m"]
        assert row["phi_rad"] == pytest.approx(wave_number * float((n_eff * d_ell).sum()), rel=1e-12)
        begin, end = row["reference_window_m"]
        assert (begin, end) == (2_000, 2_250)
        # Phi without its mean over the window, by an independent quadrature.
        at = np.linspace(begin, end, 1001)
        optical = np.cumsum(n_eff * d_ell)
        mean = np.trapezoid(np.interp(at, np.cumsum(d_ell), optical), at) / (end - begin)
        assert math.remainder(row["phi_aligned_rad"] - wave_number * (optical[-1] - mean), 2 * math.pi) == (
            pytest.approx(0, abs=0.01)
        )
        assert starts[row["wal_id"]] == row["ts_start"]
        assert row["time_offset_s"] == 0


@pytest.mark.clause("PCS-12")
def test_the_dimensional_report_has_path_quantities_beside_those_of_the_metadata(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    def report_lines() -> dict[str, Any]:
        return dimensional_closure(pipeline, since=pipeline.clock() - timedelta(days=1))

    assert [report["stage"] for report in report_lines()["datasets"]] == [MetadataExtract.operator]
    compute(pipeline)
    both = report_lines()
    assert [(report["dataset"], report["stage"]) for report in both["datasets"]] == [
        (DATASET, MetadataExtract.operator), (DATASET, NODE),
    ]  # fmt: skip
    path = both["datasets"][1]
    assert (both["p_dim"], both["ok"], path["run_id"], path["p_dim"]) == (1.0, True, RUNS[0], 1.0)
    lines = {line["quantity"]: line for line in path["quantities"]}
    assert {line["values"] for line in lines.values()} == {3}
    assert {"T_arr", "Phi", "n_eff", "T_arr = ( ∫ ( n_eff / c_ref ) d ell )"} <= set(lines)
    # Only the newest table counts for the dataset. It has the five volumes of both runs.
    put(tmp_path / "objects", volumes(5))
    run_chain(pipeline, DATASET, PARTITION, RUNS[1])
    compute(pipeline, RUNS[1])
    later = report_lines()["datasets"][1]
    assert (later["run_id"], {line["values"] for line in later["quantities"]}) == (RUNS[1], {5})


@pytest.mark.clause("IEN-07")
def test_arrivals_are_computed_again_only_after_a_change_of_the_days_metadata(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    first = compute(pipeline)
    assert compute(pipeline).skipped is SkipCause.ALREADY_SUCCEEDED
    repeated = compute(pipeline, RUNS[1])
    assert (repeated.skipped, repeated.applied_by) == (SkipCause.CONTENT_APPLIED, RUNS[0])
    assert table(pipeline, repeated) == table(pipeline, first)
    # Another run of the day adds a volume; the table has the units of both runs.
    put(tmp_path / "objects", volumes(4))
    run_chain(pipeline, DATASET, PARTITION, RUNS[1])
    more = compute(pipeline, RUNS[1])
    assert (more.skipped, len(more.envelopes)) == (None, 4)


@pytest.mark.clause("PCS-05")
def test_a_retry_uses_the_metadata_of_the_failed_attempt(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(path_arrivals, "facts_of", lambda _: 1 / 0)
        with pytest.raises(StageFailedError, match="E_INTERNAL"):
            compute(pipeline, RUNS[1])
    put(tmp_path / "objects", volumes(4))
    run_chain(pipeline, DATASET, PARTITION, RUNS[1])
    assert len(compute(pipeline, RUNS[1]).envelopes) == 3
    # After its success, the same run can be executed again for the current units.
    assert len(compute(pipeline, RUNS[1]).envelopes) == 4
    attempts = [
        row for row in own_tx(pipeline.stages.lifecycle.store).of_run(RUNS[1]) if row.stage == f"{DATASET}.{NODE}"
    ]
    assert [(attempt.attempt, attempt.state.value) for attempt in attempts] == [
        (1, "rolled_back"), (2, "succeeded"), (3, "succeeded")
    ]  # fmt: skip
    assert attempts[0].input_hashes == attempts[1].input_hashes


@pytest.mark.parametrize(("action", "code"), [("fail_units", "gate_path_invalid"), ("restrict", None)])
def test_a_volume_without_a_sound_path_has_no_row_and_is_reported(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, action: str, code: str | None
) -> None:
    numbers, facts_of = count(), path_arrivals.facts_of

    def refusing(properties: dict[str, object]) -> VolumeFacts:
        if next(numbers) == 1:
            raise PathError("the volume's properties define no beam")
        return facts_of(properties)

    monkeypatch.setattr(path_arrivals, "facts_of", refusing)
    under(pipeline, "G3: {on_failure: fail_units", f"G3: {{on_failure: {action}")
    computed = compute(pipeline)
    assert (computed.state.outcome, computed.state.validation_summary["failed"]) == (Outcome.PARTIAL, 1)
    assert computed.restricted == (("G3",) if action == "restrict" else ())
    refused = {unit.wal_id: unit.failure for unit in computed.envelopes} | {
        row["wal_id"]: 0 for row in table(pipeline, computed)
    }
    [why] = [failure for failure in refused.values() if failure != 0]
    assert (why.code if why else None) == code
    lines = pipeline.stages.lifecycle.store.audit.of_stage(RUNS[0], f"{DATASET}.{NODE}")
    [gate] = [line["details"] for line in lines if line["event"] == "G3"]
    assert (gate["outcome"], gate["units_at_fault"]) == (action, 1)


def test_a_unit_that_failed_has_no_path_and_a_day_without_units_has_an_empty_table(tmp_path: Path) -> None:
    opened = open_pipeline(tmp_path / "home", tmp_path / "objects")
    assert table(opened, compute(opened)) == []
    put(tmp_path / "objects", [missing(volumes(1)[0])])
    run_chain(opened, DATASET, PARTITION, RUNS[0])
    assert len(compute(opened, RUNS[1]).envelopes) == 0
    opened.close()


def test_lineage_names_the_table_as_the_step_s_output(pipeline: Pipeline, tmp_path: Path) -> None:
    product = product_of(compute(pipeline).state.validation_summary)
    pipeline.lineage.publish_staged()
    lineage_text = "".join(file.read_text() for file in (tmp_path / "home").glob("lineage/**/*.ndjson"))
    assert product.uri in lineage_text
