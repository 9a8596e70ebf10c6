"""GRIB2 reader: metadata of a forecast or analysis file from its index sidecar and its first message's header.

Belongs here: `read_grib2`, and what the key, the sidecar and the message must agree on. Does not belong here: octets
(`grib2_sections.py`), grids (`grib2_grids.py`), index lines (`grib_index.py`).

An object with an index costs four range requests: the index, the first message's header (4 KiB), the start of the last
message and its end, which tell whether the object is whole. Without one, the inventory is what the first message says;
the object is walked from message to message, one request each, whatever its size. Of more than WALK_MESSAGES messages
only the object's end is looked at: then its completeness is unchecked, which is a finding.

The key grammar's groups have fixed meanings here: `date` (YYYYMMDD) and `cycle` (HH, HHMM or HHMMSS) are the run, and
`lead` the forecast hours that the file is named for. A file holds fields that are valid within the hour before its lead
(sub-hourly steps) or at it (all others; accumulations end at it).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ByteSource, HeaderMetadata, ReadError, ReadRequest
from kfm_dagster.readers.grib2_grids import Grid, describe_grid
from kfm_dagster.readers.grib2_sections import (
    REQUEST_BYTES,
    SEARCH_BYTES,
    GribMessage,
    HeaderWindow,
    check_end,
    check_tail,
    count_messages,
    find_message,
    message_length,
    read_message,
)
from kfm_dagster.readers.grib_index import (
    IndexEntry,
    latest_step,
    order_fault,
    read_index,
    reference_fault,
    step_end,
)

INDEX_SUFFIX = ".idx"

FIRST_BYTES = REQUEST_BYTES
"""Of an object, by its first request."""
WALK_MESSAGES = 256
"""Messages that are walked without an index, at tens of milliseconds each. HRRR surface files have 173; files of
pressure and native levels have 700 to 1,200, and always an index in the end."""
MAX_VARIABLES = 200
"""Names in `grib:variables`; the largest real index (GFS 0.25 degrees) has 69."""

PROPERTIES = frozenset({
    "forecast:reference_datetime", "forecast:horizon", "proj:code", "proj:wkt2", "proj:shape", "proj:transform",
    "proj:bbox", "grib:edition", "grib:discipline", "grib:centre", "grib:centre-code", "grib:subcentre",
    "grib:production-status", "grib:data-type", "grib:grid-template", "grib:message-count", "grib:variables",
    "*:region", "*:product", "*:member", "*:cycle", "*:lead-hours",
})  # fmt: skip
"""What an object can have; a name with `*` begins with its model's."""

CENTRES: Mapping[int, str] = {7: "kwbc", 34: "rjtd", 54: "cwao", 74: "egrr", 78: "edzw", 98: "ecmf"}
"""Common code table C-11 to ecCodes' abbreviation; other centres go by their number."""

PRODUCTION_STATUS: Mapping[int, str] = {0: "operational", 1: "test", 2: "research", 3: "reanalysis"}
"""Code table 1.3."""

DATA_TYPES: Mapping[int, str] = {
    0: "analysis",
    1: "forecast",
    2: "analysis and forecast",
    3: "control forecast",
    4: "perturbed forecast",
    5: "control and perturbed forecast",
    6: "processed satellite observations",
    7: "processed radar observations",
}
"""Code table 1.4."""

MODEL_PREFIXES: Mapping[str, str] = {"blend": "nbm", "gdas": "gfs"}
"""Models whose keys start with another word than their STAC properties."""

_KEY_MODEL = re.compile(r"[a-z][a-z0-9]{1,15}(?=[._])")

