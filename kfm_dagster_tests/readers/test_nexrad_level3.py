"""The NEXRAD Level III reader: real and truncated objects, samples, keys, hostile bytes."""

from __future__ import annotations

import bz2
import struct
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyproj import Geod
from shapely.geometry import shape

from kfm_dagster.contracts.bounding_box import bounding_box
from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.demo.samples.nexrad_level3 import GENERATED_AFTER, PRODUCTS, make_nexrad_level3
from kfm_dagster.readers.geometry import disc
from kfm_dagster.readers.nexrad_l3_bulletin import FRAME_BYTES, MAX_FRAMES
from kfm_dagster.readers.nexrad_l3_message import HYDROMETEORS, MAX_UNPACKED_BYTES, product_kinds
from kfm_dagster.readers.nexrad_level3 import FIRST_BYTES, MAX_OBJECT_BYTES
from kfm_dagster.readers.nexrad_radar import TDWR, site_named, sites
from kfm_dagster_tests.readers import reading
from kfm_dagster_tests.readers.reading import TRUNCATION_CODES, Reading, allocating_at_most, is_unchecked
from kfm_dagster_tests.readers.truth.comparison import CountingSource, real_objects

START = datetime(2024, 5, 6, 21, 14, 3, tzinfo=UTC)
READING = Reading("nexrad-l3")
read, outcome, refusal = READING.read, READING.outcome, READING.refusal
WGS84 = Geod(ellps="WGS84")
HEAD, BEFORE_BLOCKS = 30, 120
"""Lengths in bytes: of the heading of Unidata's objects, and of a message's part before its blocks."""


def sample(product: str = "N0B", site: str | None = None) -> tuple[str, bytes]:
    return make_nexrad_level3(site=site or ("TMCI" if product == "TZ0" else "KICT"), product=product, start=START)


def patched(content: bytes, offset: int, layout: str, *values: int) -> bytes:
    """Return the content with other values at an offset of the message."""
    return reading.patched(content, HEAD + offset, struct.pack(">" + layout, *values))


@given(latitude=st.floats(-85, 85), longitude=st.floats(-180, 180), radius_m=st.floats(1_000, 460_000))
def test_the_box_of_a_disc_is_the_box_of_its_circle(latitude: float, longitude: float, radius_m: float) -> None:
    centre = [np.full(1440, value) for value in (longitude, latitude)]
    east, north, _ = WGS84.fwd(*centre, np.arange(1440) / 4, np.full(1440, radius_m))
    away = (east - longitude + 180) % 360 - 180
    expected = (longitude + away.min(), north.min(), longitude + away.max(), north.max())
    geometry = disc(latitude, longitude, radius_m)
    box, covered = bounding_box(geometry), shape(geometry)
    # Near a pole a degree of longitude is short.
    tolerance = 1e-4 if abs(latitude) <= 80 else 1e-2
    assert max(abs((side - limit + 180) % 360 - 180) for side, limit in zip(box, expected, strict=True)) < tolerance
    parts = getattr(covered, "geoms", [covered])
    assert covered.is_valid
    assert all(part.exterior.is_ccw for part in parts)
    assert (box[0] > box[2]) == (covered.geom_type == "MultiPolygon")
    rim = [point for part in parts for point in part.exterior.coords if abs(point[0]) < 180]
    assert all(abs(WGS84.inv(longitude, latitude, x, y)[2] - radius_m) < 1 for x, y in rim)


# --- real objects


