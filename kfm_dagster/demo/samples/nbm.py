"""NBM samples: small GRIB2 objects with the blend's keys, grids and index sidecars.

Regions are two of the six: CONUS (Lambert) and Hawaii (Mercator). Leads are hourly to 36 hours, then every third hour
to 192 and every sixth to 264; NCEP publishes more. Messages are written by `grib2_messages.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import UTC, date, datetime
from itertools import islice, product

from kfm_dagster.demo.samples import grib2_messages as grib2

BUCKET = "noaa-nbm-grib2-pds"
REGIONS = ("co", "hi")
PRODUCTS = ("core", "qmd")
LEADS = (*range(1, 37), *range(39, 193, 3), *range(198, 265, 6))
OBJECTS_PER_DAY = 24 * len(LEADS) * len(PRODUCTS) * len(REGIONS)

# Sub-centre 14 (MDL), version 1 of the centre's tables, generating process 104 (the blend), missing cut-off.
_ORIGIN = grib2.Origin(subcentre=14, tables=(1, 1), process=(2, 255, 104, 0xFFFF, 255))
_EARTH = b"\x01" + struct.pack(">BIBIBI", 0, 6_371_200, 255, 255, 255, 255)
_CORE = (
    grib2.Field(name="TMP", level="2 m above ground", parameter=(0, 0, 0), surface=(103, 2), value=288.0),
    grib2.Field(name="DPT", level="2 m above ground", parameter=(0, 0, 6), surface=(103, 2), value=281.0),
    grib2.Field(name="APCP", level="surface", parameter=(0, 1, 8), surface=(1, 0), value=0.0, accumulated=True),
)
_QUANTILES = tuple(
    grib2.Field(
        name="APCP",
        level="surface",
        parameter=(0, 1, 8),
        surface=(1, 0),
        value=value,
        accumulated=True,
        percentile=percentile,
    )
    for percentile, value in ((10, 0.0), (50, 1.5), (90, 6.0))
)
_FIELDS = {"core": _CORE, "qmd": _QUANTILES}
_SUMMED_HOURS = {"core": 1, "qmd": 6}
"""Hours before the lead over which precipitation is summed."""

_GRIDS = {
    # The definition of a real CONUS object, byte for byte.
    "co": grib2.projected_grid(
        2345,
        1597,
        template=30,
        first=(19_229_000, 233_723_400),
        true_at=25_000_000,
        meridian=265_000_000,
        spacing=2_539_703,
        earth=_EARTH,
        flags=0x30,
        scan=0x50,
        pole=0x80000000 | 90_000_000,
    ),
    # NCEP grid 196, which the National Digital Forecast Database has for Hawaii, too.
    "hi": grib2.mercator_grid(
        321,
        225,
        first=(18_072_699, 198_474_999),
        last=(23_087_799, 206_130_999),
        true_at=20_000_000,
        spacing=2_500_000,
        earth=_EARTH,
    ),
}


def make_nbm(*, run: datetime, lead: int, product: str = "core", region: str = "co") -> tuple[str, bytes, str]:
    """Make an object: its key, its content and the text of its `.idx`.

    `run` is aware, on a full hour; `lead` in hours. Raises ValueError for a combination without a key.
    """
    utc = grib2.full_hour(run)
    if lead not in LEADS or product not in PRODUCTS or region not in REGIONS:
        raise ValueError(f"no NBM key for lead {lead}, product {product!r}, region {region!r}")
    content, index = grib2.assembled(
        (
            (field, step, grib2.message(field, step, run=utc, origin=_ORIGIN, grid=_GRIDS[region]))
            for field, step in _steps(product, lead)
        ),
        run=utc,
    )
    key = f"blend.{utc:%Y%m%d/%H}/{product}/blend.t{utc:%H}z.{product}.f{lead:03d}.{region}.grib2"
    return key, content, index


def _steps(product: str, lead: int) -> Iterator[tuple[grib2.Field, grib2.ForecastStep]]:
    begin = max(0, lead - _SUMMED_HOURS[product])
    for field in _FIELDS[product]:
        yield field, grib2.over_hours(begin, lead) if field.accumulated else grib2.at_hour(lead)


def nbm_samples(day: date, count: int) -> Iterator[tuple[str, str, bytes]]:
    """Yield bucket, key and content of `count` objects of a UTC day, short leads first.

    `make_nbm` also returns each object's sidecar. Raises ValueError when a day has fewer keys.
    """
    if count > OBJECTS_PER_DAY:
        raise ValueError(f"a day has {OBJECTS_PER_DAY} NBM keys, {count} were requested")
    for lead, region, kind, hour in islice(product(LEADS, REGIONS, PRODUCTS, range(24)), count):
        run = datetime(day.year, day.month, day.day, hour, tzinfo=UTC)
        key, content, _ = make_nbm(run=run, lead=lead, product=kind, region=region)
        yield BUCKET, key, content
