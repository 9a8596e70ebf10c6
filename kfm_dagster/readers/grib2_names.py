"""Names of fields without an index, as wgrib2 writes them: variable, level, step, threshold.

Belongs here: from walked messages to layers. Does not belong here: lines of an index (`grib_index.py`), octets
(`grib2_sections.py`).

An object gets names only if each of its fields has a name; nothing is guessed. Local parameters have names only in
NCEP's messages: the table is NCEP's, and other centres use the same numbers for other parameters (0.1.192 is weather
for NWS, but categorical rain for NCEP).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from kfm_dagster.readers.base import Layer
from kfm_dagster.readers.grib2_properties import LOCAL, parameters
from kfm_dagster.readers.grib2_sections import GribMessage, Probability

_NCEP = 7
"""NCEP's number in common code table C-11."""
_NO_SURFACE = 255
_STATISTICS = {0: "ave", 1: "acc", 2: "max", 3: "min"}
"""wgrib2's texts of code table 4.10."""
_LEVELS = {1: "surface", 10: "entire atmosphere", 101: "mean sea level"}
"""wgrib2's texts of surfaces without a value (code table 4.5)."""
_HEIGHTS = {
    100: (100.0, "mb"),
    102: (1.0, "m above mean sea level"),
    103: (1.0, "m above ground"),
    104: (1.0, "sigma level"),
}
"""wgrib2's texts of surfaces with a value (code table 4.5), each with the number that divides the value."""


def layers_of(fields: Iterable[GribMessage], first: GribMessage) -> tuple[Layer, ...]:
    """Return the name and bytes of each field.

    Returns nothing if any field has no name, the same name as another field, or a reference time other than `first`'s.
    """
    named: dict[str, Layer] = {}
    for field in fields:
        layer = _layer(field)
        if layer is None or layer.name in named or field.reference != first.reference:
            return ()
        named[layer.name] = layer
    return tuple(named.values())


def _layer(field: GribMessage) -> Layer | None:
    product = field.product
    codes = field.discipline, product.category, product.number
    parameter = parameters().get(codes) if max(codes) < LOCAL or field.centre == _NCEP else None
    level, step, qualifier = _level(field), _step(field), ""
    if product.template in {5, 9}:
        qualifier = _threshold(product.probability)
        parameter = parameter if qualifier else None
    if parameter is None or level is None or step is None or product.template not in {0, 5, 8, 9}:
        return None
    return Layer(parameter.abbreviation, level, step, qualifier, field.offset, field.length)


def _level(field: GribMessage) -> str | None:
    product = field.product
    if product.second_surface != _NO_SURFACE or product.surface_type is None:
        return None
    if product.surface_type in _HEIGHTS and product.level is not None:
        divisor, text = _HEIGHTS[product.surface_type]
        return f"{product.level / divisor:g} {text}"
    return _LEVELS.get(product.surface_type)


def _step(field: GribMessage) -> str | None:
    product = field.product
    begin, end = product.begin, product.step
    if begin is None or end is None or begin < timedelta(0):
        return None
    hour, minute = timedelta(hours=1), timedelta(minutes=1)
    unit, text = (minute, "min") if begin % hour or end % hour else (hour, "hour")
    if begin % unit or end % unit:
        return None
    if product.statistic is None or begin == end:
        return f"{end // unit} {text} fcst" if end else "anl"
    statistic = _STATISTICS.get(product.statistic)
    return None if statistic is None else f"{begin // unit}-{end // unit} {text} {statistic} fcst"


def _threshold(probability: Probability | None) -> str:
    """Return wgrib2's text of a probability (code table 4.9); empty for an unknown event."""
    if probability is None:
        return ""
    kind, lower, upper = probability
    texts = {0: f"<{lower:g}", 1: f">{upper:g}", 2: f">={lower:g} <{upper:g}", 3: f">{lower:g}", 4: f"<{upper:g}"}
    return f"prob {texts[kind]}" if kind in texts else ""
