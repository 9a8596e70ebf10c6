"""NEXRAD chunks: completeness, agreement with the key, hostile bytes."""

from __future__ import annotations

import bz2
import random
import re
import struct
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.demo.samples.nexrad_chunks import CHUNKS, make_nexrad_chunks
from kfm_dagster.demo.samples.nexrad_level2 import DURATION, ELEVATIONS, MOMENTS, make_nexrad_level2
from kfm_dagster.readers.base import ByteSource, HeaderMetadata, ReadError
from kfm_dagster.readers.nexrad_chunk import FIRST_BYTES
from kfm_dagster.readers.nexrad_level2 import LONGEST_VOLUME, TIME_TOLERANCE
from kfm_dagster.readers.nexrad_messages import MAX_RECORD_BYTES
from kfm_dagster.readers.nexrad_radar import sites
from kfm_dagster_tests.readers.nexrad_bytes import SITE, START, clock, ldm, message_1, reach_m, read
from kfm_dagster_tests.readers.reading import code_of, header_of, patched
from kfm_dagster_tests.readers.truth.comparison import CountingSource

FOLDER = "objects/unidata-nexrad-level2-chunks/KLOT/901/"
_KEY = re.compile(r"(?P<site>\w{4})/(?P<volume>\d+)/(?P<date>\d{8})-(?P<time>\d{6})-(?P<chunk>\d{3})-(?P<kind>[SIE])")


def read_chunk(key: str, content: bytes | ByteSource, *, closed: bool = False, **groups: str) -> HeaderMetadata:
    match = _KEY.fullmatch(key)
    return header_of("nexrad-chunk", content, key=key, groups=match.groupdict() | groups, closed=closed)


chunk_refusal = partial(code_of, read_chunk)


@pytest.fixture(scope="module")
def real(shared_data: Path) -> dict[str, bytes]:
    """Return the chunks of a whole real volume by key, in order."""
    return {f"KLOT/901/{path.name}": path.read_bytes() for path in sorted((shared_data / FOLDER).iterdir())}


@pytest.fixture(scope="module")
def samples() -> dict[str, bytes]:
    """Return the chunks of a sample volume by key, in order."""
    return dict(make_nexrad_chunks(site=SITE, start=START))


@pytest.fixture(scope="module")
def middle(samples: Mapping[str, bytes]) -> tuple[str, bytes]:
    return list(samples.items())[1]


# --- a real volume


@pytest.mark.clause("OPR-06", "OPR-15")
def test_the_chunks_of_a_real_volume_are_in_order_and_have_every_radial(
    real: Mapping[str, bytes], reference: Mapping[str, Any]
) -> None:
    whole = reference[FOLDER]["reference"]["xradar"]
    chunks = [read_chunk(key, content) for key, content in real.items()]
    cuts, rays = [], [0] * whole["nsweeps"]
    for native in (chunk.native for chunk in chunks[1:]):
        cuts += [native["first"]["cut"], native["last"]["cut"]]
        rays[native["last"]["cut"] - 1] += native["radials"]
    assert cuts == sorted(cuts)
    # Each chunk has radials of one cut only.
    assert cuts[::2] == cuts[1::2]
    assert (cuts[0], cuts[-1]) == (1, whole["nsweeps"])
    # For the fifth cut xradar has 717 rays, the volume 720 with different azimuths.
    assert [count - expected for count, expected in zip(rays, whole["nrays"], strict=True)] == [0, 0, 0, 0, 3, *[0] * 7]
    ends = [metadata.end for metadata in chunks]
    assert ends == sorted(ends)
    assert (ends[0], chunks[0].native["pattern"]["number"]) == (chunks[0].start, chunks[0].properties["nexrad:vcp"])


@pytest.mark.clause("OPR-06")
def test_a_chunk_is_read_whole_with_one_request_and_a_large_chunk_with_two(real: Mapping[str, bytes]) -> None:
    for key, content in real.items():
        source = CountingSource(content)
        read_chunk(key, source)
        assert len(source.ranges) == 1, key
    key = next(key for key in real if key.endswith("-002-I"))
    noise = b"".join(bytes(28) + random.Random(seed).randbytes(2404) for seed in range(200))
    source = CountingSource(ldm(bz2.decompress(real[key][4:]) + noise))
    assert source.size > 4 * FIRST_BYTES
    assert read_chunk(key, source).properties == read_chunk(key, real[key]).properties
    # The first block, and then all other blocks in one request.
    assert [start for start, _ in source.ranges] == [0, FIRST_BYTES]


# --- samples


