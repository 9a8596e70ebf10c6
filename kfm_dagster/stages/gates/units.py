"""Units: what a declared unit means, asked of pint over the definitions of `units.txt`.

The registry is built once per process, when it is first asked. Does not belong here: which field has which unit
(contracts, and `dimensions.py` for what STAC defines).
"""

from __future__ import annotations

import math
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from kfm_dagster.errors import KfmError

if TYPE_CHECKING:
    import pint


class UnitError(KfmError):
    """A unit or a dimension is none that is known."""


@cache
def registry() -> pint.UnitRegistry[float]:
    """Return the process's registry; importing pint costs as much as the gates over a batch, so it is done here."""
    import pint  # noqa: PLC0415 - see above

    with resources.as_file(resources.files("kfm_dagster.stages.gates") / "units.txt") as path:
        return pint.UnitRegistry(str(path))


@cache
def dimension_of(unit: str) -> str:
    """Return the dimension of a unit, e.g. `[length] / [time]`, and `1` for none. Raises UnitError."""
    try:
        return _named(registry().parse_units(unit).dimensionality)
    except Exception as error:  # pint raises whatever its parser comes upon, AssertionError among it
        raise UnitError(observed=unit, expected="a unit of stages/gates/units.txt", next_step=str(error)) from None


@cache
def dimension(text: str) -> str:
    """Return a dimension as `dimension_of` writes it. Raises UnitError."""
    try:
        return _named(registry().get_dimensionality("" if text == "1" else text))
    except Exception as error:  # as above
        raise UnitError(observed=text, expected="a dimension of stages/gates/units.txt", next_step=str(error)) from None


@cache
def same_unit(one: str, other: str) -> bool:
    """Tell whether a number means the same in two units. Raises UnitError."""
    if dimension_of(one) != dimension_of(other):
        return False
    # Two points, because degrees Celsius differ from kelvins in their zero only.
    return all(math.isclose(registry().convert(value, one, other), value) for value in (1.0, 2.0))


def _named(dimensionality: object) -> str:
    text = str(dimensionality)
    return "1" if text == "dimensionless" else text
