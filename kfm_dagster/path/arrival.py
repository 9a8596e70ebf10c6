"""Arrival time and phase at a beam's end (Pipeline Card Template, chapter 7, section VIII).

    T_arr = ( ∫ ( n_eff / c_ref ) d ell )            general
    T_arr = ( 1 / c_ref ) * ( ∫ n_eff d ell )        factored
    Phi   = ( 2π / λ_ref ) * ( ∫ n_eff d ell )

All three are for one way, from the antenna to the path's end. ell is the distance along the beam, gamma(ell) is the
position at that distance, n_eff is the refractive index. Three alignments precede the integrals, in this order: time
(the volume's start against its reference time, and the sampling rate f_s), path (gamma(ell), d ell and n_eff), phase
(the reference window). Each step takes the result of the previous step, so that another order is refused.
Belongs here: alignment, refusals, the integrals; plain numbers in SI units. Does not belong here: tracing a path
(`beam.py`), units as values (`quantities.py`), the uncertainty of a result (`uncertainty.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum, unique
from typing import TypeVar

import numpy as np

from kfm_dagster.path.beam import BeamPath, Geometry
from kfm_dagster.path.refractivity import PathError

SPEED_OF_LIGHT_M_S = 299_792_458.0
"""In vacuum, exact (SI brochure, 9th edition, section 2.2)."""
MIN_POINTS = 2
"""Least number of a path's elements (Pipeline Card Template, chapter 7, section II)."""
MIN_INDEX = 1 - 1e-9
"""n_eff of air is at least 1 (ITU-R P.453-14: N >= 0), except for rounding."""
CLOSURE = 1e-9
"""Tolerance as a share of the path's length: for the sum of the elements, a point outside its element, and the ends of
the reference window."""

_Step = TypeVar("_Step")


