"""The NEXRAD Level II reader: real volumes, keys, positions, ends, truncated and hostile objects."""

from __future__ import annotations

import bz2
import gzip
import random
import re
import struct
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyproj import Geod

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.demo.samples.nexrad_level2 import (
    DURATION,
    ELEVATIONS,
    FREQUENCY_MHZ,
    MOMENTS,
    TDWR_ELEVATIONS,
    make_nexrad_level2,
)
from kfm_dagster.readers import nexrad_end
from kfm_dagster.readers.base import HeaderMetadata
from kfm_dagster.readers.nexrad_level2 import LONGEST_VOLUME
from kfm_dagster.readers.nexrad_messages import MAX_CUTS
from kfm_dagster.readers.nexrad_radar import POSITION_TOLERANCE_M, sites
from kfm_dagster.readers.ranges import BytesSource
from kfm_dagster_tests.readers import reading
from kfm_dagster_tests.readers.nexrad_bytes import (
    SITE,
    START,
    clock,
    groups,
    header,
    ldm,
    message_1,
    reach_m,
    read,
    record_ends,
    refusal,
    unpack,
)
from kfm_dagster_tests.readers.reading import TRUNCATION_CODES, allocating_at_most, is_unchecked, patched
from kfm_dagster_tests.readers.truth.comparison import CountingSource, real_objects

outcome = partial(reading.outcome, read)


@pytest.fixture(scope="module")
def volume() -> bytes:
    return make_nexrad_level2(site=SITE, start=START)[1]


@pytest.fixture(scope="module")
def uncompressed(volume: bytes) -> bytes:
    """The sample with its LDM records unpacked, so that mutations reach the messages."""
    return unpack(volume)


# --- real volumes


def test_real_volumes_have_position_coverage_pattern_and_status(
    shared_data: Path, reference: Mapping[str, Any]
) -> None:
    volumes = real_objects(shared_data, reference, "nexrad-l2")
    by_name = {Path(real.path).name: real.read(BytesSource(real.content)).properties for real in volumes}
    old, older = by_name["KABR20050101_000745.gz"], by_name["KTLX19910605_162126.gz"]
    # In both old volumes message 5 is zero or absent, so the radials name the pattern.
    assert (old["nexrad:vcp"], older["nexrad:vcp"]) == (32, 21)
    assert old["nexrad:position-source"] == older["nexrad:position-source"] == "site table"
    assert old["nexrad:operability-status"] == "maintenance action required"
    # Adaptation data before 2008 have another layout, and the pattern in them can be zero.
    assert not {"nexrad:frequency-mhz", "nexrad:elevations"} & (old.keys() | older.keys())
    # Frequencies determined once by another program; all volumes of a site state the same frequency.
    frequencies = {"KCRP": 2810, "KDMX": 2720, "KLBB": 2850, "KLOT": 2895, "KTLX": 2910, "Leve": 2890}
    stated = {
        name[:4]: item["nexrad:frequency-mhz"] for name, item in by_name.items() if "nexrad:frequency-mhz" in item
    }
    assert stated == frequencies
    new = by_name["KDMX20250101_225441_V06"]
    assert (new["nexrad:rda-status"], new["processing:software"]) == ("operate", {"WSR-88D RDA": "22.1"})


CODES = [
    {"value": 0, "name": "below-threshold", "nodata": True},
    {"value": 1, "name": "range-folded", "nodata": True},
]


# --- agreement with the key


