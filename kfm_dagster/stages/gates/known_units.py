"""What pint says of the units and dimensions that contracts and standards use, over the definitions of `units.txt`.

A run asks for these only, and importing pint costs as much as all gates over a batch of a thousand units. A test asks
pint for each again, and that none is missing. Does not belong here: asking pint (`units.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

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
"""Unit > its dimension."""

DIMENSION: Mapping[str, str] = {
    "1": "1",
    "[angle]": "[angle]",
    "[length]": "[length]",
    "[time]": "[time]",
    "[time] ** -1": "1 / [time]",
}
"""Dimension as a contract writes it > as pint does."""

SAME = frozenset({("metre", "m")})
"""Units by two names."""
