"""Uncertainty of arrival times and phases: covariances from the uncertainties of the inputs.

Belongs here: propagation through the Jacobian, and the check that a matrix can be a covariance. Does not belong here:
the consequence of a matrix that fails this check (gate G7).

Errors of the atmosphere and of the clock are the same for all beams of a volume; the error of a target's position
within its range gate is independent by beam. The clock affects only times, the wavelength only phases.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from kfm_dagster.path.refractivity import Exponential, Floats

GATE_M = 250.0
"""Length of a range gate (ICD 2620002, table XVII-B), if the volume does not state it."""
SYMMETRY = 1e-12
"""Maximum difference of two mirrored correlations that counts as rounding."""
LEAST_EIGENVALUE = 1e-12
"""Correlations with a smaller eigenvalue count as singular. The limit exceeds the rounding error of a matrix of some
dozen rows."""

_STEP = 1e-3
"""Relative step of the central differences, whose relative error is about the square of the step, a millionth."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sigmas:
    """Standard uncertainties of the inputs.

    n0 (N-units) and scale_height_m are assumed: about the spread of the monthly means on P.453's charts over the area
    of the NEXRAD network. range_m: of a uniform position within a range gate. clock_s: of a clock error
    that is assumed uniform over 0.1 us.
    """

    n0: float = 30.0
    scale_height_m: float = 500.0
    range_m: float = GATE_M / math.sqrt(12)
    clock_s: float = 1e-7 / math.sqrt(12)


OpticalPaths = Callable[[Exponential], Floats]
"""Function from an atmosphere to the optical paths of all beams of a volume, in metres, shape (beams,)."""


def sensitivities(optical_paths: OpticalPaths, profile: Exponential) -> Floats:
    """Return the derivatives of the optical paths by N0 and by the scale height.

    The bending of the beam is included. Shape (beams, 2), in m per N-unit and m per m; by central differences.
    """
    columns = []
    for name in ("n0", "scale_height_m"):
        value = getattr(profile, name)
        step = _STEP * value
        above, below = (optical_paths(replace(profile, **{name: moved})) for moved in (value + step, value - step))
        columns.append((above - below) / (2 * step))
    return np.stack(columns, axis=-1)


def path_covariance(by_input: Floats, *, end_index: Floats, sigmas: Sigmas) -> Floats:
    """Return the covariance of the optical paths of all beams in m^2, shape (beams, beams).

    by_input: as from `sensitivities`; end_index: refractive index at the end of each beam, shape (beams,).
    """
    scaled = by_input * (sigmas.n0, sigmas.scale_height_m)
    covariance: Floats = scaled @ scaled.T + np.diag((end_index * sigmas.range_m) ** 2)
    return covariance


def atmosphere_sigmas(by_input: Floats, sigmas: Sigmas) -> Floats:
    """Return each optical path's standard uncertainty due to the atmosphere, in metres."""
    deviations: Floats = np.linalg.norm(by_input * (sigmas.n0, sigmas.scale_height_m), axis=1)
    return deviations


def arrival_covariance(of_paths: Floats, *, c_ref_m_s: float, sigmas: Sigmas) -> Floats:
    """Return the covariance of T_arr over the beams of a volume in s^2, shape (beams, beams)."""
    return of_paths / c_ref_m_s**2 + sigmas.clock_s**2


def phase_covariances(
    of_paths: Floats, *, c_ref_m_s: float, lambda_ref_m: float, lambda_sigma: float, phi_rad: Floats, sigmas: Sigmas
) -> Floats:
    """Return the covariance of (T_arr, Phi) of each beam, in s^2, s rad and rad^2.

    Shape (beams, 2, 2). lambda_sigma: relative standard uncertainty of the wavelength; phi_rad: shape (beams,).
    """
    variances = np.diag(of_paths)
    wave_number = 2 * math.pi / lambda_ref_m
    covariances = np.empty((len(variances), 2, 2))
    covariances[:, 0, 0] = variances / c_ref_m_s**2 + sigmas.clock_s**2
    covariances[:, 0, 1] = covariances[:, 1, 0] = variances * wave_number / c_ref_m_s
    covariances[:, 1, 1] = variances * wave_number**2 + (phi_rad * lambda_sigma) ** 2
    return covariances


def covariance_faults(matrix: Floats) -> list[str]:
    """Return the reasons why a matrix cannot be a covariance; an empty list if it can.

    A covariance is symmetric and positive definite. Correlations are checked, so that the rows' units do not matter.
    """
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        return [f"the shape {matrix.shape} is not square"]
    variances = np.diag(matrix)
    if not np.isfinite(matrix).all() or not (variances > 0).all():
        return ["a variance is not above zero, or an entry is not finite"]
    deviations = np.sqrt(variances)
    correlations = matrix / deviations / deviations[:, None]
    if (skew := float(np.max(np.abs(correlations - correlations.T)))) > SYMMETRY:
        return [f"mirrored correlations differ by {skew:.3g}"]
    try:
        np.linalg.cholesky(correlations - LEAST_EIGENVALUE * np.eye(len(matrix)))
    except np.linalg.LinAlgError:
        least = float(np.linalg.eigvalsh(correlations)[0])
        return [f"the least eigenvalue of the correlations is {least:.3g}"]
    return []