def test_the_radar_and_the_product_of_real_objects_are_read(shared_data: Path, reference: Mapping[str, Any]) -> None:
    objects = real_objects(shared_data, reference, "nexrad-l3")
    by_name = {item.key[:7]: read(item.key, item.content).properties for item in objects}
    compressions = {name: (item.get("nexrad:mnemonic"), item["nexrad:compression"]) for name, item in by_name.items()}
    assert compressions == {
        "TLX_GSM": ("GSM", "none"), "TLX_NST": ("STI", "none"), "TLX_NVW": ("VWP", "none"), "TLX_NTP": ("STP", "none"),
        "TLX_N0R": ("R", "none"), "TLX_DHR": ("DHR", "bzip2"), "TLX_DVL": ("DVL", "bzip2"), "TLX_N0Q": ("DR", "bzip2"),
        "TLX_N0U": ("DV", "bzip2"), "TLX_N0C": ("DCC", "bzip2"), "TLX_N0K": ("DKD", "bzip2"),
        "MCI_TZL": ("DR", "bzip2"), "MCI_TR0": (None, "zlib"),
    }  # fmt: skip
    assert {item["nexrad:site"] for item in by_name.values()} == {"KTLX", "TMCI"}
    assert by_name["TLX_NST"]["nexrad:blocks"] == ["symbology", "graphic", "tabular"]
    assert by_name["TLX_NVW"]["nexrad:blocks"] == ["symbology", "tabular"]


# --- truncated objects


@pytest.mark.clause("OPR-07", "OPR-20")
def test_a_status_message_or_text_truncated_at_any_byte_is_refused_or_unchecked() -> None:
    for key, content in ((STATUS_KEY, STATUS), (TEXT_KEY, as_transmitted(TEXT))):
        for length in range(len(content)):
            result = outcome(key, content[:length])
            assert is_unchecked(result) or result in TRUNCATION_CODES, (length, result)


# --- properties


def test_a_sample_has_the_properties_it_was_created_with() -> None:
    metadata = read(*sample())
    site = sites()["KICT"]
    assert (metadata.start, metadata.end, metadata.datetime) == (START, START, START)
    assert metadata.findings == ()
    assert metadata.properties == {
        "platform": "wsr-88d",
        "instruments": ["wsr-88d"],
        "processing:level": "L3",
        "processing:datetime": f"{START + GENERATED_AFTER:%Y-%m-%dT%H:%M:%S.%fZ}",
        "nexrad:awips-id": "N0BICT",
        "nexrad:site": "KICT",
        "nexrad:site-name": "Wichita, KS",
        "nexrad:product-code": 153,
        "nexrad:product-name": "Super Resolution Reflectivity Data Array",
        "nexrad:mnemonic": "SDR",
        "nexrad:elevation": 0.5,
        "nexrad:vcp": 212,
        "nexrad:volume-number": 1,
        "nexrad:operational-mode": "precipitation",
        "nexrad:radar-id": list(sites()).index("KICT") + 1,
        "nexrad:range-m": 460_000,
        "nexrad:latitude": pytest.approx(site.latitude, abs=0.0006),
        "nexrad:longitude": pytest.approx(site.longitude, abs=0.0006),
        "nexrad:height-m": pytest.approx(site.height_m, abs=0.2),
        "nexrad:position-source": "product description block",
        "nexrad:compression": "bzip2",
        "nexrad:blocks": ["symbology"],
        "bands": [{"name": "N0B", "description": "Super Resolution Reflectivity Data Array", "unit": "dBZ"}],
    }


@pytest.mark.clause("OPR-28")
def test_a_product_has_the_unit_and_the_classes_of_its_values() -> None:
    key, content = sample()
    for code, unit in ((99, "m s-1"), (170, "0.01 in"), (165, "1"), (177, "1"), (62, None)):
        bands = read(key, patched(patched(content, 0, "h", code), 30, "h", code)).properties.get("bands", [{}])
        assert bands[0].get("unit") == unit
        classes = {entry["value"]: entry["name"] for entry in bands[0].get("classification:classes", ())}
        assert classes == (HYDROMETEORS if code in {165, 177} else {})
        assert classes.get(100) == ("hail" if classes else None)


DAY, NOON = (START - datetime(1970, 1, 1, tzinfo=UTC)).days + 1, 720
"""Day and minute in the ICD's units: noon of the sample's day."""


