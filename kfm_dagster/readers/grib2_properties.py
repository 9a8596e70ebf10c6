"""GRIB2 metadata of an Item: STAC properties and native values by header, grid and key.

Belongs here: names, units and code tables (WMO-No. 306, volume I.2), and NOAA's parameters: `grib2_parameters.csv`
states its sources in its first lines. Does not belong here: the agreement of key, sidecar and messages (`grib2.py`),
octets (`grib2_sections.py`), grids (`grib2_grids.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, NamedTuple

from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.readers.base import ReadRequest, table
from kfm_dagster.readers.grib2_grids import Grid
from kfm_dagster.readers.grib2_sections import GribMessage

MRMS = 209
"""Discipline of NSSL's own table. Only MRMS's messages have it, and no index lists these messages."""
_UNNAMED = re.compile(r"var discipline=(\d{1,3}) .*parmcat=(\d{1,3}) parm=(\d{1,3})", re.ASCII)
"""wgrib2's name of a parameter that its table lacks."""

Codes = tuple[int, int, int]
"""Discipline, parameter category and parameter number."""


class Parameter(NamedTuple):
    """A row of the table; `missing` and `no_coverage` are codes among a field's values."""

    abbreviation: str
    unit: str
    name: str
    missing: int | None
    no_coverage: int | None
    period: str
    """ISO 8601 duration of the sum, mean or maximum; empty for an instant."""


@cache
def parameters() -> Mapping[Codes, Parameter]:
    """Return all parameters by their codes."""
    return {
        (int(row["discipline"]), int(row["category"]), int(row["number"])): Parameter(
            abbreviation=row["abbreviation"],
            unit=row["unit"],
            name=row["name"],
            missing=_number(row["missing"]),
            no_coverage=_number(row["no_coverage"]),
            period=row["period"],
        )
        for row in table("grib2_parameters.csv")
    }


def named(text: str) -> Parameter | None:
    """Return the parameter that an index names by abbreviation or codes, if the table has it."""
    if match := _UNNAMED.match(text):
        discipline, category, number = map(int, match.groups())
        return parameters().get((discipline, category, number))
    return _by_abbreviation().get(_OLDER_NAMES.get(text, text))


_OLDER_NAMES: Mapping[str, str] = {"CLWMR": "CLMR"}
"""Abbreviations of former releases of wgrib2."""


@cache
def _by_abbreviation() -> Mapping[str, Parameter]:
    """Return parameters by abbreviation; NCEP's local table has priority, as in NCEP's files."""
    ordered = sorted(parameters().items(), key=lambda row: row[0][2] >= LOCAL)
    return {parameter.abbreviation: parameter for codes, parameter in ordered if codes[0] != MRMS}


LOCAL = 192
"""First parameter number that WMO leaves to each centre."""


def _number(text: str) -> int | None:
    return int(text) if text else None


NAMED_GROUPS = ("model", "region", "product", "period", "resolution", "level", "member")
"""Groups of the key that become properties unchanged."""

CENTRES: Mapping[int, str] = {7: "kwbc", 34: "rjtd", 54: "cwao", 74: "egrr", 78: "edzw", 98: "ecmf"}
"""ecCodes' abbreviations of centres by common code table C-11; other centres have their number."""

PRODUCTION_STATUS: Mapping[int, str] = {0: "operational", 1: "test", 2: "research", 3: "reanalysis"}
"""Names of production statuses (code table 1.3)."""

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
"""Names of types of data (code table 1.4)."""

OBSERVATIONS = frozenset({6, 7})
"""Codes of table 1.4 for data valid at their reference time: these are not forecasts."""

_MODEL = re.compile(r"[a-z][a-z0-9]{1,15}(?=[._])")


