"""The end of a NEXRAD volume: its last radial, the moments of all its cuts, and whether the object is whole."""

from __future__ import annotations

import bz2
import gzip
import random
import struct
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.contracts.issues import MetadataIssue, Severity
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.samples.nexrad_level2 import DURATION, MOMENTS
from kfm_dagster.operators.integrity_check import apply_severities
from kfm_dagster.readers import nexrad_end
from kfm_dagster.readers.base import HeaderMetadata
from kfm_dagster.readers.nexrad_level2 import LONGEST_VOLUME
from kfm_dagster_tests.readers import reading
from kfm_dagster_tests.readers.nexrad_bytes import (
    SITE,
    START,
    clock,
    header,
    key_groups,
    ldm,
    message_1,
    read,
    real_volumes,
    record_ends,
    refusal,
    unpack,
)
from kfm_dagster_tests.readers.reading import Outcome, is_unchecked
from kfm_dagster_tests.readers.truth.comparison import CountingSource


def outcome(content: bytes, key: Mapping[str, str] | None = None) -> Outcome:
    return reading.outcome(read, content, key)


CUT = {MetadataIssue.TRUNCATED_OBJECT, MetadataIssue.UNREADABLE_FORMAT, MetadataIssue.INCOMPLETE_PRODUCT_METADATA}


# --- what the ends of a volume say


def ends_of(uncompressed: bytes) -> list[int]:
    """Where in an uncompressed volume of type 31 the body of each radial begins."""
    places, place = [], uncompressed.find(SITE.encode(), 24)
    while place >= 0:
        places.append(place)
        place = uncompressed.find(SITE.encode(), place + 1)
    return places


@pytest.mark.clause("OPR-15")
def test_the_last_radial_is_no_earlier_than_the_first_and_no_later_than_a_volume_can_take(uncompressed: bytes) -> None:
    place = ends_of(uncompressed)[-1]
    for after, code in (
        (timedelta(0), None),
        (LONGEST_VOLUME, None),
        (LONGEST_VOLUME + timedelta(milliseconds=1), MetadataIssue.TIME_MISMATCH),
        (timedelta(milliseconds=-1), MetadataIssue.TIME_MISMATCH),
        (timedelta(days=1), MetadataIssue.TIME_MISMATCH),
    ):
        day, milliseconds = clock(START + after)
        content = uncompressed[: place + 4] + struct.pack(">IH", milliseconds, day) + uncompressed[place + 10 :]
        if code is None:
            assert read(content).end == START + after
        else:
            assert refusal(content) is code


def test_a_last_radial_of_another_radar_is_a_platform_mismatch(uncompressed: bytes) -> None:
    place = ends_of(uncompressed)[-1]
    assert refusal(uncompressed[:place] + b"KTWX" + uncompressed[place + 4 :]) is MetadataIssue.PLATFORM_MISMATCH


@pytest.mark.clause("OPR-16")
def test_where_the_ends_show_no_velocity_the_moments_are_said_to_be_the_first_radials(
    volume: bytes, uncompressed: bytes
) -> None:
    # Three radials of each cut: surveillance and Doppler in one record, surveillance alone in the last.
    first, third, fourth = (ends_of(uncompressed)[index] - 28 for index in (0, 6, 9))
    cut = volume[: next(record_ends(volume))] + ldm(uncompressed[first:third]) + ldm(uncompressed[third:fourth])
    stored = read(cut)
    assert "nexrad:moments" not in stored.properties
    assert stored.properties["nexrad:first-radial-moments"] == ["REF", "ZDR", "PHI", "RHO"]
    assert stored.properties["nexrad:elevations"] == [0.483, 0.879]
    # An unpacked volume that is gzipped is read whole, so that every cut is known.
    assert read(gzip.compress(uncompressed[:fourth])).properties["nexrad:moments"] == list(MOMENTS)


# --- cut objects