@pytest.mark.clause("OPR-24")
def test_the_times_of_an_accumulation_are_those_of_its_window() -> None:
    noon = START.replace(hour=12, minute=0, second=0)
    for code, parameters, minutes in (
        # A window is given by its start and end, by its end and the product's period, or by its end and length.
        (80, {5: DAY - 1, 6: NOON, 7: DAY, 8: NOON}, 1440), (172, {1: DAY, 2: NOON - 5, 5: DAY, 6: NOON}, 5),
        (31, {5: DAY, 6: 0, 7: DAY, 8: NOON}, NOON), (144, {5: DAY, 6: NOON - 60, 7: DAY, 8: NOON}, 60),
        (78, {7: DAY, 8: NOON}, 60), (79, {7: DAY, 8: NOON}, 180), (81, {7: DAY, 8: NOON}, 60),
        (169, {5: DAY, 6: NOON}, 60), (170, {5: DAY, 6: NOON}, 60), (174, {5: DAY, 6: NOON}, 60),
        (173, {1: NOON, 2: 150, 5: DAY, 6: NOON - 150}, 150), (173, {1: NOON, 2: 0, 5: DAY}, None),
        # A rain-rate product states when the rain began; its time is that of its volume.
        (176, {1: DAY, 2: NOON}, None),
        # If no rain fell, there is no window: dates of zero, impossible minutes, or an end before the start.
        (80, {5: 0, 6: 0, 7: 0, 8: 0}, None), (80, {5: DAY, 6: 1441, 7: DAY, 8: -1}, None),
        (80, {5: DAY, 6: NOON, 7: DAY - 1, 8: NOON}, None),
    ):  # fmt: skip
        key, content = sample("NTP")
        for number in range(1, 11):
            at = {1: 52, 2: 54, 3: 58}.get(number, 84 + 2 * number)  # figure 3-6
            content = patched(content, at, "h", parameters.get(number, 0))
        metadata = read(key, patched(patched(content, 30, "h", code), 0, "h", code))
        begin = noon - timedelta(minutes=minutes or 0)
        assert (metadata.start, metadata.end, metadata.datetime) == (
            (begin, noon, noon) if minutes else (START, START, START)
        )
        if minutes or code == 176:
            assert metadata.properties["nexrad:accumulation-start"] == f"{begin:%Y-%m-%dT%H:%M:%S.%fZ}"
            assert ("nexrad:accumulation-end" in metadata.properties) == bool(minutes)


def test_an_elevation_is_read_only_if_the_product_has_one_and_an_antenna_can_reach_it() -> None:
    key, content = sample()
    for (number, tenths), expected in {
        (1, -10): -1.0,
        (1, 450): 45.0,
        (1, 451): None,
        (1, -11): None,
        (0, 5): None,
    }.items():
        assert read(key, patched(content, 56, "hh", number, tenths)).properties.get("nexrad:elevation") == expected


def test_an_unknown_product_has_no_name_and_a_point_as_geometry() -> None:
    key, content = sample("NVW")
    metadata = read(key, patched(patched(content, 0, "h", 299), 30, "h", 299))
    assert metadata.properties["nexrad:product-code"] == 299
    assert not {"nexrad:product-name", "nexrad:mnemonic", "nexrad:range-m"} & metadata.properties.keys()
    assert metadata.geometry["type"] == "Point"


STATUS_KEY = "ICT_GSM_2024_05_06_21_14_03"
STATUS = b"NXUS63 KICT 062114\r\r\nGSMICT\r\r\n" + struct.pack(
    ">hHiihhh 5h76x", 2, 19850, 76443, 104, 24, 0, 2, -1, 82, 1, 4, 32
)


