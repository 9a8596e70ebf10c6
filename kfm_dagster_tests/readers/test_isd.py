"""The ISD reader: properties, agreement with the key, cut and hostile objects, samples."""

from __future__ import annotations

import gzip
from datetime import UTC, date, datetime, timedelta
from functools import partial

import pytest

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.demo.samples.isd import Station, isd_samples, make_isd, sample_station
from kfm_dagster.readers import isd
from kfm_dagster.readers.base import ByteSource, HeaderMetadata
from kfm_dagster.readers.isd import FIRST_BYTES, MAX_OBJECT_BYTES
from kfm_dagster.readers.text_lines import MAX_POSITIONS, READ_BYTES, STEP_BYTES
from kfm_dagster_tests.readers.reading import code_of, header_of, is_unchecked, match_of
from kfm_dagster_tests.readers.truth.comparison import CountingSource

STATION = Station(usaf="724580", wban="13984", latitude=39.55, longitude=-97.65, elevation_m=452, call_sign="KCNK")
DAY = date(2025, 1, 2)
KEY, SAMPLE = make_isd(STATION, until=DAY)
TEXT = gzip.decompress(SAMPLE)
REPORTS = TEXT.splitlines(keepends=True)
Reports = list[bytes]


def read(content: bytes | ByteSource, name: str = "724580-13984-2025") -> HeaderMetadata:
    """Read an object as the station-year `name`."""
    usaf, wban, year = name.split("-")
    return header_of("isd", content, groups={"usaf": usaf, "wban": wban, "year": year})


refusal = partial(code_of, read)


def packed(*reports: bytes, level: int = 9) -> bytes:
    """Gzip reports; at level 0 the object is as large as its text."""
    return gzip.compress(b"".join(reports), level, mtime=0)


# --- properties


def edited(reports: Reports, text: bytes, columns: slice = slice(28, 41)) -> Reports:
    return [line[: columns.start] + text + line[columns.stop :] for line in reports]


@pytest.mark.clause("OPR-06")
def test_a_sample_has_the_properties_it_was_created_with() -> None:
    metadata = read(SAMPLE)
    start = datetime(2025, 1, 1, tzinfo=UTC)
    assert (metadata.start, metadata.end, metadata.datetime) == (start, start + timedelta(hours=42), start)
    assert metadata.geometry == {"type": "Point", "coordinates": (-97.65, 39.55)}
    assert metadata.findings == ()
    cube = {name: metadata.properties.pop(name) for name in ("cube:dimensions", "cube:variables")}
    assert cube["cube:dimensions"] == {
        "time": {"type": "temporal", "extent": ["2025-01-01T00:00:00.000000Z", "2025-01-02T18:00:00.000000Z"]}
    }
    assert metadata.properties == {
        "platform": "724580-13984",
        "isd:usaf": "724580",
        "isd:wban": "13984",
        "isd:call-signs": ["KCNK"],
        "isd:report-types": ["FM-12"],
        "isd:elevation-m": 452,
        "isd:positions": [{"latitude": 39.55, "longitude": -97.65}],
        "isd:position-count": 1,
        "isd:records": 8,
    }


@pytest.mark.clause("OPR-28")
def test_mandatory_columns_are_described_with_positions_unit_and_missing_value() -> None:
    report, values = REPORTS[0].decode("ascii"), {}
    for name, column in read(SAMPLE).properties["cube:variables"].items():
        first, last = column["isd:positions"]
        text = report[first - 1 : last]
        assert len(text) == len(column["isd:missing"]), name
        missing = text == column["isd:missing"]
        values[name] = None if missing else round(int(text) * column["isd:scale"], 1), column["unit"]
    assert values == {
        "wind_direction": (360, "degree"),
        "wind_speed": (2.1, "m s-1"),
        "ceiling_height": (None, "m"),
        "visibility": (None, "m"),
        "air_temperature": (-9, "degC"),
        "dew_point_temperature": (-11.5, "degC"),
        "sea_level_pressure": (1013.5, "hPa"),
    }


def test_a_missing_call_sign_or_wban_number_gives_no_property() -> None:
    silent = edited(REPORTS, b"99999", slice(51, 56))
    assert read(packed(REPORTS[0], *silent[1:])).properties["isd:call-signs"] == ["KCNK"]
    unnamed = read(packed(*edited(silent, b"99999", slice(10, 15))), "724580-99999-2025")
    assert not {"isd:wban", "isd:call-signs"} & unnamed.properties.keys()


