"""Covariances: the Jacobian against closed forms, the propagation against draws, and what is no covariance."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.path.arrival import SPEED_OF_LIGHT_M_S
from kfm_dagster.path.beam import BeamPath, Geometry, trace
from kfm_dagster.path.refractivity import Exponential, Floats
from kfm_dagster.path.uncertainty import (
    Sigmas,
    arrival_covariance,
    covariance_faults,
    path_covariance,
    phase_covariances,
    sensitivities,
)

ELEVATIONS = (0.5, 1.3, 4.0, 19.5)
WAVELENGTH_M = 0.103
LAMBDA_SIGMA = 1e-4


def beams_of(profile: Exponential, geometry: Geometry = Geometry.RAY_TRACED) -> list[BeamPath]:
    return trace(ELEVATIONS, antenna_height_m=400.0, range_m=230_000.0, profile=profile, geometry=geometry)


def optical_paths(profile: Exponential, *, geometry: Geometry = Geometry.RAY_TRACED) -> Floats:
    return np.array([np.sum(beam.n_eff * beam.d_ell) for beam in beams_of(profile, geometry)])


def test_the_sensitivities_are_the_derivatives_along_a_path_that_does_not_bend() -> None:
    """Along the effective-earth beam d/dN0 and d/dh0 of the integral of N0 exp(-h / h0) can be written down."""
    profile = Exponential()
    found = sensitivities(partial(optical_paths, geometry=Geometry.EFFECTIVE_EARTH), profile)
    for beam, (by_n0, by_scale) in zip(beams_of(profile, Geometry.EFFECTIVE_EARTH), found, strict=True):
        thinned = 1e-6 * np.exp(-beam.height_m / profile.scale_height_m) * beam.d_ell
        assert by_n0 == pytest.approx(np.sum(thinned), rel=1e-6, abs=0)
        expected = profile.n0 * np.sum(thinned * beam.height_m) / profile.scale_height_m**2
        assert by_scale == pytest.approx(expected, rel=1e-5, abs=0)


def test_a_bent_beam_is_as_sensitive_as_smaller_steps_say() -> None:
    """Bending lets a denser atmosphere keep the beam lower: the sensitivity must have it, checked by other steps."""
    profile = Exponential()
    found = sensitivities(optical_paths, profile)
    for column, (name, step) in enumerate((("n0", 0.05), ("scale_height_m", 2.0))):
        value = getattr(profile, name)
        ways = [optical_paths(replace(profile, **{name: value + turn * step})) for turn in (-2, -1, 1, 2)]
        # Five points, an error of the fourth power of the step.
        expected = (ways[0] - 8 * ways[1] + 8 * ways[2] - ways[3]) / (12 * step)
        assert found[:, column] == pytest.approx(expected, rel=1e-5, abs=0)
    straight = sensitivities(partial(optical_paths, geometry=Geometry.EFFECTIVE_EARTH), profile)
    assert found[0, 0] > straight[0, 0] * 1.01


@pytest.mark.clause("PCS-11")
def test_the_covariance_is_that_of_seeded_draws() -> None:
    """400,000 volumes with inputs drawn at random, through the whole computation."""
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

    # Every draw traced would take a minute: the integral over a grid of atmospheres, interpolated by a quadratic.
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

    # Sampling leaves about 1 / sqrt(400,000) = 0.16 % of two variances, and three times that of a small covariance.
    assert np.cov(times.T) == pytest.approx(of_times, rel=0.02, abs=0)
    for beam in range(len(ELEVATIONS)):
        drawn = np.cov(times[:, beam], phases[:, beam])
        assert np.diag(drawn) == pytest.approx(np.diag(of_phases[beam]), rel=0.01, abs=0)
        correlation = of_phases[beam][0, 1] / math.sqrt(of_phases[beam][0, 0] * of_phases[beam][1, 1])
        assert np.corrcoef(times[:, beam], phases[:, beam])[0, 1] == pytest.approx(correlation, abs=0.03)
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
def test_what_is_no_covariance_says_why(matrix: Floats, fault: str) -> None:
    (found,) = covariance_faults(matrix)
    assert fault in found


@given(data=st.data(), size=st.integers(1, 12))
def test_positive_definiteness_does_not_depend_on_units(data: st.DataObject, size: int) -> None:
    factor = np.array(data.draw(st.lists(st.floats(-1, 1), min_size=size * size, max_size=size * size)))
    scales = 10.0 ** np.array(data.draw(st.lists(st.integers(-9, 9), min_size=size, max_size=size)))
    matrix = factor.reshape(size, size) @ factor.reshape(size, size).T + np.eye(size)
    assert not covariance_faults(matrix * scales * scales[:, None])
    # A row that repeats another carries no information of its own.
    twice = np.block([[matrix, matrix[:, :1]], [matrix[:1], matrix[:1, :1]]])
    assert covariance_faults(twice)
