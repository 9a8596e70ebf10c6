"""GRIB2 reader: metadata of a model's file from its index and its first message's header.

Belongs here: `read_grib2`, and the agreement of key, sidecar and messages. Does not belong here: octets
(`grib2_sections.py`), grids (`grib2_grids.py`), index lines (`grib_index.py`), names (`grib2_properties.py`).

An object with an index costs three range requests: the first message's header (4 KiB), the index, and the last message.
The object is whole only if the last message has its stated length and ends with an end mark. Both are checked: an
object may be cut where packed data contain `7777`, and may have its full size before its last bytes are written. A last
message over LAST_MESSAGE_BYTES costs two requests: for its start and for its end.

Without an index, an object of any size is walked from message to message, with one request for a message, or two if its
bit map is long. If the dataset has no indexes, the fields have the names that wgrib2 would give them
(`grib2_names.py`). If there are more than WALK_MESSAGES messages, the walk ends there: the object's end is checked, a
finding states that the other messages were not walked, and no field is named.

The key grammar's groups have fixed meanings here. The run is `date` (YYYYMMDD) with `cycle` (HH, HHMM or HHMMSS), or
with `time` (HHMMSS) if there are no cycles; `lead` is the number of forecast hours. The fields of a file are valid at
its lead, and accumulations end at it; fields of sub-hourly steps are valid within the hour before the lead. MRMS's
messages state one instant for an accumulation. The key states the window that ends at this instant: `hours` and
`minutes` are its length, `since` is the hour of the day when it begins.

An object's time is the time of its fields, with an index and without; the run is a property.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ByteSource, HeaderMetadata, Layer, ReadError, ReadRequest
from kfm_dagster.readers.grib2_cube import cube
from kfm_dagster.readers.grib2_grids import describe_grid
from kfm_dagster.readers.grib2_names import layers_of
from kfm_dagster.readers.grib2_properties import duration, named, native, parameters, properties
from kfm_dagster.readers.grib2_sections import (
    REQUEST_BYTES,
    SEARCH_BYTES,
    STRAY_BYTES,
    GribMessage,
    HeaderWindow,
    Span,
    check_end,
    check_tail,
    find_message,
    message_length,
    read_fields,
    read_message,
    states_length,
)
from kfm_dagster.readers.grib_index import (
    IndexEntry,
    latest_step,
    layers,
    order_fault,
    read_index,
    reference_fault,
    spans_of,
    step_end,
)

INDEX_SUFFIX = ".idx"

FIRST_BYTES = REQUEST_BYTES
"""Length of the first request for an object."""
LAST_MESSAGE_BYTES = 2 * 1024 * 1024
"""A last message up to this size is requested whole. Last messages of HRRR, GFS and NBM have 0.03 to 1.8 MB; their
transfer takes about as long as the request that is saved: S3 gives 85 to 90 MB/s a connection, and answers within tens
of milliseconds (AWS, "Performance guidelines for Amazon S3")."""
WALK_MESSAGES = 256
"""Maximum messages walked without an index, at tens of milliseconds each; every field of a message counts. HRRR surface
files have 173; files of pressure and native levels have 700 to 1,200, and always have an index."""
MAX_VARIABLES = 200
"""Maximum names in `grib:variables`; real indexes have up to 97 (HRRR)."""

Findings = list[tuple[MetadataIssue, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """Known messages of an object; `messages` is their number, None when there may be more."""

    messages: int | None
    spans: frozenset[Span] = frozenset()
    variables: tuple[str, ...] = ()
    layers: tuple[Layer, ...] = ()
    indexed: bool = False
    fields: tuple[GribMessage, ...] = ()
    """Fields of messages that were walked."""


TakeInventory = Callable[[HeaderWindow, GribMessage, timedelta | None, Findings], Inventory]
"""A function that reads an object's inventory, given the key's lead, and adds findings. Raises ReadError."""


def read_grib2(request: ReadRequest) -> HeaderMetadata:
    """Read the header of a GRIB edition 2 object. Conforms to `Reader`; raises ReadError."""

    def listed(window: HeaderWindow, first: GribMessage, lead: timedelta | None, findings: Findings) -> Inventory:
        return _from_index(request, window, first, lead, findings) or _from_walk(request, window, first, findings)

    return describe(request, request.source, take_inventory=listed)


def describe(request: ReadRequest, source: ByteSource, *, take_inventory: TakeInventory) -> HeaderMetadata:
    """Read the messages of a source: the object, or its unpacked content. Raises ReadError."""
    window = HeaderWindow(source)
    offset = find_message(window, 0)
    if offset is None:
        raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"no GRIB message within the first {SEARCH_BYTES} bytes")
    first = read_message(window, offset)
    grid = describe_grid(first.grid)
    findings: Findings = []
    if grid.fault is not None:
        findings.append((MetadataIssue.INVALID_GEOMETRY, grid.fault))
    lead = _lead(request.groups)
    _check_run(first, request.groups, findings)
    _check_step(first, lead, findings)
    inventory = take_inventory(window, first, lead, findings)
    reference = first.reference
    spans = {_window(span, request.groups) for span in _spans(inventory.spans, first, lead)}
    start, end, moment = _object_times(spans) if spans else (reference, reference, reference)
    horizon = moment - reference if spans else None
    if horizon is not None and horizon < timedelta(0):
        findings.append((MetadataIssue.TIME_MISMATCH, f"the fields are valid {duration(-horizon)} before their run"))
        horizon = None
    return HeaderMetadata(
        start=start,
        end=end,
        datetime=moment,
        geometry=grid.geometry,
        properties={
            **properties(
                request,
                first,
                grid,
                messages=inventory.messages,
                variables=inventory.variables,
                horizon=horizon,
            ),
            **cube(grid, inventory.layers, reference=reference, valid={span.end for span in spans} or {moment}),
        },
        native=native(first, grid),
        findings=tuple(findings),
        sidecars=(INDEX_SUFFIX,) if inventory.indexed else (),
        layers=inventory.layers,
    )


def _object_times(spans: Collection[Span]) -> tuple[datetime, datetime, datetime]:
    """Return start, end and datetime of an object, from at least one span of its fields.

    With instants, start and datetime are the earliest, end is the latest. With windows only, start and end span the
    longest windows, and datetime is the end.
    """
    if instants := [span.end for span in spans if span.start == span.end]:
        return min(instants), max(instants), min(instants)
    longest = max(span.end - span.start for span in spans)
    windows = [span for span in spans if span.end - span.start == longest]
    end = max(window.end for window in windows)
    return min(window.start for window in windows), end, end


def _spans(of_fields: Iterable[Span], first: GribMessage, lead: timedelta | None) -> set[Span]:
    """Return the times of all fields and of the first message, else the time of lead or step."""
    spans = {*of_fields, *filter(None, [first.span])}
    step = first.product.step if lead is None else lead
    if not spans and step is not None:
        moment = first.reference + step
        return {Span(moment, moment)}
    return spans


def _window(span: Span, groups: Mapping[str, str]) -> Span:
    """Return the key's window, which ends with the field; else the field's own times."""
    if groups.get("since"):
        # A field exactly at this hour gets the 24 hours before it, not an empty window.
        hour = span.end.replace(hour=int(groups["since"]), minute=0, second=0)
        return Span(hour if hour < span.end else hour - timedelta(days=1), span.end)
    length = timedelta(hours=int(groups.get("hours", 0)), minutes=int(groups.get("minutes", 0)))
    return Span(span.end - length, span.end) if length else span


def _lead(groups: Mapping[str, str]) -> timedelta | None:
    text = groups.get("lead", "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 4):
        raise ReadError(MetadataIssue.INVALID_TIME_RANGE, f"lead {text!r} of the key is not a number of hours")
    return timedelta(hours=int(text))


def _check_run(first: GribMessage, groups: Mapping[str, str], findings: Findings) -> None:
    clock = groups.get("cycle", groups.get("time"))
    if "date" not in groups or clock is None:
        return
    digits = groups["date"] + clock
    reference = f"{first.reference:%Y%m%d%H%M%S}"
    if not digits or reference != digits.ljust(14, "0"):
        text = f"the key is of the run {digits}, the first message is of {reference}"
        findings.append((MetadataIssue.TIME_MISMATCH, text))


def _check_step(first: GribMessage, lead: timedelta | None, findings: Findings) -> None:
    step = first.product.step
    if lead is None or step is None:
        return
    if not lead - timedelta(hours=1) < step <= lead:
        text = f"the key has lead {duration(lead)}, the first message is valid at {duration(step)}"
        findings.append((MetadataIssue.TIME_MISMATCH, text))


def _from_index(
    request: ReadRequest, window: HeaderWindow, first: GribMessage, lead: timedelta | None, findings: Findings
) -> Inventory | None:
    """Return the sidecar's inventory; None if no sidecar matches.

    Adds a finding before it returns None, unless the sidecar is missing and the object states its own length.
    """
    sidecar = request.sidecar(INDEX_SUFFIX)
    if sidecar is None:
        if not states_length(window):
            findings.append((MetadataIssue.SIDECAR_MISSING, f"there is no {INDEX_SUFFIX} beside the object"))
        return None
    try:
        entries = read_index(sidecar)
        if fault := next(_index_faults(entries, window, first), None):
            raise ReadError(MetadataIssue.SIDECAR_MISMATCH, fault)  # noqa: TRY301, handled like a fault of the index
        end = _end_of_last(window, entries[-1].offset)
    except ReadError as error:
        if error.code is not MetadataIssue.SIDECAR_MISMATCH:
            raise
        findings.append((error.code, str(error)))
        return None
    latest = latest_step(entries)
    if lead is not None and latest > lead:
        text = f"the key has lead {duration(lead)}, the index has fields valid at {duration(latest)}"
        findings.append((MetadataIssue.TIME_MISMATCH, text))
    spans = spans_of({entry.step for entry in entries}, first.reference)
    return Inventory(
        messages=len({entry.message for entry in entries}),
        spans=frozenset(spans.values()),
        variables=tuple(sorted({entry.variable for entry in entries})[:MAX_VARIABLES]),
        layers=layers(entries, end=end),
        indexed=True,
    )


def _from_walk(request: ReadRequest, window: HeaderWindow, first: GribMessage, findings: Findings) -> Inventory:
    inventory = walk(window, first)
    if inventory.messages is None:
        text = f"no index lists the messages; without an index only {WALK_MESSAGES} are followed"
        findings.append((MetadataIssue.COMPLETENESS_UNCHECKED, text))
    if request.has_sidecars:
        return inventory
    named_layers = layers_of(inventory.fields, first)
    variables = sorted({layer.variable for layer in named_layers})
    return replace(inventory, layers=named_layers, variables=tuple(variables[:MAX_VARIABLES]))


def walk(window: HeaderWindow, first: GribMessage) -> Inventory:
    """Walk up to WALK_MESSAGES messages; beyond them, check the object's end. Raises ReadError."""
    fields = list(islice(read_fields(window, first.offset), WALK_MESSAGES + 1))
    spans = frozenset(span for field in fields if (span := field.span))
    if len(fields) > WALK_MESSAGES:
        check_tail(window)
        return Inventory(messages=None, spans=spans)
    return Inventory(messages=len({field.offset for field in fields}), spans=spans, fields=tuple(fields))


