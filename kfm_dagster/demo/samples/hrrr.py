"""HRRR samples: small GRIB2 objects with the model's keys, grids and index sidecars.

A day has more keys than NCEP publishes, enough for a benchmark: every cycle has leads 0 to 99, both regions and all
four products (19,200 objects). NCEP stops at 18 or 48 hours, and runs Alaska every third hour. Messages are written by
`grib2_messages.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from itertools import islice, product

from kfm_dagster.demo.samples import grib2_messages as grib2

BUCKET = "noaa-hrrr-bdp-pds"
REGIONS = ("conus", "alaska")
PRODUCTS = ("sfc", "prs", "nat", "subh")
MAX_LEAD = 99
"""Largest lead in hours; the key has two digits for it."""

OBJECTS_PER_DAY = 24 * (MAX_LEAD + 1) * len(PRODUCTS) * len(REGIONS)

# Generating process 83: HRRR.
_ORIGIN = grib2.Origin(process=(2, 0, 83, 0, 0))
_GUST = grib2.Field(name="GUST", level="surface", parameter=(0, 2, 22), surface=(1, 0), value=7.0)
_FIELDS: dict[str, tuple[grib2.Field, ...]] = {
    "sfc": (
        grib2.Field(name="TMP", level="2 m above ground", parameter=(0, 0, 0), surface=(103, 2), value=288.0),
        _GUST,
        grib2.Field(name="APCP", level="surface", parameter=(0, 1, 8), surface=(1, 0), value=0.0, accumulated=True),
    ),
    "prs": (
        grib2.Field(name="HGT", level="500 mb", parameter=(0, 3, 5), surface=(100, 50_000), value=5600.0),
        grib2.Field(name="TMP", level="500 mb", parameter=(0, 0, 0), surface=(100, 50_000), value=255.0),
        grib2.Field(name="RH", level="500 mb", parameter=(0, 1, 1), surface=(100, 50_000), value=40.0),
    ),
    "nat": (
        grib2.Field(name="PRES", level="1 hybrid level", parameter=(0, 3, 0), surface=(105, 1), value=98_000.0),
        grib2.Field(name="TMP", level="1 hybrid level", parameter=(0, 0, 0), surface=(105, 1), value=287.0),
        grib2.Field(name="SPFH", level="1 hybrid level", parameter=(0, 1, 0), surface=(105, 1), value=0.008),
    ),
}
_DRAWN = {
    "TMP": grib2.DrawnValues(lowest=255.0, exponent=-1),
    "GUST": grib2.DrawnValues(lowest=0.0, exponent=-3),
    "APCP": grib2.DrawnValues(lowest=0.0, exponent=-2),
    "HGT": grib2.DrawnValues(lowest=5400.0, exponent=2),
    "RH": grib2.DrawnValues(lowest=20.0, exponent=-1),
    "PRES": grib2.DrawnValues(lowest=96_000.0, exponent=5),
    "SPFH": grib2.DrawnValues(lowest=0.001, exponent=-13),
}
_QUARTERS = (45, 30, 15, 0)
"""Times when fields of the sub-hourly product are valid, in minutes before the lead."""

_GRIDS = {
    # The definition of the real CONUS objects, byte for byte.
    "conus": grib2.projected_grid(
        1799,
        1059,
        template=30,
        first=(21138123, 237280472),
        true_at=38500000,
        meridian=262500000,
        spacing=3_000_000,
    ),
    # As wgrib2 prints it for real Alaska objects: nps:225:60 185.117126:1299:3000 41.612949:919:3000.
    "alaska": grib2.projected_grid(
        1299,
        919,
        template=20,
        first=(41612949, 185117126),
        true_at=60000000,
        meridian=225000000,
        spacing=3_000_000,
    ),
}


def make_hrrr(
    *, run: datetime, lead: int, product: str = "sfc", region: str = "conus", drawn: bool = False
) -> tuple[str, bytes, str]:
    """Make an object: its key, its content and the text of its `.idx`.

    `run` is aware, on a full hour; `lead` in hours. Fields are constant, unless `drawn` for a picture.
    Raises ValueError for a combination without a key.
    """
    utc = grib2.full_hour(run)
    if not 0 <= lead <= MAX_LEAD or product not in PRODUCTS or region not in REGIONS:
        raise ValueError(f"no HRRR key for lead {lead}, product {product!r}, region {region!r}")
    content, index = grib2.assembled(
        (
            (
                field,
                step,
                grib2.message(
                    field,
                    step,
                    run=utc,
                    origin=_ORIGIN,
                    grid=_GRIDS[region],
                    drawn=_DRAWN[field.name] if drawn else None,
                ),
            )
            for field, step in _steps(product, lead)
        ),
        run=utc,
    )
    suffix = ".ak" if region == "alaska" else ""
    key = f"hrrr.{utc:%Y%m%d}/{region}/hrrr.t{utc:%H}z.wrf{product}f{lead:02d}{suffix}.grib2"
    return key, content, index


def _steps(product: str, lead: int) -> Iterator[tuple[grib2.Field, grib2.ForecastStep]]:
    if product == "subh":
        # The first file of a run has the analysis only.
        yield from ((_GUST, grib2.at_minute(lead * 60 - before)) for before in (_QUARTERS if lead else (0,)))
        return
    for field in _FIELDS[product]:
        yield field, grib2.over_hours(0, lead) if field.accumulated else grib2.at_hour(lead)


def hrrr_samples(day: date, count: int) -> Iterator[tuple[str, str, bytes]]:
    """Yield bucket, key and content of `count` objects of a UTC day, short leads first.

    `make_hrrr` also returns each object's sidecar. Raises ValueError when a day has fewer keys.
    """
    if count > OBJECTS_PER_DAY:
        raise ValueError(f"a day has {OBJECTS_PER_DAY} HRRR keys, {count} were requested")
    names = product(range(MAX_LEAD + 1), REGIONS, PRODUCTS, range(24))
    for lead, region, kind, hour in islice(names, count):
        run = datetime(day.year, day.month, day.day, hour, tzinfo=UTC)
        key, content, _ = make_hrrr(run=run, lead=lead, product=kind, region=region)
        yield BUCKET, key, content