@pytest.mark.clause("OPR-06", "OPR-28")
def test_a_sample_has_the_properties_it_was_created_with(volume: bytes) -> None:
    metadata = read(volume)
    assert (metadata.start, metadata.end, metadata.datetime) == (START, START + DURATION, START)
    assert metadata.findings == ()
    site = sites()[SITE]
    assert metadata.properties == {
        "platform": "wsr-88d",
        "instruments": ["wsr-88d"],
        "processing:level": "L2",
        "processing:software": {"WSR-88D RDA": "19.0"},
        "nexrad:site": SITE,
        "nexrad:site-name": "Wichita, KS",
        "nexrad:message-type": 31,
        "nexrad:archive-version": "AR2V0006",
        "nexrad:compression": "bzip2",
        "nexrad:elevations": sorted({round(round(angle * 65536 / 360) * 360 / 65536, 3) for angle in ELEVATIONS}),
        "nexrad:frequency-mhz": FREQUENCY_MHZ,
        "nexrad:gate-spacing-m": 250,
        "nexrad:volume-number": 1,
        "nexrad:vcp": 212,
        "nexrad:moments": list(MOMENTS),
        "bands": [
            {"name": name, "description": description, "unit": unit, "classification:classes": CODES}
            for name, description, unit in (
                ("REF", "Reflectivity", "dBZ"),
                ("VEL", "Radial velocity", "m s-1"),
                ("SW", "Spectrum width", "m s-1"),
                ("ZDR", "Differential reflectivity", "dB"),
                ("PHI", "Differential phase", "degree"),
                ("RHO", "Correlation coefficient", "1"),
            )
        ],
        "nexrad:latitude": pytest.approx(site.latitude, abs=1e-5),
        "nexrad:longitude": pytest.approx(site.longitude, abs=1e-5),
        "nexrad:height-m": round(site.height_m),
        "nexrad:position-source": "volume data block",
        "nexrad:rda-status": "operate",
        "nexrad:operability-status": "on-line",
    }


@pytest.mark.clause("OPR-25")
def test_a_tdwr_s_volume_has_a_tdwr_s_properties() -> None:
    key, volume = make_nexrad_level2(site="TMCI", start=START)
    metadata, site = read(volume, groups(site="TMCI") | {"version": "08"}), sites()["TMCI"]
    assert key.endswith("/TMCI/TMCI20240506_211403_V08")
    assert metadata.findings == ()
    expected = {
        "platform": "tdwr",
        "instruments": ["tdwr"],
        "processing:software": {"TDWR RDA": "19.0"},
        "nexrad:site": "TMCI",
        "nexrad:site-name": site.name,
        "nexrad:latitude": pytest.approx(site.latitude, abs=1e-5),
        "nexrad:longitude": pytest.approx(site.longitude, abs=1e-5),
        "nexrad:position-source": "volume data block",
        "nexrad:archive-version": "AR2V0008",
        "nexrad:vcp": 90,
        "nexrad:elevations": pytest.approx(sorted(TDWR_ELEVATIONS), abs=0.003),
        "nexrad:moments": ["REF", "VEL", "SW"],
        "nexrad:gate-spacing-m": 300,
    }
    assert {name: metadata.properties[name] for name in expected} == expected
    assert reach_m(metadata) == pytest.approx(417_000, abs=1)


KICT, TMCI = (SITE, "06"), ("TMCI", "08")
GATES = {"KICT": struct.pack(">HhH", 1832, 2125, 250), "TMCI": struct.pack(">HhH", 1390, 150, 300)}
VOL_PATTERN = {"KICT": struct.pack(">ffH", 0.3, 60, 212), "TMCI": struct.pack(">ffH", 0.3, 60, 90)}
HIGHEST = {"KICT": struct.pack(">H44x", 1168), "TMCI": struct.pack(">H44x", 10_923)}
"""The last elevation cut of the radar's pattern: 6.416 degrees for KICT, 60 degrees for TMCI."""


