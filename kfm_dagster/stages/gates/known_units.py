"""pint's results for the units and dimensions of contracts and standards, over `units.txt`.

A run needs only these, and importing pint costs as much as all gates over a batch of a thousand units. A test compares
each with pint, and checks that none is missing. Does not belong here: calling pint (`units.py`).
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
"""Dimension in a contract's notation > in pint's."""

SAME = frozenset({("metre", "m")})
"""Pairs of names of the same unit."""
