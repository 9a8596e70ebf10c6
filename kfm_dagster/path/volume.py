"""The beams of a NEXRAD volume: from its Item to arrival times, phases and their covariance.

Belongs here: the facts of a volume that its beams need, and defaults of facts that a volume does not state. Does not
belong here: reading a volume (`readers/`), integrals (`arrival.py`), storing results.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import numpy as np

from kfm_dagster.path.arrival import (
    MIN_POINTS,
    SPEED_OF_LIGHT_M_S,
    Arrival,
    DeltaForm,
    TimeAligned,
    align_path,
    align_phase,
    align_time,
    arrive,
)
from kfm_dagster.path.beam import MAX_ELEVATION_DEG, MIN_ELEVATION_DEG, PANEL_M, BeamPath, Geometry, trace
from kfm_dagster.path.refractivity import Exponential, Floats, MeanAnnualGlobal, PathError, Profile
from kfm_dagster.path.uncertainty import (
    GATE_M,
    Sigmas,
    arrival_covariance,
    atmosphere_sigmas,
    path_covariance,
    phase_covariances,
    sensitivities,
)

RANGE_M = 460_000.0
"""Reach of the reflectivity: 460 cells of 1 km (ICD 2620002, table III), 1840 gates of 250 m (table XVII-B)."""
REFERENCE_RANGE_M = 2_000.0
"""Begin of the first range gate, which is the reference window. The gate's middle is at 2,125 m (ICD 2620002, table
XVII-B, in every volume seen)."""
BAND_MHZ = (2700.0, 3000.0)
"""Transmitter band of a WSR-88D (Federal Meteorological Handbook 11, part B): wavelengths of 10.0 to 11.1 cm."""
HELD_AGAINST = MeanAnnualGlobal()
"""Atmosphere for comparison, with its own water vapour. The declared uncertainty has to cover the difference between
this atmosphere and the atmosphere through which beams are traced."""
_STATED_MHZ = 1.0
"""A volume states its frequency in whole MHz (ICD 2620002, table XV)."""

_PANEL_GATES = 10
"""Longest panel, in range gates, of the quadrature rule along a beam (`beam.quadrature`). A panel's longest element,
0.18 of the panel, must not exceed two range gates, the distance that light travels from one sample to the next."""
_VCP_11 = (0.5, 1.45, 2.4, 3.35, 4.3, 5.25, 6.2, 7.5, 8.7, 10.0, 12.0, 14.0, 16.7, 19.5)
_VCP_12 = (0.5, 0.9, 1.3, 1.8, 2.4, 3.1, 4.0, 5.1, 6.4, 8.0, 10.0, 12.5, 15.6, 19.5)
_VCP_21 = (0.5, 1.45, 2.4, 3.35, 4.3, 6.0, 9.9, 14.6, 19.5)
_VCP_31 = (0.5, 1.5, 2.5, 3.5, 4.5)
PATTERNS: Mapping[int, tuple[float, ...]] = {
    11: _VCP_11,
    211: _VCP_11,
    12: _VCP_12,
    212: _VCP_12,
    21: _VCP_21,
    121: _VCP_21,
    221: _VCP_21,
    31: _VCP_31,
    32: _VCP_31,
}
"""Elevations in degrees by pattern number, for volumes without message 5 (Federal Meteorological Handbook 11, part C,
volume coverage patterns)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VolumeFacts:
    """The facts of a volume that its beams depend on. Elevations are distinct and ascending.

    frequency_mhz: None when not stated. gate_m: distance between the middles of two range gates.
    """

    site: str
    antenna_height_m: float
    elevations_deg: tuple[float, ...]
    frequency_mhz: float | None = None
    gate_m: float = GATE_M

    @property
    def f_s_hz(self) -> float:
        """Sampling rate of the echo, one sample per gate: c / ( 2 * gate_m ), there and back."""
        return SPEED_OF_LIGHT_M_S / (2 * self.gate_m)

    @property
    def lambda_ref_m(self) -> float:
        """Wavelength in vacuum at the stated frequency, else at the middle of the band."""
        middle = sum(BAND_MHZ) / 2
        return SPEED_OF_LIGHT_M_S / ((self.frequency_mhz or middle) * 1e6)

    @property
    def lambda_sigma(self) -> float:
        """Relative standard uncertainty of the wavelength, from a uniform error of the frequency.

        The error spans _STATED_MHZ if the frequency is stated, else the band.
        """
        low, high = BAND_MHZ
        if self.frequency_mhz is None:
            return (high - low) / math.sqrt(12) / ((high + low) / 2)
        return _STATED_MHZ / math.sqrt(12) / self.frequency_mhz


@dataclass(frozen=True, kw_only=True, slots=True)
class PathOptions:
    """All settings of the computation that change a result."""

    range_m: float = RANGE_M
    reference_range_m: float = REFERENCE_RANGE_M
    geometry: Geometry = Geometry.RAY_TRACED
    profile: Exponential = field(default_factory=Exponential)
    delta_form: DeltaForm = DeltaForm.GENERAL
    c_ref_m_s: float = SPEED_OF_LIGHT_M_S
    sigmas: Sigmas = field(default_factory=Sigmas)
    min_points: int = MIN_POINTS


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PathArrival:
    """The arrivals of a volume, by beam. Volumes with equal facts share beams and covariances.

    t_covariance: of T_arr over the beams, s^2, shape (beams, beams). phase_covariance: of (T_arr, Phi) of each beam,
    shape (beams, 2, 2), in s^2, s rad, rad^2. residuals, shape (beams,): optical path through HELD_AGAINST minus the
    beam's own, divided by the standard uncertainty of the latter due to the atmosphere.
    """

    facts: VolumeFacts
    beams: tuple[BeamPath, ...]
    arrivals: tuple[Arrival, ...]
    t_covariance: Floats
    phase_covariance: Floats
    residuals: Floats

    @property
    def sample_m(self) -> float:
        """Metres that light travels in a vacuum during a sample: c_ref / f_s."""
        return self.arrivals[0].c_ref_m_s / self.arrivals[0].f_s_hz


