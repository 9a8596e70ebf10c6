"""GRIB2 of any model: what ecCodes reads of the first field, and of every point of its grid."""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kfm_dagster.contracts.bounding_box import bounding_box
from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import HeaderMetadata
from kfm_dagster_tests.readers.truth.comparison import (
    Compared,
    Opened,
    RealObject,
    compares,
    degrees,
    near,
    same,
    seconds,
)

SAME_NAME = ("edition", "offset", "length", "discipline", "centre", "subCentre", "dataDate", "dataTime",
             "validityDate", "validityTime", "Ni", "Nj", "forecastTime")  # fmt: skip
OTHER_NAME = {
    "cat": "parameterCategory",
    "num": "parameterNumber",
    "fs1": "typeOfFirstFixedSurface",
    "gdt": "gridDefinitionTemplateNumber",
    "pdt": "productDefinitionTemplateNumber",
    "drt": "dataRepresentationTemplateNumber",
}
EXACT = 1e-9
ROTATED = MetadataIssue.MISSING_GEOLOCATION
"""Of template 3.32769, for which ecCodes has no positions either."""


def open_file(path: str, content: bytes, _: Mapping[str, Any]) -> Opened | None:
    """Open a file without a contract: decompressed, and of a key that says nothing. Indexes are no objects."""
    if path.endswith(".idx"):
        return None
    unpack = {".xz": lzma.decompress, ".gz": gzip.decompress}.get(Path(path).suffix, bytes)
    return path, {}, unpack(content)


def native_values(native: Mapping[str, Any], answers: Mapping[str, Any]) -> Iterator[Compared]:
    """The first field, and its grid."""
    field = answers["fields"][0]
    grid = answers["grids"][field["gridSha"]]
    for name in SAME_NAME:
        yield same(name, native[name], field[name])
    for name, ours in OTHER_NAME.items():
        yield same(ours, native[ours], field[name])
    # ecCodes gives isobaric levels in hPa, and PV levels as the raw integer.
    if field["typeOfLevel"] != "potentialVorticity":
        scale = 100 if field["typeOfLevel"] == "isobaricInhPa" else 1
        yield same("level", native["level"], field["level"] * scale)
    for name in sorted(grid.keys() & native.keys()):
        yield near(name, native[name], grid[name], within=EXACT)
    sides = tuple(native[name] for name in ("longitudeWest", "latitudeMin", "longitudeEast", "latitudeMax"))
    yield degrees("extent", sides, _extent(grid), within=EXACT)


def _extent(grid: Mapping[str, Any]) -> tuple[float, ...]:
    return tuple(grid[name] for name in ("lon_min_raw", "lat_min", "lon_max_raw", "lat_max"))


@compares(
    "hrrr", "aqm", "gefs", "gfs", "mrms", "nam", "nbm", "ndfd", "rap",
    reader="grib2", refused={"files/rap/": ROTATED}, open_file=open_file,
)  # fmt: skip
def grib2(real: RealObject, found: HeaderMetadata) -> Iterator[Compared]:
    answers = real.expected
    field = answers["fields"][0]
    yield from native_values(found.native, answers)
    box = bounding_box(found.geometry)
    if (box[0], box[2]) != (-180, 180):
        yield degrees("bbox", box, _extent(answers["grids"][field["gridSha"]]), within=EXACT)
    yield seconds("start", found.start, datetime.fromisoformat(field["refTime"]), within=0)
    # A file is named for its lead; alone it is valid when its first field is.
    if real.groups:
        valid = datetime.strptime(max(answers["validity"]), "%Y%m%d%H%M").replace(tzinfo=UTC)
        # It is said to the minute.
        yield seconds("datetime", found.datetime.replace(second=0), valid, within=0)
        yield same("grib:message-count", found.properties["grib:message-count"], answers["n_fields"])
