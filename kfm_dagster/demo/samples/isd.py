"""Small ISD station-years in the true format, for the demo and the tests.

Records are as in the ISD documentation (control, mandatory and additional data); the values are a fixed pattern.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

BUCKET = "noaa-isd-pds"
MAX_STATIONS = 100_000
"""Number of possible identifiers: the letter A and five digits."""
REPORT_HOURS = 6
"""Hours between two reports, which are at the synoptic hours."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Station:
    """A sample station: degrees to three decimals, a call sign of four characters or none."""

    usaf: str
    wban: str
    latitude: float
    longitude: float
    elevation_m: int
    call_sign: str = ""


def make_isd(station: Station, *, until: date) -> tuple[str, bytes]:
    """Return key and content of a station's year up to and including a day. Pure."""
    start = datetime(until.year, 1, 1, tzinfo=UTC)
    hours = range(0, ((until - start.date()).days + 1) * 24, REPORT_HOURS)
    text = b"".join(_report(station, start + timedelta(hours=hour)) for hour in hours)
    name = f"{station.usaf}-{station.wban}-{until.year}"
    return f"data/{until.year}/{name}.gz", gzip.compress(text, mtime=0)


def isd_samples(day: date, count: int) -> Iterator[tuple[str, str, bytes]]:
    """Yield bucket, key and content of stations' years; a later day adds records to each year.

    In reality, a year has some 14,000 stations. Raises ValueError for more stations than MAX_STATIONS.
    """
    if count > MAX_STATIONS:
        raise ValueError(f"{count} stations are more than the {MAX_STATIONS} that have a name")
    for index in range(count):
        key, content = make_isd(sample_station(index), until=day)
        yield BUCKET, key, content


def sample_station(index: int) -> Station:
    """Return a numbered station in inhabited latitudes; every second one has a call sign."""
    return Station(
        usaf=f"A{index:05d}",
        wban=f"{index:05d}",
        latitude=(index * 7919 % 120_000 - 55_000) / 1000,
        longitude=(index * 104_729 % 360_000 - 179_999) / 1000,
        elevation_m=index * 37 % 3000,
        call_sign=f"K{index % 1000:03d}" if index % 2 else "",
    )


def _report(station: Station, moment: datetime) -> bytes:
    """Return a record; positions in the comments count from 1."""
    control = (
        f"{station.usaf}{station.wban}{moment:%Y%m%d%H%M}4"  # 5: identifiers; 16: date and time; 28: data source
        f"{round(station.latitude * 1000):+06d}{round(station.longitude * 1000):+07d}FM-12"  # 29, 35, 42
        f"{station.elevation_m:+05d}{station.call_sign or '99999':<5}V020"  # 47, 52; 57: quality control
    )
    temperature = 150 - 40 * abs(moment.month - 7) + 3 * moment.hour
    mandatory = (
        f"{moment.hour * 15 or 360:03d}1N{20 + moment.day:04d}1"  # 61: wind, degrees; 66: tenths of m/s
        "99999999999999999"  # 71: ceiling; 79: visibility; both missing
        f"{temperature:+05d}1{temperature - 25:+05d}1101351"  # 88: 0.1 degrees Celsius; 94: dew point; 100: 0.1 hPa
    )
    additional = "ADDMA1999999100391REMSYN004BUFR"
    return f"{len(additional):04d}{control}{mandatory}{additional}\n".encode("ascii")
