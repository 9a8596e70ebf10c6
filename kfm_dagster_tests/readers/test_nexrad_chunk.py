"""The NEXRAD chunk reader: a real volume piece by piece, agreement with the key, cut and hostile chunks, samples."""

from __future__ import annotations

import bz2
import random
import re
import struct
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.demo.samples.nexrad_chunks import CHUNKS, make_nexrad_chunks
from kfm_dagster.demo.samples.nexrad_level2 import DURATION, ELEVATIONS, MOMENTS, make_nexrad_level2
from kfm_dagster.readers.base import ByteSource, HeaderMetadata, ReadError
from kfm_dagster.readers.nexrad_chunk import FIRST_BYTES, PROPERTIES
from kfm_dagster.readers.nexrad_level2 import LONGEST_VOLUME, TIME_TOLERANCE
from kfm_dagster.readers.nexrad_messages import MAX_RECORD_BYTES
from kfm_dagster.readers.nexrad_radar import sites, tdwr_sites
from kfm_dagster_tests.readers import nexrad_bytes
from kfm_dagster_tests.readers.nexrad_bytes import SITE, START, clock, ldm, message_1, reach_m
from kfm_dagster_tests.readers.reading import code_of, header_of
from kfm_dagster_tests.readers.truth.comparison import CountingSource

FOLDER = "objects/unidata-nexrad-level2-chunks/KLOT/901/"
_KEY = re.compile(r"(?P<site>\w{4})/(?P<volume>\d+)/(?P<date>\d{8})-(?P<time>\d{6})-(?P<chunk>\d{3})-(?P<kind>[SIE])")


def read(key: str, content: bytes | ByteSource, *, closed: bool = False, **groups: str) -> HeaderMetadata:
    match = _KEY.fullmatch(key)
    assert match is not None
    return header_of("nexrad-chunk", content, key=key, groups=match.groupdict() | groups, closed=closed)


def refusal(key: str, content: bytes, **groups: str) -> MetadataIssue:
    return code_of(read, key, content, **groups)


@pytest.fixture(scope="module")
def real(shared_data: Path) -> dict[str, bytes]:
    """The chunks of a whole real volume by key, in order."""
    return {f"KLOT/901/{path.name}": path.read_bytes() for path in sorted((shared_data / FOLDER).iterdir())}


@pytest.fixture(scope="module")
def samples() -> dict[str, bytes]:
    """The chunks of a sample volume by key, in order."""
    return dict(make_nexrad_chunks(site=SITE, start=START))


@pytest.fixture(scope="module")
def middle(samples: Mapping[str, bytes]) -> tuple[str, bytes]:
    return list(samples.items())[1]


# --- a real volume


@pytest.mark.clause("OPR-06", "OPR-15")
def test_the_chunks_of_a_real_volume_are_in_order_and_hold_every_radial(
    real: Mapping[str, bytes], reference: Mapping[str, Any]
) -> None:
    whole = reference[FOLDER]["reference"]["xradar"]
    found = [read(key, content) for key, content in real.items()]
    assert all(header.properties.keys() <= PROPERTIES for header in found)
    cuts, rays = [], [0] * whole["nsweeps"]
    for native in (header.native for header in found[1:]):
        cuts += [native["first_cut"], native["last_cut"]]
        rays[native["last_cut"] - 1] += native["radials"]
    assert cuts == sorted(cuts)
    # No chunk holds radials of two cuts.
    assert cuts[::2] == cuts[1::2]
    assert (cuts[0], cuts[-1]) == (1, whole["nsweeps"])
    # Of the fifth xradar gives 717, the bytes have 720 of different azimuths.
    assert [have - said for have, said in zip(rays, whole["nrays"], strict=True)] == [0, 0, 0, 0, 3, *[0] * 7]
    ends = [header.end for header in found]
    assert ends == sorted(ends)
    assert (ends[0], found[0].native["vcp_message_5"]) == (found[0].start, found[0].properties["nexrad:vcp"])


