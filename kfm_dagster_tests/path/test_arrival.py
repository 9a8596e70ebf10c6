"""Arrival times and phases: closed forms, order of alignment, refusals, covariances."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.path.arrival import (
    MIN_INDEX,
    MIN_POINTS,
    SPEED_OF_LIGHT_M_S,
    Arrival,
    DeltaForm,
    align_path,
    align_phase,
    align_time,
    arrive,
    path_faults,
)
from kfm_dagster.path.beam import BeamPath, Geometry, trace
from kfm_dagster.path.quantities import EQUATIONS, QUANTITIES, DimensionalEntry, as_array_quantities, dimensional_report
from kfm_dagster.path.refractivity import Exponential, Floats, PathError
from kfm_dagster.path.uncertainty import (
    Sigmas,
    arrival_covariance,
    covariance_faults,
    path_covariance,
    phase_covariances,
    sensitivities,
)
from kfm_dagster_tests.path.beams import START, TAU, aligned, beam, in_time, rectangles

WAVELENGTH_M = 0.103
RELATIVE = 1e-9


def arrival(path: BeamPath, **options: Any) -> Arrival:
    phase = align_phase(aligned(path), lambda_ref_m=WAVELENGTH_M, reference_window_m=(2_000.0, 2_250.0))
    return arrive(phase, **options)


# --- closed forms


@pytest.mark.clause("PCS-11")
@given(
    refractivity=st.floats(0, 450),
    length=st.floats(10_000, 460_000),
    elevation=st.floats(-0.5, 90),
    geometry=st.sampled_from(Geometry),
)
def test_in_a_constant_medium_the_time_is_the_optical_path_divided_by_the_speed_of_light(
    refractivity: float, length: float, elevation: float, geometry: Geometry
) -> None:
    path = beam(
        elevation, profile=Exponential(n0=refractivity, scale_height_m=math.inf), range_m=length, geometry=geometry
    )
    result = arrival(path)
    optical = (1 + refractivity * 1e-6) * length
    assert result.t_arr_s == pytest.approx(optical / SPEED_OF_LIGHT_M_S, rel=1e-13, abs=0)
    assert result.phi_rad == pytest.approx(2 * math.pi * optical / WAVELENGTH_M, rel=1e-13, abs=0)
    beyond = 2 * math.pi * (optical - (1 + refractivity * 1e-6) * 2_125) / WAVELENGTH_M
    assert math.remainder(result.phi_aligned_rad - beyond, 2 * math.pi) == pytest.approx(0, abs=1e-5)
    assert 0 <= result.phi_aligned_rad < 2 * math.pi


@pytest.mark.clause("PCS-11")
@given(elevation=st.floats(-0.5, 90), c_ref=st.floats(1e8, 3e8), n0=st.floats(0, 450))
def test_both_forms_give_the_same_time_and_each_result_names_its_form(
    elevation: float, c_ref: float, n0: float
) -> None:
    path = beam(elevation, profile=Exponential(n0=n0))
    general, factored = (arrival(path, c_ref_m_s=c_ref, delta_form=form) for form in DeltaForm)
    assert (general.delta_form, factored.delta_form) == (DeltaForm.GENERAL, DeltaForm.FACTORED)
    assert general.t_arr_s == pytest.approx(factored.t_arr_s, rel=1e-12, abs=0)
    assert general.t_arr_s == pytest.approx(general.optical_path_m / c_ref, rel=1e-12, abs=0)


# --- the order of alignment


@pytest.mark.clause("PCS-11")
@pytest.mark.parametrize(
    "out_of_order",
    [
        lambda: align_path(START, rectangles(4)),
        lambda: align_path(aligned(rectangles(4)), rectangles(4)),
        lambda: align_phase(in_time(), lambda_ref_m=0.1, reference_window_m=(500.0, 750.0)),
        lambda: align_phase(rectangles(4), lambda_ref_m=0.1, reference_window_m=(500.0, 750.0)),
        lambda: arrive(aligned(rectangles(4))),
        lambda: arrive(in_time()),
        lambda: arrive(rectangles(4)),
    ],
    ids=["path first", "path twice", "phase after time", "phase first", "phase left out", "path left out", "unaligned"],
)
def test_any_order_other_than_time_path_phase_is_refused(out_of_order: Callable[[], Any]) -> None:
    with pytest.raises(PathError, match="the order is time, path, phase"):
        out_of_order()


@pytest.mark.clause("PCS-11")
def test_a_volume_outside_its_time_window_is_refused() -> None:
    for away, more in ((TAU, timedelta(milliseconds=1)), (-TAU, -timedelta(milliseconds=1))):
        sound = align_time(ts_start=START + away, reference=START, tau=TAU, f_s_hz=1e4)
        assert sound.offset_s == away.total_seconds()
        with pytest.raises(PathError, match="at most 60 s"):
            align_time(ts_start=START + away + more, reference=START, tau=TAU, f_s_hz=1e4)
    with pytest.raises(PathError, match="times with a zone"):
        align_time(ts_start=datetime(2024, 5, 6), reference=START, tau=TAU, f_s_hz=1e4)  # noqa: DTZ001, that is the point


# --- refusals


def _moved(values: np.ndarray, value: float) -> np.ndarray:
    copy = values.copy()
    copy[1] = value
    return copy


GOOD = rectangles(8)
ARRAYS = ("ell", "d_ell", "height_m", "distance_m", "n_eff")
FAULTS: dict[str, tuple[BeamPath, str]] = {
    "d_ell shorter": (replace(GOOD, d_ell=GOOD.d_ell[:-1]), "shapes differ"),
    "n_eff longer": (replace(GOOD, n_eff=np.ones(9)), "shapes differ"),
    "gamma shorter": (replace(GOOD, height_m=GOOD.height_m[:-1]), "shapes differ"),
    "ell of two dimensions": (replace(GOOD, ell=GOOD.ell.reshape(2, 4)), "shapes differ"),
    "all of two dimensions": (
        replace(GOOD, **{name: getattr(GOOD, name).reshape(2, 4) for name in ARRAYS}), "shapes differ",
    ),
    "one point": (rectangles(1), "at least 2"),
    "no point": (replace(GOOD, **dict.fromkeys(ARRAYS, np.array([]))), "at least 2"),
    "d_ell of zero": (replace(GOOD, d_ell=_moved(GOOD.d_ell, 0.0)), "d_ell is not a length"),
    "d_ell backwards": (replace(GOOD, d_ell=_moved(GOOD.d_ell, -125.0)), "d_ell is not a length"),
    "d_ell not a number": (replace(GOOD, d_ell=_moved(GOOD.d_ell, math.nan)), "d_ell is not a length"),
    "d_ell infinite": (replace(GOOD, d_ell=_moved(GOOD.d_ell, math.inf)), "d_ell is not a length"),
    "n_eff below one": (replace(GOOD, n_eff=_moved(GOOD.n_eff, math.nextafter(MIN_INDEX, 0))), "not an index of air"),
    "n_eff not a number": (replace(GOOD, n_eff=_moved(GOOD.n_eff, math.nan)), "not an index of air"),
    "n_eff infinite": (replace(GOOD, n_eff=_moved(GOOD.n_eff, math.inf)), "not an index of air"),
    "gamma not a number": (replace(GOOD, distance_m=_moved(GOOD.distance_m, math.nan)), "ell is not a position"),
    "ell descends": (replace(GOOD, ell=GOOD.ell[::-1].copy()), "does not ascend"),
    "ell twice": (replace(GOOD, ell=_moved(GOOD.ell, float(GOOD.ell[0]))), "does not ascend"),
    "ell out of its element": (replace(GOOD, ell=GOOD.ell + 125.0), "outside of their own d_ell"),
    "elements that do not close": (replace(GOOD, extent_m=1_001.0), "d_ell sums to 1000 m"),
}  # fmt: skip


@pytest.mark.clause("PCS-11")
@pytest.mark.parametrize(("path", "fault"), FAULTS.values(), ids=FAULTS)
def test_arrays_that_are_not_a_path_are_refused(path: BeamPath, fault: str) -> None:
    for sound in (GOOD, rectangles(MIN_POINTS), replace(GOOD, n_eff=_moved(GOOD.n_eff, MIN_INDEX))):
        assert path_faults(sound) == []
    with pytest.raises(PathError, match=fault):
        align_path(in_time(), path)


@pytest.mark.clause("PCS-11")
@given(data=st.data(), elevation=st.floats(-0.5, 90))
def test_elements_inconsistent_with_their_points_are_detected(data: st.DataObject, elevation: float) -> None:
    path = beam(elevation, profile=Exponential())
    assert path_faults(path) == []
    shift = data.draw(st.integers(1, path.points - 1))
    assert path_faults(replace(path, d_ell=np.roll(path.d_ell, shift)))


@pytest.mark.clause("PCS-22")
@pytest.mark.parametrize(
    "window", [(400.0, 750.0), (500.0, 700.0), (500.0, 500.0), (750.0, 500.0), (-1.0, 500.0), (0.0, math.nan)]
)
def test_a_reference_window_that_does_not_consist_of_whole_elements_is_refused(window: tuple[float, float]) -> None:
    sound = align_phase(aligned(GOOD), lambda_ref_m=0.1, reference_window_m=(500.0, 750.0))
    assert (sound.elements_before, sound.elements_within) == (4, 2)
    with pytest.raises(PathError, match="reference window"):
        align_phase(aligned(GOOD), lambda_ref_m=0.1, reference_window_m=window)


@pytest.mark.clause("PCS-11", "PCS-22")
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_an_invalid_sampling_rate_wavelength_or_speed_is_refused(value: float) -> None:
    with pytest.raises(PathError, match="f_s is not a sampling rate"):
        align_time(ts_start=START, reference=START, tau=TAU, f_s_hz=value)
    with pytest.raises(PathError, match="lambda_ref"):
        align_phase(aligned(GOOD), lambda_ref_m=value, reference_window_m=(500.0, 750.0))
    with pytest.raises(PathError, match="c_ref"):
        arrive(align_phase(aligned(GOOD), lambda_ref_m=0.1, reference_window_m=(500.0, 750.0)), c_ref_m_s=value)


@pytest.mark.clause("PCS-22")
def test_an_element_longer_than_light_travels_in_a_sample_is_refused() -> None:
    dense = replace(GOOD, n_eff=np.full(GOOD.points, 1.25))
    # Elements of 125 m: in a vacuum at most c / 125 m samples a second, and less where the index is larger.
    for path, most in ((GOOD, SPEED_OF_LIGHT_M_S / 125), (dense, SPEED_OF_LIGHT_M_S / (1.25 * 125))):
        for rate, is_sound in ((most * 0.999, True), (most * 1.001, False)):
            time = align_time(ts_start=START, reference=START, tau=TAU, f_s_hz=rate)
            if is_sound:
                assert align_path(time, path).time.f_s_hz == rate
                continue
            with pytest.raises(PathError, match="a d_ell of 125 m; f_s allows"):
                align_path(time, path)


# --- units of measure


@pytest.mark.clause("PCS-11")
@pytest.mark.clause("PCS-12")
def test_results_have_units_of_measure_and_their_dimensions_close() -> None:
    result = arrival(beam(0.5, profile=Exponential()))
    quantities = as_array_quantities([result, result])
    assert quantities.keys() == QUANTITIES.keys()
    assert quantities["T_arr"].to("microsecond").magnitude[0] == pytest.approx(1534.63, abs=0.01)
    assert quantities["Phi"].to("turn").magnitude[0] == pytest.approx(
        result.optical_path_m / WAVELENGTH_M, rel=1e-12, abs=0
    )
    assert quantities["T_arr"].to("s").magnitude.tolist() == [result.t_arr_s] * 2
    report = dimensional_report(quantities)
    assert len(report) == len(QUANTITIES) + len(EQUATIONS)
    assert all(entry.ok for entry in report)
    assert report[0] == DimensionalEntry(quantity="T_arr", unit="s", expected="[time]", observed="[time]")


@pytest.mark.clause("PCS-12")
def test_a_quantity_of_another_dimension_fails_the_report() -> None:
    import pint

    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({"T_arr": pint.Quantity(1.0, "m")}, {"T_arr"}),
        ({"Phi": pint.Quantity(1.0, "m")}, {"Phi"}),
        # A speed in metres breaks the dimension of every equation of time.
        ({"c_ref": pint.Quantity(3e8, "m")}, {"c_ref", *(f"T_arr = {right}" for right in list(EQUATIONS)[:2])}),
        ({"lambda_ref": 0.1}, {"lambda_ref", *(f"{left} = {right}" for right, left in EQUATIONS.items())}),
        ({"T_arr": None}, {"T_arr"}),
        ({"beam_width": pint.Quantity(1.0, "degree")}, {"beam_width"}),
    ]
    for wrong, failing in cases:
        quantities = as_array_quantities([arrival(beam(0.5))]) | wrong
        report = dimensional_report({name: value for name, value in quantities.items() if value is not None})
        assert {entry.quantity for entry in report if not entry.ok} == failing


ELEVATIONS = (0.5, 1.3, 4.0, 19.5)
LAMBDA_SIGMA = 1e-4


def beams_of(profile: Exponential, geometry: Geometry = Geometry.RAY_TRACED) -> list[BeamPath]:
    return trace(ELEVATIONS, antenna_height_m=400.0, range_m=230_000.0, profile=profile, geometry=geometry)


def optical_paths(profile: Exponential, *, geometry: Geometry = Geometry.RAY_TRACED) -> Floats:
    return np.array([np.sum(beam.n_eff * beam.d_ell) for beam in beams_of(profile, geometry)])


def test_a_bent_beam_s_sensitivities_equal_those_of_smaller_steps() -> None:
    """A denser atmosphere bends the beam lower, which the sensitivity must include."""
    profile = Exponential()
    derivatives = sensitivities(optical_paths, profile)
    for column, (name, step) in enumerate((("n0", 0.05), ("scale_height_m", 2.0))):
        value = getattr(profile, name)
        paths = [optical_paths(replace(profile, **{name: value + turn * step})) for turn in (-2, -1, 1, 2)]
        # The five-point rule, with an error of the fourth power of the step.
        expected = (paths[0] - 8 * paths[1] + 8 * paths[2] - paths[3]) / (12 * step)
        assert derivatives[:, column] == pytest.approx(expected, rel=1e-5, abs=0)
    straight = sensitivities(partial(optical_paths, geometry=Geometry.EFFECTIVE_EARTH), profile)
    assert derivatives[0, 0] > straight[0, 0] * 1.01


@pytest.mark.clause("PCS-11")
def test_the_computed_covariance_equals_that_of_seeded_draws() -> None:
    """Draw 400,000 volumes with random inputs, and compute their arrivals."""
    draws, random = 400_000, np.random.default_rng(20240506)
    sigmas = Sigmas(n0=3.0, scale_height_m=50.0, range_m=2.0, clock_s=5e-9)
    profile = Exponential()
    paths = optical_paths(profile)
    ends = np.array([beam.n_eff[-1] for beam in beams_of(profile)])
    of_paths = path_covariance(sensitivities(optical_paths, profile), end_index=ends, sigmas=sigmas)
    of_times = arrival_covariance(of_paths, c_ref_m_s=SPEED_OF_LIGHT_M_S, sigmas=sigmas)
    of_phases = phase_covariances(
        of_paths,
        c_ref_m_s=SPEED_OF_LIGHT_M_S,
        lambda_ref_m=WAVELENGTH_M,
        lambda_sigma=LAMBDA_SIGMA,
        phi_rad=2 * math.pi * paths / WAVELENGTH_M,
        sigmas=sigmas,
    )

    # Tracing every draw takes a minute, so integrals on a grid of atmospheres are interpolated quadratically.
    n0 = random.normal(profile.n0, sigmas.n0, draws)
    scale = random.normal(profile.scale_height_m, sigmas.scale_height_m, draws)
    x, y = (n0 - profile.n0) / sigmas.n0, (scale - profile.scale_height_m) / sigmas.scale_height_m
    grid = [(i, j) for i in (-2, 0, 2) for j in (-2, 0, 2)]
    rows = np.array([[1, i, j, i * i, i * j, j * j] for i, j in grid], dtype=float)
    moved = [(profile.n0 + i * sigmas.n0, profile.scale_height_m + j * sigmas.scale_height_m) for i, j in grid]
    answers = np.array([optical_paths(Exponential(n0=value, scale_height_m=height)) for value, height in moved])
    coefficients, *_ = np.linalg.lstsq(rows, answers, rcond=None)
    lengths = np.stack([np.ones(draws), x, y, x * x, x * y, y * y], axis=1) @ coefficients
    lengths += random.normal(0, sigmas.range_m, lengths.shape) * ends
    times = lengths / SPEED_OF_LIGHT_M_S + random.normal(0, sigmas.clock_s, draws)[:, None]
    wavelengths = WAVELENGTH_M * (1 + random.normal(0, LAMBDA_SIGMA, draws))
    phases = 2 * math.pi * lengths / wavelengths[:, None]

    # The sampling error is about sqrt(2 / 400,000) = 0.22 % for variances, and larger for small covariances.
    assert np.cov(times.T) == pytest.approx(of_times, rel=0.02, abs=0)
    for number in range(len(ELEVATIONS)):
        drawn = np.cov(times[:, number], phases[:, number])
        assert np.diag(drawn) == pytest.approx(np.diag(of_phases[number]), rel=0.01, abs=0)
        correlation = of_phases[number][0, 1] / math.sqrt(of_phases[number][0, 0] * of_phases[number][1, 1])
        assert np.corrcoef(times[:, number], phases[:, number])[0, 1] == pytest.approx(correlation, abs=0.03)
    assert not covariance_faults(of_times)
    assert not any(covariance_faults(matrix) for matrix in of_phases)


@pytest.mark.parametrize(
    ("matrix", "fault"),
    [
        (np.array([[4.0, 2.0], [2.0, 1.0]]), "least eigenvalue"),
        (np.array([[1.0, 2.0], [2.0, 1.0]]), "least eigenvalue"),
        (np.array([[1.0, 0.5], [0.4, 1.0]]), "mirrored"),
        (np.array([[0.0, 0.0], [0.0, 1.0]]), "above zero"),
        (np.array([[-1.0, 0.0], [0.0, 1.0]]), "above zero"),
        (np.array([[1.0, math.nan], [math.nan, 1.0]]), "not finite"),
        (np.ones((2, 3)), "not square"),
        (np.ones(3), "not square"),
        (np.empty((0, 0)), "not square"),
    ],
)
def test_the_fault_of_an_invalid_covariance_is_named(matrix: Floats, fault: str) -> None:
    (message,) = covariance_faults(matrix)
    assert fault in message


@given(data=st.data(), size=st.integers(1, 12))
def test_positive_definiteness_does_not_depend_on_units_of_measure(data: st.DataObject, size: int) -> None:
    factor = np.array(data.draw(st.lists(st.floats(-1, 1), min_size=size * size, max_size=size * size)))
    scales = 10.0 ** np.array(data.draw(st.lists(st.integers(-9, 9), min_size=size, max_size=size)))
    matrix = factor.reshape(size, size) @ factor.reshape(size, size).T + np.eye(size)
    assert not covariance_faults(matrix * scales * scales[:, None])
    # A repeated row makes the matrix singular.
    twice = np.block([[matrix, matrix[:, :1]], [matrix[:1], matrix[:1, :1]]])
    assert covariance_faults(twice)
