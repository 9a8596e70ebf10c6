"""What a NetCDF variable's attributes say of its values as they are stored: their type, unit, packing and gaps.

Belongs here: from attributes of the NetCDF and CF conventions to fields of a STAC band (STAC 1.1.0, common metadata,
data values; raster extension 2.0.0). Does not belong here: reading attributes (`hdf5.py`, `netcdf_header.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kfm_dagster.readers.hdf5 import AttributeValue

NUMBERS = ("_FillValue", "missing_value", "scale_factor", "add_offset")
TEXTS = ("_Unsigned", "units")
"""Attributes that are looked at."""
PROPERTIES = frozenset({"data_type", "nodata", "unit", "raster:scale", "raster:offset"})
"""Fields that a band can have."""

_LONGEST_TEXT = 500
"""Characters of a text that an Item shows; OISST's longest is one of 181."""


def band_fields(data_type: str | None, attributes: Mapping[str, AttributeValue]) -> dict[str, Any]:
    """Fields of the band whose values are stored as `data_type`; what the attributes do not say is absent.

    Numbers are the file's own, unrounded: value = stored * scale + offset (CF 1.11, 8.1). Integers that `_Unsigned`
    says to be unsigned are that (NetCDF Users Guide, appendix A), and so is their fill value.
    """
    unsigned = attributes.get("_Unsigned") == "true" and data_type is not None and data_type.startswith("int")
    known = f"u{data_type}" if unsigned else data_type
    fill = _number(attributes, "_FillValue")
    found = {
        "data_type": known,
        "nodata": _nodata(_number(attributes, "missing_value") if fill is None else fill, known),
        "unit": shown_text(attributes.get("units")) or None,
        "raster:scale": _finite(_number(attributes, "scale_factor")),
        "raster:offset": _finite(_number(attributes, "add_offset")),
    }
    return {name: value for name, value in found.items() if value is not None}


def shown_text(value: AttributeValue | None) -> str:
    """Text in one line; nothing where there is none, where it holds what is no text, or more than an Item shows."""
    line = " ".join(value.split()) if isinstance(value, str) else ""
    return line if line.isprintable() and len(line) <= _LONGEST_TEXT else ""


def _number(attributes: Mapping[str, AttributeValue], name: str) -> float | None:
    value = attributes.get(name)
    return value if isinstance(value, int | float) else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _nodata(value: float | None, data_type: str | None) -> float | str | None:
    """Fill value in the form of STAC 1.1: an integer of integers; JSON has no other way to write a NaN than as text."""
    if value is None or data_type is None:
        return None
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if data_type.startswith("float"):
        return value
    bits = int(data_type.removeprefix("u").removeprefix("int"))
    return int(value) % (1 << bits) if data_type.startswith("u") else int(value)