@pytest.mark.clause("OPR-14", "OPR-28")
def test_joined_sample_chunks_are_the_sample_volume_of_the_archive_and_have_its_properties(
    samples: Mapping[str, bytes],
) -> None:
    assert list(samples) == [f"{SITE}/1/{START:%Y%m%d-%H%M%S}-{name}" for name in ("001-S", "002-I", "003-I", "004-E")]
    assert b"".join(samples.values()) == make_nexrad_level2(site=SITE, start=START)[1]
    chunks = [read_chunk(key, content) for key, content in samples.items()]
    whole_second = START.replace(microsecond=0)
    assert [metadata.start for metadata in chunks] == [whole_second] * CHUNKS
    assert chunks[0].end == whole_second < chunks[1].end < chunks[2].end < chunks[3].end == START + DURATION
    site = sites()[SITE]
    # The last chunk has the properties of the archive's volume, except those in `of_archive`, and three more.
    volume = read(b"".join(samples.values())).properties
    of_archive = {
        "bands", "processing:software", "nexrad:archive-version", "nexrad:compression", "nexrad:moments",
        "nexrad:elevations", "nexrad:frequency-mhz", "nexrad:rda-status", "nexrad:operability-status",
        "nexrad:gate-spacing-m",
    }  # fmt: skip
    last = {name: value for name, value in volume.items() if name not in of_archive}
    last |= {"nexrad:chunks": 4, "nexrad:complete": True, "nexrad:cuts": len(ELEVATIONS)}
    bands = [metadata.properties.pop("bands", ()) for metadata in chunks]
    assert [[band["name"] for band in each] for each in bands] == [[], list(MOMENTS[:3]), *[list(MOMENTS)] * 2]
    assert chunks[-1].properties == last
    first = last | {"nexrad:chunks": 1, "nexrad:complete": False, "nexrad:position-source": "site table"}
    first |= {"nexrad:height-m": site.height_m, "nexrad:latitude": site.latitude, "nexrad:longitude": site.longitude}
    assert chunks[0].properties == {name: first[name] for name in first.keys() - {"nexrad:cuts", "nexrad:message-type"}}
    assert [metadata.properties.get("nexrad:cuts") for metadata in chunks] == [None, 4, 8, 12]
    assert all(metadata.findings == () for metadata in chunks)


@pytest.mark.clause("OPR-25")
def test_every_chunk_of_a_tdwr_has_a_tdwr_s_properties() -> None:
    chunks = make_nexrad_chunks(site="TMCI", start=START)
    headers = [read_chunk(key, content, version="08") for key, content in chunks]
    for metadata in headers:
        properties = metadata.properties
        assert (properties["platform"], properties["instruments"], properties["nexrad:vcp"]) == ("tdwr", ["tdwr"], 90)
        assert (properties["nexrad:site-name"], metadata.findings) == (sites()["TMCI"].name, ())
    # The first radials are of the long-range scan, which has its own gates.
    assert [round(reach_m(metadata), -3) for metadata in headers] == [416_000, 417_000, 416_000, 416_000]
    assert headers[0].properties["nexrad:position-source"] == "site table"
    assert chunk_refusal(*chunks[0], version="06") is MetadataIssue.KEY_MISMATCH


# --- the end of a volume


def with_last_status(content: bytes, status: int) -> bytes:
    """Return the chunk with another status of its last radial."""
    data = bz2.decompress(content[4:])
    return ldm(patched(data, data.rfind(SITE.encode()) + 21, bytes((status,))), last=True)


@pytest.mark.clause("OPR-20")
def test_a_last_chunk_without_the_end_of_a_volume_is_suspect_and_not_complete(samples: Mapping[str, bytes]) -> None:
    key, content = list(samples.items())[-1]
    metadata = read_chunk(key, with_last_status(content, 2))
    [(code, text)] = metadata.findings
    assert code is MetadataIssue.COMPLETENESS_UNCHECKED
    assert "cut 12, status 2" in text
    assert metadata.properties["nexrad:complete"] is False
    # A chunk whose last radial ends the volume completes it, even if its key does not name it the last.
    assert read_chunk(key.replace("-E", "-I"), content).properties["nexrad:complete"] is True


@pytest.mark.clause("BEY-09")
def test_the_last_chunk_of_an_incomplete_volume_is_closed_by_a_later_volume(
    samples: Mapping[str, bytes],
) -> None:
    *begun, end = (
        (read_chunk(key, content).properties, read_chunk(key, content, closed=True).properties)
        for key, content in samples.items()
    )
    for open_, closed in begun:
        assert closed == {**open_, "nexrad:closed": True, "nexrad:closed-by": "a later volume of the radar"}
    assert end[0] == end[1]
    assert end[0]["nexrad:complete"] is True


# --- agreement with the key