@pytest.mark.clause("OPR-25", "OPR-26")
def test_range_pattern_elevation_cuts_and_version_are_checked_for_the_kind_of_radar() -> None:
    for radar, old, new, expected in (
        # The range: by the volume's gates, else by the kind of radar; never more than 460 km.
        (KICT, GATES, struct.pack(">HhH", 600, 75, 150), 90_000),
        (TMCI, GATES, struct.pack(">HhH", 600, 75, 150), 90_000),
        (KICT, GATES, struct.pack(">HhH", 0, 2125, 250), 460_000),
        (TMCI, GATES, struct.pack(">HhH", 0, 150, 300), 416_000),
        (TMCI, GATES, struct.pack(">HhH", 65_535, 150, 300), 460_000),
        # Patterns of another kind of radar, and a second pattern of a TDWR.
        (KICT, VOL_PATTERN, struct.pack(">ffH", 0.3, 60, 90), MetadataIssue.OUT_OF_TABLE),
        (KICT, VOL_PATTERN, struct.pack(">ffH", 0.3, 60, 213), MetadataIssue.OUT_OF_TABLE),
        (TMCI, VOL_PATTERN, struct.pack(">ffH", 0.3, 60, 212), MetadataIssue.OUT_OF_TABLE),
        (TMCI, VOL_PATTERN, struct.pack(">ffH", 0.3, 60, 80), 417_000),
        # An elevation cut at or above the highest angle of the antenna.
        (KICT, HIGHEST, struct.pack(">H44x", 8192), 460_000),
        (KICT, HIGHEST, struct.pack(">H44x", 8194), MetadataIssue.INVALID_GEOMETRY),
        (TMCI, HIGHEST, struct.pack(">H44x", 10_925), MetadataIssue.INVALID_GEOMETRY),
        # A header with a format version that the key does not have.
        (KICT, dict.fromkeys(GATES, b"AR2V0006"), b"AR2V0008", MetadataIssue.KEY_MISMATCH),
        (TMCI, dict.fromkeys(GATES, b"AR2V0008"), b"AR2V0006", MetadataIssue.KEY_MISMATCH),
    ):
        site, version = radar
        content = unpack(make_nexrad_level2(site=site, start=START)[1])
        assert old[site] in content
        changed, key = content.replace(old[site], new), groups(site=site) | {"version": version}
        if expected in {MetadataIssue.INVALID_GEOMETRY, MetadataIssue.KEY_MISMATCH}:
            assert refusal(changed, key) is expected
            continue
        metadata = read(changed, key)
        if expected is MetadataIssue.OUT_OF_TABLE:
            assert [code for code, _ in metadata.findings] == [expected]
        else:
            assert (metadata.findings, reach_m(metadata)) == ((), pytest.approx(expected, abs=1))


@pytest.mark.parametrize("pack", [gzip.compress, bytes], ids=["gzip", "none"])
def test_gzipped_and_unpacked_volumes_have_the_same_values(pack: Any, volume: bytes, uncompressed: bytes) -> None:
    expected = dict(read(volume).properties)
    for content in (volume, uncompressed):
        header = read(pack(content))
        assert (header.start, header.end, header.findings) == (START, START + DURATION, ())
        properties = dict(header.properties)
        compression = properties.pop("nexrad:compression")
        assert compression == ("gzip" if pack is gzip.compress else "bzip2" if content is volume else "none")
        assert properties == {name: value for name, value in expected.items() if name != "nexrad:compression"}


@pytest.mark.clause("OPR-06", "OPR-15")
def test_key_header_and_first_radial_must_agree_on_the_time() -> None:
    at = START.replace(microsecond=0)
    for header_after, radial_after, start_after in (
        # KABR, 2005-01-01: the radial precedes the header by 11.5 s and the key follows the header.
        (0.0, -11.5, -11.5),
        # KTLX, 2014-01-01: the key follows the radial.
        (2.5, 0.0, 0.0),
        (30.0, 60.0, 30.0),
        (-60.0, 0.0, -60.0),
        # Of the times of key, header and radial, two are a millisecond more than the tolerance apart.
        (0.0, 60.001, None),
        (60.001, 0.0, None),
        (30.0, -30.001, None),
        (-86_400.0, 0.0, None),
        (0.0, 86_400.0, None),
    ):
        content = header(at + timedelta(seconds=header_after)) + message_1(at + timedelta(seconds=radial_after))
        if start_after is None:
            assert refusal(content) is MetadataIssue.TIME_MISMATCH
        else:
            metadata = read(content)
            assert metadata.start == metadata.datetime == at + timedelta(seconds=start_after)