def test_a_station_that_moved_has_a_list_of_positions_and_the_last_one_as_geometry() -> None:
    away, nowhere = b"-33946+151173", b"+99999+999999"
    # The station moves and returns: its last position is the first.
    back = [*REPORTS[:2], *edited(REPORTS[2:5], away), *REPORTS[5:]]
    metadata = read(packed(*back))
    assert metadata.geometry["coordinates"] == (-97.65, 39.55)
    assert metadata.properties["isd:positions"] == [
        {"latitude": -33.946, "longitude": 151.173},
        {"latitude": 39.55, "longitude": -97.65},
    ]
    silent = [*REPORTS[:2], *edited(REPORTS[2:5], away), *edited(REPORTS[5:], nowhere)]
    assert read(packed(*silent)).geometry["coordinates"] == (151.173, -33.946)
    placeless = read(packed(*edited(edited(REPORTS, nowhere), b"+9999", slice(46, 51))))
    assert placeless.geometry == {}
    assert placeless.properties["isd:position-count"] == 0
    assert not {"isd:positions", "isd:elevation-m"} & placeless.properties.keys()


@pytest.mark.clause("OPR-07")
def test_a_drifting_platform_s_positions_are_counted_but_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    drift = [edited([REPORTS[0]], b"%+06d-097650" % number)[0] for number in range(MAX_POSITIONS + 1)]
    metadata = read(packed(*drift)).properties
    assert ("isd:positions" in metadata, metadata["isd:position-count"]) == (False, MAX_POSITIONS + 1)
    monkeypatch.setattr(isd, "MAX_KINDS", 10)
    assert refusal(packed(*drift[:11])) is MetadataIssue.RESOURCE_LIMIT


def test_hour_2400_is_the_end_of_the_day() -> None:
    for stamp, end in (
        (b"202501032400", datetime(2025, 1, 4, tzinfo=UTC)),
        (b"202512312400", datetime(2026, 1, 1, tzinfo=UTC)),
        (b"202501032401", MetadataIssue.INVALID_TIME_RANGE),
        (b"202502302400", MetadataIssue.INVALID_TIME_RANGE),
        (b"202601010000", MetadataIssue.TIME_MISMATCH),
    ):
        content = packed(*REPORTS, *edited(REPORTS[-1:], stamp, slice(15, 27)))
        assert (refusal(content) if isinstance(end, MetadataIssue) else read(content).end) == end


def test_reports_that_contradict_the_key_are_refused() -> None:
    for name, code in (
        ("724581-13984-2025", MetadataIssue.PLATFORM_MISMATCH),
        ("724580-13985-2025", MetadataIssue.PLATFORM_MISMATCH),
        ("724580-13984-2024", MetadataIssue.TIME_MISMATCH),
    ):
        assert refusal(SAMPLE, name) is code


@pytest.mark.clause("OPR-07")
def test_text_that_is_not_a_station_year_is_refused() -> None:
    for reports, code in (
        ([b""], MetadataIssue.INCOMPLETE_PRODUCT_METADATA),
        ([b"\n"], MetadataIssue.UNREADABLE_FORMAT),
        ([*REPORTS, b"\n"], MetadataIssue.UNREADABLE_FORMAT),
        ([b"x" * 200_000], MetadataIssue.UNREADABLE_FORMAT),
        (edited(REPORTS, b"20251301", slice(15, 23)), MetadataIssue.INVALID_TIME_RANGE),
        (edited(REPORTS, b"2025 101", slice(15, 23)), MetadataIssue.UNREADABLE_FORMAT),
        (edited(REPORTS, b"39550N", slice(28, 34)), MetadataIssue.UNREADABLE_FORMAT),
        ([*REPORTS, *edited(REPORTS[:1], b"724581", slice(4, 10))], MetadataIssue.PLATFORM_MISMATCH),
        ([*REPORTS, *edited(REPORTS[:1], b"20260101", slice(15, 23))], MetadataIssue.TIME_MISMATCH),
    ):
        assert refusal(packed(*reports)) is code


@pytest.mark.clause("OPR-20")
def test_a_report_without_its_stated_length_is_suspect() -> None:
    for odd in (REPORTS[3][:-7] + b"\n", REPORTS[3][:-1] + b"x\n", b"    " + REPORTS[3][4:]):
        [finding] = read(packed(*REPORTS[:3], odd, *REPORTS[4:])).findings
        assert finding == (MetadataIssue.COMPLETENESS_UNCHECKED, "1 of 8 reports do not have their stated length")


