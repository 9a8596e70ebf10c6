"""sigma_y(tau) against published values and closed forms, and delta_t_abs, from recorded readings."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.telemetry.clock.quality import allan_deviation, clock_quality
from kfm_dagster.telemetry.clock.reading import ClockState
from kfm_dagster_tests.clocks import kernel_reading, server_reading

NIST_SP_1065 = {1: 2.922319e-01, 10: 9.159953e-02, 100: 3.241343e-02}
"""Overlapping Allan deviation of the 1000-point test data, by averaging factor (Riley 2008, 12.4, table 31)."""
START = datetime(2025, 12, 3, tzinfo=UTC)


def nist_phase() -> np.ndarray:
    """Time error of the test data: 1000 frequencies n / (2^31 - 1) of n' = 16807 n mod (2^31 - 1), from 1234567890."""
    n, frequencies = 1234567890, []
    for _ in range(1000):
        frequencies.append(n / 2147483647)
        n = 16807 * n % 2147483647
    return np.concatenate([[0.0], np.cumsum(frequencies)])


@pytest.mark.clause("PCS-17")
def test_sigma_y_of_the_reference_data_is_as_published() -> None:
    for factor, published in NIST_SP_1065.items():
        phase = nist_phase()
        found = allan_deviation(np.arange(1001.0), phase, float(factor))
        assert found.sigma_y == pytest.approx(published, rel=2e-7)
        assert found.terms == 1001 - 2 * factor
        # Hours instead of seconds, and in any order, it is the same clock.
        backwards = allan_deviation(3600 * np.arange(1001.0)[::-1] + 1.7e9, 3600 * phase[::-1], 3600.0 * factor)
        assert backwards.sigma_y == pytest.approx(published, rel=2e-7)


irregular = st.lists(st.floats(0.951, 1.049), min_size=20, max_size=60).map(lambda gaps: np.cumsum(gaps) * 600)


@pytest.mark.clause("PCS-17")
@given(irregular, st.floats(-100, 100), st.floats(-1e-3, 1e-3))
def test_neither_an_offset_nor_a_constant_frequency_is_instability(at: np.ndarray, offset: float, rate: float) -> None:
    for tau in (600.0, 3000.0):
        found = allan_deviation(at, offset + rate * at, tau)
        assert found.terms > 0
        assert found.sigma_y == pytest.approx(0.0, abs=1e-12)


@pytest.mark.clause("PCS-17")
def test_a_linear_drift_gives_d_tau_over_the_root_of_two() -> None:
    for tau in [600.0, 3600.0, 86400.0]:
        drift = 1e-9
        at = np.arange(0.0, 4 * 86400.0, 600.0)
        found = allan_deviation(at, drift * at**2 / 2, tau)
        assert found.sigma_y == pytest.approx(drift * tau / np.sqrt(2), rel=1e-9)


@pytest.mark.clause("PCS-17")
def test_gaps_make_terms_fewer_and_nothing_else() -> None:
    whole = nist_phase()
    kept = np.flatnonzero(np.arange(1001) % 97 > 7)
    found = allan_deviation(kept.astype(float), whole[kept], 5.0)
    present = set(kept.tolist())
    triples = [i for i in range(991) if {i, i + 5, i + 10} <= present]
    expected = np.sqrt(np.mean([(whole[i + 10] - 2 * whole[i + 5] + whole[i]) ** 2 for i in triples]) / 50)
    assert (found.terms, found.sigma_y) == (len(triples), pytest.approx(expected))


def test_fewer_than_three_readings_about_tau_apart_tell_no_stability() -> None:
    for times in ([], [0.0], [0.0, 10.0], [0.0, 10.0, 21.001]):
        stability = allan_deviation(np.array(times), np.zeros(len(times)), 10.0)
        assert (stability.sigma_y, stability.terms) == (None, 0)
    assert allan_deviation(np.array([0.0, 10.0, 21.0]), np.zeros(3), 10.0).terms == 1


@pytest.mark.clause("PCS-17")
def test_each_source_has_its_own_error_and_stability() -> None:
    # The server sees the clock drift by 1e-6 more every hour, the kernel sees nothing.
    drift = 1e-6 / 3600
    readings = [
        one
        for at in (START + timedelta(minutes=minutes) for minutes in range(0, 600, 10))
        for one in (
            kernel_reading(at, ClockState.UNKNOWN, 0.0, 0.5),
            server_reading(at, -drift * (at - START).total_seconds() ** 2 / 2),
            kernel_reading(at, ClockState.UNKNOWN),
        )
    ]
    server, kernel = clock_quality(readings, [timedelta(hours=1), timedelta(days=1)])
    assert (server.source, kernel.source, server.readings, kernel.readings) == ("date:s3", "kernel", 60, 60)
    assert server.last.delta_t_abs == pytest.approx(drift * (590 * 60) ** 2 / 2)
    assert kernel.last.delta_t_abs == 0.0
    assert server.stability[0].sigma_y == pytest.approx(1e-6 / np.sqrt(2))
    assert kernel.stability[0].sigma_y == 0.0
    assert server.stability[1].sigma_y is None
    assert clock_quality([kernel_reading(START, ClockState.UNKNOWN)]) == ()
