"""HRRR samples: small, true GRIB2 objects with the keys, grids and index sidecars of the High-Resolution Rapid Refresh.

Belongs here: deterministic objects for the demo, benchmarks and tests. Does not belong here: real data. Fields are
constant (simple packing with 0 bits), so that a message takes about 200 bytes whatever its grid; everything else is as
NCEP writes it and as ecCodes and wgrib2 read it.

Names cover more than NCEP publishes, so that one day can hold a benchmark: every cycle has leads 0 to 99, both regions
and all four products (19,200 objects). NCEP stops at 18 or 48 hours, and runs Alaska every third hour.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import islice, product

BUCKET = "noaa-hrrr-bdp-pds"
REGIONS = ("conus", "alaska")
PRODUCTS = ("sfc", "prs", "nat", "subh")
MAX_LEAD = 99
"""The key has two digits for it."""

OBJECTS_PER_DAY = 24 * (MAX_LEAD + 1) * len(PRODUCTS) * len(REGIONS)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Field:
    """Parameter (category, number) of discipline 0, first fixed surface, and their texts in an index.

    An accumulation runs from the start of the run to the lead. `before` is how many minutes before the lead a field of
    the sub-hourly product is valid; None for the hourly products.
    """

    name: str
    level: str
    parameter: tuple[int, int]
    surface: tuple[int, int]
    value: float
    accumulated: bool = False
    before: int | None = None


_FIELDS: dict[str, tuple[_Field, ...]] = {
    "sfc": (
        _Field(name="TMP", level="2 m above ground", parameter=(0, 0), surface=(103, 2), value=288.0),
        _Field(name="GUST", level="surface", parameter=(2, 22), surface=(1, 0), value=7.0),
        _Field(name="APCP", level="surface", parameter=(1, 8), surface=(1, 0), value=0.0, accumulated=True),
    ),
    "prs": (
        _Field(name="HGT", level="500 mb", parameter=(3, 5), surface=(100, 50_000), value=5600.0),
        _Field(name="TMP", level="500 mb", parameter=(0, 0), surface=(100, 50_000), value=255.0),
        _Field(name="RH", level="500 mb", parameter=(1, 1), surface=(100, 50_000), value=40.0),
    ),
    "nat": (
        _Field(name="PRES", level="1 hybrid level", parameter=(3, 0), surface=(105, 1), value=98_000.0),
        _Field(name="TMP", level="1 hybrid level", parameter=(0, 0), surface=(105, 1), value=287.0),
        _Field(name="SPFH", level="1 hybrid level", parameter=(1, 0), surface=(105, 1), value=0.008),
    ),
    "subh": tuple(
        _Field(name="GUST", level="surface", parameter=(2, 22), surface=(1, 0), value=7.0, before=minutes)
        for minutes in (45, 30, 15, 0)
    ),
}


def _section(number: int, body: bytes) -> bytes:
    return struct.pack(">IB", len(body) + 5, number) + body


def _grid(columns: int, rows: int, *, template: int, first: tuple[int, int], true_at: int, meridian: int) -> bytes:
    """Build section 3 on a sphere of 6,371,229 m with 3 km spacing, first point in the south-west; microdegrees."""
    common = struct.pack(">BIBBH", 0, columns * rows, 0, 0, template) + b"\x06" + bytes(15)
    points = struct.pack(">IIIIBIIIIBB", columns, rows, *first, 8, true_at, meridian, 3_000_000, 3_000_000, 0, 0x40)
    # Lambert adds its two standard parallels and the (unused) pole of the cone.
    cone = struct.pack(">IIII", true_at, true_at, 0, 0) if template == 30 else b""
    return _section(3, common + points + cone)


_POINTS = {"conus": 1799 * 1059, "alaska": 1299 * 919}

_GRIDS: dict[str, bytes] = {
    # The definition of the real CONUS objects, byte for byte.
    "conus": _grid(1799, 1059, template=30, first=(21138123, 237280472), true_at=38500000, meridian=262500000),
    # As wgrib2 prints it for real Alaska objects: nps:225:60 185.117126:1299:3000 41.612949:919:3000.
    "alaska": _grid(1299, 919, template=20, first=(41612949, 185117126), true_at=60000000, meridian=225000000),
}


def make_hrrr(*, run: datetime, lead: int, product: str = "sfc", region: str = "conus") -> tuple[str, bytes, str]:
    """Make one object: its key, its content and the text of its `.idx`.

    `run` is aware, on a full hour; `lead` in hours. Raises ValueError for what has no key.
    """
    utc = run.astimezone(UTC)
    if run.tzinfo is None or (utc.minute, utc.second, utc.microsecond) != (0, 0, 0):
        raise ValueError(f"run {run!r} is not an aware full hour")
    if not 0 <= lead <= MAX_LEAD or product not in PRODUCTS or region not in REGIONS:
        raise ValueError(f"no HRRR key for lead {lead}, product {product!r}, region {region!r}")
    # The first file of a run has the analysis only, also in the sub-hourly product.
    fields = _FIELDS[product] if lead else [field for field in _FIELDS[product] if not field.before]
    content, lines = b"", []
    for number, field in enumerate(fields, start=1):
        lines.append(
            f"{number}:{len(content)}:d={utc:%Y%m%d%H}:{field.name}:{field.level}:{_step_text(field, lead)}:\n"
        )
        content += _message(field, utc, lead, region)
    suffix = ".ak" if region == "alaska" else ""
    key = f"hrrr.{utc:%Y%m%d}/{region}/hrrr.t{utc:%H}z.wrf{product}f{lead:02d}{suffix}.grib2"
    return key, content, "".join(lines)


def hrrr_samples(day: date, count: int) -> Iterator[tuple[str, str, bytes]]:
    """Yield `count` distinct data objects of one UTC day as (bucket, key, content), short leads first.

    Their sidecars are the third part of `make_hrrr`. Raises ValueError when a day has not so many keys.
    """
    if count > OBJECTS_PER_DAY:
        raise ValueError(f"a day has {OBJECTS_PER_DAY} HRRR keys, {count} were asked for")
    names = product(range(MAX_LEAD + 1), REGIONS, PRODUCTS, range(24))
    for lead, region, kind, hour in islice(names, count):
        run = datetime(day.year, day.month, day.day, hour, tzinfo=UTC)
        key, content, _ = make_hrrr(run=run, lead=lead, product=kind, region=region)
        yield BUCKET, key, content


def _step_text(field: _Field, lead: int) -> str:
    """Print a forecast step as wgrib2 does."""
    if field.accumulated:
        return f"0-{lead} hour acc fcst" if lead else "0-0 day acc fcst"
    if not lead:
        return "anl"
    return f"{lead} hour fcst" if field.before is None else f"{lead * 60 - field.before} min fcst"


def _message(field: _Field, run: datetime, lead: int, region: str) -> bytes:
    run_octets = struct.pack(">H5B", run.year, run.month, run.day, run.hour, 0, 0)
    # Centre 7 (NCEP), master tables 2, local tables 1, start of forecast, operational forecast products.
    identification = struct.pack(">HHBBB", 7, 0, 2, 1, 1) + run_octets + b"\x00\x01"
    sections = (
        _section(1, identification)
        + _GRIDS[region]
        + _section(4, _product(field, run, lead))
        # Simple packing (5.0) in 0 bits: the reference value is the field.
        + _section(5, struct.pack(">IHfHHBB", _POINTS[region], 0, field.value, 0, 0, 0, 0))
        + _section(6, b"\xff")
        + _section(7, b"")
    )
    return struct.pack(">4sHBBQ", b"GRIB", 0, 0, 2, len(sections) + 20) + sections + b"7777"


def _product(field: _Field, run: datetime, lead: int) -> bytes:
    """Build section 4: template 4.0, or 4.8 for an accumulation since the start of the run."""
    # Unit of time range (code table 4.4): 1 hour, 0 minute.
    unit, time = (1, lead) if field.before is None else (0, lead * 60 - field.before)
    body = struct.pack(
        ">HHBBBBBHBBIBBIBBI",
        0,
        8 if field.accumulated else 0,
        *field.parameter,
        2,
        0,
        83,  # generating process 83: HRRR
        0,
        0,
        unit,
        0 if field.accumulated else time,
        field.surface[0],
        0,
        field.surface[1],
        255,
        0,
        0,
    )
    if not field.accumulated:
        return body
    end = run + timedelta(hours=lead)
    # One interval: accumulation (1) over successive times of the same run (2), in hours.
    return body + struct.pack(">H5BBIBBBIBI", end.year, end.month, end.day, end.hour, 0, 0, 1, 0, 1, 2, 1, lead, 255, 0)
