"""NDFD samples: small GRIB2 objects with the database's keys, grids and WMO headings.

Keys of the National Digital Forecast Database have no time. Messages are written by `grib2_messages.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import UTC, date, datetime, time

from kfm_dagster.demo.samples import grib2_messages as grib2

BUCKET = "noaa-ndfd-pds"

# Centre 8 (NWS Telecommunications Gateway); sub-centre and generating process are missing.
_ORIGIN = grib2.Origin(centre=8, subcentre=0xFFFF, tables=(1, 0), significance=0, process=(2, 0, 0, 0xFFFF, 255))
_EARTH = b"\x01" + struct.pack(">BIBIBI", 0, 6_371_200, 0, 0, 0, 0)
_GRIDS = {
    # The definitions of real objects.
    "conus": grib2.projected_grid(
        2145, 1377, template=30, first=(20_191_999, 238_445_999), true_at=25_000_000, meridian=265_000_000,
        spacing=2_539_703, earth=_EARTH, flags=0, scan=0x50, pole=0x80000000 | 90_000_000,
    ),
    "oceanic": grib2.mercator_grid(
        2517, 1793, first=(0x80000000 | 30_419_200, 129_906_005), last=(80_010_000, 10_710_000), true_at=20_000_000,
        spacing=10_000_000, earth=_EARTH, scan=0x50,
    ),
}  # fmt: skip
_ABOVE_A_HUNDREDTH_INCH = grib2.EnsembleRole(
    # Number and total of probabilities are missing. Type 1: above the upper limit, which is 254 * 10^-3.
    template=5, octets=struct.pack(">BBBBIBI", 255, 255, 1, 0x82, 0, 3, 254), text="prob >0.254",
)  # fmt: skip
_HALF_DAYS = ((2, 14), (26, 38), (50, 62), (74, 86))
_ELEMENTS: dict[str, tuple[str, grib2.Field, tuple[grib2.ForecastStep, ...]]] = {
    "maxt": (
        "conus",
        grib2.Field(name="TMAX", level="surface", parameter=(0, 0, 4), surface=(1, 0), value=295.0),
        tuple(grib2.over_hours(*hours, "max") for hours in _HALF_DAYS),
    ),
    "minrh": (
        "conus",
        grib2.Field(name="MINRH", level="2 m above ground", parameter=(0, 1, 198), surface=(103, 2), value=40.0),
        tuple(grib2.over_hours(*hours, "min") for hours in _HALF_DAYS[:2]),
    ),
    "pop12": (
        "conus",
        grib2.Field(
            name="APCP", level="surface", parameter=(0, 1, 8), surface=(1, 0), value=20.0,
            ensemble=_ABOVE_A_HUNDREDTH_INCH,
        ),
        tuple(grib2.over_hours(*hours) for hours in _HALF_DAYS),
    ),
    "waveh": (
        "oceanic",
        grib2.Field(name="WVHGT", level="surface", parameter=(10, 0, 5), surface=(1, 0), value=2.0),
        tuple(grib2.at_hour(lead) for lead in (2, 8, 14)),
    ),
}  # fmt: skip
"""Region, field and steps of elements, by the name in the key."""
ELEMENTS = tuple(_ELEMENTS)


def make_ndfd(*, issued: datetime, element: str) -> tuple[str, bytes]:
    """Make the object of an element's first three days: its key and its content.

    `issued` is aware, on a full hour. As in the bucket, the object and each of its messages begin with a separator and
    a WMO heading. A separator states the number of bytes after its line.
    """
    utc = grib2.full_hour(issued)
    region, field, steps = _ELEMENTS[element]
    parts = []
    for number, step in enumerate(steps):
        bulletin = f"\nYGUB{number:02d} KWBN {utc:%d%H%M}\r\r\n".encode()
        bulletin += grib2.message(field, step, run=utc, origin=_ORIGIN, grid=_GRIDS[region])
        parts.append(_separator(len(bulletin) - 1) + bulletin)
    content = f"\nYGUZ98 KWBN {utc:%d%H%M}\r\r\n".encode() + b"".join(parts)
    key = f"opnl/AR.{region}/VP.001-003/ds.{element}.bin"
    return key, _separator(len(content) - 1) + content


def _separator(length: int) -> bytes:
    return b"****%010d****" % length


def ndfd_samples(day: date, count: int) -> Iterator[tuple[str, str, bytes]]:
    """Yield bucket, key and content of `count` elements, issued at noon of a UTC day."""
    for element in ELEMENTS[:count]:
        yield BUCKET, *make_ndfd(issued=datetime.combine(day, time(12), UTC), element=element)