# --- cut objects


@pytest.mark.clause("OPR-20")
def test_a_report_that_was_cut_before_it_was_gzipped_is_truncated() -> None:
    *others, last = REPORTS
    for cut in range(1, len(last) - 1):
        assert refusal(packed(*others, last[:cut])) is MetadataIssue.TRUNCATED_OBJECT
    assert read(packed(*others, last[:-1])).properties["isd:records"] == len(REPORTS)


@pytest.mark.clause("OPR-07", "OPR-20")
def test_bytes_after_the_gzip_stream_and_a_wrong_checksum_or_length_are_refused() -> None:
    for tail in (b"\0", SAMPLE, b"x" * 2_000_000):
        assert refusal(SAMPLE + tail) is MetadataIssue.UNREADABLE_FORMAT
    # Stream and request end together: a name in the header (RFC 1952, 2.3.1) makes the object as long as one request.
    name = b"x" * (FIRST_BYTES - len(SAMPLE) - 1) + b"\0"
    whole = SAMPLE[:3] + b"\x08" + SAMPLE[4:10] + name + SAMPLE[10:]
    assert len(whole) == FIRST_BYTES
    assert read(whole).findings == ()
    assert refusal(whole + SAMPLE) is MetadataIssue.UNREADABLE_FORMAT
    for offset in (-1, -5):
        broken = bytearray(SAMPLE)
        broken[offset] ^= 1
        assert refusal(bytes(broken)) is MetadataIssue.UNREADABLE_FORMAT


# --- bounds


@pytest.mark.clause("OPR-06", "OPR-20", "OPR-07")
def test_only_the_beginning_of_a_large_object_is_read_and_completeness_is_unchecked() -> None:
    report = REPORTS[0]
    content = packed(REPORTS[1], report * (MAX_OBJECT_BYTES // len(report) + 100), level=0)
    assert len(content) > MAX_OBJECT_BYTES
    for cut in (len(content), len(content) - 1, MAX_OBJECT_BYTES + 1):
        source = CountingSource(content[:cut])
        metadata = read(source)
        assert is_unchecked(metadata)
        assert source.ranges[0] == (0, FIRST_BYTES)
        assert len(source.requests) == 1 + -(-(MAX_OBJECT_BYTES - FIRST_BYTES) // READ_BYTES)
        assert sum(source.requests) == MAX_OBJECT_BYTES
        assert metadata.end == metadata.start
        assert metadata.properties["isd:end-known"] is False
        assert metadata.properties["cube:dimensions"]["time"]["extent"][1] is None
        assert not {"isd:records", "isd:position-count"} & metadata.properties.keys()


@pytest.mark.clause("OPR-20", "OPR-07")
@pytest.mark.parametrize("limit", [1, 2])
def test_text_beyond_the_bound_is_not_unpacked(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(isd, "MAX_TEXT_BYTES", limit * STEP_BYTES)
    report = REPORTS[0]
    for content in (
        packed(report * (STEP_BYTES * 20 // len(report))),
        # The stream ends within the first `STEP_BYTES` after the bound.
        packed(report * (limit * STEP_BYTES // len(report) + 10), level=0),
    ):
        metadata = read(content)
        assert is_unchecked(metadata)
        assert 0 < metadata.native["records"] * len(report) <= limit * STEP_BYTES


# --- samples


@pytest.mark.clause("OPR-14")
def test_samples_are_distinct_and_grow_from_day_to_day() -> None:
    earlier = {key: content for _, key, content in isd_samples(DAY, 20)}
    later = {key: content for _, key, content in isd_samples(DAY + timedelta(days=1), 20)}
    assert earlier.keys() == later.keys()
    assert len(earlier) == 20
    for number, (key, content) in enumerate(later.items()):
        match = match_of("surface-obs", key)
        assert match.start == datetime(2025, 1, 1, tzinfo=UTC)
        metadata, before = read(content, match.item_id), read(earlier[key], match.item_id)
        assert metadata.end - before.end == timedelta(days=1)
        assert metadata.native["records"] == before.native["records"] + 4
        station = sample_station(number)
        assert metadata.geometry["coordinates"] == (station.longitude, station.latitude)
        assert metadata.findings == ()
    with pytest.raises(ValueError, match="more than"):
        next(isd_samples(DAY, 100_001))