@pytest.mark.clause("OPR-20")
def test_a_real_volume_of_type_1_that_is_cut_between_radials_is_suspect_and_within_one_refused(
    shared_data: Path, reference: Mapping[str, Any], contracts: ContractRegistry
) -> None:
    of_type_1 = [one for one in real_volumes(shared_data, reference) if one[2]["msg_type"] == "1"]
    assert of_type_1
    for path, content, expected in of_type_1:
        key = key_groups(path, contracts)
        plain = gzip.decompress(content) if expected["gzipped"] else unpack(content)
        for end in range(len(plain) // 5 // 2432 * 2432 + 24, len(plain), 2432 * 1191):
            assert is_unchecked(outcome(plain[:end], key)), (path, end)
            assert is_unchecked(outcome(gzip.compress(plain[:end], 1), key)), (path, end)
            assert outcome(plain[: end + 1], key) in CUT, (path, end)


@pytest.mark.clause("OPR-20")
def test_a_sample_that_is_cut_at_any_byte_is_never_ok(volume: bytes, uncompressed: bytes) -> None:
    metadata, *ends, whole = record_ends(volume)
    near = {end + away for end in (metadata, *ends, whole) for away in range(-9, 10)}
    for end in sorted({*range(0, whole, 11), *near} & {*range(whole)}):
        found = outcome(volume[:end])
        assert is_unchecked(found) if end in ends else found in CUT, end
    assert read(volume[:whole]).findings == ()
    assert refusal(volume[:metadata]) in CUT
    # Cut before it was gzipped.
    for end in ends:
        assert is_unchecked(outcome(gzip.compress(volume[:end]))), end
        for around in (end - 1, end + 5):
            assert outcome(gzip.compress(volume[:around])) in CUT, around
    # Without packed records it is suspect at a radial, and refused between them.
    for end in [place - 28 for place in ends_of(uncompressed)][1:]:
        assert is_unchecked(outcome(uncompressed[:end])), end
        for around in (end - 1, end + 1, end + 27, end + 29):
            assert outcome(uncompressed[:around]) in CUT, around


@pytest.mark.clause("OPR-15", "OPR-20")
def test_a_gzipped_volume_too_large_to_be_read_whole_says_that_its_end_is_unknown(
    uncompressed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = gzip.compress(uncompressed)
    monkeypatch.setattr(nexrad_end, "MAX_GZIP_BYTES", len(content))
    assert read(content).end == START + DURATION
    monkeypatch.setattr(nexrad_end, "MAX_GZIP_BYTES", len(content) - 1)
    found = read(content)
    assert is_unchecked(found)
    assert (found.start, found.end) == (START, START)
    properties = found.properties
    assert properties["nexrad:end-known"] is False
    assert properties["nexrad:first-radial-moments"] == ["REF", "ZDR", "PHI", "RHO"]
    assert properties["nexrad:pattern-elevations"][-1] == 6.416
    assert not {"nexrad:moments", "nexrad:elevations"} & properties.keys()


@pytest.mark.clause("OPR-20")
def test_a_volume_of_unknown_completeness_is_suspect_under_the_contract(
    volume: bytes, contracts: ContractRegistry
) -> None:
    *_, end, _ = record_ends(volume)
    status, [issue] = apply_severities(read(volume[:end]).findings, contracts["nexrad-l2"].metadata_extract.severities)
    assert (status.value, issue.severity, issue.code) == ("suspect", Severity.SUSPECT, "completeness_unchecked")
    assert "status 2" in issue.message


# --- odd and hostile ends


def test_a_last_record_larger_than_the_tail_is_found_with_one_more_request(volume: bytes) -> None:
    frames = b"".join(bytes(28) + random.Random(seed).randbytes(2404) for seed in range(200))
    *_, start, _ = record_ends(volume)
    last = bz2.decompress(volume[start + 4 :])
    content = volume[:start] + ldm(frames + last, last=True)
    assert len(content) - start > 400_000
    source = CountingSource(content)
    found = read(source)
    assert (found.end, found.findings, len(source.requests)) == (START + DURATION, (), 3)


def test_a_volume_without_its_last_radial_is_suspect(volume: bytes) -> None:
    found = read(volume + ldm(bytes(2432)))
    assert is_unchecked(found)
    assert found.properties["nexrad:end-known"] is False
    # Of one radial of type 1, which is not the last one.
    found = read(header() + message_1(START))
    assert is_unchecked(found)
    assert found.end == START


@pytest.mark.clause("OPR-07")
def test_a_volume_or_a_last_record_that_unpacks_without_end_is_refused(
    volume: bytes, uncompressed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = volume + ldm(bytes(10_000_000), last=True)
    assert refusal(endless) is refusal(gzip.compress(endless)) is MetadataIssue.RESOURCE_LIMIT
    monkeypatch.setattr(nexrad_end, "MAX_VOLUME_BYTES", 8_000_000)
    assert read(gzip.compress(uncompressed)).findings == ()
    assert refusal(gzip.compress(uncompressed + bytes(9_000_000))) is MetadataIssue.RESOURCE_LIMIT


@pytest.mark.clause("OPR-07")
def test_an_unpacked_tail_is_given_up_after_so_many_starts(
    uncompressed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    false = struct.pack(">12xHxB12x4s", 0xFFFF, 31, SITE.encode())
    assert refusal(uncompressed + false * 20_000) is MetadataIssue.TRUNCATED_OBJECT
    for starts in (1, 0):
        monkeypatch.setattr(nexrad_end, "MAX_STARTS", starts)
        assert isinstance(outcome(uncompressed), HeaderMetadata) is (starts > 0)


def test_a_last_record_whose_size_was_made_to_fit_its_cut_data_is_refused(volume: bytes) -> None:
    *_, start, end = record_ends(volume)
    for length in range(10, end - start - 4, 25):
        content = volume[:start] + struct.pack(">i", -length) + volume[start + 4 : start + 4 + length]
        assert outcome(content) in CUT, length
