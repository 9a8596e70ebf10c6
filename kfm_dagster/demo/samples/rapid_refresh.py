"""Samples of RRFS, REFS, RAP and RTMA: small GRIB2 objects with keys, grids and indexes.

Grids are from headers of real objects, or from headers that users printed. Messages are written by `grib2_messages.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import replace
from datetime import date, datetime

from kfm_dagster.demo.samples import grib2_messages as grib2

RRFS_BUCKET, RAP_BUCKET = "noaa-rrfs-ops-pds", "noaa-rap-pds"
RTMA_BUCKETS = {"rtma2p5": "noaa-rtma-pds", "urma2p5": "noaa-urma-pds"}
SAMPLE_DAY = date(2026, 9, 20)
"""A day when RRFS had members; its bucket has no object before 2026-08-12."""

_SOUTH = 0x80000000
_TMP = grib2.Field(name="TMP", level="2 m above ground", parameter=(0, 0, 0), surface=(103, 2), value=288.0)
_GUST = grib2.Field(name="GUST", level="surface", parameter=(0, 2, 22), surface=(1, 0), value=7.0)
_SUM = grib2.Field(name="APCP", level="surface", parameter=(0, 1, 8), surface=(1, 0), value=0.0, accumulated=True)
_HGT = grib2.Field(name="HGT", level="500 mb", parameter=(0, 3, 5), surface=(100, 50_000), value=5600.0)
_FIELDS = {"prslev": (_HGT, replace(_TMP, level="500 mb", surface=(100, 50_000))), "2dfld": (_TMP, _GUST, _SUM)}

_CONUS = grib2.projected_grid(
    1799, 1059, template=30, first=(21138123, 237280472), true_at=38500000, meridian=262500000, spacing=3_000_000
)
_RRFS_GRIDS = {
    "na": grib2.rotated_grid(
        1127,
        683,
        first=(_SOUTH | 36_930_300, 299_000_000),
        last=(36_930_300, 60_945_800),
        step=108_300,
        pole=(_SOUTH | 35_000_000, 247_000_000),
    ),
    "conus": _CONUS,
    "hi": grib2.mercator_grid(
        321,
        225,
        first=(18_072_699, 198_474_999),
        last=(23_087_799, 206_130_999),
        true_at=20_000_000,
        spacing=2_500_000,
    ),
}
_RESOLUTIONS = {"na": "13km", "conus": "3km", "hi": "2p5km"}
_RAP_GRIDS = {
    # The definition of real objects, byte for byte.
    "wrfprs": grib2.GridSection(
        section=bytes.fromhex(
            "000000500300000c20b20000800106000000000000000000000000000000000003b900000342000000000000000080a1998b"
            "0d2ae1ea380337f9800f23bb800742b8080742b8084002c6efe80159c791"
        ),
        columns=953,
        rows=834,
    ),
    "awp130pgrb": grib2.projected_grid(
        451, 337, template=30, first=(16281000, 233862000), true_at=25000000, meridian=265000000, spacing=13_545_087
    ),
}
_NDFD = grib2.projected_grid(
    2345, 1597, template=30, first=(19228976, 233723448), true_at=25000000, meridian=265000000, spacing=2_539_703
)


def make_rrfs(
    *, run: datetime, lead: int, region: str = "conus", product: str = "2dfld", member: int = 0, minutes: bool = False
) -> tuple[str, bytes, str]:
    """Make a forecast (with `minutes`, of four quarter hours): its key, content and `.idx` text."""
    fields: Iterable[grib2.Field] = _FIELDS[product]
    steps = [(field, grib2.over_hours(0, lead) if field.accumulated else grib2.at_hour(lead)) for field in fields]
    if minutes:
        steps = [(_GUST, grib2.at_minute(lead * 60 - before)) for before in (45, 30, 15, 0)]
    folder, name, kind, data_type = "", "", product, 1
    if member:
        role = grib2.EnsembleRole(template=1, octets=bytes([3, member, 5]), text=f"ENS=+{member}")
        steps = [(replace(field, ensemble=role), step) for field, step in steps]
        folder, name, kind, data_type = f"m{member:03d}/", f"m{member:03d}.", f"{product}nomads", 4
    grid = _RRFS_GRIDS[region]
    content, index = _made(
        steps, run=run, grid=grid, origin=grib2.Origin(data_type=data_type, process=(2, 0, 134, 0, 0))
    )
    interval = "subh." if minutes else ""
    key = (
        f"rrfs{'ens' if member else ''}.{run:%Y%m%d/%H}/{folder}rrfs.t{run:%H}z.{name}{kind}.{_RESOLUTIONS[region]}."
        f"{interval}f{lead:03d}.{region}.grib2"
    )
    return key, content, index


def make_refs(*, run: datetime, lead: int, product: str = "mean") -> tuple[str, bytes, str]:
    """Make a weighted mean or a probability over CONUS: its key, content and `.idx` text."""
    # Templates 4.2 (1: weighted mean) and 4.5 (0: below the lower limit, 280 K), of 14 members.
    probability = struct.pack(">BBBBIBI", 0, 14, 0, 0, 280, 255, grib2.MISSING)
    role = {
        "mean": grib2.EnsembleRole(template=2, octets=bytes([1, 14]), text="wt ens mean:process=193"),
        "prob": grib2.EnsembleRole(template=5, octets=probability, text="prob <280:prob fcst 0/14"),
    }[product]
    steps = [(replace(_TMP, ensemble=role), grib2.at_hour(lead))]
    origin = grib2.Origin(subcentre=2, data_type=4, process=(4, 0, 136, 0, 0))
    content, index = _made(steps, run=run, grid=_CONUS, origin=origin)
    return f"refs.{run:%Y%m%d/%H}/ensprod/refs.t{run:%H}z.{product}.f{lead:02d}.conus.grib2", content, index


def make_rap(*, run: datetime, lead: int, product: str = "awp130pgrb") -> tuple[str, bytes, str]:
    """Make a forecast on an AWIPS grid or on the model's own grid: key, content and `.idx` text."""
    steps = [(field, grib2.at_hour(lead)) for field in (_TMP, _GUST)]
    content, index = _made(steps, run=run, grid=_RAP_GRIDS[product], origin=grib2.Origin(process=(2, 0, 105, 0, 0)))
    return f"rap.{run:%Y%m%d}/rap.t{run:%H}z.{product}f{lead:02d}.grib2", content, index


def make_rtma(*, run: datetime, system: str = "rtma2p5", product: str = "anl") -> tuple[str, bytes, str]:
    """Make an analysis of CONUS by RTMA or URMA: its key, its content and its `.idx` text."""
    steps = [(field, grib2.at_hour(0)) for field in (_TMP, _GUST)]
    content, index = _made(steps, run=run, grid=_NDFD, origin=grib2.Origin(data_type=0, process=(0, 0, 109, 0, 0)))
    return f"{system}.{run:%Y%m%d}/{system}.t{run:%H}z.2dvar{product}_ndfd.grb2_wexp", content, index


def _made(
    steps: Iterable[tuple[grib2.Field, grib2.ForecastStep]],
    *,
    run: datetime,
    grid: grib2.GridSection,
    origin: grib2.Origin,
) -> tuple[bytes, str]:
    """Return an object's content and its index."""
    return grib2.assembled(
        ((field, step, grib2.message(field, step, run=run, origin=origin, grid=grid)) for field, step in steps), run=run
    )
