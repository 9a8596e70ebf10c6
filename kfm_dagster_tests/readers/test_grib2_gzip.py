"""MRMS: the bands of gzipped GRIB2 objects, cut and large objects, and their times."""

from __future__ import annotations

import gzip
import random
import struct
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.demo.samples.mrms import make_mrms
from kfm_dagster.readers.grib2 import WALK_MESSAGES
from kfm_dagster.readers.grib2_gzip import FIRST_BYTES, MAX_PACKED_BYTES, MAX_UNPACKED_BYTES
from kfm_dagster_tests.readers.reading import code_of, codes, header_of
from kfm_dagster_tests.readers.truth.comparison import CountingSource

VALID = datetime(2025, 12, 3, 6, 2, 39, tzinfo=UTC)
KEY, SAMPLE = make_mrms(valid=VALID)
MESSAGE = gzip.decompress(SAMPLE)
read = partial(header_of, "grib2-gzip", key=KEY)
refusal = partial(code_of, read)


def codes_of(*classes: tuple[int, str]) -> list[dict[str, Any]]:
    return [{"value": value, "name": name, "nodata": True} for value, name in classes]


@pytest.mark.clause("OPR-28")
def test_a_mosaic_has_the_band_of_its_product() -> None:
    section, template = b"\x04\0\0", b"\0\0"
    for parameter, expected in (
        (
            (6, 37),
            {"description": "Multi-sensor accumulation 1-hour (2-hour latency)", "unit": "mm", "nodata": -3,
             "classification:classes": codes_of((-1, "missing"), (-3, "no-coverage")), "mrms:period": "PT1H"},
        ),
        (
            (10, 0),
            {"description": "Composite Reflectivity Mosaic (optimal method)", "unit": "dBZ", "nodata": -999,
             "classification:classes": codes_of((-99, "missing"), (-999, "no-coverage"))},
        ),
        (
            (3, 3),
            {"description": "Rotation Track 0-2km AGL 60-min", "unit": "0.001/s", "nodata": 0,
             "classification:classes": codes_of((0, "missing-or-no-coverage")), "mrms:period": "PT1H"},
        ),
        ((255, 0), None),
    ):  # fmt: skip
        message = MESSAGE.replace(section + template + bytes((6, 1)), section + template + bytes(parameter))
        bands = read(gzip.compress(message), groups={"product": "Q"}).properties.get("bands")
        assert bands == (expected and [{"name": "Q", **expected}])
    assert MESSAGE.count(section + template + bytes((6, 1))) == 1


@pytest.mark.clause("OPR-20")
def test_a_message_that_was_cut_before_it_was_gzipped_is_truncated() -> None:
    for end in range(len(MESSAGE)):
        code = MetadataIssue.UNREADABLE_FORMAT if end < 4 else MetadataIssue.TRUNCATED_OBJECT
        assert refusal(gzip.compress(MESSAGE[:end], mtime=0)) is code, end
    assert refusal(gzip.compress(MESSAGE + MESSAGE[:100], mtime=0)) is MetadataIssue.TRUNCATED_OBJECT
    assert refusal(gzip.compress(MESSAGE[:-4] + bytes(4), mtime=0)) is MetadataIssue.TRUNCATED_OBJECT
    assert refusal(gzip.compress(MESSAGE + bytes(9), mtime=0)) is MetadataIssue.UNREADABLE_FORMAT


def long_message(length: int) -> bytes:
    """Return the sample's message with random data, `length` bytes long."""
    room = length - len(MESSAGE)
    data = struct.pack(">IB", 5 + room, 7) + random.Random(7).randbytes(room)
    return MESSAGE[:8] + struct.pack(">Q", length) + MESSAGE[16:-9] + data + b"7777"


def test_messages_are_counted_unless_there_are_more_than_the_limit() -> None:
    assert read(gzip.compress(MESSAGE * 3)).properties["grib:message-count"] == 3
    many = read(gzip.compress(MESSAGE * (WALK_MESSAGES + 1)))
    assert (many.findings, "grib:message-count" in many.properties) == ((), False)
    assert refusal(gzip.compress((MESSAGE * (WALK_MESSAGES + 2))[:-1])) is MetadataIssue.TRUNCATED_OBJECT


@pytest.mark.clause("OPR-20", "OPR-07")
def test_the_completeness_of_an_object_too_large_to_be_read_whole_is_unchecked() -> None:
    plain = long_message(MAX_PACKED_BYTES + 1)
    packed = gzip.compress(plain, compresslevel=0, mtime=0)
    assert len(packed) > MAX_PACKED_BYTES
    for content in (packed, packed[:-1]):
        source = CountingSource(content)
        metadata = read(source)
        assert codes(metadata) == [MetadataIssue.COMPLETENESS_UNCHECKED]
        assert metadata.native["length"] == len(plain)
        assert "grib:message-count" not in metadata.properties
        assert source.requests == [FIRST_BYTES]
    largest = gzip.compress(long_message(MAX_PACKED_BYTES - 2000), compresslevel=0, mtime=0)
    assert MAX_PACKED_BYTES - 2000 < len(largest) <= MAX_PACKED_BYTES
    assert read(largest).findings == ()
    assert refusal(largest[:-1]) is MetadataIssue.TRUNCATED_OBJECT


@pytest.mark.clause("OPR-07")
def test_a_compression_bomb_is_refused_as_a_resource_limit() -> None:
    claimed = MESSAGE[:8] + struct.pack(">Q", MAX_UNPACKED_BYTES + 1) + MESSAGE[16:-4]
    bomb = claimed + bytes(MAX_UNPACKED_BYTES + 1 - len(claimed) - 4) + b"7777"
    assert refusal(gzip.compress(bomb)) is MetadataIssue.RESOURCE_LIMIT


def test_the_times_of_key_and_message_must_agree_to_the_second() -> None:
    for groups, expected in (
        ({"date": "20251203", "time": "060239"}, []),
        ({"date": "20251203", "time": "060238"}, [MetadataIssue.TIME_MISMATCH]),
        ({"date": "20251202", "time": "060239"}, [MetadataIssue.TIME_MISMATCH]),
        ({}, []),
    ):
        assert codes(read(SAMPLE, groups=groups)) == expected
