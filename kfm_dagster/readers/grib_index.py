"""GRIB index sidecars: the `.idx` inventories that wgrib2 writes beside an object.

Belongs here: reading lines and checking them against an object. Does not belong here: the object's own bytes
(`grib2_sections.py`).

A line is `message[.submessage]:offset:d=YYYYMMDDHH:variable:level:step:qualifier...`. A qualifier is an ensemble's
member (`ENS=+1`) or statistic, a probability, an aerosol or a process. A colon at the end of a line adds no qualifier.
The length of the last message is not in the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from sys import intern
from typing import NamedTuple

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ByteSource, Layer, ReadError
from kfm_dagster.readers.grib2_sections import MAX_STEP, Span

MAX_INDEX_BYTES = 2 * 1024 * 1024
"""Maximum size of an index; an index of GFS (0.25 degrees, 743 lines) has 42 KB."""

MAX_INDEX_LINES = 20_000
MAX_LAYERS = 4096
"""Maximum layers returned; the longest real indexes (HRRR, native levels) have some 1,200 lines."""

_LINE = re.compile(
    # Texts of printable ASCII: they become names of an Item's layers.
    r"^(\d{1,7})(?:\.(\d{1,4}))?:(\d{1,15}):[dD]=(\d{10}|\d{12}|\d{14}):([ -9;-~]{1,200}):([ -9;-~]{1,200})"
    r":([ -9;-~]{1,200})(?::([ -~]{0,200}?):?)?$",
    re.MULTILINE | re.ASCII,
)

_STEP = re.compile(r"(?:(\d{1,7})-)?(\d{1,7}) (sec|min|hour|day) ", re.ASCII)
_STEP_UNITS = {
    "sec": timedelta(seconds=1),
    "min": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(1),
}


class IndexEntry(NamedTuple):
    """A line. `submessage` is 0 if the line has none; `reference` has the digits of `d=`."""

    message: int
    submessage: int
    offset: int
    reference: str
    variable: str
    level: str
    step: str
    qualifier: str


def read_index(source: ByteSource) -> tuple[IndexEntry, ...]:
    """Read a sidecar. Raises ReadError(SIDECAR_MISMATCH) if its size or a line is invalid."""
    if source.size > MAX_INDEX_BYTES:
        raise ReadError(
            MetadataIssue.SIDECAR_MISMATCH, f"the index has {source.size} bytes, more than {MAX_INDEX_BYTES}"
        )
    content = source.read(0, source.size)
    lines = content.count(b"\n") + (not content.endswith(b"\n"))
    if lines > MAX_INDEX_LINES:
        raise ReadError(MetadataIssue.SIDECAR_MISMATCH, f"the index has {lines} lines, more than {MAX_INDEX_LINES}")
    text = content.decode("ascii", errors="replace")
    rows = _LINE.findall(text)
    if len(rows) != lines:
        wrong = next((line for line in text.split("\n") if not _LINE.fullmatch(line)), "")
        raise ReadError(MetadataIssue.SIDECAR_MISMATCH, f"the index has an invalid line: {wrong[:80]!r}")
    # Interned, because the objects of a product share these names: each name is in memory only once.
    return tuple(
        IndexEntry(int(message), int(sub or 0), int(offset), reference, *map(intern, names))
        for message, sub, offset, reference, *names in rows
    )


def order_fault(entries: Sequence[IndexEntry]) -> str | None:
    """Return the first fault in the order of messages and offsets, or None.

    wgrib2 numbers messages and submessages without a gap. Offsets ascend from message to message, and the submessages
    of a message share its offset.
    """
    for prev, this in pairwise(entries):
        same = prev.message == this.message
        successors = {(prev.message, prev.submessage + 1), (prev.message + 1, 0), (prev.message + 1, 1)}
        if (this.message, this.submessage) not in successors:
            return f"message {this.message}.{this.submessage} follows message {prev.message}.{prev.submessage}"
        if (same and prev.offset != this.offset) or (not same and prev.offset >= this.offset):
            return f"message {this.message} at byte {this.offset} follows message {prev.message} at byte {prev.offset}"
    return None


def reference_fault(entries: Sequence[IndexEntry], reference: datetime) -> str | None:
    """Return the fault of a line whose reference time (UTC) is not the object's, or None."""
    expected = f"{reference:%Y%m%d%H%M%S}"
    for digits in sorted({entry.reference for entry in entries}):
        if not expected.startswith(digits):
            return f"the index is of the run {digits}, the object is of {expected}"
    return None


def step_range(step: str) -> tuple[timedelta, timedelta] | None:
    """Return the times from the reference to begin and end of a step text.

    They are equal for `anl` and `6 hour fcst`, and differ for a window such as `0-15 min acc fcst`. Other forms
    (months, verifying analyses) give None.
    """
    if step == "anl":
        return timedelta(0), timedelta(0)
    match = _STEP.match(step)
    if match is None:
        return None
    unit = _STEP_UNITS[match[3]]
    return int(match[1] or match[2]) * unit, int(match[2]) * unit


def spans_of(steps: Iterable[str], reference: datetime) -> dict[str, Span]:
    """Return the time of each step's fields; unknown and implausible steps are left out."""
    ranges = {step: step_range(step) for step in steps}
    return {
        step: Span(reference + bounds[0], reference + bounds[1])
        for step, bounds in ranges.items()
        if bounds is not None and bounds[0] <= bounds[1] <= MAX_STEP
    }


def step_end(step: str) -> timedelta | None:
    """Return the time from the reference to the end of a step text; None for other forms."""
    bounds = step_range(step)
    return None if bounds is None else bounds[1]


def latest_step(entries: Sequence[IndexEntry]) -> timedelta:
    """Return the end of the latest step of all lines."""
    ends = (step_end(text) for text in {entry.step for entry in entries})
    return max((end for end in ends if end is not None), default=timedelta(0))


def layers(entries: Sequence[IndexEntry], *, end: int) -> tuple[Layer, ...]:
    """Return each line's field and bytes; nothing if there are more than MAX_LAYERS lines.

    `end` is the end of the last message. Offsets must ascend (`order_fault`). Submessages share the bytes of their
    message, and bytes between two messages (a WMO header) belong to the message before them.
    """
    if len(entries) > MAX_LAYERS:
        return ()
    following: dict[int, int] = {}
    for entry in reversed(entries):
        following.setdefault(entry.offset, end)
        end = entry.offset
    return tuple(
        Layer(variable, level, step, qualifier, offset, following[offset] - offset)
        for _, _, offset, _, variable, level, step, qualifier in entries
    )
