"""Profiles and beams against closed forms, Bouguer's law, and integrations that share no code with the package."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.path.beam import EARTH_RADIUS_M, EFFECTIVE_EARTH_FACTOR, BeamPath, Geometry, quadrature, trace
from kfm_dagster.path.refractivity import (
    Exponential,
    MeanAnnualGlobal,
    PathError,
    Profile,
    reference_state,
    refractivity,
)
from kfm_dagster_tests.path.beams import beam, integrated

RELATIVE = 1e-9
ELEVATIONS = (-0.2, 0.0, 0.483, 1.318, 5.098, 19.5, 45.0, 90.0)


def optical_path(path: BeamPath) -> float:
    return float(np.sum(path.n_eff * path.d_ell))


# --- profiles


@pytest.mark.parametrize(
    ("height_m", "temperature_k", "pressure_hpa"),
    [
        # U.S. Standard Atmosphere 1976, table I, at geometric heights.
        (0.0, 288.15, 1013.25),
        (5_000.0, 255.676, 540.48),
        (11_000.0, 216.774, 226.99),
        (20_000.0, 216.650, 55.293),
        (30_000.0, 226.509, 11.970),
        (50_000.0, 270.650, 0.79779),
        (60_000.0, 247.021, 0.21958),
        (75_000.0, 208.399, 2.3881e-2),
        (86_000.0, 186.87, 3.7338e-3),
        (90_000.0, 186.87, 1.8359e-3),
    ],
)
def test_the_reference_atmosphere_is_the_standard_one(
    height_m: float, temperature_k: float, pressure_hpa: float
) -> None:
    temperature, pressure, _ = reference_state(np.array([height_m]))
    assert temperature[0] == pytest.approx(temperature_k, abs=0.01)
    assert pressure[0] == pytest.approx(pressure_hpa, rel=2e-4, abs=0)


def test_refractivity_is_that_of_the_recommendation() -> None:
    # P.453-7's single-term form N = 77.6 / T (P + 4810 e / T) is within 0.02 % of it (P.453-14, Annex 1, section 1).
    for temperature, vapour in ((223.15, 0.03), (288.15, 9.97), (313.15, 30.0)):
        found = refractivity(pressure_hpa=1013.25, temperature_k=temperature, vapour_pressure_hpa=vapour)
        assert found == pytest.approx(77.6 / temperature * (1013.25 + 4810 * vapour / temperature), rel=2e-4, abs=0)
    sea = np.array([0.0])
    assert (Exponential()(sea)[0] - 1) * 1e6 == pytest.approx(315)
    assert (MeanAnnualGlobal()(sea)[0] - 1) * 1e6 == pytest.approx(317.7, abs=0.1)


@given(height=st.floats(-500, 120_000), profile=st.sampled_from([Exponential(), MeanAnnualGlobal()]))
def test_a_gradient_is_its_profile_s_slope(height: float, profile: Profile) -> None:
    step = 1.0
    around = np.array([height - step, height, height + step])
    n, slope = profile(around), profile.gradient(around)
    assert n.min() >= 1
    # Between the slopes on both sides, where two layers meet.
    low, high = slope.min() - 1e-15, slope.max() + 1e-15
    if abs(height - 100_000) > 2 * step and abs(height - 86_000) > 2 * step:
        assert low - abs(low) * 1e-3 <= (n[2] - n[0]) / (2 * step) <= high + abs(high) * 1e-3


# --- the rule


@given(length=st.floats(1_000, 500_000), split=st.floats(0.01, 0.99), degree=st.integers(0, 14))
def test_the_elements_make_sums_integrals(length: float, split: float, degree: int) -> None:
    rule = quadrature(length, splits_m=(split * length,))
    assert np.sum(rule.ell**degree * rule.d_ell) == pytest.approx(
        length ** (degree + 1) / (degree + 1), rel=1e-12, abs=0
    )
    ends = np.cumsum(rule.d_ell.sum(axis=1))
    assert np.min(np.abs(ends - split * length)) <= 1e-9 * length
    if degree < 8:
        expected = rule.ell ** (degree + 1) / (degree + 1)
        assert np.allclose(rule.integrals(rule.ell**degree), expected, rtol=1e-10, atol=1e-10 * length ** (degree + 1))


# --- geometry


@pytest.mark.clause("PCS-11")
@pytest.mark.parametrize("elevation", ELEVATIONS)
@pytest.mark.parametrize(
    ("profile", "panel_m", "height_tolerance"), [(Exponential(), 30_000.0, 1e-4), (MeanAnnualGlobal(), 5_000.0, 0.2)]
)
def test_a_traced_ray_is_that_of_an_independent_integration(
    elevation: float, profile: Profile, panel_m: float, height_tolerance: float
) -> None:
    height, distance, optical = integrated(elevation, profile)
    path = beam(elevation, profile=profile, panel_m=panel_m, splits_m=(2_000.0,))
    assert optical_path(path) == pytest.approx(optical, rel=RELATIVE, abs=0)
    # The last node is short of the end: a ray that ends there is the one to compare with.
    height, distance, _ = integrated(elevation, profile, range_m=float(path.ell[-1]))
    assert path.height_m[-1] == pytest.approx(height, abs=height_tolerance)
    assert path.distance_m[-1] == pytest.approx(distance, abs=height_tolerance)


@pytest.mark.clause("PCS-11")
@given(elevation=st.floats(-0.5, 89), antenna=st.floats(0, 3_300))
def test_a_traced_ray_obeys_bouguer_s_law(elevation: float, antenna: float) -> None:
    path = beam(elevation, profile=Exponential(), antenna_height_m=antenna)
    radius = EARTH_RADIUS_M + path.height_m
    # cos(theta) = r dphi/dl, by the fourth differences that unequal nodes allow: from neighbours on a fine rule.
    fine = beam(elevation, profile=Exponential(), antenna_height_m=antenna, panel_m=2_000.0)
    rise = np.gradient(fine.height_m, fine.ell, edge_order=2)
    run = np.gradient(fine.distance_m, fine.ell, edge_order=2) * (EARTH_RADIUS_M + fine.height_m) / EARTH_RADIUS_M
    assert np.allclose(np.hypot(rise, run), 1, atol=1e-6)
    invariant = fine.n_eff * (EARTH_RADIUS_M + fine.height_m) * run
    at_antenna = float(Exponential()(np.array([antenna]))[0]) * (EARTH_RADIUS_M + antenna)
    assert np.allclose(invariant / at_antenna, math.cos(math.radians(elevation)), atol=1e-6)
    assert np.interp(path.ell, fine.ell, fine.height_m) == pytest.approx(path.height_m, abs=1.0)
    assert (radius > 0).all()


@pytest.mark.parametrize("elevation", ELEVATIONS)
def test_the_effective_earth_is_a_straight_line_over_a_larger_sphere(elevation: float) -> None:
    path = beam(elevation, geometry=Geometry.EFFECTIVE_EARTH)
    radius, angle = EFFECTIVE_EARTH_FACTOR * EARTH_RADIUS_M, math.radians(elevation)
    x, y = path.ell * math.cos(angle), radius + path.ell * math.sin(angle)
    assert path.height_m == pytest.approx(400 + np.hypot(x, y) - radius, abs=1e-6)
    assert path.distance_m == pytest.approx(radius * np.arctan2(x, y), abs=1e-5)


def test_beams_traced_together_are_those_traced_alone() -> None:
    splits = (2_000.0, 2_250.0)
    together = trace(ELEVATIONS, antenna_height_m=400.0, range_m=460_000.0, splits_m=splits, profile=Exponential())
    for elevation, path in zip(ELEVATIONS, together, strict=True):
        alone = beam(elevation, profile=Exponential())
        assert path.height_m == pytest.approx(alone.height_m, abs=1e-6)
        assert path.gamma_ell.shape == (path.points, 2)
        assert not path.d_ell.flags.writeable


@pytest.mark.parametrize(
    "wrong",
    [
        {"elevations_deg": []},
        {"elevations_deg": [91.0]},
        {"elevations_deg": [0.5, float("nan")]},
        {"elevations_deg": [-3.0]},
        {"antenna_height_m": float("inf")},
        {"range_m": 0.0},
        {"range_m": float("nan")},
        {"splits_m": (460_000.0,)},
        {"splits_m": (-1.0,)},
        {"splits_m": (2_250.0, 2_000.0)},
    ],
    ids=str,
)
def test_what_is_no_beam_is_refused(wrong: dict[str, Any]) -> None:
    options: dict[str, Any] = {"elevations_deg": [0.5], "antenna_height_m": 400.0, "range_m": 460_000.0} | wrong
    with pytest.raises(PathError, match="needs"):
        trace(options.pop("elevations_deg"), profile=Exponential(), **options)
    with pytest.raises(PathError, match="does not settle"):
        beam(0.0, profile=Exponential(n0=50_000.0, scale_height_m=100.0))
