"""NAQFC samples: small GRIB2 objects of air quality, each with all leads of a run.

The domain is one of the three, CONUS. Messages are written by `grib2_messages.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from itertools import islice, product

from kfm_dagster.demo.samples.grib2_messages import Field, Origin, full_hour, message, over_hours, projected_grid

BUCKET = "noaa-nws-naqfc-pds"
CYCLES = (6, 12)
PRODUCTS = ("ave_1hr_pm25", "ave_1hr_pm25_bc", "ave_1hr_o3", "ave_1hr_o3_bc")
OBJECTS_PER_DAY = len(CYCLES) * len(PRODUCTS)
LEADS = 72

# The definitions of a real object: generating process 211, level 1 in sigma, NCEP grid 227.
_ORIGIN = Origin(process=(2, 0, 211, 0, 0))
_FIELDS = {
    "pm25": Field(name="PMTF", level="1 sigma level", parameter=(0, 13, 193), surface=(104, 1), value=9.0),
    "o3": Field(name="OZCON", level="1 sigma level", parameter=(0, 14, 193), surface=(104, 1), value=41.0),
}
_GRID = projected_grid(
    1473, 1025, template=30, first=(12_190_000, 226_541_000), true_at=25_000_000, meridian=265_000_000,
    spacing=5_079_000, pole=0x80000000 | 90_000_000,
)  # fmt: skip


def make_naqfc(*, run: datetime, product: str = "ave_1hr_pm25") -> tuple[str, bytes]:
    """Make an object with the hourly means of 72 hours: its key and its content.

    `run` is aware, on a full hour. Raises ValueError for a run or product without a key.
    """
    utc = full_hour(run)
    if utc.hour not in CYCLES or product not in PRODUCTS:
        raise ValueError(f"no NAQFC key for a run at {utc:%H} UTC, product {product!r}")
    field = _FIELDS[product.split("_")[2]]
    if product.endswith("_bc"):
        field = replace(field, value=field.value - 1)
    steps = (over_hours(lead, lead + 1, "ave") for lead in range(LEADS))
    content = b"".join(message(field, step, run=utc, origin=_ORIGIN, grid=_GRID) for step in steps)
    return f"AQMv7/CS/{utc:%Y%m%d/%H}/aqm.t{utc:%H}z.{product}.{utc:%Y%m%d}.227.grib2", content


def naqfc_samples(day: date, count: int) -> Iterator[tuple[str, str, bytes]]:
    """Yield bucket, key and content of `count` objects of a UTC day.

    Raises ValueError if a day has fewer objects.
    """
    if count > OBJECTS_PER_DAY:
        raise ValueError(f"a day has {OBJECTS_PER_DAY} NAQFC keys, {count} were requested")
    for kind, hour in islice(product(PRODUCTS, CYCLES), count):
        yield BUCKET, *make_naqfc(run=datetime(day.year, day.month, day.day, hour, tzinfo=UTC), product=kind)
