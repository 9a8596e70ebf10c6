"""Fuzzing: a sample of what the soak does at length, and that the harness notices a reader that breaks its promises."""

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
from kfm_dagster.readers.base import READERS, HeaderMetadata, ReadRequest
from kfm_dagster.readers.hdf5_chunks import StoredValues
from kfm_dagster_tests.fuzz import trial
from kfm_dagster_tests.fuzz.campaign import Campaign
from kfm_dagster_tests.fuzz.libhdf5 import Libhdf5, Question
from kfm_dagster_tests.fuzz.mutations import SHELLS, Input, seals
from kfm_dagster_tests.fuzz.specimens import SUBJECTS, Specimen
from kfm_dagster_tests.readers.reading import header_of

INPUTS = int(os.environ.get("KFM_FUZZ_INPUTS", "80"))
"""Of each subject; `make soak` takes 200,000, also of the real objects that are there."""


def test_every_reader_has_a_subject() -> None:
    assert {subject.reader for subject in SUBJECTS.values()} == set(READERS)


@pytest.mark.clause("OPR-07")
@pytest.mark.parametrize("name", SUBJECTS)
def test_mutated_objects_are_read_within_bounds_or_refused(name: str, figure: Callable[[str], None]) -> None:
    specimens = None if "KFM_FUZZ_INPUTS" in os.environ else SUBJECTS[name].samples
    with Campaign(name, specimens=specimens) as campaign:
        found = campaign.examine_all(range(INPUTS), seed=0)
    figure(f"{name}: {found}")
    assert found.findings == []
    assert INPUTS // 20 < found.accepted < INPUTS
    # What libhdf5 says is asked of every file that it can be shown.
    assert bool(found.compared) == SUBJECTS[name].is_hdf5


@pytest.mark.parametrize("shell", SHELLS)
def test_an_unchanged_inside_makes_the_same_object(shell: Callable[..., Any]) -> None:
    """What is packed again without a change is read as before: the mutations inside are the only ones."""
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


def _asks_too_often(request: ReadRequest, _found: HeaderMetadata) -> None:
    for _ in range(1000):
        request.source.read(0, 1)


def _never_ends(_request: ReadRequest, _found: HeaderMetadata) -> None:
    for _ in itertools.count():
        pass


def _fails(_request: ReadRequest, _found: HeaderMetadata) -> None:
    raise ValueError("of some library")


_turn = itertools.count()