@pytest.mark.clause("OPR-06")
def test_a_key_of_another_site_is_a_platform_mismatch(volume: bytes) -> None:
    assert refusal(volume, groups(site="KTWX")) is MetadataIssue.PLATFORM_MISMATCH
    blank_header = volume[:20] + b"    " + volume[24:]
    assert refusal(blank_header, groups(site="KTWX")) is MetadataIssue.PLATFORM_MISMATCH
    assert read(blank_header).properties["nexrad:site"] == SITE


# --- position and coverage


def test_a_volume_without_a_position_gets_that_of_the_site_table() -> None:
    site = sites()[SITE]
    for icao in (b"    ", b"\0\0\0\0", SITE.encode()):
        content = header(magic=b"ARCHIVE2.", icao=icao) + message_1(START)
        for properties in (read(content).properties, read(gzip.compress(content)).properties):
            assert (properties["nexrad:latitude"], properties["nexrad:longitude"]) == (site.latitude, site.longitude)
            assert properties["nexrad:position-source"] == "site table"
            assert (properties["nexrad:archive-version"], properties["nexrad:message-type"]) == ("ARCHIVE2", 1)
            assert (properties["nexrad:vcp"], properties["nexrad:moments"]) == (21, ["REF", "VEL"])


def test_an_unknown_site_has_the_position_of_its_volume_or_is_refused(uncompressed: bytes) -> None:
    content = header(icao=b"    ") + message_1(START)
    assert refusal(content, groups(site="ZZZZ")) is MetadataIssue.MISSING_GEOLOCATION
    content = uncompressed.replace(SITE.encode(), b"KZZZ")
    assert read(content, groups(site="KZZZ")).properties["nexrad:position-source"] == "volume data block"


def test_a_position_that_is_impossible_or_far_from_the_radar_s_site_is_not_published(uncompressed: bytes) -> None:
    block, site = uncompressed.index(b"RVOL"), sites()[SITE]
    assert uncompressed[block + 8 : block + 16] == struct.pack(">ff", site.latitude, site.longitude)

    def away(metres: float) -> tuple[float, float]:
        longitude, latitude, _ = Geod(ellps="WGS84").fwd(site.longitude, site.latitude, 45, metres)
        return latitude, longitude

    for latitude, longitude, expected in (
        (0.0, 0.0, "site table"),
        (float("nan"), -97.0, MetadataIssue.INVALID_GEOMETRY),
        (37.0, float("inf"), MetadataIssue.INVALID_GEOMETRY),
        (91.0, -97.0, MetadataIssue.INVALID_GEOMETRY),
        (37.0, -197.0, MetadataIssue.INVALID_GEOMETRY),
        (*away(100), "volume data block"),
        (*away(POSITION_TOLERANCE_M - 50), "volume data block"),
        (*away(POSITION_TOLERANCE_M + 50), MetadataIssue.INVALID_GEOMETRY),
    ):
        content = patched(uncompressed, block + 8, struct.pack(">ff", latitude, longitude))
        if isinstance(expected, MetadataIssue):
            assert refusal(content) is expected
        else:
            assert read(content).properties["nexrad:position-source"] == expected


def test_every_site_of_the_network_is_in_the_table() -> None:
    table = sites()
    assert len(table) >= 160
    named = "KTLX KLIX KHDC KCRI PAEC PGUA PHKI TJUA LPLA RKJK RKSG RODN"
    assert set(named.split()) <= table.keys()
    for site in table.values():
        assert 13 < site.latitude < 66, site
        assert -166 < site.longitude < -26 or 126 < site.longitude < 145, site
        assert 5 < site.height_m < 3300, site


# --- the ends of a volume


def ends_of(uncompressed: bytes) -> list[int]:
    """Return the offset of each radial's body in an uncompressed volume of type 31."""
    return [match.start() for match in re.compile(SITE.encode()).finditer(uncompressed, 24)]


