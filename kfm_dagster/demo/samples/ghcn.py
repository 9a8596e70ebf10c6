"""Small GHCN objects in the true format: GHCNh of a station, GHCN-Daily of a year.

Rows are as in NCEI's documentation, stations as in the ISD samples; the values are a fixed pattern.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta

from kfm_dagster.demo.samples.isd import Station, sample_station

HOURLY_BUCKET, DAILY_BUCKET = "noaa-ghcnh-pds", "noaa-ghcn-pds"
VARIABLES = ("temperature", "dew_point_temperature", "wind_direction", "wind_speed", "precipitation", "remarks")
ATTRIBUTES = ("Measurement_Code", "Quality_Code", "Report_Type", "Source_Code", "Source_Station_ID")
ELEMENTS = ("TMAX", "TMIN", "PRCP", "SNWD")


def station_id(station: Station) -> str:
    """Return the identifier of a station of the United States with a WBAN number."""
    return f"USW000{station.wban}"


def make_ghcn_hourly(station: Station, *, until: date, of_year: bool = False) -> tuple[str, bytes]:
    """Return key and content of a station's rows of the ten days up to a day, every six hours."""
    names = [name for each in VARIABLES for name in (each, *(f"{each}_{attribute}" for attribute in ATTRIBUTES))]
    identity = (
        "STATION|Station_name|DATE|LATITUDE|LONGITUDE|ELEVATION"
        if of_year
        else "Station_ID|Station_name|Year|Month|Day|Hour|Minute|Latitude|Longitude|Elevation"
    )
    first = datetime(until.year, until.month, until.day, tzinfo=UTC) - timedelta(days=9)
    moments = [first + timedelta(hours=hours) for hours in range(0, 240, 6)]
    rows = [_hourly(station, moment, of_year=of_year) for moment in moments if moment.year == until.year or not of_year]
    content = "\n".join(["|".join([identity, *names]), *rows, ""]).encode("ascii")
    name, year = station_id(station), f"{until.year}"
    folder = f"by-year/{year}/psv" if of_year else "by-station"
    return f"hourly/access/{folder}/GHCNh_{name}_{year if of_year else 'por'}.psv", content


def _hourly(station: Station, moment: datetime, *, of_year: bool) -> str:
    temperature = 15 - abs(moment.month - 7) * 4 + moment.hour / 10
    source = f"{station.usaf}-{station.wban}"
    values = (f"{temperature:.1f}", f"{temperature - 2.5:.1f}", str(moment.hour * 15), "2.1", "", "SYN004BUFR")
    cells = [
        cell
        for value in values
        for cell in ((value, "", "1", "FM12-SYNOP", "335", source) if value else ("", "", "", "", "", ""))
    ]
    time = [f"{moment:%Y-%m-%dT%H:%M:%S}"] if of_year else f"{moment:%Y|%m|%d|%H|%M}".split("|")
    place = f"{station.latitude:.4f}", f"{station.longitude:.4f}", f"{station.elevation_m:.1f}"
    return "|".join((station_id(station), f"SAMPLE {station.usaf}", *time, *place, *cells))


def daily_rows(stations: list[str], year: int, elements: tuple[str, ...] = ELEMENTS) -> list[list[str]]:
    """Return the rows of the stations' first ten days of a year."""
    days = [date(year, 1, 1) + timedelta(days=number) for number in range(10)]
    return [
        [name, f"{day:%Y%m%d}", element, str(day.day * 7 - 30), "", "I" if day.day == 4 else "", "7", "0700"]
        for day in days
        for name in stations
        for element in elements
    ]


def make_ghcn_daily_csv(rows: list[list[str]], *, name: str) -> tuple[str, bytes]:
    """Return key and content of rows; `name` is `by_year/2025` or `by_station/USW00000001`."""
    text = "".join(",".join(row) + "\n" for row in rows)
    return f"csv.gz/{name}.csv.gz", gzip.compress(text.encode("ascii"), mtime=0)


def make_ghcn_daily_parquet(rows: list[list[str]], *, year: int, element: str) -> tuple[str, bytes]:
    """Return key and content of an element's rows; only the key names the element."""
    # Imported here, because the import takes 40 ms, and no other sample needs it.
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    names = ("ID", "DATE", "ELEMENT", "DATA_VALUE", "M_FLAG", "Q_FLAG", "S_FLAG", "OBS_TIME")
    columns = {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    del columns["ELEMENT"]
    values = pa.array([int(value) for value in columns["DATA_VALUE"]])
    table = pa.table({name: values if name == "DATA_VALUE" else pa.array(cells) for name, cells in columns.items()})
    file = io.BytesIO()
    pq.write_table(table, file, compression="snappy")
    return f"parquet/by_year/YEAR={year}/ELEMENT={element}/sample_0.snappy.parquet", file.getvalue()


def ghcn_hourly_samples(day: date, count: int) -> Iterator[tuple[str, str, bytes]]:
    """Yield bucket, key and content of each station's period of record, then of its year."""
    for index in range(count):
        yield HOURLY_BUCKET, *make_ghcn_hourly(sample_station(index // 2), until=day, of_year=bool(index % 2))


def ghcn_daily_samples(day: date, count: int) -> Iterator[tuple[str, str, bytes]]:
    """Yield bucket, key and content of a year, of a station, and of each element of the year."""
    stations = [station_id(sample_station(index)) for index in range(3)]
    objects = [
        make_ghcn_daily_csv(daily_rows(stations, day.year), name=f"by_year/{day.year}"),
        make_ghcn_daily_csv(daily_rows(stations[:1], day.year), name=f"by_station/{stations[0]}"),
    ]
    objects += [
        make_ghcn_daily_parquet(daily_rows(stations, day.year, (element,)), year=day.year, element=element)
        for element in ELEMENTS
    ]
    for key, content in objects[:count]:
        yield DAILY_BUCKET, key, content
