"""Each gate tripped through Dagster where no other test does: G1, G5 and G8 in the chain, G3, G4 and G7 on the path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pint
import pytest

from kfm_dagster.configs import own_folder
from kfm_dagster.defs.jobs import PATH_JOB
from kfm_dagster.demo.samples.nexrad_level2 import ELEVATIONS
from kfm_dagster.ingest import nodes, path_arrivals
from kfm_dagster.path.volume import PathArrival
from kfm_dagster.run_state.record import Outcome
from kfm_dagster.stages.card import Card, StageState
from kfm_dagster_tests.integration.chain import DAY
from kfm_dagster_tests.integration.face import Face, materialisations
from kfm_dagster_tests.integration.gating import announced, gates, obey, under
from kfm_dagster_tests.path.beams import changed
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.one_database

STRICT = Card.load(own_folder() / "strict").machine
PARTITION, JOB = DAY.isoformat(), "ingest_nexrad_l2"
STAGE = "nexrad-l2.path_arrival"
PATH_CHECKS = ("G3_path_conventions", "G4_dimensional_closure", "G7_covariance_consistency")
UNITS, BEAMS = 3, len(set(ELEVATIONS))
Patch = pytest.MonkeyPatch


def incomplete(face: Face, monkeypatch: Patch) -> None:
    """A reader that loses a property which the contract requires, and does not say so."""
    name, plain = face.pipeline.registry["nexrad-l2"].metadata_extract.required[0], nodes.metadata_extract

    def losing(unit: Any, **parts: Any) -> Any:
        found = plain(unit, **parts)
        return replace(found, stac_properties={k: v for k, v in found.stac_properties.items() if k != name})

    monkeypatch.setattr(nodes, "metadata_extract", losing)


def late(face: Face, monkeypatch: Patch) -> None:
    """A run that comes to its live units half a day after they were announced."""
    face.pipeline.clock = lambda: datetime(2025, 4, 3, 12, tzinfo=UTC)


def doubled(face: Face, monkeypatch: Patch) -> None:
    """An operator that hands a unit on twice."""
    plain = nodes.IntegrityCheck.transform
    monkeypatch.setattr(nodes.IntegrityCheck, "transform", lambda self: [*(got := plain(self)), got[0]])


@pytest.mark.clause("PCS-09")
@pytest.mark.parametrize(
    ("trip", "gate", "noun", "check", "stop"),
    [
        (incomplete, "G1", "metadata", "G1_schema_completeness", None),
        (late, "G5", "integrity", "G5_freshness", "S2"),
        (doubled, "G8", "integrity", "G8_uniqueness", None),
    ],
)
def test_a_gate_of_the_chain_that_stops_blocks_whatever_is_downstream(
    face: Face,
    objects: Path,
    monkeypatch: Patch,
    trip: Callable[..., None],
    gate: str,
    noun: str,
    check: str,
    stop: str,
) -> None:
    trip(face, monkeypatch)
    action = "restrict" if gate == "G5" else "fail_units"
    under(face.pipeline, f"{gate}: {{on_failure: {action}}}", f"{gate}: {{on_failure: stop}}")
    announced(face, objects, 2)
    result = face.execute(JOB, partition=PARTITION, raise_on_error=False)
    failed = [key for key, found in gates(result).items() if not found.passed]
    assert failed == [(noun, check)]
    found = gates(result)[noun, check]
    assert (found.severity, found.blocking) == (dg.AssetCheckSeverity.ERROR, True)
    assert ("tag" in found.metadata) == (stop is not None)
    assert noun not in materialisations(result)
    told = face.pipeline.stages.lifecycle.store.audit.lines()
    assert [line["event"] for line in told if line["kind"] == "stop"] == ([stop] if stop else [])


def a_short_index(found: PathArrival) -> PathArrival:
    beam = changed(found.beams[0], n_eff=found.beams[0].n_eff[:-1])
    return replace(found, beams=(beam, *found.beams[1:]))


def a_beam_of_one_point(found: PathArrival) -> PathArrival:
    arrays = {name: getattr(found.beams[0], name)[:1] for name in ("ell", "height_m", "distance_m", "d_ell", "n_eff")}
    return replace(found, beams=(changed(found.beams[0], **arrays), *found.beams[1:]))


def a_length_that_is_none(found: PathArrival) -> PathArrival:
    beam = changed(found.beams[0], d_ell=-found.beams[0].d_ell)
    return replace(found, beams=(beam, *found.beams[1:]))


def a_covariance_of_one_cause(found: PathArrival) -> PathArrival:
    """As if nothing but the atmosphere were unsure: all beams move together."""
    return replace(found, t_covariance=np.full_like(found.t_covariance, found.t_covariance[0, 0]))


def a_time_in_metres(found: PathArrival) -> PathArrival:
    return replace(found, arrivals=tuple(replace(one, extent_m=-1.0) for one in found.arrivals))


def trip(monkeypatch: Patch, fault: Callable[[PathArrival], PathArrival]) -> None:
    """Give the second volume of each computation a fault."""
    plain, numbers = path_arrivals.path_arrival, count()
    quantities = path_arrivals.as_array_quantities

    def faulty(*facts: Any, **options: Any) -> PathArrival:
        found = plain(*facts, **options)
        return fault(found) if next(numbers) % UNITS == 1 else found

    def told(arrivals: Any) -> Any:
        # A length that none has marks the volume whose times are told in metres.
        made = quantities(arrivals)
        return made | {"T_arr": pint.Quantity(made["T_arr"].m, "m")} if arrivals[0].extent_m < 0 else made

    monkeypatch.setattr(path_arrivals, "path_arrival", faulty)
    monkeypatch.setattr(path_arrivals, "as_array_quantities", told)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fault of one volume, the gate that finds it, and its words."""

    fault: Callable[[PathArrival], PathArrival]
    gate: str
    stop: str
    error_class: str
    words: str

    @property
    def check(self) -> str:
        return next(name for name in PATH_CHECKS if name.startswith(self.gate))


