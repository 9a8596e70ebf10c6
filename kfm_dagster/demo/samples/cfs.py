"""CFS samples: small GRIB2 objects of fluxes with the model's keys, grid and sidecars.

Leads end at ten days; NCEP publishes more. Messages are written by `grib2_messages.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from itertools import islice, product

from kfm_dagster.demo.samples.grib2_messages import (
    Field,
    Origin,
    assembled,
    at_hour,
    full_hour,
    gaussian_grid,
    message,
    over_hours,
)

BUCKET = "noaa-cfs-pds"
CYCLES = (0, 6, 12, 18)
MEMBERS = ("01", "02", "03", "04")
LEADS = tuple(range(6, 241, 6))
OBJECTS_PER_DAY = len(CYCLES) * len(MEMBERS) * len(LEADS)

# The definitions of a real object: generating process 98, grid T126 with latitudes and steps rounded to millidegrees.
_ORIGIN = Origin(process=(2, 0, 98, 0, 0))
_GRID = gaussian_grid(384, 190, north=89_277_000, east=359_062_000, step=938_000)
_FIELDS = (
    Field(name="TMAX", level="2 m above ground", parameter=(0, 0, 4), surface=(103, 2), value=288.0),
    Field(name="TMP", level="surface", parameter=(0, 0, 0), surface=(1, 0), value=287.0),
    Field(name="SHTFL", level="surface", parameter=(0, 0, 11), surface=(1, 0), value=15.0, accumulated=True),
)


def make_cfs(*, run: datetime, lead: int, member: str = "01") -> tuple[str, bytes, str]:
    """Make an object of a member's fluxes: its key, its content and the text of its `.idx`.

    `run` is aware, on a full hour; `lead` in hours. Raises ValueError for a combination without a key.
    """
    utc = full_hour(run)
    if utc.hour not in CYCLES or lead not in LEADS or member not in MEMBERS:
        raise ValueError(f"no CFS key for a run at {utc:%H} UTC, lead {lead}, member {member!r}")
    # The values of a run's members differ by an eighth.
    fields = [replace(field, value=field.value + int(member) / 8) for field in _FIELDS]
    steps = [(field, over_hours(lead - 6, lead, "ave") if field.accumulated else at_hour(lead)) for field in fields]
    messages = ((field, step, message(field, step, run=utc, origin=_ORIGIN, grid=_GRID)) for field, step in steps)
    name = f"flxf{utc + timedelta(hours=lead):%Y%m%d%H}.{member}.{utc:%Y%m%d%H}.grb2"
    return f"cfs.{utc:%Y%m%d/%H}/6hrly_grib_{member}/{name}", *assembled(messages, run=utc)


def cfs_samples(day: date, count: int) -> Iterator[tuple[str, str, bytes]]:
    """Yield bucket, key and content of `count` objects of a UTC day, short leads first.

    `make_cfs` also returns each object's sidecar. Raises ValueError when a day has fewer keys.
    """
    if count > OBJECTS_PER_DAY:
        raise ValueError(f"a day has {OBJECTS_PER_DAY} CFS keys, {count} were requested")
    for lead, member, hour in islice(product(LEADS, MEMBERS, CYCLES), count):
        key, content, _ = make_cfs(
            run=datetime(day.year, day.month, day.day, hour, tzinfo=UTC), lead=lead, member=member
        )
        yield BUCKET, key, content
