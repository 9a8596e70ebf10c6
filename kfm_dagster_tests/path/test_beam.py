"""Profiles and beams against closed forms, Bouguer's law, and independent integrations."""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.path.arrival import SPEED_OF_LIGHT_M_S, DeltaForm
from kfm_dagster.path.beam import EARTH_RADIUS_M, EFFECTIVE_EARTH_FACTOR, Geometry, quadrature, trace
from kfm_dagster.path.refractivity import (
    Exponential,
    MeanAnnualGlobal,
    PathError,
    Profile,
    reference_state,
    refractivity,
)
from kfm_dagster.path.uncertainty import covariance_faults
from kfm_dagster.path.volume import (
    PATTERNS,
    RANGE_M,
    PathArrival,
    PathOptions,
    VolumeFacts,
    elevations_of,
    facts_of,
    path_arrival,
)
from kfm_dagster.readers import nexrad_level2, nexrad_radar
from kfm_dagster.readers.ranges import BytesSource
from kfm_dagster_tests.path.beams import START, TAU, beam, integrated
from kfm_dagster_tests.readers.reading import match_of
from kfm_dagster_tests.readers.truth.comparison import real_objects

RELATIVE = 1e-9
ELEVATIONS = (-0.2, 0.0, 0.483, 1.318, 5.098, 19.5, 45.0, 90.0)


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
def test_the_reference_atmosphere_equals_the_us_standard_atmosphere(
    height_m: float, temperature_k: float, pressure_hpa: float
) -> None:
    temperature, pressure, _ = reference_state(np.array([height_m]))
    assert temperature[0] == pytest.approx(temperature_k, abs=0.01)
    assert pressure[0] == pytest.approx(pressure_hpa, rel=2e-4, abs=0)


def test_refractivity_equals_that_of_the_recommendation_itu_r_p_453() -> None:
    # The single-term form of P.453-7, N = 77.6 / T (P + 4810 e / T), is within 0.02 % of P.453-14, Annex 1, section 1.
    for temperature, vapour in ((223.15, 0.03), (288.15, 9.97), (313.15, 30.0)):
        computed = refractivity(pressure_hpa=1013.25, temperature_k=temperature, vapour_pressure_hpa=vapour)
        assert computed == pytest.approx(77.6 / temperature * (1013.25 + 4810 * vapour / temperature), rel=2e-4, abs=0)
    sea = np.array([0.0])
    assert (Exponential()(sea)[0] - 1) * 1e6 == pytest.approx(315)
    assert (MeanAnnualGlobal()(sea)[0] - 1) * 1e6 == pytest.approx(317.7, abs=0.1)


@given(height=st.floats(-500, 120_000), profile=st.sampled_from([Exponential(), MeanAnnualGlobal()]))
def test_a_gradient_equals_its_profile_s_slope(height: float, profile: Profile) -> None:
    step = 1.0
    around = np.array([height - step, height, height + step])
    n, slope = profile(around), profile.gradient(around)
    assert n.min() >= 1
    # At a boundary of layers, the difference quotient is between the slopes on both sides.
    low, high = slope.min() - 1e-15, slope.max() + 1e-15
    if abs(height - 100_000) > 2 * step and abs(height - 86_000) > 2 * step:
        assert low - abs(low) * 1e-3 <= (n[2] - n[0]) / (2 * step) <= high + abs(high) * 1e-3


# --- the quadrature rule


@given(length=st.floats(1_000, 500_000), split=st.floats(0.01, 0.99), degree=st.integers(0, 14))
def test_sums_over_the_elements_approximate_integrals(length: float, split: float, degree: int) -> None:
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
def test_a_traced_ray_equals_an_independent_integration(
    elevation: float, profile: Profile, panel_m: float, height_tolerance: float
) -> None:
    height, distance, optical = integrated(elevation, profile)
    path = beam(elevation, profile=profile, panel_m=panel_m, splits_m=(2_000.0,))
    assert np.sum(path.n_eff * path.d_ell) == pytest.approx(optical, rel=RELATIVE, abs=0)
    # The last node is before the end, so compare with a ray that ends at that node.
    height, distance, _ = integrated(elevation, profile, range_m=float(path.ell[-1]))
    assert path.height_m[-1] == pytest.approx(height, abs=height_tolerance)
    assert path.distance_m[-1] == pytest.approx(distance, abs=height_tolerance)


