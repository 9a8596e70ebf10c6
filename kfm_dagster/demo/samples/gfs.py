"""GFS samples: small GRIB2 objects with the model's keys, grids and index sidecars.

Belongs here: deterministic objects of GFS, its analysis cycle GDAS and its wave model. Does not belong here: real data,
nor how a message is written (`grib2_messages.py`).

A day has more keys than NCEP publishes, enough for a benchmark: every grid has the leads of 0.25 degrees (hourly to 120
hours, then every third hour to 384). At 0.5 and 1 degree, NCEP publishes every third hour only.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from itertools import islice, product

from kfm_dagster.demo.samples import grib2_messages as grib2

BUCKET = "noaa-gfs-bdp-pds"
CYCLES = (0, 6, 12, 18)
LEADS = (*range(121), *range(123, 385, 3))
PRODUCTS = (
    ("pgrb2", "0p25"), ("pgrb2", "0p50"), ("pgrb2", "1p00"),
    ("pgrb2b", "0p25"), ("pgrb2b", "0p50"), ("pgrb2b", "1p00"), ("pgrb2full", "0p50"), ("sfluxgrb", ""),
)  # fmt: skip
WAVES = (("atlocn", "0p16"), ("global", "0p25"))
"""Two of the wave model's regions."""
OBJECTS_PER_DAY = len(CYCLES) * len(LEADS) * (len(PRODUCTS) + len(WAVES))

# Generating processes (NCEP ON388, table A) 96: GFS; 11: its wave model.
_ATMOSPHERE, _WAVE = grib2.Origin(process=(2, 0, 96, 0, 0)), grib2.Origin(process=(2, 0, 11, 0, 0))
_COMMON = (
    grib2.Field(name="PRMSL", level="mean sea level", parameter=(0, 3, 1), surface=(101, 0), value=101_325.0),
    grib2.Field(name="TMP", level="2 m above ground", parameter=(0, 0, 0), surface=(103, 2), value=288.0),
    grib2.Field(name="APCP", level="surface", parameter=(0, 1, 8), surface=(1, 0), value=0.0, accumulated=True),
)
_LESS_COMMON = (
    grib2.Field(name="HGT", level="1 mb", parameter=(0, 3, 5), surface=(100, 100), value=47_800.0),
    grib2.Field(name="TMP", level="1 mb", parameter=(0, 0, 0), surface=(100, 100), value=265.0),
)
_FLUXES = (
    grib2.Field(name="TMP", level="surface", parameter=(0, 0, 0), surface=(1, 0), value=287.0),
    grib2.Field(name="WEASD", level="surface", parameter=(0, 1, 13), surface=(1, 0), value=0.0),
)
_FIELDS = {"pgrb2": _COMMON, "pgrb2b": _LESS_COMMON, "pgrb2full": _COMMON + _LESS_COMMON, "sfluxgrb": _FLUXES}
_SEA = (
    grib2.Field(name="WIND", level="surface", parameter=(0, 2, 1), surface=(1, 1), value=8.0),
    grib2.Field(name="HTSGW", level="surface", parameter=(10, 0, 3), surface=(1, 1), value=2.5),
    grib2.Field(name="PERPW", level="surface", parameter=(10, 0, 11), surface=(1, 1), value=9.0),
)

_NORTH, _SOUTH = 90_000_000, 0x80000000 | 90_000_000
GRIDS = {
    # The definitions of real objects, byte for byte, except for 0.5 and 1 degree, which are made in the same manner.
    "0p25": grib2.lat_lon_grid(1440, 721, first=(_NORTH, 0), last=(_SOUTH, 359_750_000), step=250_000),
    "0p50": grib2.lat_lon_grid(720, 361, first=(_NORTH, 0), last=(_SOUTH, 359_500_000), step=500_000),
    "": grib2.gaussian_grid(3072, 1536, north=89_910_324, east=359_882_813, step=117_188),
    "1p00": grib2.lat_lon_grid(360, 181, first=(_NORTH, 0), last=(_SOUTH, 359_000_000), step=1_000_000),
}
_WAVE_GRIDS = {
    "atlocn": grib2.lat_lon_grid(
        301, 331, first=(55_000_000, 260_000_000), last=(0, 310_000_000), step=166_667, angle=(0, 0)
    ),
    "global": grib2.lat_lon_grid(1440, 721, first=(_NORTH, 0), last=(_SOUTH, 359_750_000), step=250_000, angle=(0, 0)),
}


