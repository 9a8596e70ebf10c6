"""The geometry of a radar beam: its position by range, gamma(ell), and the elements d ell.

Belongs here: tracing a ray at an elevation angle, by the effective-earth formula or through a profile. The points are
the nodes of a composite Gauss-Legendre rule with the weights d ell, so sum(f * d_ell) integrates f along the beam.
Does not belong here: profiles (`refractivity.py`), the integrands (`arrival.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum, unique
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np

from kfm_dagster.path.refractivity import Floats, PathError, Profile

EARTH_RADIUS_M = 6_371_000.0
"""Mean radius (IUGG: 6371.0088 km; Doviak and Zrnic, and ITU-R P.834, use 6371 km)."""
EFFECTIVE_EARTH_FACTOR = 4 / 3
"""k_e of Doviak and Zrnic (1993), section 2.2.3.1, for the standard gradient of refractivity near the ground."""
MIN_ELEVATION_DEG, MAX_ELEVATION_DEG = -2.0, 90.0
"""Bounds of an elevation, wider than the antenna's (ICD 2620002, table XI: -1 to 45 degrees): 90 is the zenith."""
NODES_PER_PANEL = 8
PANEL_M = 30_000.0
"""Longest panel of the rule. The error of eight nodes grows with the 16th power of (panel length / scale height). At 30
km it is below 1e-15 of the integral of n through the exponential atmosphere, even for a beam to the zenith."""

_SETTLED_M = 1e-8
"""Tracing ends when no height changes by more than this, the rounding error of a path of 500 km."""
_MAX_ROUNDS = 60
"""Each round multiplies the error by less than (length / earth's radius); 500 km take eight rounds."""


@unique
class Geometry(StrEnum):
    """How a beam bends."""

    EFFECTIVE_EARTH = "effective-earth"
    """Straight over an earth with 4/3 of its radius (Doviak and Zrnic, 1993, equations 2.28b and c)."""
    RAY_TRACED = "ray-traced"
    """By Bouguer's law, n r cos(theta) = constant, through the profile's own gradient."""