@unique
class DeltaForm(StrEnum):
    """Form of the computation of T_arr."""

    GENERAL = "general"
    """c_ref is within the integral."""
    FACTORED = "factored"
    """c_ref is constant along the path and precedes the integral."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeAligned:
    """First step: the offset of a volume's start from its reference time, and the sampling rate."""

    offset_s: float
    """Seconds from the reference time to the start."""
    f_s_hz: float
    """Echo samples per second."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PathAligned:
    """Second step: a path whose arrays agree."""

    time: TimeAligned
    path: BeamPath


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseAligned:
    """Third step: a path with its reference window, over which the mean of the phase is zero."""

    aligned: PathAligned
    lambda_ref_m: float
    reference_window_m: tuple[float, float]
    """Begin and end of the window, from the antenna."""
    elements_before: int
    """Number of the path's elements before the window."""
    elements_within: int
    """Number of the path's elements within the window."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrival:
    """Arrival at the end of a beam; SI units, angles in radians."""

    elevation_deg: float
    geometry: Geometry
    delta_form: DeltaForm
    extent_m: float
    c_ref_m_s: float
    lambda_ref_m: float
    reference_window_m: tuple[float, float]
    time_offset_s: float
    f_s_hz: float
    optical_path_m: float
    """∫ n_eff d ell."""
    t_arr_s: float
    phi_rad: float
    phi_aligned_rad: float
    """Phi minus its mean over the reference window, modulo 2π: in [0, 2π)."""


def align_time(*, ts_start: datetime, reference: datetime, tau: timedelta, f_s_hz: float) -> TimeAligned:
    """Align the time. Raises PathError for naive times, an offset above tau or a wrong f_s."""
    if not (math.isfinite(f_s_hz) and f_s_hz > 0):
        raise PathError("f_s is not a sampling rate", observed=f_s_hz, expected="hertz above zero")
    if ts_start.tzinfo is None or reference.tzinfo is None:
        raise PathError("a path can only be aligned to times with a zone", observed=f"{ts_start} and {reference}")
    aligned = TimeAligned(offset_s=(ts_start - reference).total_seconds(), f_s_hz=f_s_hz)
    if abs(aligned.offset_s) > tau.total_seconds():
        raise PathError(
            "the path's time differs from its reference time",
            observed=f"{aligned.offset_s:g} s apart",
            expected=f"at most {tau.total_seconds():g} s",
            next_step="check the volume's clock",
        )
    return aligned


def align_path(
    time: TimeAligned, path: BeamPath, *, min_points: int = MIN_POINTS, c_ref_m_s: float = SPEED_OF_LIGHT_M_S
) -> PathAligned:
    """Align the path, the second step. Raises PathError with the `path_faults`, if any."""
    sample_m = c_ref_m_s / _after(time, TimeAligned).f_s_hz
    if faults := path_faults(path, min_points=min_points, sample_m=sample_m):
        raise PathError(
            f"the path at {path.elevation_deg:g} degrees is not aligned",
            observed="; ".join(faults),
            expected="gamma(ell), d ell and n_eff at the same points of one beam",
        )
    return PathAligned(time=time, path=path)


def align_phase(aligned: PathAligned, *, lambda_ref_m: float, reference_window_m: tuple[float, float]) -> PhaseAligned:
    """Align the phase, the third step, to a mean of zero over the reference window.

    Raises PathError for an invalid wavelength, and for a window that is empty or splits an element.
    """
    path = _after(aligned, PathAligned).path
    if not (math.isfinite(lambda_ref_m) and lambda_ref_m > 0):
        raise PathError("lambda_ref is not a wavelength", observed=lambda_ref_m, expected="metres above zero")
    edges = np.concatenate(([0.0], np.cumsum(path.d_ell)))
    first, last = (int(np.argmin(np.abs(edges - range_m))) for range_m in reference_window_m)
    splits = max(abs(edges[first] - reference_window_m[0]), abs(edges[last] - reference_window_m[1]))
    if not (first < last and splits <= CLOSURE * path.extent_m):
        raise PathError(
            "the reference window does not consist of whole elements of the path",
            observed=f"{reference_window_m} m; the nearest elements begin at {edges[first]:g} and end at "
            f"{edges[last]:g} m",
            next_step="trace the beam with splits_m at the window's begin and end",
        )
    return PhaseAligned(
        aligned=aligned,
        lambda_ref_m=lambda_ref_m,
        reference_window_m=reference_window_m,
        elements_before=first,
        elements_within=last - first,
    )


def arrive(
    aligned: PhaseAligned,
    *,
    c_ref_m_s: float = SPEED_OF_LIGHT_M_S,
    delta_form: DeltaForm = DeltaForm.GENERAL,
) -> Arrival:
    """Return T_arr and Phi of a path. Raises PathError for steps out of order, an invalid c_ref."""
    phase = _after(aligned, PhaseAligned)
    if not (math.isfinite(c_ref_m_s) and c_ref_m_s > 0):
        raise PathError("c_ref is not a speed", observed=c_ref_m_s, expected="metres per second above zero")
    path = phase.aligned.path
    optical = path.n_eff * path.d_ell
    total, wave_number = float(optical.sum()), 2 * math.pi / phase.lambda_ref_m
    general = float(np.sum((path.n_eff / c_ref_m_s) * path.d_ell))
    first, last = phase.elements_before, phase.elements_before + phase.elements_within
    begin, end = phase.reference_window_m
    # Share of each element's phase that remains after subtracting the mean: 0 before the window, the element's
    # position (0 to 1) within it, 1 after it.
    share = (path.ell[first:last] - begin) / (end - begin)
    remaining = float(np.sum(share * optical[first:last]) + optical[last:].sum())
    return Arrival(
        elevation_deg=path.elevation_deg,
        geometry=path.geometry,
        delta_form=delta_form,
        extent_m=path.extent_m,
        c_ref_m_s=c_ref_m_s,
        lambda_ref_m=phase.lambda_ref_m,
        reference_window_m=phase.reference_window_m,
        time_offset_s=phase.aligned.time.offset_s,
        f_s_hz=phase.aligned.time.f_s_hz,
        optical_path_m=total,
        t_arr_s=general if delta_form is DeltaForm.GENERAL else (1 / c_ref_m_s) * total,
        phi_rad=wave_number * total,
        phi_aligned_rad=(wave_number * remaining) % (2 * math.pi),
    )


def path_faults(path: BeamPath, *, min_points: int = MIN_POINTS, sample_m: float = math.inf) -> list[str]:
    """Return the faults of a path's arrays as texts; an empty list if the arrays agree.

    sample_m: c_ref / f_s, the distance that light travels in a vacuum during a sample. No element may be longer than
    the distance that light travels along the path during a sample: max(d ell) <= ( c_ref / f_s ) / max(n_eff)
    (Experimental Protocol Card Template v1.0, chapter 3, section III).
    """
    lengths = {
        "gamma_ell": {path.height_m.shape, path.distance_m.shape},
        "d_ell": {path.d_ell.shape},
        "n_eff": {path.n_eff.shape},
        "ell": {path.ell.shape},
    }
    if len(set().union(*lengths.values())) > 1 or path.ell.ndim != 1:
        shapes_text = ", ".join(f"{name} {'/'.join(map(str, sorted(shapes)))}" for name, shapes in lengths.items())
        return [f"shapes differ: {shapes_text}"]
    if path.points < min_points:
        return [f"{path.points} points; at least {min_points} make a path"]
    if faults := _values_at_fault(path):
        return faults
    longest, most = float(np.max(path.d_ell)), sample_m / float(np.max(path.n_eff))
    too_long = [f"a d_ell of {longest:g} m; f_s allows {most:g} m at most"] if longest > most else []
    return [*_order_at_fault(path), *too_long]


def _values_at_fault(path: BeamPath) -> list[str]:
    d_ell, n_eff = path.d_ell, path.n_eff
    bad = {
        "points whose d_ell is not a length": ~(np.isfinite(d_ell) & (d_ell > 0)),
        "points whose n_eff is not an index of air": ~(np.isfinite(n_eff) & (n_eff >= MIN_INDEX)),
        "points whose gamma_ell or ell is not a position": ~np.isfinite(path.height_m + path.distance_m + path.ell),
    }
    return [f"{int(points.sum())} {fault}" for fault, points in bad.items() if points.any()]


def _order_at_fault(path: BeamPath) -> list[str]:
    """Return the faults of the order of ell: each ell must be within its own element d ell.

    This holds for the rules of rectangles and trapezoids, and for a Gauss rule by the separation theorem of Chebyshev,
    Markov and Stieltjes (Szego, Orthogonal Polynomials, section 3.41).
    """
    faults = []
    ends = np.cumsum(path.d_ell)
    slack = CLOSURE * abs(path.extent_m)
    if not np.all(np.diff(path.ell) > 0):
        faults.append("ell does not ascend")
    if outside := int(np.sum((path.ell < ends - path.d_ell - slack) | (path.ell > ends + slack))):
        faults.append(f"{outside} points of ell outside of their own d_ell")
    if not abs(ends[-1] - path.extent_m) <= slack:
        faults.append(f"d_ell sums to {ends[-1]:.12g} m; the path has {path.extent_m:.12g} m")
    return faults


def _after(step: object, kind: type[_Step]) -> _Step:
    if not isinstance(step, kind):
        raise PathError(
            "a path is aligned out of order",
            observed=type(step).__name__,
            expected=f"{kind.__name__}; the order is time, path, phase",
        )
    return step
