from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ReadError
from kfm_dagster.readers.grib_index import (
    MAX_INDEX_BYTES,
    MAX_LAYERS,
    IndexEntry,
    latest_step,
    layers,
    order_fault,
    read_index,
    reference_fault,
    step_end,
)
from kfm_dagster.readers.ranges import BytesSource
from kfm_dagster_tests.readers.reading import Claiming, code_of


def test_every_real_index_is_read_as_a_plain_split_reads_it(shared_data: Path, reference: dict[str, Any]) -> None:
    paths = [path for path in reference if path.endswith(".idx")]
    assert len(paths) >= 20
    for path in paths:
        answers = reference[path]["reference"]
        entries = read_index(BytesSource((shared_data / path).read_bytes()))
        assert len(entries) == answers["n_lines"], path
        assert len({entry.message for entry in entries}) == answers["n_messages"]
        assert len({entry.variable for entry in entries}) == answers["params"]
        assert len({entry.level for entry in entries}) == answers["levels"]
        assert {f"d={entry.reference}" for entry in entries} == set(answers["ref"])
        assert {entry.step for entry in entries} == set(answers["forecast_strings"])
        assert {entry.qualifier for entry in entries} == set(answers["extra_fields"])
        assert sum(entry.submessage > 0 for entry in entries) == answers["submessages"]
        assert order_fault(entries) is None
        assert all(step_end(entry.step) is not None for entry in entries)
        end = entries[-1].offset + 1
        assert sum({layer.offset: layer.length for layer in layers(entries, end=end)}.values()) == end


def entry(message: int, offset: int, submessage: int = 0, **changes: str) -> IndexEntry:
    texts = {"reference": "2025120306", "variable": "TMP", "level": "surface", "step": "anl", "qualifier": ""}
    return IndexEntry(message=message, submessage=submessage, offset=offset, **(texts | changes))


def test_line_forms_of_wgrib2_are_read() -> None:
    for what, (line, expected) in {
        "plain": (b"1:0:d=2025120306:TMP:surface:anl:", entry(1, 0)),
        "no last colon": (b"1:0:d=2025120306:TMP:surface:anl", entry(1, 0)),
        "submessage": (b"12.2:700:d=2025120306:TMP:surface:anl:", entry(12, 700, 2)),
        "minutes and seconds": (b"1:0:D=20251203060030:TMP:surface:anl:", entry(1, 0, reference="20251203060030")),
        "ensemble member": (b"1:0:d=2025120306:TMP:surface:anl:ENS=+1", entry(1, 0, qualifier="ENS=+1")),
        "probability": (
            b"1:0:d=2025120306:TMP:surface:anl:prob >0.254:prob fcst 255/255",
            entry(1, 0, qualifier="prob >0.254:prob fcst 255/255"),
        ),
    }.items():
        assert read_index(BytesSource(line + b"\n")) == read_index(BytesSource(line)) == (expected,), what


@pytest.mark.clause("OPR-07")
def test_an_index_that_is_none_or_too_large_is_refused() -> None:
    for what, content in {
        "empty": b"",
        "blank": b"\n",
        "blank line": b"1:0:d=2025120306:TMP:surface:anl:\n\n",
        "nan": b"1:NaN:d=2025120306:TMP:surface:anl:\n",
        "negative": b"1:-1:d=2025120306:TMP:surface:anl:\n",
        "huge offset": b"1:9999999999999999999:d=2025120306:TMP:surface:anl:\n",
        "no hour": b"1:0:d=20251203:TMP:surface:anl:\n",
        "short": b"1:0:d=2025120306:TMP:surface\n",
        "long": b"1:0:d=2025120306:" + b"T" * 100_000 + b":surface:anl:\n",
        "unicode": "1:0:d=2025120306:TMP:surface:anl:\N{SNOWMAN}\n1:0:\n".encode(),
        "digit": "\N{ARABIC-INDIC DIGIT ONE}:0:d=2025120306:TMP:surface:anl:\n".encode(),
        "many lines": b"1:0:d=2025120306:T:s:anl:\n" * 50_000,
    }.items():
        with pytest.raises(ReadError) as refused:
            read_index(BytesSource(content))
        assert (refused.value.code, len(str(refused.value)) < 400) == (MetadataIssue.SIDECAR_MISMATCH, True), what
    # Too large an index is refused before it is read: the object has no bytes.
    with pytest.raises(ReadError, match="more than"):
        read_index(Claiming(b"", MAX_INDEX_BYTES + 1))