@pytest.mark.clause("OPR-15")
def test_a_last_radial_before_the_first_or_after_the_longest_volume_is_a_time_mismatch(uncompressed: bytes) -> None:
    offset = ends_of(uncompressed)[-1]
    for after, code in (
        (timedelta(0), None),
        (LONGEST_VOLUME, None),
        (LONGEST_VOLUME + timedelta(milliseconds=1), MetadataIssue.TIME_MISMATCH),
        (timedelta(milliseconds=-1), MetadataIssue.TIME_MISMATCH),
        (timedelta(days=1), MetadataIssue.TIME_MISMATCH),
    ):
        day, milliseconds = clock(START + after)
        content = patched(uncompressed, offset + 4, struct.pack(">IH", milliseconds, day))
        if code is None:
            assert read(content).end == START + after
        else:
            assert refusal(content) is code


def test_a_last_radial_of_another_radar_is_a_platform_mismatch(uncompressed: bytes) -> None:
    offset = ends_of(uncompressed)[-1]
    assert refusal(patched(uncompressed, offset, b"KTWX")) is MetadataIssue.PLATFORM_MISMATCH


@pytest.mark.clause("OPR-16")
def test_if_neither_end_of_a_volume_has_velocity_only_the_first_radial_s_moments_are_listed(
    volume: bytes, uncompressed: bytes
) -> None:
    # Three radials of each elevation cut: surveillance and Doppler in the first record, only surveillance in the last.
    first, third, fourth = (ends_of(uncompressed)[index] - 28 for index in (0, 6, 9))
    short = volume[: next(record_ends(volume))] + ldm(uncompressed[first:third]) + ldm(uncompressed[third:fourth])
    stored = read(short)
    assert "nexrad:moments" not in stored.properties
    assert stored.properties["nexrad:first-radial-moments"] == ["REF", "ZDR", "PHI", "RHO"]
    assert stored.properties["nexrad:elevations"] == [0.483, 0.879]
    # A gzipped volume without packed records is read whole, so its moments are those of every elevation cut.
    assert read(gzip.compress(uncompressed[:fourth])).properties["nexrad:moments"] == list(MOMENTS)


# --- truncated objects


