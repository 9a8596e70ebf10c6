"""GEFS samples: small GRIB2 objects with the ensemble's keys, grids and sidecars.

The leads of the first 16 days are every third hour to 240, then every sixth hour to 384. Fields at 0.25 degrees end at
240. Messages are written by `grib2_messages.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from itertools import islice, product

from kfm_dagster.demo.samples import grib2_messages as grib2
from kfm_dagster.demo.samples.gfs import CYCLES, GRIDS

BUCKET = "noaa-gefs-pds"
MEMBERS = ("c00", *(f"p{number:02d}" for number in range(1, 31)), "avg", "spr")
PRODUCTS = ("pgrb2a", "pgrb2b", "pgrb2s")
"""The last product is at 0.25 degrees."""
LAST_FINE_LEAD = 240
LEADS = (*range(0, LAST_FINE_LEAD + 1, 3), *range(246, 385, 6))
_KINDS = tuple((lead, kind) for lead in LEADS for kind in PRODUCTS if kind != PRODUCTS[-1] or lead <= LAST_FINE_LEAD)
OBJECTS_PER_DAY = len(CYCLES) * len(MEMBERS) * len(_KINDS)

_SIZE = 30
"""Number of members, without the control."""
_FOLDERS = {"pgrb2a": "pgrb2ap5", "pgrb2b": "pgrb2bp5", "pgrb2s": "pgrb2sp25"}
_RESOLUTIONS = {"pgrb2a": "0p50", "pgrb2b": "0p50", "pgrb2s": "0p25"}
_COMMON = (
    grib2.Field(name="PRMSL", level="mean sea level", parameter=(0, 3, 1), surface=(101, 0), value=101_325.0),
    grib2.Field(name="TMP", level="2 m above ground", parameter=(0, 0, 0), surface=(103, 2), value=288.0),
    grib2.Field(name="APCP", level="surface", parameter=(0, 1, 8), surface=(1, 0), value=0.0, accumulated=True),
)
_FIELDS = {
    "pgrb2a": _COMMON,
    "pgrb2b": (grib2.Field(name="HGT", level="1 mb", parameter=(0, 3, 5), surface=(100, 100), value=47_800.0),),
    "pgrb2s": (
        grib2.Field(name="GUST", level="surface", parameter=(0, 2, 22), surface=(1, 0), value=8.0),
        *_COMMON,
    ),
}


def make_gefs(*, run: datetime, lead: int, member: str = "c00", product: str = "pgrb2s") -> tuple[str, bytes, str]:
    """Make an object of a member, mean or spread: its key, its content and its `.idx` text.

    `run` is aware, on a full hour; `lead` in hours. Raises ValueError for a combination without a key.
    """
    utc = grib2.full_hour(run)
    if utc.hour not in CYCLES or member not in MEMBERS or (lead, product) not in _KINDS:
        raise ValueError(f"no key of cycle {utc:%H}, member {member!r}, product {product!r}, lead {lead}")
    # Sub-centre 2 is NCEP's ensembles. The type of data is the control forecast (3) or a perturbed one (4, code table
    # 1.4). The generating process has type 4, ensemble forecast (code table 4.3), and number 107, GEFS (NCEP ON388,
    # table A).
    origin = grib2.Origin(subcentre=2, data_type=3 if member == "c00" else 4, process=(4, 0, 107, 0, 0))
    fields = [replace(field, ensemble=_role(member)) for field in _FIELDS[product]]
    # A sum begins at the last multiple of six hours before the lead.
    summed = grib2.over_hours(max(0, (lead - 1) // 6 * 6), lead)
    steps = [(field, summed if field.accumulated else grib2.at_hour(lead)) for field in fields]
    grid = GRIDS[_RESOLUTIONS[product]]
    content, index = grib2.assembled(
        ((field, step, grib2.message(field, step, run=utc, origin=origin, grid=grid)) for field, step in steps), run=utc
    )
    name = f"ge{member}.t{utc:%H}z.{product}.{_RESOLUTIONS[product]}.f{lead:03d}"
    return f"gefs.{utc:%Y%m%d/%H}/atmos/{_FOLDERS[product]}/{name}", content, index


def gefs_samples(day: date, count: int) -> Iterator[tuple[str, str, bytes]]:
    """Yield bucket, key and content of `count` objects of a UTC day, short leads first.

    `make_gefs` also returns each object's sidecar. Raises ValueError when a day has fewer keys.
    """
    if count > OBJECTS_PER_DAY:
        raise ValueError(f"a day has {OBJECTS_PER_DAY} GEFS keys, {count} were requested")
    for (lead, kind), member, hour in islice(product(_KINDS, MEMBERS, CYCLES), count):
        run = datetime(day.year, day.month, day.day, hour, tzinfo=UTC)
        key, content, _ = make_gefs(run=run, lead=lead, member=member, product=kind)
        yield BUCKET, key, content


def _role(member: str) -> grib2.EnsembleRole:
    """Return a member's role, by code table 4.6 and, for mean and spread, 4.7."""
    if member in {"avg", "spr"}:
        kind, text = {"avg": (0, "ens mean"), "spr": (4, "ens spread")}[member]
        return grib2.EnsembleRole(template=2, octets=bytes([kind, _SIZE]), text=text)
    number = int(member[1:])
    kind, text = (3, f"ENS=+{number}") if number else (1, "ENS=low-res ctl")
    return grib2.EnsembleRole(template=1, octets=bytes([kind, number, _SIZE]), text=text)
