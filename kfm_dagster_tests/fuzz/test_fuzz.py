"""Fuzzing: a small part of the soak's inputs, and the harness's reports of broken readers."""

from __future__ import annotations

import itertools
import math
import os
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import pytest

from kfm_dagster.readers import hdf5_index, hdf5_messages
from kfm_dagster.readers.base import READERS, HeaderMetadata, ReadError, ReadRequest
from kfm_dagster.readers.hdf5_chunks import StoredValues
from kfm_dagster_tests.fuzz import trial
from kfm_dagster_tests.fuzz.campaign import Campaign
from kfm_dagster_tests.fuzz.libhdf5 import Libhdf5, Question
from kfm_dagster_tests.fuzz.mutations import SHELLS, Input, seals
from kfm_dagster_tests.fuzz.specimens import SUBJECTS, Specimen
from kfm_dagster_tests.readers.reading import header_of, patched

INPUTS = int(os.environ.get("KFM_FUZZ_INPUTS", "80"))
"""Inputs of each subject; `make soak` takes 200,000, also of real objects."""


def test_every_reader_has_a_subject() -> None:
    assert {subject.reader for subject in SUBJECTS.values()} == set(READERS)


@pytest.mark.clause("OPR-07")
@pytest.mark.parametrize("name", SUBJECTS)
def test_mutated_objects_are_read_within_bounds_or_refused(name: str, figure: Callable[[str], None]) -> None:
    specimens = None if "KFM_FUZZ_INPUTS" in os.environ else SUBJECTS[name].samples
    with Campaign(name, specimens=specimens) as campaign:
        summary = campaign.examine_all(range(INPUTS), seed=0)
    figure(f"{name}: {summary}")
    assert summary.findings == []
    assert INPUTS // 20 < summary.accepted < INPUTS
    assert bool(summary.compared) == SUBJECTS[name].is_hdf5


@pytest.mark.parametrize("shell", SHELLS)
def test_content_that_is_unpacked_and_packed_again_gives_the_same_result(shell: Callable[..., Any]) -> None:
    """Each shell unpacks the content that mutations change, and packs it again."""
    tried = 0
    for name, subject in SUBJECTS.items():
        for specimen in () if subject.of_index else subject.samples:
            if (opened := shell(specimen.content, random.Random(0))) is None:
                continue
            inner, close = opened
            again = whole(replace(specimen, content=close(inner)))
            assert trial.examine(subject, again).fate == trial.examine(subject, whole(specimen)).fate, (name, shell)
            tried += 1
    assert tried


def whole(specimen: Specimen) -> Input:
    return Input(specimen=specimen, content=specimen.content, index=specimen.index, size=len(specimen.content))


def _requests_too_often(request: ReadRequest, _header: HeaderMetadata) -> None:
    for _ in range(1000):
        request.source.read(0, 1)


def _never_ends(_request: ReadRequest, _header: HeaderMetadata) -> None:
    for _ in itertools.count():
        pass


def _fails(_request: ReadRequest, _header: HeaderMetadata) -> None:
    raise ValueError("of some library")


_turn = itertools.count()