@pytest.mark.clause("OPR-15")
def test_a_chunk_whose_time_differs_from_its_key_is_a_time_mismatch(samples: Mapping[str, bytes]) -> None:
    for number, shift, refused in (
        (0, TIME_TOLERANCE, False),
        (0, TIME_TOLERANCE + timedelta(seconds=1), True),
        (0, -TIME_TOLERANCE - timedelta(seconds=1), True),
        # A radial can precede the key's time by the tolerance, and follow it by the length of the longest volume.
        (1, TIME_TOLERANCE, False),
        (1, TIME_TOLERANCE + timedelta(seconds=1), True),
        (1, timedelta(seconds=1) - LONGEST_VOLUME, True),
        (1, DURATION - LONGEST_VOLUME, False),
        (1, timedelta(days=1), True),
        (1, -timedelta(days=1), True),
    ):
        key, content = list(samples.items())[number]
        named = START + shift
        groups = {"date": f"{named:%Y%m%d}", "time": f"{named:%H%M%S}"}
        if refused:
            assert chunk_refusal(key, content, **groups) is MetadataIssue.TIME_MISMATCH
        else:
            metadata = read_chunk(key, content, **groups)
            assert metadata.start == named.replace(microsecond=0) <= metadata.end


def test_radials_of_type_1_are_read_and_end_no_earlier_than_their_volume_begins(middle: tuple[str, bytes]) -> None:
    metadata = read_chunk(middle[0], ldm(message_1(START) + message_1(START + timedelta(seconds=30))))
    assert (metadata.properties["nexrad:message-type"], metadata.properties["nexrad:vcp"]) == (1, 21)
    assert metadata.properties["nexrad:position-source"] == "site table"
    assert metadata.end == START + timedelta(seconds=30)
    # The first radials precede the time in the key.
    metadata = read_chunk(
        middle[0], ldm(message_1(START - timedelta(seconds=12)) + message_1(START - timedelta(seconds=11)))
    )
    assert metadata.start == metadata.end == START.replace(microsecond=0)


@pytest.mark.clause("OPR-15")
def test_radials_that_end_before_they_begin_are_a_time_mismatch(middle: tuple[str, bytes]) -> None:
    key, content = middle
    data = bz2.decompress(content[4:])
    day, milliseconds = clock(START - timedelta(seconds=1))
    earlier = patched(data, data.rfind(SITE.encode()) + 4, struct.pack(">IH", milliseconds, day))
    assert chunk_refusal(key, ldm(earlier)) is MetadataIssue.TIME_MISMATCH


@pytest.mark.clause("OPR-06")
def test_a_chunk_of_another_radar_is_a_platform_mismatch(samples: Mapping[str, bytes]) -> None:
    for key, content in samples.items():
        assert chunk_refusal(key, content, site="KTWX") is MetadataIssue.PLATFORM_MISMATCH
    key, content = list(samples.items())[1]
    data = bz2.decompress(content[4:])
    renamed = patched(data, data.rfind(SITE.encode()), b"KTWX")
    assert chunk_refusal(key, ldm(renamed)) is MetadataIssue.PLATFORM_MISMATCH


def test_the_first_chunk_of_an_unknown_site_has_no_geolocation_but_the_next_chunk_has_one(
    samples: Mapping[str, bytes],
) -> None:
    (first_key, first), (key, content), *_ = samples.items()
    blank = first[:20] + bytes(4) + first[24:]
    assert chunk_refusal(first_key, blank, site="KZZZ") is MetadataIssue.MISSING_GEOLOCATION
    renamed = ldm(bz2.decompress(content[4:]).replace(SITE.encode(), b"KZZZ"))
    metadata = read_chunk(key, renamed, site="KZZZ")
    assert "nexrad:site-name" not in metadata.properties
    assert metadata.properties["nexrad:position-source"] == "volume data block"


# --- hostile bytes


@pytest.mark.clause("OPR-07")
def test_an_invalid_chunk_is_refused_with_its_reason(middle: tuple[str, bytes]) -> None:
    for content, code in (
        (b"", MetadataIssue.TRUNCATED_OBJECT),
        (struct.pack(">i", 0), MetadataIssue.UNREADABLE_FORMAT),
        (struct.pack(">i", -(2**31)), MetadataIssue.RESOURCE_LIMIT),
        (struct.pack(">i", MAX_RECORD_BYTES + 1), MetadataIssue.RESOURCE_LIMIT),
        (struct.pack(">i", 20) + bytes(20), MetadataIssue.UNREADABLE_FORMAT),
        (ldm(bytes(2432)), MetadataIssue.INCOMPLETE_PRODUCT_METADATA),
        (ldm(b""), MetadataIssue.INCOMPLETE_PRODUCT_METADATA),
        (ldm(bytes(10_000_000)), MetadataIssue.RESOURCE_LIMIT),
        (ldm(message_1(START)) * 2, MetadataIssue.UNREADABLE_FORMAT),
    ):
        assert chunk_refusal(middle[0], content) is code


@pytest.mark.clause("OPR-07")
def test_a_huge_object_costs_one_request(middle: tuple[str, bytes]) -> None:
    source = CountingSource(middle[1] + bytes(50_000_000))
    with pytest.raises(ReadError, match="follow the only LDM record"):
        read_chunk(middle[0], source)
    assert source.ranges == [(0, FIRST_BYTES)]