@pytest.mark.clause("OPR-26")
def test_offsets_ascend_submessages_share_one_and_no_line_is_missing() -> None:
    for entries, fault in (
        ([entry(1, 0), entry(2, 10), entry(3, 20)], False),
        ([entry(1, 0), entry(2, 10, 1), entry(2, 10, 2), entry(3, 20)], False),
        ([entry(1, 10), entry(2, 10)], True),
        ([entry(1, 10), entry(2, 5)], True),
        ([entry(2, 0), entry(1, 10)], True),
        ([entry(1, 0), entry(1, 10)], True),
        ([entry(2, 0, 1), entry(2, 10, 2)], True),
        ([entry(2, 0, 2), entry(2, 0, 1)], True),
        ([entry(1, 0), entry(3, 20)], True),
        ([entry(1, 0), entry(2, 10, 2)], True),
        ([entry(2, 0, 1), entry(2, 0, 3)], True),
    ):
        assert (order_fault(entries) is not None) is fault


def test_reference_time_is_compared_to_its_own_precision() -> None:
    run = datetime(2025, 12, 3, 6, 15, tzinfo=UTC)
    assert reference_fault([entry(1, 0, reference="2025120306")], run) is None
    assert reference_fault([entry(1, 0, reference="202512030615")], run) is None
    assert reference_fault([entry(1, 0), entry(2, 9, reference="2025120307")], run) is not None


def test_step_texts_end_where_wgrib2_means() -> None:
    # The latest step is over all lines.
    entries = [entry(1, 0), entry(2, 9, step="1-3 hour ave fcst"), entry(3, 19, step="2 hour fcst")]
    for step, end in (
        ("anl", timedelta(0)),
        ("6 hour fcst", timedelta(hours=6)),
        ("495 min fcst", timedelta(minutes=495)),
        ("90 sec fcst", timedelta(seconds=90)),
        ("0-5 hour acc fcst", timedelta(hours=5)),
        ("0-0 day max fcst", timedelta(0)),
        ("0-2 day acc fcst", timedelta(days=2)),
        ("3 month fcst", None),
        ("hour fcst", None),
        ("12345678 hour fcst", None),
    ):
        assert step_end(step) == end
    assert latest_step(entries) == timedelta(hours=3)


def test_layers_end_where_the_next_message_begins_and_submessages_share_theirs() -> None:
    entries = [entry(1, 0), entry(2, 10, 1, variable="UGRD"), entry(2, 10, 2, variable="VGRD"), entry(3, 25)]
    assert [(layer.variable, layer.offset, layer.length) for layer in layers(entries, end=40)] == [
        ("TMP", 0, 10), ("UGRD", 10, 15), ("VGRD", 10, 15), ("TMP", 25, 15),
    ]  # fmt: skip
    assert layers([entry(1, 0, qualifier="ENS=+1")], end=7) == (("TMP", "surface", "anl", "ENS=+1", 0, 7),)
    # More layers than are handed on are none.
    entries = [entry(number, number) for number in range(MAX_LAYERS + 1)]
    assert len(layers(entries[1:], end=MAX_LAYERS + 1)) == MAX_LAYERS
    assert layers(entries, end=MAX_LAYERS + 1) == ()


FIELD = st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters=":"), min_size=1, max_size=40)


@given(
    st.lists(
        st.builds(
            IndexEntry,
            message=st.integers(0, 9_999_999),
            submessage=st.integers(0, 9999),
            offset=st.integers(0, 10**15 - 1),
            reference=st.from_regex(r"\A[0-9]{10}\Z"),
            variable=FIELD,
            level=FIELD,
            step=FIELD,
            qualifier=st.one_of(st.just(""), FIELD),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_written_lines_are_read_back(entries: list[IndexEntry]) -> None:
    lines = [
        f"{e.message}{f'.{e.submessage}' if e.submessage else ''}:{e.offset}:d={e.reference}"
        f":{e.variable}:{e.level}:{e.step}:{e.qualifier}\n"
        for e in entries
    ]
    assert read_index(BytesSource("".join(lines).encode())) == tuple(entries)


@pytest.mark.clause("OPR-07")
def test_a_text_that_is_not_printable_is_no_line() -> None:
    """It would become a name in an Item, which no database keeps with a NUL in it."""
    line = b"1:0:d=2025120306:TMP:surface:anl:ENS=1"
    assert len(read_index(BytesSource(line))) == 1
    for sign, text in product((b"\0", b"\x1b", b"\t", b"\x7f", b"\xc3\xa9"), (b"TMP", b"surface", b"anl", b"ENS=1")):
        odd = line.replace(text, text + sign)
        assert code_of(read_index, BytesSource(odd)) is MetadataIssue.SIDECAR_MISMATCH, odd