CASES = [
    Case(fault=a_short_index, gate="G3", stop="S3", error_class="E_GATE", words="shapes differ"),
    Case(fault=a_beam_of_one_point, gate="G3", stop="S3", error_class="E_GATE", words="1 points; at least 2"),
    Case(fault=a_length_that_is_none, gate="G3", stop="S3", error_class="E_GATE", words="a d_ell that is no length"),
    Case(fault=a_time_in_metres, gate="G4", stop="S1", error_class="E_DIM", words="has the dimension [length]"),
    Case(fault=a_covariance_of_one_cause, gate="G7", stop="S4", error_class="E_UQ", words="the least eigenvalue"),
]


@pytest.fixture
def day(face: Face, objects: Path) -> Face:
    """A day whose metadata are there."""
    announced(face, objects, UNITS)
    assert face.execute(JOB, partition=PARTITION).success
    return face


def path_checks(result: Any) -> dict[str, dg.AssetCheckEvaluation]:
    found = gates(result)
    assert {noun for noun, _ in found} == {"path_arrival"}
    return {name: check for (_, name), check in found.items()}


def stops(face: Face, run_id: str) -> list[str]:
    lines = face.pipeline.stages.lifecycle.store.audit.of_stage(run_id, STAGE)
    return [line["event"] for line in lines if line["kind"] == "stop"]


@pytest.mark.clause("PCS-09", "PCS-15")
def test_a_sound_path_passes_its_gates_and_its_stage_is_audited(day: Face) -> None:
    result = day.execute(PATH_JOB, partition=PARTITION)
    found = path_checks(result)
    assert tuple(found) == PATH_CHECKS
    assert all(check.passed and check.blocking for check in found.values())
    assert found["G4_dimensional_closure"].metadata["observed"].value == f"p_dim = 1 over {UNITS} units"
    shown = materialisations(result)["path_arrival"]
    assert (shown["run_units"], shown["run_passed"], shown["rows"]) == (UNITS, UNITS, UNITS * BEAMS)
    assert str(shown["arrivals"]).startswith("![arrivals](data:image/svg+xml;base64,")
    lines = day.pipeline.stages.lifecycle.store.audit.of_stage(result.dagster_run.run_id, STAGE)
    assert [(line["kind"], line["event"]) for line in lines] == [
        ("transition", "pending>running"),
        *(("gate", gate) for gate in ("G3", "G4", "G7")),
        ("transition", "running>succeeded"),
    ]
    # The same metadata again: nothing is looked at twice, and the checks say so.
    again = path_checks(day.execute(PATH_JOB, partition=PARTITION))
    assert {check.metadata["observed"].value for check in again.values()} == {"skipped: CONTENT_APPLIED"}