@pytest.mark.clause("OPR-20")
def test_a_volume_of_type_1_is_suspect_if_truncated_between_radials_and_refused_if_within_one(
    shared_data: Path, reference: Mapping[str, Any]
) -> None:
    volumes = real_objects(shared_data, reference, "nexrad-l2")
    of_type_1 = [real for real in volumes if real.expected["msg_type"] == "1"]
    assert of_type_1
    for real in of_type_1:
        path, key = real.path, real.groups
        plain = gzip.decompress(real.content) if real.expected["gzipped"] else unpack(real.content)
        for end in range(len(plain) // 5 // 2432 * 2432 + 24, len(plain), 2432 * 1191):
            assert is_unchecked(outcome(plain[:end], key)), (path, end)
            assert is_unchecked(outcome(gzip.compress(plain[:end], 1), key)), (path, end)
            assert outcome(plain[: end + 1], key) in TRUNCATION_CODES, (path, end)


@pytest.mark.clause("OPR-20")
def test_a_sample_truncated_anywhere_is_refused_or_unchecked(volume: bytes, uncompressed: bytes) -> None:
    metadata_end, *ends, whole = record_ends(volume)
    near = {end + away for end in (metadata_end, *ends, whole) for away in range(-9, 10)}
    for end in sorted({*range(0, whole, 11), *near} & {*range(whole)}):
        result = outcome(volume[:end])
        assert is_unchecked(result) if end in ends else result in TRUNCATION_CODES, end
    assert read(volume[:whole]).findings == ()
    assert "status 2" in read(volume[: ends[-1]]).findings[0][1]
    assert refusal(volume[:metadata_end]) in TRUNCATION_CODES
    # Truncated before it was gzipped.
    for end in ends:
        assert is_unchecked(outcome(gzip.compress(volume[:end]))), end
        for around in (end - 1, end + 5):
            assert outcome(gzip.compress(volume[:around])) in TRUNCATION_CODES, around
    # A volume without packed records is suspect if truncated before a radial, and refused if truncated elsewhere.
    for end in [offset - 28 for offset in ends_of(uncompressed)][1:]:
        assert is_unchecked(outcome(uncompressed[:end])), end
        for around in (end - 1, end + 1, end + 27, end + 29):
            assert outcome(uncompressed[:around]) in TRUNCATION_CODES, around


@pytest.mark.clause("OPR-15", "OPR-20")
def test_a_gzipped_volume_too_large_to_read_whole_has_an_unknown_end(
    uncompressed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = gzip.compress(uncompressed)
    monkeypatch.setattr(nexrad_end, "MAX_GZIP_BYTES", len(content))
    assert read(content).end == START + DURATION
    monkeypatch.setattr(nexrad_end, "MAX_GZIP_BYTES", len(content) - 1)
    metadata = read(content)
    assert is_unchecked(metadata)
    assert (metadata.start, metadata.end) == (START, START)
    properties = metadata.properties
    assert properties["nexrad:end-known"] is False
    assert properties["nexrad:first-radial-moments"] == ["REF", "ZDR", "PHI", "RHO"]
    assert properties["nexrad:pattern-elevations"][-1] == 6.416
    assert not {"nexrad:moments", "nexrad:elevations"} & properties.keys()


# --- odd and hostile ends


def test_a_last_record_larger_than_the_tail_costs_one_more_request(volume: bytes) -> None:
    frames = b"".join(bytes(28) + random.Random(seed).randbytes(2404) for seed in range(200))
    *_, start, _ = record_ends(volume)
    last = bz2.decompress(volume[start + 4 :])
    content = volume[:start] + ldm(frames + last, last=True)
    assert len(content) - start > 400_000
    source = CountingSource(content)
    metadata = read(source)
    assert (metadata.end, metadata.findings, len(source.requests)) == (START + DURATION, (), 3)


def test_a_volume_without_its_last_radial_is_suspect(volume: bytes) -> None:
    metadata = read(volume + ldm(bytes(2432)))
    assert is_unchecked(metadata)
    assert metadata.properties["nexrad:end-known"] is False
    # One radial of type 1, which does not end the volume.
    metadata = read(header() + message_1(START))
    assert is_unchecked(metadata)
    assert metadata.end == START


@pytest.mark.clause("OPR-07")
def test_a_volume_or_last_record_that_unpacks_beyond_the_limit_is_refused(
    volume: bytes, uncompressed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = volume + ldm(bytes(10_000_000), last=True)
    assert refusal(endless) is refusal(gzip.compress(endless)) is MetadataIssue.RESOURCE_LIMIT
    monkeypatch.setattr(nexrad_end, "MAX_VOLUME_BYTES", 8_000_000)
    assert read(gzip.compress(uncompressed)).findings == ()
    assert refusal(gzip.compress(uncompressed + bytes(9_000_000))) is MetadataIssue.RESOURCE_LIMIT


@pytest.mark.clause("OPR-07")
def test_the_search_for_the_last_radial_is_bounded(uncompressed: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    false = struct.pack(">12xHxB12x4s", 0xFFFF, 31, SITE.encode())
    assert refusal(uncompressed + false * 20_000) is MetadataIssue.TRUNCATED_OBJECT
    for starts in (1, 0):
        monkeypatch.setattr(nexrad_end, "MAX_STARTS", starts)
        assert isinstance(outcome(uncompressed), HeaderMetadata) is (starts > 0)


def test_a_truncated_last_record_with_a_matching_size_is_refused(volume: bytes) -> None:
    *_, start, end = record_ends(volume)
    for length in range(10, end - start - 4, 25):
        content = volume[:start] + struct.pack(">i", -length) + volume[start + 4 : start + 4 + length]
        assert outcome(content) in TRUNCATION_CODES, length


# --- hostile bytes


@pytest.mark.clause("OPR-07")
def test_a_truncated_record_is_refused_although_its_first_radial_is_complete() -> None:
    # Frames of type 0 that do not compress: the record has several bzip2 blocks, the first with the first radial.
    noise = b"".join(bytes(28) + random.Random(seed).randbytes(2404) for seed in range(170))
    content = header() + ldm(message_1(START) + noise, level=1)
    assert read(content).properties["nexrad:vcp"] == 21
    assert refusal(content[:-1]) is MetadataIssue.TRUNCATED_OBJECT


@pytest.mark.parametrize(
    ("marker", "offset", "claimed"),
    [
        # The pattern's number of cuts, and the radial's number of data blocks.
        (struct.pack(">HHH", 2, 212, 12), 4, 0xFFFF),
        (struct.pack(">IIII", 72, 116, 128, 148), -2, 0xFFFF),
    ],
    ids=["cuts", "blocks"],
)
def test_a_count_beyond_the_format_s_maximum_is_limited(
    marker: bytes, offset: int, claimed: int, uncompressed: bytes
) -> None:
    offset = uncompressed.index(marker) + offset
    metadata, expected = read(patched(uncompressed, offset, struct.pack(">H", claimed))), read(uncompressed)
    # Of 65,535 cuts the reader takes a pattern's maximum; zeros follow the sample's twelve.
    assert set(metadata.native["pattern"]["elevations"]) - {0.0} == set(expected.native["pattern"]["elevations"])
    assert len(metadata.native["pattern"]["elevations"]) in {len(ELEVATIONS), MAX_CUTS}
    others = {name: value for name, value in metadata.properties.items() if name != "nexrad:elevations"}
    assert others.items() <= expected.properties.items()


def test_the_radar_s_status_is_read(uncompressed: bytes) -> None:
    offset = uncompressed.index(struct.pack(">4H", 16, 2, 4, 2))

    def status_of(rda: int, operability: int, build: int = 1900) -> tuple[Any, Any, Any]:
        content = patched(uncompressed, offset, struct.pack(">HH", rda, operability))
        properties = read(patched(content, offset + 18, struct.pack(">H", build))).properties
        return tuple(
            properties.get(name) for name in ("nexrad:rda-status", "nexrad:operability-status", "processing:software")
        )

    codes = (1, 2, 4, 8, 16, 32, 64)
    assert [status_of(code, 2)[0] for code in codes] == [
        None, "start-up", "standby", "restart", "operate", None, "off-line operate"
    ]  # fmt: skip
    maintenance = ("maintenance action required", "maintenance action mandatory")
    named = [None, "on-line", *maintenance, "commanded shut down", "inoperable", None]
    assert [status_of(16, code)[1] for code in codes] == named
    # Bit 0 means that calibration is not automatic.
    assert [status_of(16, code | 1)[1] for code in codes[1:]] == named[1:]
    for build, version in ((1900, "19.0"), (2210, "22.1"), (2215, "22.15")):
        assert status_of(16, 2, build)[2] == {"WSR-88D RDA": version}
    assert status_of(16, 2, 0)[2] is None


def test_gate_spacing_is_read_if_the_format_allows_it_and_there_is_reflectivity() -> None:
    # Offsets after the headers of volume and message: the spacing of the gates, and the pointer to reflectivity.
    spacing, pointer = 24 + 28 + 22, 24 + 28 + 36

    def gate_spacing(metres: int, reflectivity: int = 100) -> int | None:
        content = patched(header() + message_1(START), spacing, struct.pack(">H", metres))
        radial = patched(content, pointer, struct.pack(">H", reflectivity))
        return read(radial).properties.get("nexrad:gate-spacing-m")

    assert [gate_spacing(metres) for metres in (49, 50, 250, 2000, 2001)] == [None, 50, 250, 2000, None]
    assert gate_spacing(250, reflectivity=0) is None


def test_an_elevation_below_the_horizon_is_negative(uncompressed: bytes) -> None:
    offset = uncompressed.index(struct.pack(">HHH", 2, 212, 12)) - 2 + 22
    for code, degrees in ((0xFFDC, -0.198), (0x0058, 0.483)):
        content = patched(uncompressed, offset, struct.pack(">H", code))
        assert degrees in read(content).properties["nexrad:elevations"]


def test_a_frequency_out_of_band_is_omitted(uncompressed: bytes) -> None:
    offset = uncompressed.index(struct.pack(">i", FREQUENCY_MHZ))
    for stated, expected in {2700: 2700, 3000: 3000, 2699: None, 3001: None, 0: None, -1: None}.items():
        content = patched(uncompressed, offset, struct.pack(">i", stated))
        assert read(content).properties.get("nexrad:frequency-mhz") == expected


def type_31(halfwords: int) -> bytes:
    return struct.pack(">12xHBBHHIHH", halfwords, 8, 31, 1, *clock(START), 1, 1)


FRAMES = bytes(2432) * 134


def dated(day: int, milliseconds: int) -> bytes:
    """Return a header with this day and millisecond, and frames without a radial."""
    return struct.pack(">9s3sII4s", b"AR2V0006.", b"001", day, milliseconds, b"KICT") + FRAMES


@pytest.mark.clause("OPR-07")
def test_hostile_bytes_have_an_issue_code() -> None:
    bz9, frames = b"BZh9" + bytes(99), ldm(FRAMES)
    hostile = {
        "empty": (b"", MetadataIssue.TRUNCATED_OBJECT),
        "half a header": (b"AR2V0006.", MetadataIssue.TRUNCATED_OBJECT),
        "another format": (b"CDF\x01" + bytes(4096), MetadataIssue.UNREADABLE_FORMAT),
        "not gzip": (b"\x1f\x8b" + bytes(4096), MetadataIssue.UNREADABLE_FORMAT),
        "record of no bytes": (header() + struct.pack(">i", 0) + bz9, MetadataIssue.UNREADABLE_FORMAT),
        "record of 2 GiB": (header() + struct.pack(">i", 2**31 - 1) + bz9, MetadataIssue.RESOURCE_LIMIT),
        "last record of 2 GiB": (header() + struct.pack(">i", -(2**31)) + bz9, MetadataIssue.RESOURCE_LIMIT),
        "record past the end": (header() + struct.pack(">i", 99_999) + bz9, MetadataIssue.TRUNCATED_OBJECT),
        "not bzip2": (header() + struct.pack(">i", 103) + bz9, MetadataIssue.UNREADABLE_FORMAT),
        "metadata only": (header() + ldm(FRAMES, last=True), MetadataIssue.INCOMPLETE_PRODUCT_METADATA),
        "ends after the metadata": (header() + frames, MetadataIssue.TRUNCATED_OBJECT),
        "no radial in a thousand records": (header() + frames * 1000, MetadataIssue.RESOURCE_LIMIT),
        "no radial in a hundred metadata blocks": (header() + FRAMES * 100, MetadataIssue.RESOURCE_LIMIT),
        "radial of no bytes": (header() + type_31(0) + bytes(4096), MetadataIssue.UNREADABLE_FORMAT),
        "radial shorter than its header": (header() + type_31(12) + bytes(4096), MetadataIssue.UNREADABLE_FORMAT),
        "radial past the end": (header() + type_31(0xFFFF) + bytes(4096), MetadataIssue.TRUNCATED_OBJECT),
        "pointers out of the radial": (header() + type_31(1000) + b"\xff" * 4096, MetadataIssue.UNREADABLE_FORMAT),
        "day 0": (dated(0, 0), MetadataIssue.INVALID_TIME_RANGE),
        "day past the calendar": (dated(2**32 - 1, 0), MetadataIssue.INVALID_TIME_RANGE),
        "millisecond past midnight": (dated(9, 86_400_000), MetadataIssue.INVALID_TIME_RANGE),
    }
    assert {name: refusal(content) for name, (content, _) in hostile.items()} == {
        name: code for name, (_, code) in hostile.items()
    }


@pytest.mark.clause("OPR-07")
def test_a_decompression_bomb_is_refused_within_bounded_memory() -> None:
    packed = ldm(bytes(100_000_000))
    bombs = {
        "gzip": gzip.compress(header() + bytes(100_000_000)),
        "bzip2": header() + packed,
        "bzip2 in gzip": gzip.compress(header() + packed),
        "second record": header() + ldm(FRAMES) + packed,
    }
    for name, bomb in bombs.items():
        with allocating_at_most(16_000_000):
            assert refusal(bomb) is MetadataIssue.RESOURCE_LIMIT, name
