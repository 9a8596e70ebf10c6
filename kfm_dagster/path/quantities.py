"""Path quantities with their units, and the report on their dimensions (gate G4).

Belongs here: `pint` at the boundary; everything within the package computes with plain SI numbers. Does not belong
here: the consequence of a failed report (gates), or storing the report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from kfm_dagster.path.arrival import Arrival

if TYPE_CHECKING:
    import pint

QUANTITIES: Mapping[str, tuple[str, str, Callable[[Arrival], float]]] = {
    "T_arr": ("s", "[time]", lambda beam: beam.t_arr_s),
    "Phi": ("rad", "dimensionless", lambda beam: beam.phi_rad),
    "Phi_aligned": ("rad", "dimensionless", lambda beam: beam.phi_aligned_rad),
    "optical_path": ("m", "[length]", lambda beam: beam.optical_path_m),
    "ell": ("m", "[length]", lambda beam: beam.extent_m),
    "c_ref": ("m/s", "[length] / [time]", lambda beam: beam.c_ref_m_s),
    "lambda_ref": ("m", "[length]", lambda beam: beam.lambda_ref_m),
    "elevation": ("degree", "dimensionless", lambda beam: beam.elevation_deg),
    "n_eff": ("dimensionless", "dimensionless", lambda beam: beam.optical_path_m / beam.extent_m),
    "time_offset": ("s", "[time]", lambda beam: beam.time_offset_s),
    "reference_window": (
        "m",
        "[length]",
        lambda beam: beam.reference_window_m[1] - beam.reference_window_m[0],
    ),
    "f_s": ("Hz", "1 / [time]", lambda beam: beam.f_s_hz),
}
"""Unit, dimension (as pint writes it) and value of each quantity. `n_eff` is the mean along the path, `ell` is the
path's extent, `reference_window` is the window's length."""

EQUATIONS: Mapping[str, str] = {
    "( ∫ ( n_eff / c_ref ) d ell )": "T_arr",
    "( 1 / c_ref ) * ( ∫ n_eff d ell )": "T_arr",
    "( 2π / λ_ref ) * ( ∫ n_eff d ell )": "Phi",
}
"""Left side of each equation by its right side; both must have the dimension of the quantity on the left (Pipeline
Card Template, chapter 7, section VIII)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DimensionalEntry:
    """A line of the report."""

    quantity: str
    unit: str
    expected: str
    observed: str

    @property
    def ok(self) -> bool:
        """Whether the dimensions agree."""
        return self.expected == self.observed


def as_array_quantities(arrivals: Sequence[Arrival]) -> dict[str, pint.Quantity[Any]]:
    """Return the results of several beams as pint arrays, shape (beams,), by QUANTITIES' names."""
    import pint  # noqa: PLC0415 - it imports dask, and only runs of beams use it

    return {
        name: pint.Quantity(np.array([value(arrival) for arrival in arrivals]), _unit(name))
        for name, (_, _, value) in QUANTITIES.items()
    }


def dimensional_report(quantities: Mapping[str, Any]) -> tuple[DimensionalEntry, ...]:
    """Compare the dimensions of every quantity, and of both sides of every equation.

    quantities: numbers or arrays by the names of QUANTITIES. If one of these is missing, its `observed` is `missing`;
    a quantity of another name has `expected` `unknown`. A value that is not a pint quantity has no dimension and fails.
    """
    import pint  # noqa: PLC0415 - as above

    return _report(
        tuple((name, value.units if isinstance(value, pint.Quantity) else None) for name, value in quantities.items())
    )


@cache
def _unit(name: str) -> Any:
    import pint  # noqa: PLC0415 - as above

    return pint.Unit(QUANTITIES[name][0])


@lru_cache(maxsize=256)
def _report(units: tuple[tuple[str, Any], ...]) -> tuple[DimensionalEntry, ...]:
    """Return the report on these units (None: no unit), cached because pint is slow."""
    unit_of = dict(units)
    names = [*QUANTITIES, *(name for name in unit_of if name not in QUANTITIES)]
    entries = [
        DimensionalEntry(
            quantity=name,
            unit=_short(unit_of.get(name)),
            expected=QUANTITIES[name][1] if name in QUANTITIES else "unknown",
            observed=_dimension(unit_of.get(name)) if name in unit_of else "missing",
        )
        for name in names
    ]
    inputs: list[Any] = [unit_of.get(name) for name in ("n_eff", "ell", "c_ref", "lambda_ref")]
    sides: list[Any] = [None] * len(EQUATIONS)
    if None not in inputs:
        n_eff, ell, c_ref, lambda_ref = inputs
        sides = [(n_eff / c_ref) * ell, (1 / c_ref) * (n_eff * ell), n_eff * ell / lambda_ref]
    equations = [
        DimensionalEntry(
            quantity=f"{left} = {right}", unit=_short(side), expected=QUANTITIES[left][1], observed=_dimension(side)
        )
        for (right, left), side in zip(EQUATIONS.items(), sides, strict=True)
    ]
    return (*entries, *equations)


def _short(unit: Any) -> str:
    return "none" if unit is None else f"{unit:~}"


def _dimension(unit: Any) -> str:
    return "no quantity" if unit is None else str(unit.dimensionality)