def elevations_of(properties: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the distinct elevations of a volume in degrees, ascending; empty when unknown.

    properties: of a NEXRAD Item. The recorded elevations have priority, then the volume's own pattern (message 5), then
    the pattern of its number in PATTERNS. Impossible angles are left out, such as those of a message 5 with only noise.
    """
    stated: Iterable[Any] = (
        properties.get("nexrad:elevations")
        or properties.get("nexrad:pattern-elevations")
        or PATTERNS.get(properties.get("nexrad:vcp", 0), ())
    )
    return tuple(sorted({float(angle) for angle in stated if MIN_ELEVATION_DEG <= angle <= MAX_ELEVATION_DEG}))


def facts_of(properties: Mapping[str, Any]) -> VolumeFacts:
    """Return the facts of an Item's beams. Raises PathError when its properties define no beam."""
    site, height = properties.get("nexrad:site"), properties.get("nexrad:height-m")
    elevations = elevations_of(properties)
    if not elevations or height is None:
        raise PathError(
            "the volume's properties define no beam",
            observed=f"site {site}, height {height}, pattern {properties.get('nexrad:vcp')}",
            expected="the antenna's height, and elevations or a pattern that is known",
        )
    return VolumeFacts(
        site=str(site),
        antenna_height_m=float(height),
        elevations_deg=elevations,
        frequency_mhz=properties.get("nexrad:frequency-mhz"),
        gate_m=float(properties.get("nexrad:gate-spacing-m", GATE_M)),
    )


def path_arrival(
    facts: VolumeFacts,
    *,
    ts_start: datetime,
    reference: datetime,
    tau: timedelta,
    options: PathOptions = PathOptions(),
) -> PathArrival:
    """Return the arrivals of a volume at the end of each of its beams. Raises PathError.

    ts_start: begin of the volume, at most tau before or after the time `reference`.
    """
    time = align_time(ts_start=ts_start, reference=reference, tau=tau, f_s_hz=facts.f_s_hz)
    in_time = _in_time(facts, options)
    arrivals = tuple(replace(arrival, time_offset_s=time.offset_s) for arrival in in_time.arrivals)
    return replace(in_time, arrivals=arrivals)


@lru_cache(maxsize=64)
def _in_time(facts: VolumeFacts, options: PathOptions) -> PathArrival:
    """Return the arrivals of a volume that begins at its reference time: with offset 0.

    Cached, because the network has 160 sites and few patterns, but 40,000 volumes a day, processed site by site. An
    entry takes 1 MB.
    """
    time = TimeAligned(offset_s=0.0, f_s_hz=facts.f_s_hz)
    window = (options.reference_range_m, options.reference_range_m + facts.gate_m)
    beams, covariance, residuals = _beams(facts, window, options)
    arrivals = tuple(
        arrive(
            align_phase(
                align_path(time, beam, min_points=options.min_points, c_ref_m_s=options.c_ref_m_s),
                lambda_ref_m=facts.lambda_ref_m,
                reference_window_m=window,
            ),
            c_ref_m_s=options.c_ref_m_s,
            delta_form=options.delta_form,
        )
        for beam in beams
    )
    return PathArrival(
        facts=facts,
        beams=beams,
        arrivals=arrivals,
        t_covariance=arrival_covariance(covariance, c_ref_m_s=options.c_ref_m_s, sigmas=options.sigmas),
        phase_covariance=phase_covariances(
            covariance,
            c_ref_m_s=options.c_ref_m_s,
            lambda_ref_m=facts.lambda_ref_m,
            lambda_sigma=facts.lambda_sigma,
            phi_rad=np.array([arrival.phi_rad for arrival in arrivals]),
            sigmas=options.sigmas,
        ),
        residuals=residuals,
    )


def _beams(
    facts: VolumeFacts, window_m: tuple[float, float], options: PathOptions
) -> tuple[tuple[BeamPath, ...], Floats, Floats]:
    """Return the traced beams, the covariance of their optical paths in m^2, and the residuals.

    window_m: the reference window, the first range gate; no panel of a returned beam exceeds _PANEL_GATES such gates.
    """

    def traced(profile: Profile, *, panel_m: float = PANEL_M) -> tuple[BeamPath, ...]:
        return trace(
            facts.elevations_deg,
            antenna_height_m=facts.antenna_height_m,
            range_m=options.range_m,
            profile=profile,
            geometry=options.geometry,
            splits_m=window_m,
            panel_m=panel_m,
        )

    def optical_paths(profile: Profile) -> Floats:
        return np.array([np.sum(beam.n_eff * beam.d_ell) for beam in traced(profile)])

    beams = traced(options.profile, panel_m=_PANEL_GATES * (window_m[1] - window_m[0]))
    by_input = sensitivities(optical_paths, options.profile)
    covariance = path_covariance(
        by_input,
        end_index=np.array([beam.n_eff[-1] for beam in beams]),
        sigmas=options.sigmas,
    )
    residuals = optical_paths(HELD_AGAINST) - optical_paths(options.profile)
    return beams, covariance, residuals / atmosphere_sigmas(by_input, options.sigmas)