@pytest.mark.parametrize(
    ("breakage", "expected"),
    [
        (_asks_too_often, "OutOfBoundsError: "),
        (_never_ends, "OutOfTimeError: "),
        (_fails, "ValueError: of some library"),
        (lambda request, found: bytearray(trial.MEMORY_BYTES), "bytes of memory"),
        (lambda request, found: replace(found, native={"turn": next(_turn)}), "a second reading says something else"),
        (lambda request, found: replace(found, properties={**found.properties, "gsd": math.nan}), "no Item: "),
        (lambda request, found: replace(found, properties={**found.properties, "a": "\0"}), "no Item: "),
        (lambda request, found: replace(found, properties={**found.properties, "gsd": "far"}), "not valid"),
    ],
)
def test_a_reader_that_breaks_its_promise_is_found(
    breakage: Callable[[ReadRequest, HeaderMetadata], HeaderMetadata | None],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject = SUBJECTS["goes-abi"]

    def broken(request: ReadRequest, /) -> HeaderMetadata:
        found = READERS[subject.reader](request)
        changed = breakage(request, found)
        return changed if isinstance(changed, HeaderMetadata) else found

    specimen = subject.samples[0]
    assert trial.examine(subject, whole(specimen), measured=True).findings == []
    if breakage is _never_ends:
        monkeypatch.setattr(trial, "CPU_SECONDS", 0.5)  # the other readings may take as long as on a busy machine
    monkeypatch.setattr(trial, "READERS", {subject.reader: broken})
    found = trial.examine(subject, whole(specimen), measured=True).findings
    assert any(expected in text for text in found), found


def test_a_cut_that_is_ok_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = SUBJECTS["goes-abi"]
    specimen = subject.samples[0]
    found = header_of(subject.reader, specimen.content, key=specimen.key, groups=specimen.groups)
    monkeypatch.setattr(trial, "READERS", {subject.reader: lambda _: found})
    cut = replace(whole(specimen), content=specimen.content[:-1], size=len(specimen.content) - 1, is_cut=True)
    [text] = trial.examine(subject, cut).findings
    assert text.startswith("a cut object is ok")


def test_what_libhdf5_refuses_is_found_where_ours_accepts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another text, under a checksum that nobody compares."""
    specimen = next(one for one in SUBJECTS["goes-abi"].samples if b"OHDR" in one.content)
    spoilt = replace(whole(specimen), content=specimen.content.replace(b"projection x-coo", b"projection X-coo"))
    assert spoilt.content != specimen.content
    with Campaign("goes-abi") as campaign:
        found, asked = campaign.examine(spoilt)
        assert (found.fate, asked) == ("unreadable_format", False)
        monkeypatch.setattr(hdf5_messages, "verified", lambda data, _: data[:-4])
        monkeypatch.setattr(hdf5_index, "lookup3", lambda _: ANY)
        found, asked = campaign.examine(spoilt)
        assert (found.fate, asked) == ("ok", True)
        [text] = found.findings
        assert text.startswith("libhdf5 refuses")


def test_values_and_chunks_that_libhdf5_does_not_have_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    specimen = SUBJECTS["goes-abi"].samples[0]
    values = StoredValues.values

    def misread(self: StoredValues) -> bytes:
        # Of more than one element: when the object is, is compared elsewhere.
        return values(self)[::-1] if self.shape else values(self)

    with Campaign("goes-abi") as campaign:
        found, asked = campaign.examine(whole(specimen))
        assert (found.findings, asked) == ([], True)
        monkeypatch.setattr(StoredValues, "values", misread)
        [text] = campaign.examine(whole(specimen))[0].findings
        assert text.startswith("values None of ")
    with Libhdf5() as libhdf5:
        [text] = libhdf5.differences(specimen.content, [Question("x", "chunks", None, ())])
        assert text.startswith("chunks None of 'x'")


@pytest.mark.clause("OPR-07")
def test_a_flipped_bit_under_any_checksum_is_refused() -> None:
    """In each structure that a reader looks at: its superblock, headers, indexes, heaps."""
    subject, seen = SUBJECTS["goes-abi"], 0
    specimen = max(subject.samples, key=lambda one: len(seals(one)))
    for start, length, at in seals(specimen):
        for place in (length // 2, at):
            spoilt = bytearray(specimen.content)
            spoilt[start + place] ^= 1
            found = trial.examine(subject, replace(whole(specimen), content=bytes(spoilt)))
            assert (found.fate, found.findings) == ("unreadable_format", []), (start, length, place)
            seen += 1
    assert seen > 50


@pytest.mark.clause("OPR-07")
def test_libhdf5_s_death_is_reported_and_outlived_and_our_reader_refuses_its_cause() -> None:
    """The length that made it copy memory until its process died (docs/adr/003)."""
    subject = SUBJECTS["goes-abi"]
    specimen = subject.samples[0]
    content = specimen.content
    # A continuation message: type 16, 16 bytes, then address and length of the continuation.
    start = content.index(b"\x10\0\x10\0\0\0\0\0")
    spoilt = content[: start + 16] + b"\xff" * 8 + content[start + 24 :]
    assert trial.examine(subject, whole(replace(specimen, content=spoilt))).fate == "resource_limit"
    asked = [Question("", "text", "platform_ID", "G19")]
    with Libhdf5() as libhdf5:
        assert len(libhdf5.differences(spoilt, asked)) == 1
        assert libhdf5.differences(content, asked) == []