@pytest.mark.clause("OPR-06")
def test_a_chunk_is_read_whole_with_one_request_and_a_large_one_with_two(real: Mapping[str, bytes]) -> None:
    for key, content in real.items():
        source = CountingSource(content)
        read(key, source)
        assert len(source.asked) == 1, key
    key = next(key for key in real if key.endswith("-002-I"))
    noise = b"".join(bytes(28) + random.Random(seed).randbytes(2404) for seed in range(200))
    source = CountingSource(ldm(bz2.decompress(real[key][4:]) + noise))
    assert source.size > 4 * FIRST_BYTES
    assert read(key, source).properties == read(key, real[key]).properties
    # Its first block and then all the others at once.
    assert [start for start, _ in source.asked] == [0, FIRST_BYTES]


# --- samples


@pytest.mark.clause("OPR-14", "OPR-28")
def test_sample_chunks_are_those_of_the_archive_s_sample_and_say_what_they_were_made_from(
    samples: Mapping[str, bytes],
) -> None:
    assert list(samples) == [f"{SITE}/1/{START:%Y%m%d-%H%M%S}-{name}" for name in ("001-S", "002-I", "003-I", "004-E")]
    assert b"".join(samples.values()) == make_nexrad_level2(site=SITE, start=START)[1]
    found = [read(key, content) for key, content in samples.items()]
    whole_second = START.replace(microsecond=0)
    assert [header.start for header in found] == [whole_second] * CHUNKS
    assert found[0].end == whole_second < found[1].end < found[2].end < found[3].end == START + DURATION
    site = sites()[SITE]
    # What the archive's reader says of all of them, and where this one stands in its volume.
    volume = nexrad_bytes.read(b"".join(samples.values())).properties
    last = {name: value for name, value in volume.items() if name in PROPERTIES - {"bands"}}
    last |= {"nexrad:chunks": 4, "nexrad:complete": True, "nexrad:cuts": len(ELEVATIONS)}
    bands = [header.properties.pop("bands", ()) for header in found]
    assert [[band["name"] for band in each] for each in bands] == [[], list(MOMENTS[:3]), *[list(MOMENTS)] * 2]
    assert found[-1].properties == last
    first = last | {"nexrad:chunks": 1, "nexrad:complete": False, "nexrad:position-source": "site table"}
    first |= {"nexrad:height-m": site.height_m, "nexrad:latitude": site.latitude, "nexrad:longitude": site.longitude}
    assert found[0].properties == {name: first[name] for name in first.keys() - {"nexrad:cuts", "nexrad:message-type"}}
    assert [header.properties.get("nexrad:cuts") for header in found] == [None, 4, 8, 12]
    assert all(header.findings == () for header in found)


@pytest.mark.clause("OPR-25")
def test_chunks_of_a_tdwr_are_of_a_tdwr_from_the_first_one_on() -> None:
    chunks = make_nexrad_chunks(site="TMCI", start=START)
    found = [read(key, content, version="08") for key, content in chunks]
    for header in found:
        said = header.properties
        assert (said["platform"], said["instruments"], said["nexrad:vcp"]) == ("tdwr", ["tdwr"], 90)
        assert (said["nexrad:site-name"], header.findings) == (tdwr_sites()["TMCI"].name, ())
    # The long range scan, which comes first, has its own gates.
    assert [round(reach_m(header), -3) for header in found] == [416_000, 417_000, 416_000, 416_000]
    assert found[0].properties["nexrad:position-source"] == "site table"
    assert refusal(*chunks[0], version="06") is MetadataIssue.KEY_MISMATCH


# --- the end of a volume


def with_last_status(content: bytes, status: int) -> bytes:
    """The chunk with another status of its last radial."""
    data = bytearray(bz2.decompress(content[4:]))
    data[data.rfind(SITE.encode()) + 21] = status
    return ldm(bytes(data), last=True)


@pytest.mark.clause("OPR-20")
def test_a_last_chunk_without_the_end_of_a_volume_is_suspect_and_not_complete(samples: Mapping[str, bytes]) -> None:
    key, content = list(samples.items())[-1]
    found = read(key, with_last_status(content, 2))
    [(code, text)] = found.findings
    assert code is MetadataIssue.COMPLETENESS_UNCHECKED
    assert "cut 12, status 2" in text
    assert found.properties["nexrad:complete"] is False
    # What is no last chunk, and ends the volume all the same, has ended it.
    assert read(key.replace("-E", "-I"), content).properties["nexrad:complete"] is True


