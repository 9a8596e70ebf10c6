"""A GRIB2 object as a step of a cube, with the fields that the codec gribberish decodes.

A chunk is a whole message, unchanged. Only headers of messages are read, by one request for each message, but never
values. Does not belong here: octets and grids (`readers/`), joining steps (`references.py`).
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyproj

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.followers.virtual.netcdf_step import CubeStep, StoredVariable
from kfm_dagster.readers.base import ByteSource, ReadError
from kfm_dagster.readers.grib2_grids import Grid, describe_grid
from kfm_dagster.readers.grib2_properties import named
from kfm_dagster.readers.grib2_sections import GribMessage, HeaderWindow, read_message
from kfm_dagster.readers.grib_index import step_end
from kfm_dagster.readers.hdf5_chunks import StoredChunk
from kfm_dagster.readers.stored_values import COLUMNS, ROWS

MAX_FIELDS = 256
"""Maximum fields of an object; each takes a request. HRRR's surface files have 173."""
GRID_MAPPING, VALID_TIME, REFERENCE_TIME = "spatial_ref", "valid_time", "reference_time"
"""Names that rioxarray and cfgrib use."""
_TIMES = {VALID_TIME: "time", REFERENCE_TIME: "forecast_reference_time"}
"""Variables that can order a cube, with their CF standard names."""
_PROJECTED = frozenset({10, 20, 30})
"""Grid definition templates in metres. All other templates are refused: `describe_grid` can move the first column of a
grid in degrees to 180 degrees west, where the message's columns do not begin."""
_NORTHWARD = 0x40
_FIXED_BYTES = 47
"""Bytes of section 5 up to the end of template 5.3's description of groups."""
_FIELD = re.compile(
    # "_" is excluded, because it replaces blanks in names, and names of fields must be distinct.
    r"(?P<variable>[A-Za-z0-9]+) (?P<level>[A-Za-z0-9 .()-]+?) (?P<step>anl|\d{1,7} (?:min|hour|day) fcst|"
    r"(?P<begin>\d{1,7})-(?P<end>\d{1,7}) (?P<unit>min|hour|day) (?P<statistic>acc|ave|max|min) fcst)",
    re.ASCII,
)
_UNITS = {"min": timedelta(minutes=1), "hour": timedelta(hours=1), "day": timedelta(days=1)}
_EPOCH_UNITS = "seconds since 1970-01-01"


def read_grib2_step(
    source: ByteSource, layers: Mapping[str, tuple[int, int]], *, fields: Sequence[str], along: str
) -> CubeStep:
    """Read the message headers of an object's fields; `along` is a key of _TIMES.

    `layers` has offset and length in bytes of each field by its name in `grib:layers`. `fields` are regular expressions
    of variable and level (`TMP 2 m above ground`). `refused` of the result has the fields that no store can have, each
    with the reason. Raises ReadError if the index does not fit the object, or no field can be referred
    to.
    """
    if along not in _TIMES:
        raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"a GRIB2 object is ordered by {[*_TIMES]}, not by {along}")
    chosen = {name: place for name, place in layers.items() if _chosen(name, fields)}
    if len(chosen) > MAX_FIELDS:
        raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"{len(chosen)} fields are requested, more than {MAX_FIELDS}")
    shared = Counter(offset for offset, _ in layers.values())
    messages: dict[str, GribMessage] = {}
    refused: list[str] = []
    for name, (offset, length) in chosen.items():
        message = read_message(HeaderWindow(source), offset)
        if message.length > length:
            raise ReadError(
                MetadataIssue.SIDECAR_MISMATCH, f"{name} has {message.length} bytes, by its index at most {length}"
            )
        reason = "it shares its message with another field" if shared[offset] > 1 else _unsound(name, message)
        if reason:
            refused.append(f"{name}: {reason}")
        else:
            messages[name] = message
    if not messages:
        raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"no field can be referred to: {'; '.join(refused[:3])}")
    first = max(messages.values(), key=lambda message: (message.product.step or timedelta(0), -message.offset))
    for name in [name for name, message in messages.items() if _frame(message) != _frame(first)]:
        del messages[name]
        refused.append(f"{name}: its grid or its valid time differs from other fields of the object")
    return _step(first, messages, refused)


def _chosen(name: str, fields: Sequence[str]) -> bool:
    field = _FIELD.fullmatch(name)
    text = f"{field['variable']} {field['level']}" if field else ""
    return bool(field and [*_names(field)] and any(re.fullmatch(pattern, text) for pattern in fields))