def properties(
    request: ReadRequest,
    first: GribMessage,
    grid: Grid,
    *,
    messages: int | None,
    variables: Sequence[str],
    horizon: timedelta | None,
) -> dict[str, Any]:
    """Return the known STAC properties; `horizon` is the time from reference to datetime."""
    optional: dict[str, Any] = {
        "proj:wkt2": grid.wkt2,
        "proj:shape": list(grid.shape),
        # The rows of a Gaussian grid have no transform.
        "proj:transform": list(grid.transform) if grid.parallels is None else None,
        "proj:bbox": list(grid.proj_bbox) if grid.parallels is None else None,
        "grib:gaussian-parallels": grid.parallels,
        "grib:edition": 2,
        "grib:discipline": first.discipline,
        "grib:centre": CENTRES.get(first.centre, str(first.centre)),
        "grib:centre-code": first.centre,
        "grib:subcentre": first.subcentre,
        "grib:production-status": PRODUCTION_STATUS.get(first.production_status),
        "grib:data-type": DATA_TYPES.get(first.data_type),
        "grib:grid-template": grid.template,
        "grib:message-count": messages,
        "grib:variables": list(variables) or None,
        "bands": _bands(request, first),
    }
    if horizon or first.data_type not in OBSERVATIONS:
        optional["forecast:reference_datetime"] = rfc3339(first.reference, timespec="seconds")
        optional["forecast:horizon"] = None if horizon is None else duration(horizon)
    values = {name: value for name, value in optional.items() if value is not None}
    # Null means "no EPSG code", which differs from an absent field (projection extension 2.0).
    return values | {"proj:code": None} | _of_key(request)


def _bands(request: ReadRequest, first: GribMessage) -> list[dict[str, Any]] | None:
    """Return an MRMS object's single band; None for a parameter without special values."""
    parameter = parameters().get((first.discipline, first.product.category, first.product.number))
    if parameter is None or parameter.no_coverage is None:
        return None
    # Codes among the values of a field (classification extension 2.0.0).
    names: dict[int | None, str] = {parameter.missing: "missing"}
    same_code = parameter.no_coverage in names
    names[parameter.no_coverage] = "missing-or-no-coverage" if same_code else "no-coverage"
    band = {
        "name": request.groups.get("product", parameter.abbreviation),
        "description": parameter.name,
        "unit": parameter.unit,
        "nodata": parameter.no_coverage,
        "classification:classes": [{"value": value, "name": name, "nodata": True} for value, name in names.items()],
        "mrms:period": parameter.period,
    }
    return [{name: value for name, value in band.items() if value != ""}]


def _of_key(request: ReadRequest) -> dict[str, Any]:
    """Return the key's groups as `<prefix>:<name>`.

    The prefix is the text of the group `prefix`, else the first word of the key, else of the file's name, else `grib`.
    """
    match = _MODEL.match(request.key) or _MODEL.match(request.key.rpartition("/")[2].lower())
    groups = request.groups
    prefix = groups.get("prefix") or (match[0] if match else "grib")
    values: dict[str, Any] = {name: groups[name] for name in NAMED_GROUPS if groups.get(name)}
    if groups.get("cycle", "").isdecimal():
        values["cycle"] = int(groups["cycle"][:2])
    if groups.get("lead"):
        values["lead-hours"] = int(groups["lead"])
    return {f"{prefix}:{name}": value for name, value in values.items()}


def duration(value: timedelta) -> str:
    """Return an ISO 8601 duration in whole hours, else minutes, else seconds: `PT12H`, `PT495M`."""
    seconds = int(value.total_seconds())
    if seconds % 3600 == 0:
        return f"PT{seconds // 3600}H"
    return f"PT{seconds // 60}M" if seconds % 60 == 0 else f"PT{seconds}S"


def native(first: GribMessage, grid: Grid) -> dict[str, Any]:
    """Return the first message's values by ecCodes' keys; dates are YYYYMMDD, times HHMM."""
    product, reference = first.product, first.reference
    valid = None if product.step is None else reference + product.step
    return {
        "edition": 2,
        "offset": first.offset,
        "length": first.length,
        "discipline": first.discipline,
        "centre": CENTRES.get(first.centre, str(first.centre)),
        "subCentre": first.subcentre,
        "dataDate": int(f"{reference:%Y%m%d}"),
        "dataTime": int(f"{reference:%H%M}"),
        "validityDate": None if valid is None else int(f"{valid:%Y%m%d}"),
        "validityTime": None if valid is None else int(f"{valid:%H%M}"),
        "productDefinitionTemplateNumber": product.template,
        "dataRepresentationTemplateNumber": first.packing,
        "parameterCategory": product.category,
        "parameterNumber": product.number,
        # Not a key of ecCodes: discipline, category and number together, as tables of parameters have them.
        "parameter": f"{first.discipline}.{product.category}.{product.number}",
        **product.origin,
        "forecastTime": product.forecast_time,
        "typeOfFirstFixedSurface": product.surface_type,
        "level": product.level,
        **grid.native,
    }
