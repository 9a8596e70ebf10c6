"""Patterns for the demo's pictures: smooth fields of few levels, which compress well.

Belongs here: synthetic values. Does not belong here: how a format stores them.
"""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache
from typing import Any

import numpy as np

LEVELS = 120
"""Upper limit of the levels of a pattern, which begin at 0."""
_STORMS = ((40, 90, 0.9), (75, 150, 1.0), (130, 60, 0.7), (220, 200, 0.8), (310, 120, 0.6))
"""Azimuth in degrees, range in km and strength of a radar's echoes."""
_STORM_KM = 28.0


def waves(rows: Any, columns: Any) -> Any:
    """Return levels at positions from 0 to 1; from the first row to the last they fall in waves."""
    y, x = rows.astype(np.float32), columns.astype(np.float32)
    # Sines by row and by column, because a sine of each pixel of a full disc would take seconds.
    fall, waves_of_rows, waves_of_columns = 0.85 - 0.7 * y, 0.14 * np.cos(9 * y), np.sin(11 * x)
    smooth = fall[:, None] + waves_of_rows[:, None] * waves_of_columns[None, :]
    return (np.clip(smooth, 0, 1) * LEVELS).astype(np.uint8)


@lru_cache(maxsize=8)
def waves_as_png(columns: int, rows: int) -> bytes:
    """Return the levels as a PNG image of 8 bits, as GRIB2's template 5.41 stores a field."""
    levels = waves(np.linspace(0, 1, rows), np.linspace(0, 1, columns))
    lines = np.pad(levels, ((0, 0), (1, 0))).tobytes()  # each line begins with its filter, 0: none
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(lines)),
        (b"IEND", b""),
    )
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@lru_cache(maxsize=2)
def echoes(radials: int, gates: int, *, first_km: float, gate_km: float) -> tuple[bytes, ...]:
    """Return each radial's reflectivity in a sweep: 0 without echo, else 2 * dBZ + 66."""
    azimuth = np.radians(np.arange(radials) * 360 / radials)[:, None]
    distance = (first_km + np.arange(gates) * gate_km)[None, :]
    east, north = distance * np.sin(azimuth), distance * np.cos(azimuth)
    strength = np.zeros((radials, gates))
    for degrees, km, peak in _STORMS:
        at_east, at_north = km * np.sin(np.radians(degrees)), km * np.cos(np.radians(degrees))
        strength += peak * np.exp(-((east - at_east) ** 2 + (north - at_north) ** 2) / (2 * _STORM_KM**2))
    dbz = np.rint(60 * np.clip(strength, 0, 1))
    return tuple(line.tobytes() for line in np.where(dbz < 5, 0, 2 * dbz + 66).astype(np.uint8))