@pytest.mark.clause("PCS-09", "PCS-11", "PCS-20")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.fault.__name__)
def test_a_volume_at_fault_leaves_by_its_gate_and_the_others_have_their_rows(
    day: Face, monkeypatch: Patch, case: Case
) -> None:
    trip(monkeypatch, case.fault)
    result = day.execute(PATH_JOB, partition=PARTITION)
    found = path_checks(result)
    assert [name for name, check in found.items() if not check.passed] == [case.check]
    check = found[case.check]
    assert check.severity is dg.AssetCheckSeverity.WARN
    [(unit, why)] = check.metadata["failing_units"].value.items()  # type: ignore[union-attr]
    assert case.words in why
    shown = materialisations(result)["path_arrival"]
    assert (shown["run_passed"], shown["run_failed"], shown["rows"]) == (UNITS - 1, 1, (UNITS - 1) * BEAMS)
    assert [row.data["wal_id"] for row in shown["failing_units"].records] == [unit]
    run_id = result.dagster_run.run_id
    assert stops(day, run_id) == []
    stages = day.pipeline.stages
    newest, kept = own_tx(stages.lifecycle.store).newest(run_id, STAGE), stages.run_states.get(STAGE, run_id)
    assert newest is not None
    assert kept is not None
    assert (newest.state, kept.outcome) == (StageState.SUCCEEDED, Outcome.PARTIAL)


@pytest.mark.clause("PCS-09", "PCS-14", "PCS-20")
@pytest.mark.parametrize("case", [CASES[0], *CASES[3:]], ids=lambda case: case.gate)
def test_under_the_strict_card_the_same_fault_stops_the_day_and_another_restricts_it(
    day: Face, monkeypatch: Patch, case: Case
) -> None:
    trip(monkeypatch, case.fault)
    obey(day.pipeline, STRICT)
    stopped = day.execute(PATH_JOB, partition=PARTITION, raise_on_error=False)
    assert not stopped.success
    check = path_checks(stopped)[case.check]
    assert (check.severity, check.metadata["tag"].value) == (dg.AssetCheckSeverity.ERROR, "[Restricted]")
    assert check.description == f"the batch is stopped ({case.stop})"
    assert materialisations(stopped) == {}
    run_id = stopped.dagster_run.run_id
    newest = own_tx(day.pipeline.stages.lifecycle.store).newest(run_id, STAGE)
    assert newest is not None
    assert (newest.state, newest.error_class) == (StageState.ROLLED_BACK, case.error_class)
    assert stops(day, run_id) == [case.stop]

    under(day.pipeline, f"{case.gate}: {{on_failure: fail_units", f"{case.gate}: {{on_failure: restrict")
    shown = materialisations(day.execute(PATH_JOB, partition=PARTITION))["path_arrival"]
    assert (shown["tag"], shown["rows"]) == (f"[Restricted] {case.gate}", UNITS * BEAMS)


@pytest.mark.clause("PCS-14", "PCS-02", "PCS-20")
def test_the_card_s_thresholds_decide_what_passes(day: Face, monkeypatch: Patch) -> None:
    under(day.pipeline, "min_points: 2", "min_points: 100000")
    # A fault that all of the day's volumes share is the day's, and stops it under the shipped card, too.
    stopped = day.execute(PATH_JOB, partition=PARTITION, raise_on_error=False)
    check = path_checks(stopped)["G3_path_conventions"]
    assert (check.passed, check.description) == (False, "the batch is stopped (S3)")
    assert "at least 100000" in str(check.metadata["failing_units"].value)
    assert (materialisations(stopped), stops(day, stopped.dagster_run.run_id)) == ({}, ["S3"])
    trip(monkeypatch, a_time_in_metres)
    under(day.pipeline, "min_p_dim: 1.0", "min_p_dim: 0.5")
    assert all(check.passed for check in path_checks(day.execute(PATH_JOB, partition=PARTITION)).values())