def _index_faults(entries: tuple[IndexEntry, ...], window: HeaderWindow, first: GribMessage) -> Iterator[str]:
    """Yield contradictions between index and first message; none if the index may match."""
    head, last = entries[0], entries[-1]
    for fault in (order_fault(entries), reference_fault(entries, first.reference)):
        if fault is not None:
            yield fault
    if head.offset != first.offset:
        yield f"the index starts at byte {head.offset}, the first message at {first.offset}"
    if last.offset >= window.size:
        yield f"the index has a message at byte {last.offset}, the object ends at {window.size}"
    following = next((entry.offset for entry in entries if entry.message != head.message), window.size)
    if not 0 <= following - first.end <= SEARCH_BYTES:
        yield f"the first message ends at byte {first.end}, the index has the next at {following}"
    stated, step = step_end(head.step), first.product.step
    if stated is not None and step is not None and stated != step:
        yield f"the index has {head.step!r} for the first message, which is valid at {duration(step)}"
    index_parameter = named(head.variable)
    parameter = parameters().get((first.discipline, first.product.category, first.product.number))
    if index_parameter is not None and parameter is not None and index_parameter.abbreviation != parameter.abbreviation:
        yield f"the index has {head.variable!r} for the first message, which is of {parameter.abbreviation}"


def _end_of_last(window: HeaderWindow, start: int) -> int:
    """Return the end of the index's last message.

    Raises ReadError: SIDECAR_MISMATCH if no message starts at `start`, or if bytes follow the message; TRUNCATED_OBJECT
    if the message is cut.
    """
    if window.size - start <= LAST_MESSAGE_BYTES:
        window.hold(start, window.size - start)
    if find_message(window, start) != start:
        raise ReadError(
            MetadataIssue.SIDECAR_MISMATCH, f"the index has a message at byte {start}, the object has none there"
        )
    end = start + message_length(window, start)[1]
    check_end(window, end)
    if window.size - end > STRAY_BYTES:
        raise ReadError(
            MetadataIssue.SIDECAR_MISMATCH,
            f"the last message of the index ends at byte {end}, the object ends at {window.size}",
        )
    return end
