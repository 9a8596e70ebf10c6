"""Units of measurement: dimension and equality, by pint over the definitions of `units.txt`.

pint's results for the units in use are stored here, because importing pint takes as long as all gates over a batch of a
thousand envelopes. A test compares each result with pint, and checks that no unit in use is missing. For other units,
pint's registry is built once per process. Does not belong here: which field has which unit (contracts, and
`dimensions.py` for what STAC defines).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from kfm_dagster.errors import KfmError
from kfm_dagster.redaction import redact

if TYPE_CHECKING:
    import pint


DIMENSION_OF: Mapping[str, str] = {
    "1": "1",
    "MHz": "1 / [time]",
    "byte": "[information]",
    "degree": "[angle]",
    "hour": "[time]",
    "m": "[length]",
    "metre": "[length]",
    "percent": "1",
    "s": "[time]",
    "um": "[length]",
}
"""The dimension of each unit."""

DIMENSION: Mapping[str, str] = {
    "1": "1",
    "[angle]": "[angle]",
    "[length]": "[length]",
    "[time]": "[time]",
    "[time] ** -1": "1 / [time]",
}
"""pint's notation of each dimension, by the notation in contracts."""

SAME = frozenset({("metre", "m")})
"""Pairs of names of the same unit."""


class UnitError(KfmError):
    """A unit or a dimension is unknown."""


@cache
def registry() -> pint.UnitRegistry[float]:
    """Return the process's registry. The first call imports pint, which takes long."""
    import pint  # noqa: PLC0415 - see above

    with resources.as_file(resources.files("kfm_dagster.stages.gates") / "units.txt") as path:
        return pint.UnitRegistry(str(path))


def dimension_of(unit: str) -> str:
    """Return a unit's dimension, e.g. `[length] / [time]`; `1` without one. Raises UnitError."""
    return DIMENSION_OF.get(unit) or ask_dimension_of(unit)


@cache
def ask_dimension_of(unit: str) -> str:
    """Return pint's dimension of a unit. Raises UnitError."""
    try:
        return _named(registry().parse_units(unit).dimensionality)
    except Exception as error:  # pint's parser raises any error, even AssertionError
        raise UnitError(
            observed=unit, expected="a unit of stages/gates/units.txt", next_step=redact(str(error))
        ) from None


def dimension(text: str) -> str:
    """Return a dimension in the notation of `dimension_of`. Raises UnitError."""
    return DIMENSION.get(text) or ask_dimension(text)


@cache
def ask_dimension(text: str) -> str:
    """Return pint's notation of a dimension. Raises UnitError."""
    try:
        return _named(registry().get_dimensionality("" if text == "1" else text))
    except Exception as error:  # as above
        raise UnitError(
            observed=text, expected="a dimension of stages/gates/units.txt", next_step=redact(str(error))
        ) from None


def same_unit(unit: str, other: str) -> bool:
    """Return whether a number means the same in two units. Raises UnitError."""
    if dimension_of(unit) != dimension_of(other):
        return False
    return unit == other or (unit, other) in SAME or ask_same_unit(unit, other)


@cache
def ask_same_unit(unit: str, other: str) -> bool:
    """Return, by pint, whether a number means the same in two units of the same dimension."""
    # Two values, because a conversion with a factor and an offset can leave one value unchanged.
    return all(math.isclose(registry().convert(value, unit, other), value) for value in (1.0, 2.0))


def _named(dimensionality: object) -> str:
    text = str(dimensionality)
    return "1" if text == "dimensionless" else text
