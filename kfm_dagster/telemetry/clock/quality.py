"""KPIs of a clock by source: error delta_t_abs, Allan deviation sigma_y(tau) (pure; PCS-17).

allantools is not used: it needs SciPy and matplotlib, and computes sigma_y only of evenly spaced data, but runs are not
evenly spaced. Does not belong here: reading the log, or presentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
from numpy.typing import NDArray

from kfm_dagster.telemetry.clock.reading import ClockReading

TAUS = (timedelta(minutes=10), timedelta(hours=1), timedelta(hours=6), timedelta(days=1))
"""Averaging times to report: from the time between two runs to `tau_calib`."""

TOLERANCE = 0.1
"""Two readings count as tau apart if their distance differs from tau by at most this share of tau."""
RESOLUTION_SECONDS = 1e-6
"""Resolution of the times of readings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stability:
    """Allan deviation (dimensionless) at an averaging time; None if no readings are tau apart."""

    tau_seconds: float
    sigma_y: float | None
    terms: int
    """Pairs of neighbouring frequencies in the mean; a mean of few pairs is unreliable."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockQuality:
    """The quality of a source: its last reading with an offset, its stability by averaging time."""

    source: str
    readings: int
    last: ClockReading
    stability: tuple[Stability, ...]


def clock_quality(readings: Sequence[ClockReading], taus: Sequence[timedelta] = TAUS) -> tuple[ClockQuality, ...]:
    """Summarise a clock's readings by source, alphabetically; leave out sources without offsets.

    Sources are not mixed, because each has its own error, and a change of source would look like an error of the clock.
    """
    by_source: dict[str, list[ClockReading]] = {}
    for reading in readings:
        if reading.offset_seconds is not None:
            by_source.setdefault(reading.source, []).append(reading)
    qualities = []
    for source, of_source in sorted(by_source.items()):
        at = np.array([reading.at.timestamp() for reading in of_source])
        error = np.array([-reading.offset_seconds for reading in of_source if reading.offset_seconds is not None])
        qualities.append(
            ClockQuality(
                source=source,
                readings=len(of_source),
                last=of_source[-1],
                stability=tuple(allan_deviation(at, error, tau.total_seconds()) for tau in taus),
            )
        )
    return tuple(qualities)


def allan_deviation(at: NDArray[np.float64], error: NDArray[np.float64], tau: float) -> Stability:
    """Return the overlapping Allan deviation of a clock's time error.

    `at` has the times of the readings and `error` the clock's lead, both of shape (n,), in seconds and in any order.
    Of several readings at the same time, the first counts. `tau` is in seconds.

    sigma_y^2(tau) = 1/2 <(ybar_2 - ybar_1)^2> over all pairs of neighbouring mean frequencies ybar = dx / dt over tau
    (IEEE Std 1139). Pairs overlap, because one begins at every reading: with evenly spaced data, this is eq. 11 of
    Riley, NIST SP 1065 (2008). Each mean uses its own dt, so that a constant frequency offset cancels even if the
    times are irregular; a gap only reduces the number of terms.
    """
    at, first = np.unique(at, return_index=True)
    error = error[first]
    if at.size < 3:
        return Stability(tau_seconds=tau, sigma_y=None, terms=0)
    middle, has_middle = _nearest(at, at + tau, TOLERANCE * tau)
    end, has_end = _nearest(at, at[middle] + tau, TOLERANCE * tau)
    begin = np.flatnonzero(has_middle & has_end)
    if begin.size == 0:
        return Stability(tau_seconds=tau, sigma_y=None, terms=0)
    middle, end = middle[begin], end[begin]
    frequency_1 = (error[middle] - error[begin]) / (at[middle] - at[begin])
    frequency_2 = (error[end] - error[middle]) / (at[end] - at[middle])
    variance = np.mean((frequency_2 - frequency_1) ** 2) / 2
    return Stability(tau_seconds=tau, sigma_y=float(np.sqrt(variance)), terms=int(begin.size))


def _nearest(
    at: NDArray[np.float64], times: NDArray[np.float64], tolerance: float
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return the index of the reading nearest to each time, and whether it is near enough.

    A time after the last reading is never near enough. Otherwise, evenly spaced data would give more terms
    than the published estimator has.
    """
    after = np.clip(np.searchsorted(at, times), 0, at.size - 1)
    before = np.maximum(after - 1, 0)
    nearest = np.where(np.abs(at[before] - times) <= np.abs(at[after] - times), before, after)
    in_range = times <= at[-1] + RESOLUTION_SECONDS
    return nearest, in_range & (np.abs(at[nearest] - times) <= tolerance)