def _names(field: re.Match[str]) -> Iterator[str]:
    """Yield the names of a field in a cube: without lead time, but with the statistic's period.

    A statistic since the run's start has no period in its name (`APCP_surface_acc`), because the period differs at each
    lead time. If this period is at most an hour, a sum has both names, and any other statistic only the name with the
    period. A statistic of the analysis has no period, and so no name.
    """
    name = f"{field['variable']}_{field['level']}".replace(" ", "_")
    if not field["statistic"]:
        yield name
        return
    begin, period = int(field["begin"]), (int(field["end"]) - int(field["begin"])) * _UNITS[field["unit"]]
    if period <= timedelta(0):
        return
    first_hour = period <= timedelta(hours=1)
    if begin == 0 and (not first_hour or field["statistic"] == "acc"):
        yield f"{name}_{field['statistic']}"
    if begin or first_hour:
        minutes = period // timedelta(minutes=1)
        yield f"{name}_{field['statistic']}_" + (f"{minutes}min" if minutes % 60 else f"{minutes // 60}h")


def _unsound(name: str, message: GribMessage) -> str | None:
    """Return why a message is not the named field or decodes unlike ecCodes, or None."""
    field = _FIELD.fullmatch(name)
    if field is None or step_end(field["step"]) != message.product.step:
        return f"its message is valid {message.product.step} after the run"
    grid = describe_grid(message.grid)
    if grid.template not in _PROJECTED or grid.native["scanningMode"] & ~_NORTHWARD:
        return f"its grid is 3.{grid.template}, scanned by {grid.native['scanningMode']}"
    return _undecodable(message)


def _undecodable(message: GribMessage) -> str | None:
    """Return why the users' codec decodes a message unlike ecCodes; None if it decodes alike.

    The codec (gribberish 0.30) reads a constant field as zero, and a missing value among packed values as a number. It
    ignores a width or length that all groups share, which a message stores only once, and not for each group. It
    decodes templates 5.2 and 5.41 wrongly. It decodes the missing values of a bit map correctly, as NaN.
    """
    section = message.representation.ljust(_FIXED_BYTES, b"\0")
    (reference,) = struct.unpack_from(">f", section, 11)
    packed_bits, missing_values, width_bits, length_bits = section[19], section[22], section[36], section[46]
    faults = {
        0: not packed_bits and reference and "it is constant, without packed values",
        3: (missing_values and "its missing values are among the packed values")
        or (not (width_bits and length_bits) and "all its groups have the same width, or the same length"),
        40: not packed_bits and "it is constant, without an image",
    }
    return faults.get(message.packing, f"it is packed by template 5.{message.packing}") or None


def _frame(message: GribMessage) -> tuple[bytes, datetime, timedelta | None]:
    return message.grid, message.reference, message.product.step


def _step(first: GribMessage, fields: Mapping[str, GribMessage], refused: Sequence[str]) -> CubeStep:
    grid = describe_grid(first.grid)
    reference = first.reference
    times = {REFERENCE_TIME: reference, VALID_TIME: reference + (first.product.step or timedelta(0))}
    variables = _axes(grid)
    for name in times:
        attributes = {"standard_name": _TIMES[name], "units": _EPOCH_UNITS, "calendar": "proleptic_gregorian"}
        variables[name] = StoredVariable(attributes=attributes)
    images: dict[str, tuple[StoredChunk, ...]] = {}
    for name, message in fields.items():
        field = _FIELD.fullmatch(name)
        for variable in _names(field) if field else ():
            images[variable] = (StoredChunk((0, 0), message.offset, message.length),)
            variables[variable] = _image(variable, grid.shape)
    return CubeStep(
        attributes={"Conventions": "CF-1.11"},
        variables=variables,
        fixed=_places(grid),
        values={name: struct.pack("<d", moment.timestamp()) for name, moment in times.items()},
        images=images,
        refused=tuple(refused),
    )


def _image(name: str, shape: tuple[int, int]) -> StoredVariable:
    attributes: dict[str, Any] = {
        "long_name": name.replace("_", " "),
        "grid_mapping": GRID_MAPPING,
        "coordinates": " ".join(_TIMES),
    }
    if parameter := named(name.partition("_")[0]):
        attributes["units"] = parameter.unit
    return StoredVariable(dimensions=(ROWS, COLUMNS), attributes=attributes, shape=shape, chunk=shape, message=True)


def _axes(grid: Grid) -> dict[str, StoredVariable]:
    rows, columns = grid.shape
    axes = {
        axis: StoredVariable(
            dimensions=(axis,),
            attributes={"standard_name": f"projection_{axis}_coordinate", "units": "m", "axis": axis.upper()},
            shape=(count,),
            chunk=(count,),
        )
        for axis, count in ((ROWS, rows), (COLUMNS, columns))
    }
    mapping = pyproj.CRS.from_wkt(grid.wkt2).to_cf()
    return {**axes, GRID_MAPPING: StoredVariable(attributes=mapping)}


def _places(grid: Grid) -> dict[str, bytes]:
    """Return the centres of rows and columns, in the order of the message (the codec keeps it)."""
    width, _, west, _, height, north = grid.transform
    rows, columns = grid.shape
    y = north + height * (np.arange(rows) + 0.5)
    if grid.native["scanningMode"] & _NORTHWARD:
        y = y[::-1]
    x = west + width * (np.arange(columns) + 0.5)
    return {ROWS: y.astype("<f8").tobytes(), COLUMNS: x.astype("<f8").tobytes(), GRID_MAPPING: bytes(8)}
