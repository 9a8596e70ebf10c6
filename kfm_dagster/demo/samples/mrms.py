"""MRMS samples: small, gzipped GRIB2 objects with the keys and grids of MRMS.

The samples have two of the five regions, and four of some 240 products. Each product is a mosaic that MRMS publishes
every two minutes. Messages are written by `grib2_messages.py`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice, product

from kfm_dagster.demo.samples.grib2_messages import Field, Origin, at_minute, lat_lon_grid, message

BUCKET = "noaa-mrms-pds"
REGIONS = ("CONUS", "ALASKA")
CADENCE = timedelta(minutes=2)
_FIRST = timedelta(seconds=39)
"""Mosaics are valid some seconds after the minute."""
_FRAMES = timedelta(days=1) // CADENCE

# Centre 161 is NSSL; version 255 of the master tables means that only the centre's own tables are used. Significance 3
# is the time of the observation, status 2 is research, type of data 7 is radar observations.
_ORIGIN = Origin(centre=161, tables=(255, 1), significance=3, status=2, data_type=7, process=(8, 0, 97, 0, 0))
_PNG = 41
"""Data representation template 5.41."""


def _field(number: tuple[int, int], height_m: int, value: float) -> Field:
    # Discipline 209 has no names of its own in wgrib2's tables, and MRMS has no index with names.
    return Field(name="", level="", parameter=(209, *number), surface=(102, height_m), value=value)


# Category and number as in the user table of MRMS.
_FIELDS = {
    "PrecipRate_00.00": _field((6, 1), 0, 0.0),
    "MergedReflectivityQCComposite_00.50": _field((10, 0), 500, 25.0),
    "MergedRhoHV_19.00": _field((9, 3), 19_000, 0.98),
    "ReflectivityAtLowestAltitude_00.50": _field((3, 57), 500, 20.0),
}
PRODUCTS = tuple(_FIELDS)
OBJECTS_PER_DAY = _FRAMES * len(PRODUCTS) * len(REGIONS)

# Code table 3.2, shape 2, defines the axes. MRMS states axes, too: in metres, but with a scale factor for 0.1 m.
_EARTH = b"\x02" + struct.pack(">BIBIBI", 1, 6_367_470, 1, 6_378_160, 1, 6_356_775)
_GRIDS = {
    # The definitions of real objects, byte for byte.
    "CONUS": lat_lon_grid(
        7000,
        3500,
        first=(54_995_000, 230_005_000),
        last=(20_005_001, 299_994_998),
        step=10_000,
        earth=_EARTH,
        angle=(1, 1_000_000),
    ),
    "ALASKA": lat_lon_grid(
        5000,
        2200,
        first=(71_995_000, 184_005_000),
        last=(50_005_000, 233_994_999),
        step=10_000,
        earth=_EARTH,
        angle=(1, 1_000_000),
    ),
}


def make_mrms(*, valid: datetime, product: str = "PrecipRate_00.00", region: str = "CONUS") -> tuple[str, bytes]:
    """Make an object: its key and its content.

    `valid` is aware, on a full second. Raises ValueError for a combination without a key.
    """
    utc = valid.astimezone(UTC)
    if valid.tzinfo is None or utc.microsecond or product not in PRODUCTS or region not in REGIONS:
        raise ValueError(f"no MRMS key for {valid!r}, product {product!r}, region {region!r}")
    encoded = message(_FIELDS[product], at_minute(0), run=utc, origin=_ORIGIN, grid=_GRIDS[region], packing=_PNG)
    name = f"MRMS_{product}_{utc:%Y%m%d-%H%M%S}.grib2"
    return f"{region}/{product}/{utc:%Y%m%d}/{name}.gz", _gzipped(encoded, name=name, at=utc)


def mrms_samples(day: date, count: int) -> Iterator[tuple[str, str, bytes]]:
    """Yield bucket, key and content of `count` objects of a UTC day, in the order of times.

    Raises ValueError when a day has fewer keys.
    """
    if count > OBJECTS_PER_DAY:
        raise ValueError(f"a day has {OBJECTS_PER_DAY} MRMS keys, {count} were requested")
    midnight = datetime.combine(day, time(), UTC)
    for frame, region, kind in islice(product(range(_FRAMES), REGIONS, PRODUCTS), count):
        yield BUCKET, *make_mrms(valid=midnight + frame * CADENCE + _FIRST, product=kind, region=region)


def _gzipped(content: bytes, *, name: str, at: datetime) -> bytes:
    """Gzip as the command does, with name and time in the header (RFC 1952, 2.3)."""
    header = struct.pack("<2sBBIBB", b"\x1f\x8b", 8, 8, int(at.timestamp()), 0, 3) + name.encode() + b"\x00"
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    body = deflate.compress(content) + deflate.flush()
    return header + body + struct.pack("<II", zlib.crc32(content), len(content))