@pytest.mark.clause("PCS-11")
@given(elevation=st.floats(-0.5, 89), antenna=st.floats(0, 3_300))
def test_a_traced_ray_obeys_bouguer_s_law(elevation: float, antenna: float) -> None:
    path = beam(elevation, profile=Exponential(), antenna_height_m=antenna)
    radius = EARTH_RADIUS_M + path.height_m
    # cos(theta) = r dphi/dl, by finite differences between neighbouring nodes of a fine rule.
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
def test_with_an_effective_earth_the_beam_is_a_straight_line_over_a_larger_sphere(elevation: float) -> None:
    path = beam(elevation, geometry=Geometry.EFFECTIVE_EARTH)
    radius, angle = EFFECTIVE_EARTH_FACTOR * EARTH_RADIUS_M, math.radians(elevation)
    x, y = path.ell * math.cos(angle), radius + path.ell * math.sin(angle)
    assert path.height_m == pytest.approx(400 + np.hypot(x, y) - radius, abs=1e-6)
    assert path.distance_m == pytest.approx(radius * np.arctan2(x, y), abs=1e-5)


def test_beams_traced_together_equal_those_traced_alone() -> None:
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
def test_an_invalid_beam_is_refused(wrong: dict[str, Any]) -> None:
    options: dict[str, Any] = {"elevations_deg": [0.5], "antenna_height_m": 400.0, "range_m": 460_000.0} | wrong
    with pytest.raises(PathError, match="needs"):
        trace(options.pop("elevations_deg"), profile=Exponential(), **options)
    with pytest.raises(PathError, match="does not settle"):
        beam(0.0, profile=Exponential(n0=50_000.0, scale_height_m=100.0))


FACTS = VolumeFacts(site="KICT", antenna_height_m=427.0, elevations_deg=PATTERNS[12], frequency_mhz=2890)


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        # Split cuts repeat an elevation; recorded cuts take precedence over the pattern of the VCP's number.
        ({"nexrad:elevations": [0.483, 0.483, 0.879, 19.512], "nexrad:vcp": 212}, (0.483, 0.879, 19.512)),
        ({"nexrad:elevations": [1.8, 0.5, -0.2]}, (-0.2, 0.5, 1.8)),
        ({"nexrad:elevations": [], "nexrad:vcp": 32}, (0.5, 1.5, 2.5, 3.5, 4.5)),
        # Recorded cuts take precedence over the pattern; a volume can have fewer cuts than its pattern.
        ({"nexrad:elevations": [0.5], "nexrad:pattern-elevations": [0.5, 1.5]}, (0.5,)),
        ({"nexrad:pattern-elevations": [0.5, 1.5], "nexrad:vcp": 212}, (0.5, 1.5)),
        ({"nexrad:vcp": 221}, PATTERNS[21]),
        ({"nexrad:elevations": [0.5, 359.8, 90.1, 90.0, -2.0, -2.1]}, (-2.0, 0.5, 90.0)),
        ({"nexrad:vcp": 99}, ()),
        ({}, ()),
    ],
)
def test_elevations_come_from_the_volume_or_its_pattern(
    properties: dict[str, Any], expected: tuple[float, ...]
) -> None:
    assert elevations_of(properties) == expected


def test_a_volume_without_a_frequency_has_the_middle_of_the_band_with_its_width_as_uncertainty() -> None:
    stated = facts_of({"nexrad:site": "KICT", "nexrad:height-m": 427, "nexrad:vcp": 12, "nexrad:frequency-mhz": 2890})
    assert stated == FACTS
    assert stated.lambda_ref_m == pytest.approx(SPEED_OF_LIGHT_M_S / 2.89e9)
    assert stated.lambda_sigma == pytest.approx(1e-4, rel=0.01, abs=0)
    unstated = facts_of({"nexrad:site": "KTLX", "nexrad:height-m": 389.4, "nexrad:vcp": 21})
    assert 0.100 < unstated.lambda_ref_m < 0.111
    assert unstated.lambda_sigma == pytest.approx(0.030, abs=0.001)
    # A volume without a defined beam is refused.
    for properties in ({"nexrad:height-m": 400}, {"nexrad:vcp": 12}, {}):
        with pytest.raises(PathError, match="define no beam"):
            facts_of(properties)