@pytest.mark.parametrize(
    ("breakage", "expected"),
    [
        (_requests_too_often, "OutOfBoundsError: "),
        (_never_ends, "OutOfTimeError: "),
        (_fails, "ValueError: of some library"),
        (lambda request, header: bytearray(trial.MEMORY_BYTES), "bytes of memory"),
        (lambda request, header: replace(header, native={"turn": next(_turn)}), "a second reading has another result"),
        (lambda request, header: replace(header, properties={**header.properties, "gsd": math.nan}), "no Item: "),
        (lambda request, header: replace(header, properties={**header.properties, "a": "\0"}), "no Item: "),
        (lambda request, header: replace(header, properties={**header.properties, "gsd": "far"}), "not valid"),
        # This reader is sound, but the object that it accepts is marked as cut.
        (lambda request, header: header, "a cut object is ok"),
    ],
)
def test_a_broken_reader_is_reported(
    breakage: Callable[[ReadRequest, HeaderMetadata], HeaderMetadata | None],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject = SUBJECTS["goes-abi"]

    def broken(request: ReadRequest, /) -> HeaderMetadata:
        header = READERS[subject.reader](request)
        changed = breakage(request, header)
        return changed if isinstance(changed, HeaderMetadata) else header

    specimen = subject.samples[0]
    assert trial.examine(subject, whole(specimen), measured=True).findings == []
    if breakage is _never_ends:
        monkeypatch.setattr(trial, "CPU_SECONDS", 0.5)  # only this reading has a short limit
    monkeypatch.setattr(trial, "READERS", {subject.reader: broken})
    findings = trial.examine(subject, replace(whole(specimen), is_cut=True), measured=True).findings
    assert any(expected in text for text in findings), findings


def test_a_file_refused_by_libhdf5_and_accepted_by_our_reader_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed text, with our reader's verification of checksums switched off."""
    specimen = next(sample for sample in SUBJECTS["goes-abi"].samples if b"OHDR" in sample.content)
    damaged = replace(whole(specimen), content=specimen.content.replace(b"projection x-coo", b"projection X-coo"))
    assert damaged.content != specimen.content
    with Campaign("goes-abi") as campaign:
        result, is_compared = campaign.examine(damaged)
        assert (result.fate, is_compared) == ("unreadable_format", False)
        monkeypatch.setattr(hdf5_messages, "verified", lambda data, _: data[:-4])
        monkeypatch.setattr(hdf5_index, "lookup3", lambda _: ANY)
        result, is_compared = campaign.examine(damaged)
        assert (result.fate, is_compared) == ("ok", True)
        [text] = result.findings
        assert text.startswith("libhdf5 refuses")


def test_values_and_chunks_that_differ_from_libhdf5_s_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    specimen = SUBJECTS["goes-abi"].samples[0]
    values = StoredValues.values

    def misread(self: StoredValues) -> bytes:
        # Arrays only: the time, a scalar, is compared by another question.
        return values(self)[::-1] if self.shape else values(self)

    with Campaign("goes-abi") as campaign:
        result, is_compared = campaign.examine(whole(specimen))
        assert (result.findings, is_compared) == ([], True)
        monkeypatch.setattr(StoredValues, "values", misread)
        [text] = campaign.examine(whole(specimen))[0].findings
        assert text.startswith("values None of ")
    with Libhdf5() as libhdf5:
        [text] = libhdf5.differences(specimen.content, [Question("x", "chunks", None, ())])
        assert text.startswith("chunks None of 'x'")


@pytest.mark.clause("OPR-07")
def test_a_flipped_bit_under_any_checksum_is_refused() -> None:
    """Each structure that a reader reads has a checksum: superblock, headers, indexes, heaps."""
    subject, flips = SUBJECTS["goes-abi"], 0
    specimen = max(subject.samples, key=lambda sample: len(seals(sample)))
    for start, length, at in seals(specimen):
        for offset in (length // 2, at):
            damaged = bytearray(specimen.content)
            damaged[start + offset] ^= 1
            result = trial.examine(subject, replace(whole(specimen), content=bytes(damaged)))
            assert (result.fate, result.findings) == ("unreadable_format", []), (start, length, offset)
            flips += 1
    assert flips > 50


@pytest.mark.clause("OPR-07")
def test_a_crash_of_libhdf5_is_reported_and_our_reader_refuses_its_cause() -> None:
    """With a continuation of 2^64 - 1 bytes, libhdf5 copies memory until its process dies (docs/adr/003)."""
    subject = SUBJECTS["goes-abi"]
    specimen = subject.samples[0]
    content = specimen.content
    # A continuation message: type 16, 16 bytes, then address and length of the continuation.
    start = content.index(b"\x10\0\x10\0\0\0\0\0")
    damaged = patched(content, start + 16, b"\xff" * 8)
    assert trial.examine(subject, whole(replace(specimen, content=damaged))).fate == "resource_limit"
    empty = patched(content, start + 16, bytes(8))
    with pytest.raises(ReadError, match="continuation of no bytes"):
        header_of(subject.reader, empty, key=specimen.key, groups=specimen.groups)
    questions = [Question("", "text", "platform_ID", "G19")]
    with Libhdf5() as libhdf5:
        assert len(libhdf5.differences(damaged, questions)) == 1
        assert libhdf5.differences(content, questions) == []
