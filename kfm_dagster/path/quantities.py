"""Path quantities with their units, and the report on whether their dimensions close (gate G4).

Belongs here: `pint` at the boundary; everything within the package computes with plain SI numbers. Does not belong
here: what a failed report leads to (gates), or the file it is written to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
import pint

from kfm_dagster.path.arrival import Arrival

UNITS: Mapping[str, str] = {
    "T_arr": "s",
    "Phi": "rad",
    "Phi_aligned": "rad",
    "optical_path": "m",
    "ell": "m",
    "c_ref": "m/s",
    "lambda_ref": "m",
    "elevation": "degree",
    "n_eff": "dimensionless",
    "time_offset": "s",
    "reference_window": "m",
    "f_s": "Hz",
}
"""Quantity > the unit that a result carries. `n_eff` is the mean along the path, `ell` the path's extent,
`reference_window` its length."""

DIMENSIONS: Mapping[str, str] = {
    "T_arr": "[time]",
    "Phi": "dimensionless",
    "Phi_aligned": "dimensionless",
    "optical_path": "[length]",
    "ell": "[length]",
    "c_ref": "[length] / [time]",
    "lambda_ref": "[length]",
    "elevation": "dimensionless",
    "n_eff": "dimensionless",
    "time_offset": "[time]",
    "reference_window": "[length]",
    "f_s": "1 / [time]",
}
"""Quantity > its dimension, as pint writes it."""

EQUATIONS: Mapping[str, str] = {
    "( ∫ ( n_eff / c_ref ) d ell )": "T_arr",
    "( 1 / c_ref ) * ( ∫ n_eff d ell )": "T_arr",
    "( 2π / λ_ref ) * ( ∫ n_eff d ell )": "Phi",
}
"""Right side > the quantity whose dimension it must have (pipeline card, chapter 7, section VIII)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DimensionalEntry:
    """One line of the report."""

    quantity: str
    unit: str
    expected: str
    observed: str

    @property
    def ok(self) -> bool:
        """Whether the dimensions agree."""
        return self.expected == self.observed


@dataclass(frozen=True, kw_only=True, slots=True)
class DimensionalReport:
    """Every quantity and equation with its dimension."""

    entries: tuple[DimensionalEntry, ...]

    @property
    def p_dim(self) -> float:
        """Share of the entries that are ok; 0 when there are none."""
        return sum(entry.ok for entry in self.entries) / len(self.entries) if self.entries else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        lines = [
            {
                "quantity": entry.quantity,
                "unit": entry.unit,
                "dimension_expected": entry.expected,
                "dimension_observed": entry.observed,
                "ok": entry.ok,
            }
            for entry in self.entries
        ]
        return {"p_dim": self.p_dim, "quantities": lines}


def as_array_quantities(arrivals: Sequence[Arrival]) -> dict[str, pint.Quantity[Any]]:
    """Return the results of several beams as arrays with a unit each, shape (beams,), by the names of UNITS."""
    values = [_values(arrival) for arrival in arrivals]
    return {name: pint.Quantity(np.array([each[name] for each in values]), _unit(name)) for name in UNITS}


def dimensional_report(quantities: Mapping[str, Any]) -> DimensionalReport:
    """Hold every quantity against its dimension, and every equation's right side against its left.

    quantities: by the names of DIMENSIONS, numbers or arrays; a missing one is observed as `missing`, an unknown one is
    expected as `unknown`. Anything but a pint quantity has no dimension and fails.
    """
    return _report(
        tuple((name, value.units if isinstance(value, pint.Quantity) else None) for name, value in quantities.items())
    )


def _values(arrival: Arrival) -> dict[str, float]:
    return {
        "T_arr": arrival.t_arr_s,
        "Phi": arrival.phi_rad,
        "Phi_aligned": arrival.phi_aligned_rad,
        "optical_path": arrival.optical_path_m,
        "ell": arrival.extent_m,
        "c_ref": arrival.c_ref_m_s,
        "lambda_ref": arrival.lambda_ref_m,
        "elevation": arrival.elevation_deg,
        "n_eff": arrival.optical_path_m / arrival.extent_m,
        "time_offset": arrival.time_offset_s,
        "reference_window": arrival.reference_window_m[1] - arrival.reference_window_m[0],
        "f_s": arrival.f_s_hz,
    }


@cache
def _unit(name: str) -> Any:
    return pint.Unit(UNITS[name])


@lru_cache(maxsize=256)
def _report(units: tuple[tuple[str, Any], ...]) -> DimensionalReport:
    """Report on units, None for what has none. Dimensions do not depend on values, and pint takes its time."""
    found = dict(units)
    names = [*DIMENSIONS, *(name for name in found if name not in DIMENSIONS)]
    entries = [
        DimensionalEntry(
            quantity=name,
            unit=_short(found.get(name)),
            expected=DIMENSIONS.get(name, "unknown"),
            observed=_dimension(found.get(name)) if name in found else "missing",
        )
        for name in names
    ]
    inputs: list[Any] = [found.get(name) for name in ("n_eff", "ell", "c_ref", "lambda_ref")]
    sides: list[Any] = [None] * len(EQUATIONS)
    if None not in inputs:
        n_eff, ell, c_ref, lambda_ref = inputs
        sides = [(n_eff / c_ref) * ell, (1 / c_ref) * (n_eff * ell), n_eff * ell / lambda_ref]
    entries += [
        DimensionalEntry(
            quantity=f"{left} = {right}", unit=_short(side), expected=DIMENSIONS[left], observed=_dimension(side)
        )
        for (right, left), side in zip(EQUATIONS.items(), sides, strict=True)
    ]
    return DimensionalReport(entries=tuple(entries))


def _short(unit: Any) -> str:
    return "none" if unit is None else f"{unit:~}"


def _dimension(unit: Any) -> str:
    return "no quantity" if unit is None else str(unit.dimensionality)