@pytest.mark.clause("OPR-06")
def test_a_status_message_has_the_position_of_its_radar_and_the_time_of_its_header() -> None:
    metadata = read(STATUS_KEY, STATUS)
    site = sites()["KICT"]
    assert metadata.start == START
    assert metadata.geometry == {"type": "Point", "coordinates": (site.longitude, site.latitude)}
    assert metadata.properties["nexrad:position-source"] == "site table"
    modes = [
        read(STATUS_KEY, patched(STATUS, 22, "h", code)).properties.get("nexrad:operational-mode") for code in range(4)
    ]
    assert modes == ["maintenance", "clear air", "precipitation", None]
    assert metadata.properties["nexrad:vcp"] == 32
    assert not {"nexrad:volume-number", "nexrad:blocks"} & metadata.properties.keys()
    unknown_site = refusal(STATUS_KEY.replace("ICT", "ZZZ"), STATUS.replace(b"ICT", b"ZZZ"))
    assert unknown_site is MetadataIssue.MISSING_GEOLOCATION
    assert refusal(STATUS_KEY, patched(STATUS, 2, "Hi", 0, 0)) is MetadataIssue.INVALID_TIME_RANGE
    assert refusal(STATUS_KEY, patched(STATUS, 20, "h", 81)) is MetadataIssue.UNREADABLE_FORMAT


TEXT_KEY = "ICT_FTM_2024_05_06_21_14_03"
TEXT = (
    b"NOUS63 KICT 062114\r\r\nFTMICT\r\r\nMessage Date:  May 06 2024 21:14:03\r\r\n\r\r\nKICT IS DOWN FOR MAINTENANCE"
)


def as_transmitted(content: bytes, number: bytes = b"813 ") -> bytes:
    """Return the object with the start and end bytes of its transmission, as Unidata receives it."""
    return b"\x01\r\r\n" + number + b"\r\r\n" + content + b"\r\r\n\x03"


@pytest.mark.clause("OPR-20")
def test_a_plain_text_is_complete_only_if_it_ends_with_its_transmission_or_page() -> None:
    metadata = read(TEXT_KEY, as_transmitted(TEXT))
    assert (metadata.start, metadata.findings) == (START.replace(second=0), ())
    assert (metadata.properties["nexrad:product-code"], metadata.geometry["type"]) == (75, "Point")
    assert is_unchecked(outcome(TEXT_KEY, TEXT))
    # The flag of a page's end also completes a text, with or without the bytes of a transmission.
    ended = TEXT + b"\xff\xff\n\0"
    assert read(TEXT_KEY, ended) == read(TEXT_KEY, as_transmitted(ended)) == metadata
    assert {outcome(TEXT_KEY, ended[:end]) for end in (-1, -2, -3)} == {MetadataIssue.UNREADABLE_FORMAT}
    assert refusal(TEXT_KEY, TEXT[:30] + ended[-4:]) is MetadataIssue.UNREADABLE_FORMAT
    assert refusal(TEXT_KEY, TEXT + b"\xff") is MetadataIssue.UNREADABLE_FORMAT
    assert refusal(TEXT_KEY, TEXT.replace(b"062114", b"062116")) is MetadataIssue.TIME_MISMATCH
    assert refusal(TEXT_KEY, TEXT.replace(b"062114", b"062460")) is MetadataIssue.INVALID_TIME_RANGE


def test_the_day_of_a_heading_is_in_the_month_that_is_nearest_to_the_key() -> None:
    for heading, key, start in (
        (b"312359", "2024_01_01_00_00_30", "2023-12-31T23:59:00Z"),
        (b"010000", "2023_12_31_23_59_30", "2024-01-01T00:00:00Z"),
        (b"010000", "2024_01_31_23_59_30", "2024-02-01T00:00:00Z"),
        (b"290000", "2024_02_29_00_00_30", "2024-02-29T00:00:00Z"),
        (b"310000", "2024_03_30_23_59_30", "2024-03-31T00:00:00Z"),
    ):
        assert read(f"ICT_FTM_{key}", TEXT.replace(b"062114", heading)).start == datetime.fromisoformat(start)


