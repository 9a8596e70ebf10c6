"""Reader of NetCDF files by CF: headers and positions, but not the values of fields.

Belongs here: the fields of an Item (of a grid, curvilinear or not, a mesh or points), and the file's agreement with the
key. Does not belong here: axes (`cf_axes.py`), the place of the values (`cf_places.py`), how NetCDF stores a header
(`netcdf_header.py`).

The key grammar's groups have fixed meanings here. `date` has the first digits of the file's time, such as YYYYMMDD.
`run` (YYYYMMDD) and `cycle` (HH) are the time of a model's run. `preliminary` or `final`, if present, is the file's
status. The groups of `_GROUPS` become properties `<prefix>:<group>`, unchanged; without a group `prefix`, the prefix is
the first word of the file's name, else `grid`. CF are the Climate and Forecast conventions, ACDD is the Attribute
Convention for Data Discovery.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import HeaderMetadata, ReadError, ReadRequest
from kfm_dagster.readers.cf_axes import axis_kind, ends, reference_time, time_axis, times
from kfm_dagster.readers.cf_places import Place, place
from kfm_dagster.readers.grib2_properties import duration
from kfm_dagster.readers.netcdf_header import NetcdfHeader, Variable, read_netcdf_header
from kfm_dagster.readers.stored_values import band_fields, shown_text

_ATTRIBUTES = (
    "title", "id", "product_version", "platform", "instrument", "processing_level", "date_created", "date_modified",
    "institution", "source",
)  # fmt: skip
"""Global attributes (ACDD 1.3) that become properties of an Item, as `acdd:<name>`."""
_GROUPS = ("product", "version", "status", "variable", "model", "domain", "configuration", "member", "lead")
"""Groups of the key that become properties of an Item."""
_LEVEL = re.compile(r"\b(?:Level ?|L)(\d[A-Za-z]?)\b")
_WORD = re.compile(r"[a-z][a-z0-9]{1,15}(?=[-_.])")

Findings = list[tuple[MetadataIssue, str]]
Interval = tuple[datetime, datetime]


def read_netcdf_grid(request: ReadRequest) -> HeaderMetadata:
    """Read the header of a NetCDF file and check it against its key. Conforms to `Reader`.

    The geometry is empty when neither axes, nor coordinates small enough to be read, nor attributes state the place.
    Raises ReadError: MISSING_GEOLOCATION for axes without a known place, INVALID_GEOMETRY, INVALID_TIME_RANGE,
    TIME_MISMATCH when the key has another date, and the errors of `read_netcdf_header`.
    """
    return read_netcdf_header(request.source, partial(_metadata, request))


def _metadata(request: ReadRequest, header: NetcdfHeader) -> HeaderMetadata:
    placed = place(header)
    clock = time_axis(header)
    valid = times(header, clock) if clock else None
    findings: Findings = []
    start, end = _interval(header, valid, findings)
    date = request.groups.get("date", "")
    if not rfc3339(start).translate({ord(sign): None for sign in "-:T"}).startswith(date):
        raise ReadError(MetadataIssue.TIME_MISMATCH, f"the file begins at {rfc3339(start)}, the key has {date}")
    variables = {name: asdict(variable) for name, variable in header.variables.items()}
    return HeaderMetadata(
        start=start,
        end=end,
        datetime=valid[0] if valid and valid[0] == valid[1] else start,
        geometry=placed.geometry,
        properties={
            **placed.properties,
            **_cube(header, placed, (start, end)),
            **_bands(header, placed.plane),
            **_texts(header),
            **(_forecast(header, valid, request.groups) if "run" in request.groups else {}),
            **_of_key(request),
        },
        native={
            "attributes": dict(header.attributes),
            "dimensions": dict(header.dimensions),
            "variables": variables,
            "time": valid,
        },
        findings=tuple(findings),
    )


def _forecast(header: NetcdfHeader, valid: Interval | None, groups: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of the forecast extension 0.2.0, by the file's run, else the key's run.

    Raises ReadError(TIME_MISMATCH) when the two runs differ and the key has a lead. The key of an analysis has no lead,
    and an analysis may begin hours before its run.
    """
    run, named = reference_time(header), datetime.strptime(groups["run"], "%Y%m%d").replace(tzinfo=UTC)
    named += timedelta(hours=int(groups.get("cycle", "0")))
    if run is not None and run != named and groups.get("lead"):
        raise ReadError(MetadataIssue.TIME_MISMATCH, f"the file's run is of {rfc3339(run)}, the key's {rfc3339(named)}")
    run = run or named
    lead = {"forecast:horizon": duration(valid[0] - run)} if valid and run <= valid[0] == valid[1] else {}
    return {"forecast:reference_datetime": rfc3339(run, timespec="seconds")} | lead


