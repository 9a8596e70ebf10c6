"""When the fields of a GRIB2 object hold, and which time follows for the object.

Belongs here: instants and windows, from messages and from the steps of an index. Does not belong here: octets
(`grib2_sections.py`), the texts of steps (`grib_index.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import NamedTuple

from kfm_dagster.readers.grib2_sections import MAX_STEP, GribMessage
from kfm_dagster.readers.grib_index import step_range


class Span(NamedTuple):
    """When a field holds (UTC): an instant where both are equal, else a window such as an accumulation's."""

    start: datetime
    end: datetime


def span_of(field: GribMessage) -> Span | None:
    """Return when a field holds; None where its template or its unit of time is not one that is read."""
    reference, product = field.identification.reference, field.product
    if product.begin is None or product.step is None:
        return None
    return Span(reference + product.begin, reference + product.step)


def spans_of(steps: Iterable[str], reference: datetime) -> dict[str, Span]:
    """Return when the fields of each step hold, without steps that are not understood or beyond belief."""
    ranges = {step: step_range(step) for step in steps}
    return {
        step: Span(reference + bounds[0], reference + bounds[1])
        for step, bounds in ranges.items()
        if bounds is not None and bounds[0] <= bounds[1] <= MAX_STEP
    }


def object_times(spans: Collection[Span]) -> tuple[datetime, datetime, datetime]:
    """Return start, end and datetime of an object whose fields hold in `spans`, of which there is at least one.

    With instants: the earliest and the latest, and the earliest again. Windows count only where there is no instant:
    begin and end of the longest (of equally long ones, of all), and the end again.
    """
    if instants := [span.end for span in spans if span.start == span.end]:
        return min(instants), max(instants), min(instants)
    longest = max(span.end - span.start for span in spans)
    windows = [span for span in spans if span.end - span.start == longest]
    end = max(window.end for window in windows)
    return min(window.start for window in windows), end, end
