"""GRIB2 parameters that NOAA publishes: unit, long name and special values, by their codes and by wgrib2's names.

Belongs here: the table and its look-up. Does not belong here: what an index says (`grib_index.py`).
`grib2_parameters.csv` states its sources in its first lines.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple

MRMS = 209
"""Discipline of NSSL's own table: its messages are no other model's, and no index names them."""
_UNNAMED = re.compile(r"var discipline=(\d{1,3}) .*parmcat=(\d{1,3}) parm=(\d{1,3})", re.ASCII)
"""What wgrib2 writes for a parameter that its own table lacks."""

Codes = tuple[int, int, int]
"""Discipline, parameter category and parameter number."""


class Parameter(NamedTuple):
    """A row of the table. `missing` and `no_coverage` are values of a field that are none; None where none are."""

    abbreviation: str
    unit: str
    name: str
    missing: int | None
    no_coverage: int | None
    period: str
    """ISO 8601 duration that each value is the sum, mean or maximum of; empty for an instant."""


@cache
def parameters() -> Mapping[Codes, Parameter]:
    """All parameters by their codes."""
    text = files("kfm_dagster.readers").joinpath("grib2_parameters.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {
        (int(row["discipline"]), int(row["category"]), int(row["number"])): Parameter(
            abbreviation=row["abbreviation"],
            unit=row["unit"],
            name=row["name"],
            missing=_number(row["missing"]),
            no_coverage=_number(row["no_coverage"]),
            period=row["period"],
        )
        for row in rows
    }


def named(text: str) -> Parameter | None:
    """Return the parameter that an index calls `text`, by abbreviation or by codes; None for one beyond the table."""
    if match := _UNNAMED.match(text):
        discipline, category, number = map(int, match.groups())
        return parameters().get((discipline, category, number))
    return _by_abbreviation().get(_OLDER_NAMES.get(text, text))


_OLDER_NAMES: Mapping[str, str] = {"CLWMR": "CLMR"}
"""Abbreviations of former releases of wgrib2."""


@cache
def _by_abbreviation() -> Mapping[str, Parameter]:
    """Parameters by abbreviation; of two that share one, the one of NCEP's local table is in NCEP's files."""
    ordered = sorted(parameters().items(), key=lambda row: row[0][2] >= _LOCAL)
    return {parameter.abbreviation: parameter for codes, parameter in ordered if codes[0] != MRMS}


_LOCAL = 192
"""First parameter number that WMO leaves to each centre."""


def _number(text: str) -> int | None:
    return int(text) if text else None