def make_gfs(
    *, run: datetime, lead: int, product: str = "pgrb2", resolution: str = "0p25", model: str = "gfs"
) -> tuple[str, bytes, str]:
    """Make an object of the atmosphere: its key, its content and the text of its `.idx`.

    `run` is aware, on a full hour; `lead` in hours; `model` gfs or gdas. Raises ValueError if no key has these values.
    """
    utc = _cycle(run)
    if lead not in LEADS or (product, resolution) not in PRODUCTS or model not in {"gfs", "gdas"}:
        raise ValueError(f"no key of {model!r} for lead {lead}, product {product!r}, resolution {resolution!r}")
    content, index = _made(_FIELDS[product], _ATMOSPHERE, GRIDS[resolution], utc, lead)
    name = f"{product}.{resolution}.f{lead:03d}" if resolution else f"{product}f{lead:03d}.grib2"
    return f"{model}.{utc:%Y%m%d/%H}/atmos/{model}.t{utc:%H}z.{name}", content, index


def make_gfs_wave(*, run: datetime, lead: int, region: str = "atlocn", model: str = "gfs") -> tuple[str, bytes, str]:
    """Make an object of the sea, as `make_gfs` makes an object of the atmosphere."""
    utc = _cycle(run)
    resolutions = dict(WAVES)
    if lead not in LEADS or region not in resolutions or model not in {"gfs", "gdas"}:
        raise ValueError(f"no key of {model!r}'s waves for lead {lead}, region {region!r}")
    content, index = _made(_SEA, _WAVE, _WAVE_GRIDS[region], utc, lead)
    name = f"{model}wave.t{utc:%H}z.{region}.{resolutions[region]}.f{lead:03d}.grib2"
    return f"{model}.{utc:%Y%m%d/%H}/wave/gridded/{name}", content, index


def gfs_samples(day: date, count: int) -> Iterator[tuple[str, str, bytes]]:
    """Yield bucket, key and content of `count` objects of a UTC day, short leads first.

    `make_gfs` and `make_gfs_wave` also return each object's sidecar. Raises ValueError if a day has fewer objects.
    """
    if count > OBJECTS_PER_DAY:
        raise ValueError(f"a day has {OBJECTS_PER_DAY} GFS keys, {count} were requested")
    for lead, (kind, grid), hour in islice(product(LEADS, (*PRODUCTS, *WAVES), CYCLES), count):
        run = datetime(day.year, day.month, day.day, hour, tzinfo=UTC)
        if (kind, grid) in PRODUCTS:
            key, content, _ = make_gfs(run=run, lead=lead, product=kind, resolution=grid)
        else:
            key, content, _ = make_gfs_wave(run=run, lead=lead, region=kind)
        yield BUCKET, key, content


def _cycle(run: datetime) -> datetime:
    utc = grib2.full_hour(run)
    if utc.hour not in CYCLES:
        raise ValueError(f"GFS has no cycle of {utc:%H} UTC")
    return utc


def _made(
    fields: tuple[grib2.Field, ...], origin: grib2.Origin, grid: grib2.GridSection, run: datetime, lead: int
) -> tuple[bytes, str]:
    steps = [(field, grib2.over_hours(0, lead) if field.accumulated else grib2.at_hour(lead)) for field in fields]
    messages = ((field, step, grib2.message(field, step, run=run, origin=origin, grid=grid)) for field, step in steps)
    return grib2.assembled(messages, run=run)
