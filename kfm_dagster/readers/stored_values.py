"""STAC fields of stored numbers: bands by NetCDF attributes, dimensions by an even grid.

Belongs here: from attributes of the NetCDF and CF conventions to fields of a STAC band (STAC 1.1.0, common metadata,
data values; raster extension 2.0.0), and rows and columns as Dimension Objects (datacube extension 2.2.0). Does not
belong here: reading attributes (`hdf5.py`, `netcdf_header.py`), other dimensions of a file (`grib2_cube.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kfm_dagster.readers.hdf5 import AttributeValue

NUMBERS = ("_FillValue", "missing_value", "scale_factor", "add_offset")
TEXTS = ("_Unsigned", "units")
"""Attributes that define a band."""

_LONGEST_TEXT = 500
"""Maximum characters of a text in an Item; OISST's longest has 181."""


def band_fields(data_type: str | None, attributes: Mapping[str, AttributeValue]) -> dict[str, Any]:
    """Return the fields of a band with values stored as `data_type`, by its attributes.

    Scale and offset are the file's own numbers, unrounded: value = stored * scale + offset (CF 1.11, 8.1). If
    `_Unsigned` is `true`, integers and their fill value are unsigned (NetCDF Users Guide, appendix A).
    """
    unsigned = attributes.get("_Unsigned") == "true" and data_type is not None and data_type.startswith("int")
    stored_type = f"u{data_type}" if unsigned else data_type
    fill = _number(attributes, "_FillValue")
    optional = {
        "data_type": stored_type,
        "nodata": _nodata(_number(attributes, "missing_value") if fill is None else fill, stored_type),
        "unit": shown_text(attributes.get("units")) or None,
        "raster:scale": _finite(_number(attributes, "scale_factor")),
        "raster:offset": _finite(_number(attributes, "add_offset")),
    }
    return {name: value for name, value in optional.items() if value is not None}


def shown_text(value: AttributeValue | None) -> str:
    """Return a text in one line; empty if the value is not a text, unprintable, or too long."""
    line = " ".join(value.split()) if isinstance(value, str) else ""
    return line if line.isprintable() and len(line) <= _LONGEST_TEXT else ""


def _number(attributes: Mapping[str, AttributeValue], name: str) -> float | None:
    value = attributes.get(name)
    return value if isinstance(value, int | float) else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _nodata(value: float | None, data_type: str | None) -> float | str | None:
    """Return the fill value as STAC 1.1 has it: an integer for integers, a text for a NaN."""
    if value is None or data_type is None:
        return None
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"  # JSON has no such numbers
    if data_type.startswith("float"):
        return value
    bits = int(data_type.removeprefix("u").removeprefix("int"))
    return int(value) % (1 << bits) if data_type.startswith("u") else int(value)


COLUMNS, ROWS = "x", "y"
"""Names of the dimensions, as GDAL and rioxarray have them for every grid."""
_DECIMALS = 9


def horizontal(*, transform: Sequence[float], shape: Sequence[int], wkt2: str) -> dict[str, dict[str, Any]]:
    """Return the dimensions of columns and rows, between the centres of the outermost cells.

    `transform` and `shape` are those of the projection extension: (cell width, 0, west, 0, minus the cell height,
    north), and (rows, columns).
    """
    width, _, west, _, height, north = transform
    rows, columns = shape
    axes = {COLUMNS: (west, width, columns), ROWS: (north, height, rows)}
    return {
        axis: {
            "type": "spatial",
            "axis": axis,
            "extent": sorted(round(edge + step * cells, _DECIMALS) for cells in (0.5, count - 0.5)),
            "step": abs(step),
            "reference_system": wkt2,
        }
        for axis, (edge, step, count) in axes.items()
    }
