"""GHCN hourly and daily: rows within bounds, contradictions of the key, Parquet footers.

Tests elsewhere: real objects (`truth/ghcn.py`), cut objects (`test_every_reader.py`).
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from datetime import UTC, date, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.demo.samples import ghcn
from kfm_dagster.demo.samples.isd import sample_station
from kfm_dagster.readers import ghcn_daily, ghcn_hourly, parquet_footer
from kfm_dagster.readers.text_lines import BEGINNING_BYTES, READ_BYTES
from kfm_dagster_tests.readers.reading import Oversized, Reading, allocating_at_most, is_unchecked
from kfm_dagster_tests.readers.truth.comparison import CountingSource

HOURLY, DAILY = Reading("ghcnh"), Reading("ghcnd")
DAY = date(2025, 3, 4)
KEY, TEXT = ghcn.make_ghcn_hourly(sample_station(1), until=DAY)
OF_YEAR_KEY, OF_YEAR = ghcn.make_ghcn_hourly(sample_station(1), until=DAY, of_year=True)
HEADER, ROW, *_, LAST = TEXT.splitlines(keepends=True)
STATION = "USW00000001"
CSV = [",".join(row) for row in ghcn.daily_rows([STATION], 2025)]
PARQUET_KEY, PARQUET = ghcn.make_ghcn_daily_parquet(
    ghcn.daily_rows([STATION], 2025, ("TMAX",)), year=2025, element="TMAX"
)


def packed(*rows: str) -> bytes:
    return gzip.compress("\n".join((*rows, "")).encode())


@pytest.mark.clause("OPR-06", "OPR-14")
def test_hourly_files_by_station_and_by_year_give_the_same_item() -> None:
    por, year = HOURLY.read(KEY, TEXT), HOURLY.read(OF_YEAR_KEY, OF_YEAR.replace(b"\n", b"\r\n"))
    assert (por.start, por.end) == (year.start, year.end)
    assert (por.start, por.end) == (datetime(2025, 2, 23, tzinfo=UTC), datetime(2025, 3, 4, 18, tzinfo=UTC))
    assert por.properties == year.properties
    assert por.findings == year.findings == ()
    assert por.properties["cube:variables"]["wind_speed"]["unit"] == "m s-1"
    assert "precipitation" not in por.properties["cube:variables"], "no row has a value"
    assert por.properties["ghcn:quality-codes"] == {"1": "passed all checks"}


@pytest.mark.clause("OPR-06", "OPR-20", "OPR-07")
def test_both_ends_of_a_large_hourly_object_are_read() -> None:
    middle = ROW * ((ghcn_hourly.MAX_OBJECT_BYTES - READ_BYTES) // len(ROW))
    source = CountingSource(HEADER + ROW + middle + LAST * (READ_BYTES // len(LAST) + 2))
    with allocating_at_most(8 * READ_BYTES):
        metadata = HOURLY.read(KEY, source)
    assert is_unchecked(metadata)
    assert len(source.requests) == 3
    assert source.ranges[0] == (0, BEGINNING_BYTES)
    assert source.bytes_read == 2 * READ_BYTES
    assert (metadata.start, metadata.end) == (datetime(2025, 2, 23, tzinfo=UTC), datetime(2025, 3, 4, 18, tzinfo=UTC))
    assert not {"ghcn:rows", "ghcn:position-count"} & metadata.properties.keys()
    assert metadata.native["odd_rows"] == 0


@pytest.mark.clause("OPR-06", "OPR-07")
def test_the_station_has_the_last_position_and_rows_without_a_time_or_a_column_are_counted() -> None:
    moved = LAST.replace(LAST.split(b"|")[7], b"-12.5")
    placeless = ROW.replace(b"|".join(ROW.split(b"|")[7:10]), b"|-999.9|")
    metadata = HOURLY.read(KEY, HEADER + moved + ROW + placeless + ROW[:40] + b"\n" + ROW.replace(b"|2025|", b"||", 1))
    assert is_unchecked(metadata)
    assert "2 of 5 rows" in metadata.findings[0][1]
    assert metadata.geometry["coordinates"][1] == -12.5
    # The row with the latest time is the object's first row.
    assert (metadata.start, metadata.end) == (datetime(2025, 2, 23, tzinfo=UTC), datetime(2025, 3, 4, 18, tzinfo=UTC))
    assert metadata.properties["ghcn:position-count"] == 2
    assert HOURLY.read(KEY, HEADER + placeless).geometry == {}
    # A row with an impossible time does not affect the other rows.
    later, earlier = (ROW.replace(b"|02|", month, 1) for month in (b"|13|", b"|00|"))
    hourly = HOURLY.read(KEY, HEADER + later + ROW + earlier)
    daily = DAILY.read("csv.gz/by_year/2025.csv.gz", packed(*CSV, CSV[0].replace("0101", "1301", 1), "a,b,c,1,,,S,"))
    assert hourly.start == hourly.end == metadata.start
    assert (daily.start.year, daily.end.year, daily.native["odd_rows"]) == (2025, 2025, 2)


SEVERAL = packed(*CSV, *(",".join(row) for row in ghcn.daily_rows(["USW00000002"], 2025)))


@pytest.mark.clause("OPR-06", "OPR-14")
def test_a_file_of_several_stations_has_a_global_footprint_and_a_file_of_one_station_has_none() -> None:
    key = "csv.gz/by_year/2025.csv.gz"
    world, single = DAILY.read(key, SEVERAL), DAILY.read(key, packed("ID,DATE,ELEMENT,DATA_VALUE", *CSV))
    assert world.geometry["coordinates"][0][2] == (180, 90)
    assert (single.geometry, single.properties["platform"]) == ({}, STATION)
    assert (world.properties["ghcn:station-count"], "platform" in world.properties) == (2, False)
    assert [metadata.properties["ghcn:csv"]["header"] for metadata in (world, single)] == [False, True]
    assert single.properties["ghcn:rows"] == len(CSV)
    assert single.properties["ghcn:quality-codes"] == {"I": "failed internal consistency check"}
    assert single.properties["cube:variables"]["SNWD"] == {
        "dimensions": ["time"], "type": "data", "description": "Snow depth", "unit": "mm", "ghcn:scale": 1.0
    }  # fmt: skip


@pytest.mark.clause("OPR-07")
def test_content_that_contradicts_the_key_or_the_format_is_refused() -> None:
    for reading, key, content, code in (
        (HOURLY, KEY.replace("0001_", "0002_"), TEXT, MetadataIssue.PLATFORM_MISMATCH),
        (HOURLY, OF_YEAR_KEY.replace("2025", "2024"), OF_YEAR, MetadataIssue.TIME_MISMATCH),
        (HOURLY, KEY, HEADER, MetadataIssue.INCOMPLETE_PRODUCT_METADATA),
        (HOURLY, KEY, TEXT.replace(b"|Hour|", b"|Our|"), MetadataIssue.UNREADABLE_FORMAT),
        (HOURLY, KEY, HEADER + ROW.replace(b"|02|", b"|13|", 1), MetadataIssue.INCOMPLETE_PRODUCT_METADATA),
        (HOURLY, KEY, HEADER[:-1] + b"|x" * 1000 + b"\n", MetadataIssue.RESOURCE_LIMIT),
        (HOURLY, KEY, b"x" * 100_000, MetadataIssue.UNREADABLE_FORMAT),
        (DAILY, "csv.gz/by_station/USW00000002.csv.gz", packed(*CSV), MetadataIssue.PLATFORM_MISMATCH),
        (DAILY, "csv.gz/by_year/2024.csv.gz", packed(*CSV), MetadataIssue.TIME_MISMATCH),
        (DAILY, "csv.gz/by_year/2025.csv.gz", packed("x"), MetadataIssue.INCOMPLETE_PRODUCT_METADATA),
        (DAILY, "csv.gz/by_year/2025.csv.gz", packed("x" * 600_000), MetadataIssue.UNREADABLE_FORMAT),
        (DAILY, "csv.gz/by_year/2025.csv.gz", packed(*CSV) + b"x", MetadataIssue.UNREADABLE_FORMAT),
        (DAILY, PARQUET_KEY.replace("2025", "2024"), PARQUET, MetadataIssue.TIME_MISMATCH),
        (DAILY, PARQUET_KEY, PARQUET[:4] + PARQUET[200:], MetadataIssue.TRUNCATED_OBJECT),
        (DAILY, PARQUET_KEY, PARQUET[:-8] + b"\xff\xff\x1f\x00PAR1", MetadataIssue.TRUNCATED_OBJECT),
        (DAILY, PARQUET_KEY, PARQUET.replace(b"\x02ID", b"\x02IE"), MetadataIssue.UNREADABLE_FORMAT),
        (DAILY, PARQUET_KEY, PARQUET.replace(b"\x06M_FLAG", b"\x06M_FLA\0"), MetadataIssue.UNREADABLE_FORMAT),
    ):  # fmt: skip
        assert reading.refusal(key, content) is code, (key, code)


def test_only_the_beginning_of_a_large_csv_object_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ghcn_daily, "MAX_TEXT_BYTES", 1 << 19)
    metadata = DAILY.read("csv.gz/by_year/2025.csv.gz", packed(*CSV * 1000))
    assert is_unchecked(metadata)
    assert (metadata.properties["ghcn:end-known"], "ghcn:rows" in metadata.properties) == (False, False)


def parquet(groups: int = 1, **options: object) -> bytes:
    file, rows = io.BytesIO(), ghcn.daily_rows([STATION], 2025, ("TMAX",))
    table = pa.table({"ID": [row[0] for row in rows], "DATE": [row[1] for row in rows], "DATA_VALUE": [1] * len(rows)})
    pq.write_table(table, file, row_group_size=-(-len(rows) // groups), **options)
    return file.getvalue()


@pytest.mark.clause("OPR-06", "OPR-07", "OPR-20")
@pytest.mark.parametrize("write", [parquet, lambda: parquet(groups=5), lambda: parquet(use_dictionary=False)])
def test_a_parquet_footer_is_read_as_by_pyarrow(write: Callable[[], bytes]) -> None:
    content = write()
    footer = parquet_footer.read_footer(Oversized(content, len(content)))
    expected = pq.read_metadata(io.BytesIO(content))
    chunks = [expected.row_group(number).column(1).statistics for number in range(expected.num_row_groups)]
    assert (footer.rows, list(footer.columns)) == (expected.num_rows, expected.schema.names)
    least, greatest = footer.ranges["DATE"]
    assert [least.decode(), greatest.decode()] == [min(c.min for c in chunks), max(c.max for c in chunks)]
    assert DAILY.read(PARQUET_KEY, content).end == datetime(2025, 1, 10, tzinfo=UTC)


@pytest.mark.clause("OPR-07", "OPR-20")
def test_a_parquet_footer_without_statistics_or_beyond_the_bounds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DAILY.refusal(PARQUET_KEY, parquet(write_statistics=False)) is MetadataIssue.INCOMPLETE_PRODUCT_METADATA
    for name in ("MAX_FOOTER_BYTES", "MAX_VALUES", "MAX_DEPTH"):
        with monkeypatch.context() as bounded:
            bounded.setattr(parquet_footer, name, 3)
            assert DAILY.refusal(PARQUET_KEY, PARQUET) is MetadataIssue.RESOURCE_LIMIT, name


def test_samples_are_a_file_by_year_a_file_by_station_and_files_by_element() -> None:
    keys = [key for _, key, _ in ghcn.ghcn_daily_samples(DAY, 3)]
    assert keys[:2] == ["csv.gz/by_year/2025.csv.gz", "csv.gz/by_station/USW00000000.csv.gz"]
    assert ghcn.make_ghcn_daily_csv([], name="by_year/2025")[0] == keys[0]
    assert "ELEMENT=TMAX" in keys[2]