@pytest.mark.clause("PCS-11")
def test_every_elevation_has_its_arrival_with_a_positive_definite_covariance() -> None:
    result = path_arrival(FACTS, ts_start=START + timedelta(milliseconds=250), reference=START, tau=TAU)
    assert [arrival.elevation_deg for arrival in result.arrivals] == list(FACTS.elevations_deg)
    for arrival, path in zip(result.arrivals, result.beams, strict=True):
        assert arrival.delta_form is DeltaForm.GENERAL
        assert (arrival.extent_m, arrival.time_offset_s) == (RANGE_M, 0.25)
        assert arrival.t_arr_s == pytest.approx(np.sum(path.n_eff * path.d_ell) / SPEED_OF_LIGHT_M_S, rel=1e-14, abs=0)
    # The lower the beam, the longer its way through air.
    times = [arrival.t_arr_s for arrival in result.arrivals]
    assert times == sorted(times, reverse=True)
    assert min(times) > RANGE_M / SPEED_OF_LIGHT_M_S
    assert not covariance_faults(result.t_covariance)
    assert result.phase_covariance.shape == (len(times), 2, 2)
    assert not any(covariance_faults(matrix) for matrix in result.phase_covariance)
    assert np.diag(result.t_covariance) == pytest.approx(result.phase_covariance[:, 0, 0], rel=1e-12, abs=0)


@pytest.mark.clause("PCS-11")
def test_the_beams_of_every_real_volume_since_1991_are_computed(shared_data: Path, reference: dict[str, Any]) -> None:
    arrivals: dict[str, PathArrival] = {}
    for real in real_objects(shared_data, reference, "nexrad-l2"):
        if real.contract is not None:
            header, start = real.read(BytesSource(real.content)), match_of("nexrad-l2", real.key).start
            times = {"ts_start": start, "reference": header.datetime, "tau": nexrad_level2.TIME_TOLERANCE}
            arrivals[Path(real.path).name[:12]] = path_arrival(facts_of(header.properties), **times)
    assert len(arrivals) == 9
    for arrival in arrivals.values():
        assert not covariance_faults(arrival.t_covariance)
    assert arrivals["KTLX19910605"].facts.elevations_deg == PATTERNS[21]
    assert arrivals["KDMX20250101"].facts.lambda_ref_m == pytest.approx(SPEED_OF_LIGHT_M_S / 2.72e9)


def test_options_determine_range_geometry_form_and_least_number_of_points() -> None:
    options = PathOptions(range_m=230_000.0, geometry=Geometry.EFFECTIVE_EARTH, delta_form=DeltaForm.FACTORED)
    result = path_arrival(FACTS, ts_start=START, reference=START, tau=TAU, options=options)
    assert {(a.geometry, a.delta_form, a.extent_m) for a in result.arrivals} == {
        (Geometry.EFFECTIVE_EARTH, DeltaForm.FACTORED, 230_000.0)
    }
    same = {"range_m": 230_000.0, "geometry": Geometry.EFFECTIVE_EARTH, "antenna_height_m": 427.0}
    alone = beam(0.5, profile=options.profile, panel_m=2_500.0, **same)
    assert result.beams[0].height_m == pytest.approx(alone.height_m, abs=1e-6)
    # The default range is the largest radius of a footprint.
    assert PathOptions().range_m == RANGE_M == nexrad_radar.RANGE_M
    with pytest.raises(PathError, match="at least 2000"):
        path_arrival(FACTS, ts_start=START, reference=START, tau=TAU, options=PathOptions(min_points=2_000))


def test_volumes_of_one_site_and_pattern_share_their_beams() -> None:
    results = [
        path_arrival(FACTS, ts_start=START + timedelta(milliseconds=late), reference=START, tau=TAU)
        for late in range(0, 1000, 250)
    ]
    for shared in ("beams", "t_covariance", "phase_covariance"):
        assert len({id(getattr(item, shared)) for item in results}) == 1
    assert [{arrival.time_offset_s for arrival in item.arrivals} for item in results] == [{0.0}, {0.25}, {0.5}, {0.75}]