def test_an_object_has_the_same_metadata_with_the_bytes_of_its_transmission() -> None:
    for product in PRODUCTS:
        key, content = sample(product)
        expected = read(key, content)
        assert read(key, as_transmitted(content)) == expected
        assert read(key, as_transmitted(content, b"00813")) == expected
        assert refusal(key, as_transmitted(content)[:-1]) is MetadataIssue.TRUNCATED_OBJECT
        assert is_unchecked(outcome(key, content + b"\r\r\n\x03"))
        metadata = read(key, as_transmitted(framed(content)))
        assert metadata.properties == {**expected.properties, "nexrad:compression": "zlib"}
        # The last frame can be uncompressed, and the control block can be missing.
        assert read(key, framed(content, control=b"", plain=1)).properties == metadata.properties


def framed(content: bytes, *, control: bytes = b"\x40\x0c" + bytes(22), plain: int = 0) -> bytes:
    """Return the object with its message in NOAAPort's frames; the last `plain` frames are uncompressed."""
    sent = control + content
    frames = [sent[start : start + FRAME_BYTES] for start in range(0, len(sent), FRAME_BYTES)]
    packed = [zlib.compress(frame, 9) for frame in frames[: len(frames) - plain]]
    if plain and len(frames) == plain:
        # A single frame is recognised only if part of it is compressed.
        packed, frames = [zlib.compress(sent[:99], 9)], [sent[99:]]
    return content[:HEAD] + b"".join(packed) + b"".join(frames[len(frames) - plain :])


# --- agreement with the key


@pytest.mark.clause("OPR-06")
def test_the_time_of_the_key_must_be_between_the_start_of_the_scan_and_the_product_s_generation() -> None:
    own_key, content = sample()
    for seconds, agrees in {0: True, -60: True, -61: False, 105: True, 106: False, 86_400: False}.items():
        key = f"ICT_N0B_{START + timedelta(seconds=seconds):%Y_%m_%d_%H_%M_%S}"
        if agrees:
            assert read(key, content).start == START
        else:
            assert refusal(key, content) is MetadataIssue.TIME_MISMATCH
    # A generation time later than LONGEST_GENERATION after the start does not widen the accepted times of keys.
    late = patched(patched(content, 46, "H", 30_000), 2, "H", 30_000)
    assert read(own_key, late).start == START
    assert refusal("ICT_N0B_2024_05_06_22_16_03", late) is MetadataIssue.TIME_MISMATCH


@pytest.mark.clause("OPR-26")
def test_header_and_product_description_must_agree_and_the_coverage_pattern_must_fit_the_radar() -> None:
    key, content = sample()
    for offset, layout, value, expected in (
        # Another product, day or second in the header.
        (0, "h", 154, MetadataIssue.UNREADABLE_FORMAT),
        (2, "H", 30_000, MetadataIssue.TIME_MISMATCH),
        (4, "i", (21 * 60 + 14) * 60 + 48 + 3600, None),
        (4, "i", (21 * 60 + 14) * 60 + 48 + 3601, MetadataIssue.TIME_MISMATCH),
        # Another product or generation time in the description.
        (30, "h", 154, MetadataIssue.UNREADABLE_FORMAT),
        (46, "H", 30_000, MetadataIssue.TIME_MISMATCH),
        # The coverage pattern must be of the radar's kind.
        (34, "h", 215, None),
        (34, "h", 213, MetadataIssue.OUT_OF_TABLE),
        (34, "h", 90, MetadataIssue.OUT_OF_TABLE),
        # A radar in maintenance has no pattern.
        (34, "h", 0, None),
    ):
        result = outcome(key, patched(content, offset, layout, value))
        codes = result if isinstance(result, MetadataIssue) else [code for code, _ in result.findings]
        assert codes in (expected, [expected] if expected else [])