@pytest.mark.clause("BEY-09")
def test_a_chunk_that_is_read_as_its_volume_s_last_is_closed_unless_the_volume_is_complete(
    samples: Mapping[str, bytes],
) -> None:
    *begun, end = (
        (read(key, content).properties, read(key, content, closed=True).properties) for key, content in samples.items()
    )
    for open_, closed in begun:
        assert closed == {**open_, "nexrad:closed": True, "nexrad:closed-by": "a later volume of the radar"}
    assert end[0] == end[1]
    assert end[0]["nexrad:complete"] is True


# --- agreement with the key


@pytest.mark.clause("OPR-15")
def test_a_chunk_of_another_time_than_its_key_s_is_a_time_mismatch(samples: Mapping[str, bytes]) -> None:
    for number, shift, refused in (
        (0, TIME_TOLERANCE, False),
        (0, TIME_TOLERANCE + timedelta(seconds=1), True),
        (0, -TIME_TOLERANCE - timedelta(seconds=1), True),
        # A radial may precede the key's second a little, as in real volumes, and is within the longest volume.
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
            assert refusal(key, content, **groups) is MetadataIssue.TIME_MISMATCH
        else:
            found = read(key, content, **groups)
            assert found.start == named.replace(microsecond=0) <= found.end


def test_radials_of_type_1_are_read_and_end_no_earlier_than_their_volume_begins(middle: tuple[str, bytes]) -> None:
    found = read(middle[0], ldm(message_1(START) + message_1(START + timedelta(seconds=30))))
    assert (found.properties["nexrad:message-type"], found.properties["nexrad:vcp"]) == (1, 21)
    assert found.properties["nexrad:position-source"] == "site table"
    assert found.end == START + timedelta(seconds=30)
    # The first radials precede the name.
    found = read(middle[0], ldm(message_1(START - timedelta(seconds=12)) + message_1(START - timedelta(seconds=11))))
    assert found.start == found.end == START.replace(microsecond=0)


@pytest.mark.clause("OPR-15")
def test_radials_that_end_before_they_begin_are_a_time_mismatch(middle: tuple[str, bytes]) -> None:
    key, content = middle
    data = bytearray(bz2.decompress(content[4:]))
    place = data.rfind(SITE.encode())
    day, milliseconds = clock(START - timedelta(seconds=1))
    data[place + 4 : place + 10] = struct.pack(">IH", milliseconds, day)
    assert refusal(key, ldm(bytes(data))) is MetadataIssue.TIME_MISMATCH


@pytest.mark.clause("OPR-06")
def test_a_chunk_of_another_radar_is_a_platform_mismatch(samples: Mapping[str, bytes]) -> None:
    for key, content in samples.items():
        assert refusal(key, content, site="KTWX") is MetadataIssue.PLATFORM_MISMATCH
    key, content = list(samples.items())[1]
    data = bz2.decompress(content[4:])
    place = data.rfind(SITE.encode())
    assert refusal(key, ldm(data[:place] + b"KTWX" + data[place + 4 :])) is MetadataIssue.PLATFORM_MISMATCH


def test_a_first_chunk_of_a_site_in_no_table_misses_its_geolocation_and_the_next_one_has_it(
    samples: Mapping[str, bytes],
) -> None:
    (first_key, first), (key, content), *_ = samples.items()
    blank = first[:20] + bytes(4) + first[24:]
    assert refusal(first_key, blank, site="KZZZ") is MetadataIssue.MISSING_GEOLOCATION
    renamed = ldm(bz2.decompress(content[4:]).replace(SITE.encode(), b"KZZZ"))
    found = read(key, renamed, site="KZZZ")
    assert "nexrad:site-name" not in found.properties
    assert found.properties["nexrad:position-source"] == "volume data block"


# --- hostile bytes


@pytest.mark.clause("OPR-07")
def test_a_chunk_that_is_none_is_refused_with_its_reason(middle: tuple[str, bytes]) -> None:
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
        assert refusal(middle[0], content) is code


@pytest.mark.clause("OPR-07")
def test_a_huge_object_costs_one_request(middle: tuple[str, bytes]) -> None:
    source = CountingSource(middle[1] + bytes(50_000_000))
    with pytest.raises(ReadError, match="follow the only LDM record"):
        read(middle[0], source)
    assert source.asked == [(0, FIRST_BYTES)]