Findings = list[tuple[MetadataIssue, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Inventory:
    """What is known of the object's messages; `messages` is None when there may be more than were looked at."""

    messages: int | None
    variables: tuple[str, ...] = ()
    indexed: bool = False


def read_grib2(request: ReadRequest) -> HeaderMetadata:
    """Read the header of a GRIB edition 2 object. Conforms to `Reader`; raises ReadError."""
    window = HeaderWindow(request.source)
    start = find_message(window, 0)
    if start is None:
        raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"no GRIB message within the first {SEARCH_BYTES} bytes")
    first = read_message(window, start)
    grid = describe_grid(first.grid)
    findings: Findings = []
    lead = _lead(request.groups)
    _check_run(first, request.groups, findings)
    _check_step(first, lead, findings)
    inventory = _inventory(request, window, first, lead, findings)
    horizon = lead if lead is not None else first.product.step
    reference = first.identification.reference
    end = reference if horizon is None else reference + horizon
    return HeaderMetadata(
        start=reference,
        end=end,
        datetime=end,
        geometry=grid.geometry,
        properties=_properties(request, first, grid, inventory, horizon),
        native=_native(first, grid),
        findings=tuple(findings),
        sidecars=(INDEX_SUFFIX,) if inventory.indexed else (),
    )


def _lead(groups: Mapping[str, str]) -> timedelta | None:
    text = groups.get("lead", "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 4):
        raise ReadError(MetadataIssue.INVALID_TIME_RANGE, f"lead {text!r} of the key is no number of hours")
    return timedelta(hours=int(text))


def _check_run(first: GribMessage, groups: Mapping[str, str], findings: Findings) -> None:
    if "date" not in groups or "cycle" not in groups:
        return
    digits = groups["date"] + groups["cycle"]
    reference = f"{first.identification.reference:%Y%m%d%H%M%S}"
    if not digits or reference != digits.ljust(14, "0"):
        text = f"the key is of the run {digits}, the first message of {reference}"
        findings.append((MetadataIssue.TIME_MISMATCH, text))


def _check_step(first: GribMessage, lead: timedelta | None, findings: Findings) -> None:
    step = first.product.step
    if lead is None or step is None:
        return
    if not lead - timedelta(hours=1) < step <= lead:
        text = f"the key has lead {_duration(lead)}, the first message is valid at {_duration(step)}"
        findings.append((MetadataIssue.TIME_MISMATCH, text))


def _inventory(
    request: ReadRequest, window: HeaderWindow, first: GribMessage, lead: timedelta | None, findings: Findings
) -> _Inventory:
    """Inventory from the sidecar when it belongs to the object, else from the object."""
    sidecar = request.sidecar(INDEX_SUFFIX)
    entries = None
    if sidecar is None:
        findings.append((MetadataIssue.SIDECAR_MISSING, f"there is no {INDEX_SUFFIX} beside the object"))
    else:
        entries = _own_index(sidecar, window, first, findings)
    if entries is not None:
        latest = latest_step(entries)
        if lead is not None and latest > lead:
            text = f"the key has lead {_duration(lead)}, the index has fields valid at {_duration(latest)}"
            findings.append((MetadataIssue.TIME_MISMATCH, text))
        variables = tuple(sorted({entry.variable for entry in entries})[:MAX_VARIABLES])
        return _Inventory(messages=len({entry.message for entry in entries}), variables=variables, indexed=True)
    messages = count_messages(window, first, at_most=WALK_MESSAGES)
    if messages is None:
        check_tail(window)
        text = f"no index lists the messages, which are more than the {WALK_MESSAGES} that are followed without one"
        findings.append((MetadataIssue.COMPLETENESS_UNCHECKED, text))
    return _Inventory(messages=messages)


def _own_index(
    sidecar: ByteSource, window: HeaderWindow, first: GribMessage, findings: Findings
) -> tuple[IndexEntry, ...] | None:
    """Read an index; None, with a finding, when it is none or of another object."""
    try:
        entries = read_index(sidecar)
    except ReadError as error:
        if error.code is not MetadataIssue.SIDECAR_MISMATCH:
            raise
        findings.append((error.code, str(error)))
        return None
    fault = next(_index_faults(entries, window, first), None)
    if fault is not None:
        findings.append((MetadataIssue.SIDECAR_MISMATCH, fault))
        return None
    return entries


def _index_faults(entries: tuple[IndexEntry, ...], window: HeaderWindow, first: GribMessage) -> Iterator[str]:
    """Say why the index is of another object, cheapest check first; nothing when it belongs.

    Raises ReadError(TRUNCATED_OBJECT) when the last message is cut.
    """
    head, last = entries[0], entries[-1]
    for fault in (order_fault(entries), reference_fault(entries, first.identification.reference)):
        if fault is not None:
            yield fault
    if head.offset != first.offset:
        yield f"the index starts at byte {head.offset}, the first message at {first.offset}"
    if last.offset >= window.size:
        yield f"the index has a message at byte {last.offset}, the object ends at {window.size}"
    following = next((entry.offset for entry in entries if entry.message != head.message), window.size)
    if not 0 <= following - first.end <= SEARCH_BYTES:
        yield f"the first message ends at byte {first.end}, the index goes on at {following}"
    told, read = step_end(head.step), first.product.step
    if told is not None and read is not None and told != read:
        yield f"the index has {head.step!r} for the first message, which is valid at {_duration(read)}"
    if find_message(window, last.offset) != last.offset:
        yield f"the index has a message at byte {last.offset}, the object has none there"
    end = last.offset + message_length(window, last.offset)[1]
    check_end(window, end)
    if window.size - end > SEARCH_BYTES:
        yield f"the last message of the index ends at byte {end}, the object at {window.size}"


def _properties(
    request: ReadRequest, first: GribMessage, grid: Grid, inventory: _Inventory, horizon: timedelta | None
) -> dict[str, Any]:
    identification = first.identification
    found: dict[str, Any] = {
        "forecast:reference_datetime": rfc3339(identification.reference, timespec="seconds"),
        "forecast:horizon": None if horizon is None else _duration(horizon),
        "proj:wkt2": grid.wkt2,
        "proj:shape": list(grid.shape),
        "proj:transform": None if grid.transform is None else list(grid.transform),
        "proj:bbox": None if grid.proj_bbox is None else list(grid.proj_bbox),
        "grib:edition": 2,
        "grib:discipline": first.discipline,
        "grib:centre": CENTRES.get(identification.centre, str(identification.centre)),
        "grib:centre-code": identification.centre,
        "grib:subcentre": identification.subcentre,
        "grib:production-status": PRODUCTION_STATUS.get(identification.production_status),
        "grib:data-type": DATA_TYPES.get(identification.data_type),
        "grib:grid-template": grid.template,
        "grib:message-count": inventory.messages,
        "grib:variables": list(inventory.variables) or None,
    }
    known = {name: value for name, value in found.items() if value is not None}
    # Null says "no EPSG code", which differs from saying nothing (projection extension 2.0).
    return known | {"proj:code": None} | _model_properties(request)


def _model_properties(request: ReadRequest) -> dict[str, Any]:
    """Name what the key says, as `<model>:<name>`: the model is the first word of the key, `grib` when it has none."""
    found = _KEY_MODEL.match(request.key)
    word = found[0] if found else "grib"
    prefix = MODEL_PREFIXES.get(word, word)
    groups = request.groups
    named: dict[str, Any] = {name: groups[name] for name in ("region", "product", "member") if groups.get(name)}
    if groups.get("cycle", "").isdecimal():
        named["cycle"] = int(groups["cycle"][:2])
    if groups.get("lead"):
        named["lead-hours"] = int(groups["lead"])
    return {f"{prefix}:{name}": value for name, value in named.items()}


def _duration(value: timedelta) -> str:
    """ISO 8601 duration in the largest of hours, minutes and seconds that is whole: `PT12H`, `PT495M`."""
    seconds = int(value.total_seconds())
    if seconds % 3600 == 0:
        return f"PT{seconds // 3600}H"
    return f"PT{seconds // 60}M" if seconds % 60 == 0 else f"PT{seconds}S"


def _native(first: GribMessage, grid: Grid) -> dict[str, Any]:
    identification, product = first.identification, first.product
    reference = identification.reference
    valid = None if product.step is None else reference + product.step
    return {
        "edition": 2,
        "offset": first.offset,
        "length": first.length,
        "discipline": first.discipline,
        "centre": CENTRES.get(identification.centre, str(identification.centre)),
        "subCentre": identification.subcentre,
        "dataDate": int(f"{reference:%Y%m%d}"),
        "dataTime": int(f"{reference:%H%M}"),
        "validityDate": None if valid is None else int(f"{valid:%Y%m%d}"),
        "validityTime": None if valid is None else int(f"{valid:%H%M}"),
        "productDefinitionTemplateNumber": product.template,
        "dataRepresentationTemplateNumber": first.packing,
        "parameterCategory": product.category,
        "parameterNumber": product.number,
        "forecastTime": product.forecast_time,
        "typeOfFirstFixedSurface": product.surface_type,
        "level": product.level,
        **grid.native,
    }