@pytest.mark.clause("OPR-25")
def test_a_tdwr_has_coverage_patterns_and_status_messages_of_its_own() -> None:
    status = patched(STATUS.replace(b"ICT", b"MCI"), 26, "h", 80)
    metadata = read(STATUS_KEY.replace("ICT", "MCI"), status)
    assert (metadata.properties["platform"], metadata.properties["nexrad:site"], metadata.findings) == (
        "tdwr",
        "TMCI",
        (),
    )
    key, content = sample("TZ0")
    for pattern, findings in ((80, []), (90, []), (212, [MetadataIssue.OUT_OF_TABLE])):
        assert [code for code, _ in read(key, patched(content, 34, "h", pattern)).findings] == findings


@pytest.mark.clause("OPR-06")
def test_a_key_of_another_site_or_product_is_a_platform_mismatch() -> None:
    for key in ("TWX_N0B_2024_05_06_21_14_03", "ICT_N0G_2024_05_06_21_14_03"):
        assert refusal(key, sample()[1]) is MetadataIssue.PLATFORM_MISMATCH


def test_a_position_that_differs_from_the_radar_s_site_is_not_published() -> None:
    key, content = sample()
    for latitude, longitude, expected in (
        (0, 0, "site table"),
        (91_000, -97_443, MetadataIssue.INVALID_GEOMETRY),
        (37_654, -197_443, MetadataIssue.INVALID_GEOMETRY),
        (38_654, -97_443, MetadataIssue.INVALID_GEOMETRY),
    ):
        changed = patched(content, 20, "ii", latitude, longitude)
        if isinstance(expected, MetadataIssue):
            assert refusal(key, changed) is expected
        else:
            assert read(key, changed).properties["nexrad:position-source"] == expected