def _interval(header: NetcdfHeader, valid: Interval | None, findings: Findings) -> Interval:
    """Return the covered time by the file's attributes, else from its first to its last time."""
    names = ("time_coverage_start", "time_coverage_end")
    stated = tuple(moment for name in names if (moment := _moment(header.attributes.get(name))) is not None)
    if len(stated) == len(names):
        start, end = stated
        if valid and not start <= valid[0] <= valid[1] <= end:
            covered, times = (f"{rfc3339(first)} to {rfc3339(last)}" for first, last in (stated, valid))
            findings.append((MetadataIssue.TIME_MISMATCH, f"the file covers {covered}, but its times are {times}"))
    elif valid:
        start, end = valid
    else:
        attributes = {name: header.attributes.get(name) for name in names}
        raise ReadError(MetadataIssue.INVALID_TIME_RANGE, f"no known axis of times; the file has {attributes}")
    if end < start:
        raise ReadError(MetadataIssue.INVALID_TIME_RANGE, f"the file ends at {end} before it starts at {start}")
    return start, end


def _moment(value: object) -> datetime | None:
    """Return the time of an ISO 8601 text (ACDD 1.3); a text without a zone is in UTC."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
        return moment and (moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (OverflowError, ValueError):
        return None


def _cube(header: NetcdfHeader, placed: Place, covered: Interval) -> dict[str, Any]:
    """Return the fields of the datacube extension 2.2.0; axes are dimensions, not variables."""
    axes = header.axes
    variables = {name: variable for name, variable in header.variables.items() if axes.get(name) is not variable}
    auxiliary = set(_auxiliary(header))
    dimensions = {name: _dimension(header, name, placed, covered) for name in header.dimensions}
    descriptions = {
        name: {
            "dimensions": list(variable.dimensions),
            "type": "auxiliary" if name in auxiliary else "data",
            **_description(variable),
        }
        for name, variable in variables.items()
    }
    return {"cube:dimensions": dimensions} | ({"cube:variables": descriptions} if descriptions else {})


def _auxiliary(header: NetcdfHeader) -> Iterator[str]:
    """Yield the names of variables that locate other variables' values (CF 5, 5.6, 7.1)."""
    for variable in header.variables.values():
        for attribute in ("coordinates", "bounds", "grid_mapping"):
            yield from variable.text(attribute).replace(":", " ").split()


def _bands(header: NetcdfHeader, plane: tuple[str, str] | None) -> dict[str, Any]:
    """Return the STAC bands: variables with a single layer of rows and columns, as in GDAL."""
    layers = {
        name: variable
        for name, variable in header.variables.items()
        if variable.dimensions[-2:] == plane and all(header.dimensions[axis] == 1 for axis in variable.dimensions[:-2])
    }
    bands = [{"name": name, **band_fields(layer.data_type, layer.attributes)} for name, layer in layers.items()]
    return {"bands": bands} if bands else {}


def _dimension(header: NetcdfHeader, name: str, placed: Place, covered: Interval) -> dict[str, Any]:
    """Return a Dimension Object; its extent is between the centres of the outermost cells."""
    axis = header.axes.get(name)
    kind = axis_kind(axis) if axis else None
    values = ends(header, name) if axis else None
    if axis and kind == "t":
        # The extent is in texts, so the unit of the stored times does not apply.
        description = {key: value for key, value in _description(axis).items() if key == "description"}
        moments = times(header, name) or covered
        return {"type": "temporal", "extent": [rfc3339(moment) for moment in moments], **description}
    if axis is None or values is None:
        return {"type": "index", "extent": [0, max(header.dimensions[name] - 1, 0)]}
    if kind is None:
        return {"type": "axis", "extent": sorted(values), **_description(axis)}
    more: dict[str, Any] = {"step": placed.steps[name]} if name in placed.steps else {}
    if name in placed.steps and placed.reference_system:
        more["reference_system"] = placed.reference_system
    return {"type": "spatial", "axis": kind, "extent": sorted(values), **more, **_description(axis)}


def _description(variable: Variable) -> dict[str, str]:
    """Return description and unit of a variable, without the absent ones."""
    description = shown_text(variable.text("long_name")) or shown_text(variable.text("standard_name"))
    texts = {"description": description, "unit": shown_text(variable.text("units"))}
    return {name: text for name, text in texts.items() if text}


def _texts(header: NetcdfHeader) -> dict[str, str]:
    """Return global attributes as `acdd:<name>`, and the level of the processing extension."""
    texts = {name: shown_text(value) for name in _ATTRIBUTES if isinstance(value := header.attributes.get(name), str)}
    properties = {f"acdd:{name.replace('_', '-')}": text for name, text in texts.items() if text}
    if level := _LEVEL.search(texts.get("processing_level", "")):
        properties["processing:level"] = f"L{level[1].upper()}"
    return properties


def _of_key(request: ReadRequest) -> dict[str, str]:
    """Return the key's groups as properties `<prefix>:<name>`."""
    match, groups = _WORD.match(request.key.rpartition("/")[2]), request.groups
    word = groups.get("prefix") or (match[0] if match else "grid")
    properties = {name: groups[name] for name in _GROUPS if groups.get(name)}
    status = [name for name in ("preliminary", "final") if groups.get(name)]
    properties |= {"status": status[0]} if status else {}
    return {f"{word}:{name}": text for name, text in properties.items()}
