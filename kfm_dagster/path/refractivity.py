"""Radio refractivity of the atmosphere by height: the profiles for tracing a beam.

Belongs here: n and its gradient as functions of height, from ITU-R recommendations P.453-14 (08/2019) and P.835-6
(12/2017). Does not belong here: tracing a beam through a profile (`beam.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfm_dagster.errors import KfmError


class PathError(KfmError):
    """The inputs of a beam's path are invalid, or its path cannot be computed."""


Floats = NDArray[np.float64]

REFERENCE_N0 = 315.0
"""N-units: mean refractivity of the atmosphere, extrapolated to sea level (P.453-14, Annex 1, section 2.1)."""
REFERENCE_SCALE_HEIGHT_M = 7350.0
"""Scale height for REFERENCE_N0 (P.453-14, Annex 1, section 2.1). Both values hold for terrestrial paths."""

_N_UNIT = 1e-6
"""n = 1 + N * 1e-6 (P.453-14, Annex 1, section 1)."""
_COMPLEX_STEP_M = 1e-20
"""Step of a complex-step derivative, which has no cancellation: with so small a step it is exact to rounding."""

_GEOPOTENTIAL_KM = 6356.766
_LAYERS: tuple[tuple[float, float, float, float], ...] = (
    (0.0, 288.15, -6.5, 1013.25),
    (11.0, 216.65, 0.0, 226.3226),
    (20.0, 216.65, 1.0, 54.74980),
    (32.0, 228.65, 2.8, 8.680422),
    (47.0, 270.65, 0.0, 1.109106),
    (51.0, 270.65, -2.8, 0.6694167),
    (71.0, 214.65, -2.0, 0.03956649),
)
"""Base in geopotential km, temperature in K, its gradient in K/km, pressure in hPa (P.835-6, Annex 1, section 1.1)."""
_HYDROSTATIC = 34.1632
"""K/km: gravity over the gas constant of dry air (P.835-6, Annex 1, equations 3a to 3g)."""
_UPPER_KM, _TOP_KM = 86.0, 100.0
"""Geometric heights of the second regime (P.835-6, Annex 1, section 1.1)."""
_UPPER_PRESSURE = (95.571899, -4.011801, 6.424731e-2, -4.789660e-4, 1.340543e-6)
"""Coefficients of the pressure's logarithm over km, lowest power first (P.835-6, Annex 1, equation 5)."""
_VAPOUR_G_M3, _VAPOUR_SCALE_KM = 7.5, 2.0
"""Water vapour density at sea level and its scale height (P.835-6, Annex 1, section 1.2)."""
_MIN_MIXING_RATIO = 2e-6
"""Minimum ratio of vapour pressure to total pressure; above the height where the ratio reaches this value, it stays
constant (P.835-6, Annex 1, section 1.2)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exponential:
    """N(h) = N0 * exp(-h / h0), the reference atmosphere for refraction.

    P.453-14, Annex 1, section 2.1. n0 in N-units, scale_height_m in metres.
    """

    n0: float = REFERENCE_N0
    scale_height_m: float = REFERENCE_SCALE_HEIGHT_M

    def __call__(self, height_m: Floats) -> Floats:
        """Return n."""
        return 1 + self._excess(height_m)

    def gradient(self, height_m: Floats) -> Floats:
        """Return dn/dh."""
        return -self._excess(height_m) / self.scale_height_m

    def _excess(self, height_m: Floats) -> Floats:
        return self.n0 * _N_UNIT * np.exp(-height_m / self.scale_height_m)


@dataclass(frozen=True, kw_only=True, slots=True)
class MeanAnnualGlobal:
    """P.835's mean annual global reference atmosphere with its water vapour.

    P.835-6, Annex 1, sections 1.1 and 1.2. Below the sea, the lowest layer continues. The atmosphere ends at 100 km
    with 1e-4 N-units; above, n is 1. The gradient jumps between layers, and this limits the accuracy of an integral:
    with panels of 5 km its relative error is below 1e-10.
    """

    def __call__(self, height_m: Floats) -> Floats:
        """Return n."""
        index: Floats = 1 + _N_UNIT * _reference_refractivity(height_m)
        return index

    def gradient(self, height_m: Floats) -> Floats:
        """Return dn/dh."""
        stepped = _reference_refractivity(height_m + 1j * _COMPLEX_STEP_M)
        gradient: Floats = _N_UNIT * stepped.imag / _COMPLEX_STEP_M
        return gradient


Profile = Exponential | MeanAnnualGlobal
"""Refractive index n and its gradient (1/m) by height above mean sea level in metres, element by element of any array.
"""


def refractivity(*, pressure_hpa: Any, temperature_k: Any, vapour_pressure_hpa: Any) -> Any:
    """Return N in N-units; total and water vapour pressure in hPa, temperature in K.

    N = 77.6 (P - e) / T + 72 e / T + 3.75e5 e / T^2 (P.453-14, Annex 1, section 1); exact to 0.5 % up to 100 GHz. Takes
    real and complex numbers and arrays.
    """
    dry = 77.6 * (pressure_hpa - vapour_pressure_hpa) / temperature_k
    return dry + (72 + 3.75e5 / temperature_k) * vapour_pressure_hpa / temperature_k


def reference_state(height_m: Any) -> tuple[Any, Any, Any]:
    """Return temperature (K), pressure (hPa) and water vapour pressure (hPa) by P.835.

    height_m: an array of heights in metres up to 100 km, real or complex. The atmosphere is the mean annual global one.
    """
    height_km = height_m / 1000
    upper = height_km.real >= _UPPER_KM
    below = np.where(upper, 0.0, height_km)
    temperature, pressure = _lower(_GEOPOTENTIAL_KM * below / (_GEOPOTENTIAL_KM + below))
    if upper.any():
        # Heights below _UPPER_KM are clipped, because the square root in `_upper` is not defined for them.
        above = np.clip(height_km.real, _UPPER_KM, _TOP_KM) + 1j * np.imag(height_km)
        high_temperature, high_pressure = _upper(above if np.iscomplexobj(height_m) else above.real)
        temperature = np.where(upper, high_temperature, temperature)
        pressure = np.where(upper, high_pressure, pressure)
    density = _VAPOUR_G_M3 * np.exp(-height_km / _VAPOUR_SCALE_KM)
    vapour = density * temperature / 216.7  # P.835-6, Annex 1, equation 8
    least = _MIN_MIXING_RATIO * pressure
    return temperature, pressure, np.where(vapour.real < least.real, least, vapour)


def _reference_refractivity(height_m: Any) -> Any:
    temperature, pressure, vapour = reference_state(height_m)
    below_top = refractivity(pressure_hpa=pressure, temperature_k=temperature, vapour_pressure_hpa=vapour)
    return np.where(np.real(height_m) > _TOP_KM * 1000, 0.0, below_top)


def _lower(geopotential_km: Any) -> tuple[Any, Any]:
    """First regime: per layer, temperature linear in geopotential height, pressure hydrostatic."""
    table = np.array(_LAYERS)
    layer = np.searchsorted(table[1:, 0], geopotential_km.real, side="right")
    base, temperature_at_base, slope, pressure_at_base = table[layer].transpose(-1, *range(layer.ndim))
    rise = geopotential_km - base
    temperature = temperature_at_base + slope * rise
    even = slope == 0
    lapse = np.where(even, 1.0, slope)
    power = (temperature_at_base / temperature) ** (_HYDROSTATIC / lapse)
    fall = np.exp(-_HYDROSTATIC * rise / temperature_at_base)
    return temperature, pressure_at_base * np.where(even, fall, power)


def _upper(height_km: Any) -> tuple[Any, Any]:
    """Second regime, in geometric height."""
    curve = 263.1905 - 76.3232 * np.sqrt(1 - ((np.where(height_km.real < 91, 91.0, height_km) - 91) / 19.9429) ** 2)
    temperature = np.where(height_km.real < 91, 186.8673, curve)
    return temperature, np.exp(np.polynomial.polynomial.polyval(height_km, _UPPER_PRESSURE))