def test_a_site_identifier_names_one_radar_and_products_have_only_ranges_of_the_format() -> None:
    names = [*sites()]
    assert len({name[1:] for name in names}) == len(names)
    assert sum(site.kind is TDWR for site in sites().values()) == 47
    for name in names:
        assert site_named(name[1:]).icao == name
    ranges = {kind.range_m // 1000 if kind.range_m else None for kind in product_kinds().values()}
    assert ranges == {None, 60, 90, 115, 230, 300, 345, 416, 460}


# --- hostile bytes


def bomb(size: int) -> bytes:
    """Return a product that states `size` as its unpacked size, but unpacks to 20 million bytes."""
    packed = bz2.compress(bytes(20_000_000))
    content = patched(sample()[1][: HEAD + BEFORE_BLOCKS], 102, "I", size) + packed
    return patched(content, 8, "i", BEFORE_BLOCKS + len(packed))


@pytest.mark.clause("OPR-07")
def test_a_compression_bomb_is_refused_within_bounded_memory() -> None:
    key, content = sample()
    bombs = {
        "bzip2": (bomb(1000), MetadataIssue.UNREADABLE_FORMAT),
        "large bzip2": (bomb(MAX_UNPACKED_BYTES), MetadataIssue.UNREADABLE_FORMAT),
        "a stated size of 4 GiB": (bomb(2**32 - 1), MetadataIssue.RESOURCE_LIMIT),
        "zlib": (content[:HEAD] + zlib.compress(bytes(20_000_000)), MetadataIssue.TRUNCATED_OBJECT),
        "zlib frames": (content[:HEAD] + zlib.compress(bytes(FRAME_BYTES)) * MAX_FRAMES, MetadataIssue.RESOURCE_LIMIT),
        "a large object": (content + bytes(MAX_OBJECT_BYTES), MetadataIssue.RESOURCE_LIMIT),
    }
    for name, (hostile, expected) in bombs.items():
        with allocating_at_most(40_000_000):
            assert refusal(key, hostile) is expected, name


def test_an_object_larger_than_the_first_request_needs_a_second_request() -> None:
    key, content = sample("NVW")
    # Make the tabular block exactly as long as it states.
    pad = bytes(FIRST_BYTES)
    length = len(content) - HEAD + len(pad)
    start = content.rindex(struct.pack(">hh", -1, 3)) - HEAD
    block = length - start
    large = patched(patched(content + pad, 8, "i", length), start + 4, "I", block)
    source = CountingSource(large)
    assert read(key, source).findings == ()
    assert (len(source.requests), source.bytes_read) == (2, len(large))


@pytest.mark.clause("OPR-07")
def test_hostile_bytes_have_an_issue_code() -> None:
    plain, packed = sample("NST")[1], sample("N0B")[1]
    transmitted = plain[:HEAD] + framed(plain.replace(b"NSTICT", b"NSTTWX", 1))[HEAD:]
    turned = patched(packed, 200, "B", packed[HEAD + 200] ^ 1)
    longer = patched(packed + b"\0\0", 8, "i", len(packed) - HEAD + 2)
    hostile: dict[str, tuple[str, bytes, MetadataIssue | None]] = {
        # None: the object is read, but its completeness is unchecked.
        "empty": ("NST", b"", MetadataIssue.UNREADABLE_FORMAT),
        "another format": ("NST", b"CDF\x01" + bytes(4096), MetadataIssue.UNREADABLE_FORMAT),
        "no message": ("NST", plain[:HEAD], MetadataIssue.TRUNCATED_OBJECT),
        "length 0": ("NST", patched(plain, 8, "i", 0), MetadataIssue.UNREADABLE_FORMAT),
        "a negative length": ("NST", patched(plain, 8, "i", -1), MetadataIssue.UNREADABLE_FORMAT),
        "a length before the description's end": ("NST", patched(plain, 8, "i", 119), MetadataIssue.UNREADABLE_FORMAT),
        "a length of 2 GiB": ("NST", patched(plain, 8, "i", 2**31 - 1), MetadataIssue.TRUNCATED_OBJECT),
        "no divider": ("NST", patched(plain, 18, "h", 0), MetadataIssue.UNREADABLE_FORMAT),
        "day 0": ("NST", patched(plain, 40, "H", 0), MetadataIssue.INVALID_TIME_RANGE),
        "second past midnight": ("NST", patched(plain, 42, "i", 86_400), MetadataIssue.INVALID_TIME_RANGE),
        "a negative second": ("NST", patched(plain, 48, "i", -1), MetadataIssue.INVALID_TIME_RANGE),
        "an offset past the end": ("NST", patched(plain, 108, "I", 2**32 - 1), MetadataIssue.TRUNCATED_OBJECT),
        "a block past the end": ("NST", patched(plain, 124, "I", 2**32 - 1), MetadataIssue.TRUNCATED_OBJECT),
        "an offset without a block": ("NST", patched(plain, 108, "I", 61), None),
        "a missing offset of a block": ("NST", patched(plain, 116, "I", 0), None),
        "a byte after the message": ("NST", plain + b"\0", None),
        "only a bzip2 signature": ("NST", patched(plain, 120, "3B", *b"BZh"), MetadataIssue.UNREADABLE_FORMAT),
        "bzip2 declared as another method": ("N0B", patched(packed, 100, "h", 2), MetadataIssue.UNREADABLE_FORMAT),
        "bzip2 of another unpacked size": ("N0B", patched(packed, 104, "H", 1), MetadataIssue.UNREADABLE_FORMAT),
        "bzip2 with a flipped bit": ("N0B", turned, MetadataIssue.UNREADABLE_FORMAT),
        "bytes after the bzip2 data": ("N0B", longer, MetadataIssue.UNREADABLE_FORMAT),
        "only a zlib signature": ("NST", plain[:HEAD] + b"\x78" + plain[HEAD:], MetadataIssue.UNREADABLE_FORMAT),
        "another heading in the frames": ("NST", transmitted, MetadataIssue.UNREADABLE_FORMAT),
    }
    for name, (product, content, expected) in hostile.items():
        result = outcome(sample(product)[0], content)
        assert is_unchecked(result) if expected is None else result is expected, name
