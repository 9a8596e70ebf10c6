"""HRRR forecasts with values: small grids packed by ecCodes, real keys, and an index.

Belongs here: objects, and ecCodes' reading of messages. Does not belong here: the demo's samples, whose fields are
constant.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import eccodes
import numpy as np
from numpy.typing import NDArray

from kfm_dagster.demo.samples.grib2_messages import (
    Field,
    ForecastStep,
    Origin,
    assembled,
    at_hour,
    message,
    over_hours,
    projected_grid,
)
from kfm_dagster_tests.readers import reading

RUN = datetime(2025, 12, 3, 6, tzinfo=UTC)
ROWS, COLUMNS = 12, 20
SPATIAL, SIMPLE, PNG = "grid_complex_spatial_differencing", "grid_simple", "grid_png"
_ABSENT = 1e30
# HRRR's projection and first point, on fewer points.
_GRID = projected_grid(
    COLUMNS, ROWS, template=30, first=(21138123, 237280472), true_at=38500000, meridian=262500000, spacing=3_000_000
)
_PARAMETERS: Mapping[tuple[str, str], tuple[tuple[int, int, int], tuple[int, int]]] = {
    ("TMP", "2 m above ground"): ((0, 0, 0), (103, 2)),
    ("RH", "2 m above ground"): ((0, 1, 1), (103, 2)),
    ("APCP", "surface"): ((0, 1, 8), (1, 0)),
    ("VIS", "surface"): ((0, 19, 0), (1, 0)),
}

Values = NDArray[np.float64]


def values_of(seed: Sequence[int], *, missing: bool = False) -> Values:
    """Return a field's values in the row order of a message; with `missing`, some are NaN.

    In some rows the values vary little, so that packing groups have several widths.
    """
    values = np.random.default_rng([*seed]).normal(280.0, 9.0, (ROWS, COLUMNS)).round(1)
    values[3:6] = np.linspace(270.0, 290.0, 3 * COLUMNS).reshape(3, COLUMNS)
    if missing:
        values[2:5, ::3] = np.nan
    return values


def field_of(
    variable: str, level: str, step: ForecastStep, values: Values, *, packing: str = SPATIAL
) -> tuple[Field, ForecastStep, bytes]:
    """Return a field for `assembled`; constant values keep the sample's packing in zero bits."""
    parameter, surface = _PARAMETERS[variable, level]
    described = {"name": variable, "level": level, "parameter": parameter, "surface": surface}
    field = Field(**described, value=float(values.flat[0]), accumulated=step.length is not None)
    content = message(field, step, run=RUN, origin=Origin(process=(2, 0, 83, 0, 0)), grid=_GRID)
    return field, step, content if (values == values.flat[0]).all() else packed(content, values, packing)


def packed(message_: bytes, values: Values, packing: str) -> bytes:
    """Return the message with these values; NaN is masked by a bit map."""
    with handle_of(message_) as handle:
        eccodes.codes_set(handle, "missingValue", _ABSENT)
        eccodes.codes_set(handle, "bitmapPresent", int(np.isnan(values).any()))
        eccodes.codes_set(handle, "bitsPerValue", 24 if packing == PNG else 12)
        eccodes.codes_set_values(handle, np.where(np.isnan(values), _ABSENT, values).ravel())
        if packing != SIMPLE:
            eccodes.codes_set(handle, "packingType", packing)
        return bytes(eccodes.codes_get_message(handle))


@contextmanager
def handle_of(message_: bytes) -> Iterator[int]:
    """Open a message in ecCodes."""
    handle = eccodes.codes_new_from_message(message_)
    try:
        yield handle
    finally:
        eccodes.codes_release(handle)


def in_groups(message_: bytes, *, width_bits: int = 8, length_bits: int = 8, missing: int = 0) -> bytes:
    """Return the message packed in two groups of 4-bit values (template 5.3).

    With `missing` (code table 5.5) the first group's first value is missing.
    """
    sections, start = message_[16:], 0
    while sections[start + 4] != 5:
        start += struct.unpack_from(">I", sections, start)[0]
    points = ROWS * COLUMNS
    packed_as = struct.pack(">IHfHHBBBBffI", points, 3, 270.0, 0, 1, 8, 0, 1, missing, 9999.0, 0.0, 2)
    half, width = points // 2, 0 if width_bits else 4
    groups = struct.pack(">BBIBIB", width, width_bits, 0 if length_bits else half, 1, half, length_bits) + b"\x01\x01"
    # The first value and the smallest difference (an octet each), then the groups' references, widths and lengths.
    data = b"\x05\x01" + b"\x07\x09" + b"\x04" * (2 if width_bits else 0) + bytes([half] * (2 if length_bits else 0))
    data += b"\xf3" + b"\x12" * (points // 2 - 1)
    body = sections[:start] + _section(5, packed_as + groups) + _section(6, b"\xff") + _section(7, data)
    return message_[:8] + struct.pack(">Q", len(body) + 20) + body + b"7777"


def decoded(message_: bytes) -> Values:
    """Return the values that ecCodes decodes, with NaN for missing values."""
    with handle_of(message_) as handle:
        eccodes.codes_set(handle, "missingValue", _ABSENT)
        values = eccodes.codes_get_values(handle)
        shape = eccodes.codes_get(handle, "Nj"), eccodes.codes_get(handle, "Ni")
    return np.where(values == _ABSENT, np.nan, values).reshape(shape)


def corners(message_: bytes) -> tuple[float, float, float, float]:
    """Return latitude and longitude of the first and last point, as ecCodes computes them."""
    with handle_of(message_) as handle:
        latitudes, longitudes = (eccodes.codes_get_array(handle, name) for name in ("latitudes", "longitudes"))
    return float(latitudes[0]), float(longitudes[0]), float(latitudes[-1]), float(longitudes[-1])


def messages_of(content: bytes) -> list[bytes]:
    """Return the messages of an object that has no bytes between them."""
    starts = reading.messages_of(content)
    return [content[start:][: struct.unpack_from(">Q", content, start + 8)[0]] for start in starts]


def forecast(lead: int, *, humid: bool = True, fog: bool = False) -> tuple[str, bytes, str]:
    """Return key, content and index of a run's file with two to five fields."""
    fields = [field_of("TMP", "2 m above ground", at_hour(lead), values_of([lead, 1]))]
    if humid:
        fields.append(field_of("RH", "2 m above ground", at_hour(lead), values_of([lead, 2]), packing=SIMPLE))
    visibility = np.full((ROWS, COLUMNS), 40.0) if fog else values_of([lead, 3], missing=True)
    fields.append(field_of("VIS", "surface", at_hour(lead), visibility))
    if lead:
        fields.append(field_of("APCP", "surface", over_hours(0, lead), values_of([lead, 4])))
    if lead > 1:
        fields.append(field_of("APCP", "surface", over_hours(lead - 1, lead), values_of([lead, 5])))
    content, index = assembled(fields, run=RUN)
    return f"hrrr.{RUN:%Y%m%d}/conus/hrrr.t{RUN:%H}z.wrfsfcf{lead:02}.grib2", content, index


def write(root: Path, file: tuple[str, bytes, str]) -> str:
    """Store an object and its index; return its path below the root."""
    key, content, index = file
    path = f"noaa-hrrr-bdp-pds/{key}"
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(content)
    (root / f"{path}.idx").write_text(index)
    return path


def _section(number: int, body: bytes) -> bytes:
    return struct.pack(">IB", len(body) + 5, number) + body
