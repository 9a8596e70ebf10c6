"""GRIB index sidecars: the `.idx` inventories that wgrib2 writes beside an object.

Belongs here: reading lines and telling whether they describe an object. Does not belong here: the object's own bytes
(`grib2_sections.py`). A line is `message[.submessage]:offset:d=YYYYMMDDHH:variable:level:step:qualifier...`; GEFS has
a qualifier (the ensemble member). The length of the last message is not in the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ByteSource, Layer, ReadError
from kfm_dagster.readers.grib2_sections import MAX_STEP, Span

MAX_INDEX_BYTES = 2 * 1024 * 1024
"""The largest real ones (GFS 0.25 degrees, 743 lines) have 42 KB."""

MAX_INDEX_LINES = 20_000
MAX_LAYERS = 4096
"""More are not handed on; the largest real indexes (HRRR, native levels) have some 1,200 lines."""

_LINE = re.compile(
    # Texts of printable ASCII: they become names of an Item's layers.
    r"^(\d{1,7})(?:\.(\d{1,4}))?:(\d{1,15}):[dD]=(\d{10}|\d{12}|\d{14}):([ -9;-~]{1,200}):([ -9;-~]{1,200})"
    r":([ -9;-~]{1,200})(?::([ -~]{0,200}))?$",
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
    """One line. `submessage` is 0 where the line has none; `reference` holds the digits of `d=`."""

    message: int
    submessage: int
    offset: int
    reference: str
    variable: str
    level: str
    step: str
    qualifier: str


def read_index(source: ByteSource) -> tuple[IndexEntry, ...]:
    """Read a sidecar. Raises ReadError(SIDECAR_MISMATCH) when it is no index, or a larger one than is believed."""
    if source.size > MAX_INDEX_BYTES:
        raise ReadError(
            MetadataIssue.SIDECAR_MISMATCH, f"the index has {source.size} bytes, more than {MAX_INDEX_BYTES}"
        )
    return parse_index(source.read(0, source.size))


def parse_index(content: bytes) -> tuple[IndexEntry, ...]:
    """Parse the lines of an index. Raises ReadError(SIDECAR_MISMATCH) naming the first line that is none."""
    lines = content.count(b"\n") + (not content.endswith(b"\n"))
    if lines > MAX_INDEX_LINES:
        raise ReadError(MetadataIssue.SIDECAR_MISMATCH, f"the index has {lines} lines, more than {MAX_INDEX_LINES}")
    text = content.decode("ascii", errors="replace")
    found = _LINE.findall(text)
    if len(found) != lines:
        wrong = next((line for line in text.split("\n") if not _LINE.fullmatch(line)), "")
        raise ReadError(MetadataIssue.SIDECAR_MISMATCH, f"the index holds a line that is none: {wrong[:80]!r}")
    return tuple(
        IndexEntry(int(message), int(sub or 0), int(offset), reference, variable, level, step, qualifier)
        for message, sub, offset, reference, variable, level, step, qualifier in found
    )


def order_fault(entries: Sequence[IndexEntry]) -> str | None:
    """Find what is wrong with the order of messages and offsets, or None.

    wgrib2 numbers messages and submessages without a gap. Offsets ascend from message to message, and the submessages
    of one message share its offset.
    """
    for one, other in pairwise(entries):
        same = one.message == other.message
        after = {(one.message, one.submessage + 1), (one.message + 1, 0), (one.message + 1, 1)}
        if (other.message, other.submessage) not in after:
            return f"line {other.message}.{other.submessage} follows line {one.message}.{one.submessage}"
        if (same and one.offset != other.offset) or (not same and one.offset >= other.offset):
            return f"message {other.message} at byte {other.offset} follows message {one.message} at byte {one.offset}"
    return None


def reference_fault(entries: Sequence[IndexEntry], reference: datetime) -> str | None:
    """Tell which line has another reference time (UTC) than the object, or None."""
    expected = f"{reference:%Y%m%d%H%M%S}"
    for digits in sorted({entry.reference for entry in entries}):
        if not expected.startswith(digits):
            return f"the index is of the run {digits}, the object of {expected}"
    return None


def step_range(step: str) -> tuple[timedelta, timedelta] | None:
    """Return the times from the reference to begin and end of a step text: equal for `anl` and `6 hour fcst`.

    A window such as `0-15 min acc fcst` has both. None for texts of another form (months, verifying analyses).
    """
    if step == "anl":
        return timedelta(0), timedelta(0)
    match = _STEP.match(step)
    if match is None:
        return None
    unit = _STEP_UNITS[match[3]]
    return int(match[1] or match[2]) * unit, int(match[2]) * unit


def spans_of(steps: Iterable[str], reference: datetime) -> dict[str, Span]:
    """Return when the fields of each step hold, without steps that are not understood or beyond belief."""
    ranges = {step: step_range(step) for step in steps}
    return {
        step: Span(reference + bounds[0], reference + bounds[1])
        for step, bounds in ranges.items()
        if bounds is not None and bounds[0] <= bounds[1] <= MAX_STEP
    }


def step_end(step: str) -> timedelta | None:
    """Return the time from the reference to the end of a step text; None where `step_range` has none."""
    bounds = step_range(step)
    return None if bounds is None else bounds[1]


def latest_step(entries: Sequence[IndexEntry]) -> timedelta:
    """End of the latest step of all lines."""
    ends = (step_end(text) for text in {entry.step for entry in entries})
    return max((end for end in ends if end is not None), default=timedelta(0))


def layers(entries: Sequence[IndexEntry], *, end: int) -> tuple[Layer, ...]:
    """Return each line's field and bytes; `end` is where the last message ends. Empty for more than MAX_LAYERS.

    Offsets must ascend (`order_fault`). Submessages share the bytes of their message, and what stands between two
    messages (a WMO header) counts to the one before.
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
