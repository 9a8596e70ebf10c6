"""Beams for tests: traced and synthetic ones, and an independent integration of a ray."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from kfm_dagster.path.arrival import PathAligned, TimeAligned, align_path, align_time
from kfm_dagster.path.beam import EARTH_RADIUS_M, BeamPath, Geometry, trace
from kfm_dagster.path.refractivity import Exponential, Profile

START = datetime(2024, 5, 6, 21, 14, 3, tzinfo=UTC)
TAU = timedelta(seconds=60)


def beam(elevation_deg: float = 0.5, *, profile: Profile | None = None, **options: Any) -> BeamPath:
    """Return a beam of an antenna at 400 m, 460 km long, by default through a vacuum."""
    settings = {"antenna_height_m": 400.0, "range_m": 460_000.0, "splits_m": (2_000.0, 2_250.0), **options}
    (path,) = trace([elevation_deg], profile=profile or Exponential(n0=0), **settings)
    return path


def in_time() -> TimeAligned:
    # A sample of 30 km: as long as a panel of the beams here.
    return align_time(ts_start=START, reference=START, tau=TAU, f_s_hz=1e4)


def aligned(path: BeamPath) -> PathAligned:
    return align_path(in_time(), path)


def rectangles(points: int, *, extent_m: float = 1_000.0) -> BeamPath:
    """Return a straight horizontal path in a vacuum, in equal elements."""
    step = np.full(points, extent_m / points)
    ell = (np.arange(points) + 0.5) * extent_m / points
    return BeamPath(
        elevation_deg=0.0,
        geometry=Geometry.EFFECTIVE_EARTH,
        extent_m=extent_m,
        ell=ell,
        d_ell=step,
        height_m=np.zeros(points),
        distance_m=ell,
        n_eff=np.ones(points),
    )


def integrated(
    elevation_deg: float, profile: Profile, *, antenna_height_m: float = 400.0, range_m: float = 460_000.0
) -> tuple[float, float, float]:
    """Return a ray's final height, ground distance and integral of n, computed by DOP853."""

    def equations(_: float, state: np.ndarray) -> list[float]:
        height, angle, _, _ = state
        n = float(profile(np.array([height]))[0])
        slope = float(profile.gradient(np.array([height]))[0])
        radius = EARTH_RADIUS_M + height
        return [np.sin(angle), np.cos(angle) * (1 / radius + slope / n), np.cos(angle) / radius, n - 1]

    begin = [antenna_height_m, np.radians(elevation_deg), 0.0, 0.0]
    from scipy.integrate import solve_ivp

    solved = solve_ivp(equations, (0, range_m), begin, method="DOP853", rtol=1e-12, atol=1e-11, max_step=10_000.0)
    height, _, turned, excess = solved.y[:, -1]
    return height, EARTH_RADIUS_M * turned, range_m + excess