@dataclass(frozen=True, kw_only=True, eq=False)
class BeamPath:
    """A beam as arrays of shape (points,): position gamma(ell), element d ell, index n_eff(ell).

    ell: metres from the antenna along the beam, ascending. d_ell: metres, the element of each ell; the elements sum to
    extent_m, where the beam ends. height_m: above mean sea level. distance_m: along the ground at sea level. n_eff:
    refractive index, dimensionless. This class does not check the arrays; `arrival.align_path` does.
    """

    elevation_deg: float
    geometry: Geometry
    extent_m: float
    ell: Floats
    d_ell: Floats
    height_m: Floats
    distance_m: Floats
    n_eff: Floats

    @property
    def points(self) -> int:
        """Number of nodes."""
        return len(self.ell)

    @cached_property
    def gamma_ell(self) -> Floats:
        """gamma(ell): shape (points, 2), ground distance and height in metres."""
        return np.stack((self.distance_m, self.height_m), axis=-1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Quadrature:
    """Nodes and weights along the beam, in metres; `ell` and `d_ell` are (panels, nodes)."""

    ell: Floats
    d_ell: Floats
    half_m: Floats
    """Half the length of each panel, shape (panels,)."""

    def integrals(self, values: Floats) -> Floats:
        """Return the integrals from 0 to each node; values and result are (..., panels, nodes)."""
        totals = np.sum(values * self.d_ell, axis=-1)
        before = np.cumsum(totals, axis=-1) - totals
        within = self.half_m[:, None] * (values @ _partial_integrals().T)
        integrals: Floats = before[..., None] + within
        return integrals


def trace(
    elevations_deg: Sequence[float],
    *,
    antenna_height_m: float,
    range_m: float,
    profile: Profile,
    geometry: Geometry = Geometry.RAY_TRACED,
    splits_m: tuple[float, ...] = (),
    panel_m: float = PANEL_M,
) -> tuple[BeamPath, ...]:
    """Trace the beams of an antenna together, up to range_m along each.

    antenna_height_m: of the feedhorn above mean sea level. splits_m: ascending ranges where a panel must end, so that
    integrals can be split there. Raises PathError for an invalid angle, height or range, and if the iteration of a ray
    does not converge.
    """
    angles = np.radians(_checked(elevations_deg, antenna_height_m=antenna_height_m, range_m=range_m, splits_m=splits_m))
    rule = quadrature(range_m, splits_m=splits_m, panel_m=panel_m)
    if geometry is Geometry.EFFECTIVE_EARTH:
        height, distance = _effective_earth(rule.ell, angles[:, None, None], antenna_height_m)
    else:
        # NumPy need not warn of a ray that diverges, because `_ray_traced` raises PathError for it.
        with np.errstate(over="ignore", invalid="ignore"):
            height, distance = _ray_traced(rule, angles[:, None, None], antenna_height_m, profile)
    index = profile(height)
    ell, d_ell = _flat(rule.ell), _flat(rule.d_ell)
    return tuple(
        BeamPath(
            elevation_deg=float(elevation),
            geometry=geometry,
            extent_m=float(range_m),
            ell=ell,
            d_ell=d_ell,
            height_m=_flat(height[beam]),
            distance_m=_flat(distance[beam]),
            n_eff=_flat(index[beam]),
        )
        for beam, elevation in enumerate(elevations_deg)
    )


@lru_cache(maxsize=32)
def quadrature(range_m: float, *, splits_m: tuple[float, ...] = (), panel_m: float = PANEL_M) -> Quadrature:
    """Return the composite rule from 0 to range_m in panels of at most panel_m metres."""
    parts = [0.0, *splits_m, range_m]
    edges = np.concatenate(
        [np.linspace(start, end, math.ceil((end - start) / panel_m) + 1)[:-1] for start, end in pairwise(parts)]
        + [[range_m]]
    )
    nodes, weights = np.polynomial.legendre.leggauss(NODES_PER_PANEL)
    half = np.diff(edges) / 2
    return Quadrature(ell=edges[:-1, None] + half[:, None] * (1 + nodes), d_ell=half[:, None] * weights, half_m=half)


@lru_cache(maxsize=1)
def _partial_integrals() -> Floats:
    """Return A[i, j]: the integral from -1 to node i of the Lagrange polynomial of node j.

    Shape (nodes, nodes). With Legendre polynomials P_k, the polynomial of node j is the sum over k of (k + 1/2) w_j
    P_k(x_j) P_k, because the rule integrates its products with P_k exactly.
    """
    nodes, weights = np.polynomial.legendre.leggauss(NODES_PER_PANEL)
    degrees = np.arange(NODES_PER_PANEL)
    at_nodes = np.polynomial.legendre.legvander(nodes, NODES_PER_PANEL)
    # The integral of P_k from -1 to x is (P_k+1 - P_k-1) / (2k + 1); for P_0 it is 1 + x.
    integrals = np.empty((NODES_PER_PANEL, NODES_PER_PANEL))
    integrals[:, 0] = 1 + nodes
    integrals[:, 1:] = (at_nodes[:, 2:] - at_nodes[:, :-2]) / (2 * degrees[1:] + 1)
    coefficients = (degrees + 0.5)[:, None] * at_nodes[:, :-1].T * weights
    return integrals @ coefficients


def _effective_earth(ell: Floats, angles: Floats, antenna_height_m: float) -> tuple[Floats, Floats]:
    """Return height and distance by Doviak and Zrnic (1993), equations 2.28b and c.

    The height is computed without the difference of two radii, which would lose digits.
    """
    radius = EFFECTIVE_EARTH_FACTOR * EARTH_RADIUS_M
    square = ell * (ell + 2 * radius * np.sin(angles))
    rise = square / (np.sqrt(radius * radius + square) + radius)
    distance = radius * np.arcsin(ell * np.cos(angles) / (radius + rise))
    return antenna_height_m + rise, distance


def _ray_traced(rule: Quadrature, angles: Floats, antenna_height_m: float, profile: Profile) -> tuple[Floats, Floats]:
    """Solve the ray's equations at all nodes together, starting from the effective-earth ray.

    dr/dl = sin(theta), dphi/dl = cos(theta) / r and, from Bouguer's law (n r cos(theta) is constant along the ray,
    Born and Wolf, section 3.2), dtheta/dl = cos(theta) (1/r + n'/n). Unlike a quadrature over height, these equations
    have no singularity at a horizontal beam. If the path is much shorter than the earth's radius, each round of
    Picard's iteration gains more than a digit.
    """
    height, _ = _effective_earth(rule.ell, angles, antenna_height_m)
    angle = np.broadcast_to(angles, height.shape)
    for _ in range(_MAX_ROUNDS):
        radius = EARTH_RADIUS_M + height
        angle = angles + rule.integrals(np.cos(angle) * (1 / radius + profile.gradient(height) / profile(height)))
        next_height = antenna_height_m + rule.integrals(np.sin(angle))
        change = float(np.max(np.abs(next_height - height)))
        height = next_height
        if change <= _SETTLED_M:
            distance = EARTH_RADIUS_M * rule.integrals(np.cos(angle) / (EARTH_RADIUS_M + height))
            return height, distance
    raise PathError(
        "a ray does not settle in this profile",
        observed=f"heights that still change by {change:g} m",
        expected=f"at most {_SETTLED_M:g} m after {_MAX_ROUNDS} rounds",
        next_step="take a shorter range or a profile without ducts",
    )


def _checked(
    elevations_deg: Sequence[float], *, antenna_height_m: float, range_m: float, splits_m: tuple[float, ...]
) -> Floats:
    angles = np.asarray(elevations_deg, dtype=float)
    if not len(angles) or not np.all((angles >= MIN_ELEVATION_DEG) & (angles <= MAX_ELEVATION_DEG)):
        raise PathError(
            "a beam needs an elevation",
            observed=list(elevations_deg),
            expected=f"{MIN_ELEVATION_DEG:g} to {MAX_ELEVATION_DEG:g} degrees",
        )
    if not math.isfinite(antenna_height_m):
        raise PathError("an antenna needs a height", observed=antenna_height_m, expected="metres above the sea")
    if not math.isfinite(range_m) or not all(start < end for start, end in pairwise((0.0, *splits_m, range_m))):
        raise PathError(
            "a beam needs a range",
            observed=f"{range_m} m, split at {list(splits_m)} m",
            expected="a length, and ascending splits within it",
        )
    return angles


def _flat(values: Floats) -> Floats:
    """Return the panels as one read-only array, which the beams of a volume can share."""
    flat = values.reshape(-1)
    flat.flags.writeable = False
    return flat
