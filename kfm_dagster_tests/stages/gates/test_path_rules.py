"""Rules of G3, G4 and G7 on radar beam paths: which paths pass, and which findings each unit gets."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pint
import pytest

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.path.quantities import EQUATIONS, QUANTITIES, as_array_quantities
from kfm_dagster.path.uncertainty import Sigmas
from kfm_dagster.path.volume import PATTERNS, PathArrival, PathOptions, VolumeFacts, path_arrival
from kfm_dagster.stages.gates.path_rules import (
    covariance_consistency,
    dimensional_closure_of_path,
    path_conventions,
    path_dim_report,
)
from kfm_dagster.stages.gates.verdict import Gate
from kfm_dagster_tests.path.beams import START, TAU

GOOD, BAD = WalId("good"), WalId("bad")


DECLARED = Sigmas()


@cache
def volume(sigmas: Sigmas = DECLARED) -> PathArrival:
    facts = VolumeFacts(site="KICT", antenna_height_m=427.0, elevations_deg=PATTERNS[32], frequency_mhz=2890)
    return path_arrival(facts, ts_start=START, reference=START, tau=TAU, options=PathOptions(sigmas=sigmas))


def test_g3_passes_computed_paths_and_names_the_unit_of_a_broken_path() -> None:
    beams = volume().beams
    passed = path_conventions({GOOD: beams})
    assert (passed.gate, passed.passed, passed.observed) == (Gate.G3, True, "0 faults in 5 paths")
    broken = replace(beams[1], n_eff=beams[1].n_eff[:-1])
    failed = path_conventions({GOOD: beams, BAD: [beams[0], broken]})
    assert (failed.units, failed.of_batch) == ({BAD}, False)
    assert "1.5 degrees: shapes differ" in failed.findings[0].what
    assert path_conventions({GOOD: beams, BAD: []}).units == {BAD}


def test_g3_requires_a_minimum_number_of_points_and_elements_no_longer_than_a_sample() -> None:
    beams = volume().beams
    assert path_conventions({GOOD: beams}, min_points=beams[0].points).passed
    assert path_conventions({GOOD: beams}, min_points=beams[0].points + 1).units == {GOOD}
    failed = path_conventions({GOOD: beams, BAD: beams}, sample_m={GOOD: volume().sample_m, BAD: 1.0})
    assert failed.units == {BAD}
    assert "f_s allows" in failed.findings[0].what


def test_g7_passes_computed_covariances_and_names_the_unit_of_a_singular_covariance() -> None:
    faulty = volume()
    good = {"T_arr": faulty.t_covariance, "T_arr, Phi at 0.5 degrees": faulty.phase_covariance[0]}
    assert covariance_consistency({GOOD: good}).passed
    singular = np.outer(np.diag(faulty.t_covariance), np.diag(faulty.t_covariance))
    failed = covariance_consistency({GOOD: good, BAD: good | {"T_arr": singular}})
    assert (failed.gate, failed.units) == (Gate.G7, {BAD})
    assert failed.findings[0].what.startswith("T_arr: the least eigenvalue")
    assert covariance_consistency({BAD: {}}).units == {BAD}


@pytest.mark.clause("PCS-04", "PCS-09")
def test_g7_names_the_unit_whose_uncertainty_does_not_cover_its_residuals() -> None:
    """The declared uncertainty of the atmosphere is ten times too small: a coverage mismatch, class E_UQ."""
    sure = volume(Sigmas(n0=3, scale_height_m=50))
    covariances = {GOOD: {"T_arr": volume().t_covariance}, BAD: {"T_arr": sure.t_covariance}}
    residuals = {GOOD: volume().residuals, BAD: sure.residuals}
    assert np.abs(residuals[GOOD]).max() < 1 < np.abs(residuals[BAD]).min()
    failed = covariance_consistency(covariances, residuals=residuals)
    assert (failed.units, [finding.what for finding in failed.findings]) == (
        {BAD},
        ["0 of the residuals within 2 sigma"],
    )
    assert covariance_consistency(covariances, residuals=residuals, k_sigma=20).passed
    assert covariance_consistency(covariances, residuals=residuals, k_sigma=0.01).units == {GOOD, BAD}
    half, only_good = {GOOD: np.array([0.0, 3.0])}, {GOOD: covariances[GOOD]}
    assert covariance_consistency(only_good, residuals=half, min_share=0.5).passed
    assert not covariance_consistency(only_good, residuals=half, min_share=0.6).passed


@pytest.mark.clause("PCS-12")
def test_g4_passes_computed_quantities_and_names_a_quantity_with_a_wrong_dimension() -> None:
    quantities = [as_array_quantities([arrival]) for arrival in volume().arrivals]
    passed = dimensional_closure_of_path({GOOD: quantities})
    assert (passed.gate, passed.passed, passed.observed) == (Gate.G4, True, "p_dim = 1 over 1 units")
    # An array counts as one quantity, as the single value of each beam does.
    together = dimensional_closure_of_path({GOOD: [as_array_quantities(volume().arrivals)]})
    of_one_array = {name: count // len(quantities) for name, count in passed.figures.items()}
    assert together == replace(passed, figures=of_one_array)
    wrong = [quantities[0], quantities[1] | {"T_arr": pint.Quantity(1.5e-3, "m")}]
    failed = dimensional_closure_of_path({GOOD: quantities, BAD: wrong})
    assert failed.units == {BAD}
    assert [finding.what for finding in failed.findings] == ["T_arr has the dimension [length]; expected [time]"]
    # A unit passes at its exact share and not one step above; a unit without quantities fails.
    figures = dimensional_closure_of_path({BAD: wrong}).figures
    share = figures["closed"] / figures["quantities"]
    assert dimensional_closure_of_path({BAD: wrong}, min_p_dim=share).passed
    assert not dimensional_closure_of_path({BAD: wrong}, min_p_dim=math.nextafter(share, 1)).passed
    assert dimensional_closure_of_path({BAD: []}).units == {BAD}


@pytest.mark.clause("PCS-12")
def test_the_report_counts_every_quantity_and_equation_and_marks_wrong_dimensions() -> None:
    good = [as_array_quantities(volume().arrivals)]
    lines = {line["quantity"]: line for line in path_dim_report({GOOD: good, BAD: good})}
    assert set(lines) == {*QUANTITIES, *(f"{left} = {right}" for right, left in EQUATIONS.items())}
    assert {(line["values"], line["closed"], line["ok"], line["fault"]) for line in lines.values()} == {
        (2, 2, True, None)
    }
    line_values = {"unit": "s", "dimension_expected": "[time]", "dimension_observed": "[time]"}
    assert lines["T_arr"].items() >= line_values.items()
    wrong = [good[0] | {"T_arr": pint.Quantity(1.5e-3, "m")}]
    line = {line["quantity"]: line for line in path_dim_report({GOOD: good, BAD: wrong})}["T_arr"]
    assert (line["values"], line["closed"], line["ok"]) == (2, 1, False)
    assert line["fault"] == "T_arr has the dimension [length]; expected [time]"
    assert path_dim_report({}) == []


def test_the_rules_do_not_apply_to_a_batch_without_paths() -> None:
    for verdict in (path_conventions({}), covariance_consistency({}), dimensional_closure_of_path({})):
        assert verdict.passed
        assert not verdict.applies
