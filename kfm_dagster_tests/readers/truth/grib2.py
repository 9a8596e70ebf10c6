"""GRIB2 of any model: compare the first field and the extent of its points with ecCodes."""

from __future__ import annotations

import gzip
import lzma
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import eccodes

from kfm_dagster.contracts.bounding_box import bounding_box
from kfm_dagster.operators.metadata_extract import key_mismatches
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
    times,
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
ORIGIN = ("generatingProcessIdentifier", "typeOfEnsembleForecast", "perturbationNumber", "derivedForecast")
EXACT = 1e-9
ROTATED = 1e-5
"""Degrees; ecCodes rounds positions of rotated grids to microdegrees."""
CENTRE = {"latitudeOfLastGridPointInDegrees", "longitudeOfLastGridPointInDegrees"}
"""For template 3.32769 ecCodes has no positions, and states the grid's centre as the last point."""
WITHIN = {"rotated_ll": ROTATED, "regular_gg": 1e-3}
"""Degrees by grid type: NCEP rounds the latitudes of a Gaussian grid to millidegrees, ecCodes computes them."""


def open_file(path: str, content: bytes, _: Mapping[str, Any]) -> Opened | None:
    """Open a file without a contract: decompress it, with no groups of a key; None for an index."""
    if path.endswith(".idx"):
        return None
    unpack = {".xz": lzma.decompress, ".gz": gzip.decompress}.get(Path(path).suffix, bytes)
    return path, {}, unpack(content)


def native_values(native: Mapping[str, Any], answers: Mapping[str, Any]) -> Iterator[Compared]:
    """Compare the first field, and its grid."""
    field = answers["fields"][0]
    grid = answers["grids"][field["gridSha"]]
    for name in SAME_NAME:
        yield same(name, native[name], field[name])
    for name, ours in OTHER_NAME.items():
        yield same(ours, native[ours], field[name])
    yield same("parameter", native["parameter"], f"{field['discipline']}.{field['cat']}.{field['num']}")
    # ecCodes gives isobaric levels in hPa, PV levels as the raw integer, and 0 for a missing level.
    if field["typeOfLevel"] != "potentialVorticity":
        scale = 100 if field["typeOfLevel"] == "isobaricInhPa" else 1
        yield same("level", native["level"] or 0, field["level"] * scale)
    for name in sorted(grid.keys() & native.keys() - (CENTRE if "error" in grid else set())):
        yield near(name, native[name], grid[name], within=EXACT)
    sides = tuple(native[name] for name in ("longitudeWest", "latitudeMin", "longitudeEast", "latitudeMax"))
    yield from _box("extent", sides, grid)


def _box(name: str, box: tuple[float, ...], grid: Mapping[str, Any]) -> Iterator[Compared]:
    """Compare a box with that of ecCodes' points; over a pole our box is larger."""
    if "error" not in grid:
        # For a Mercator grid over Greenwich, minimum and maximum of the raw longitudes are not the sides.
        west, east = grid["first"][1], grid["last"][1]
        if not (grid["gridType"] == "mercator" and west > east):
            west, east = grid["lon_min_raw"], grid["lon_max_raw"]
        of_points = west, grid["lat_min"], east, grid["lat_max"]
        of_sides = slice(1, 2) if grid["gridType"] == "rotated_ll" and box[3] == 90 else slice(4)
        yield degrees(name, box[of_sides], of_points[of_sides], within=WITHIN.get(grid["gridType"], EXACT))


def _origin(content: bytes, native: Mapping[str, Any]) -> Iterator[Compared]:
    """Compare process and member, which the reference does not have, with ecCodes."""
    plain = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    handle = eccodes.codes_new_from_message(plain[native["offset"] :][: native["length"]])
    try:
        for name in ORIGIN:
            known = eccodes.codes_is_defined(handle, name)
            yield same(name, native.get(name), eccodes.codes_get(handle, name) if known else None)
    finally:
        eccodes.codes_release(handle)


@compares(
    "hrrr", "hrrr-subh", "aqm", "cfs", "gefs", "gfs", "gfs-sflux", "gfs-wave", "mrms", "nam", "nbm", "ndfd", "rap",
    "rotated-ll", "rrfs", "rtma",
    reader="grib2", open_file=open_file,
)  # fmt: skip
def grib2(real: RealObject, metadata: HeaderMetadata) -> Iterator[Compared]:
    answers = real.expected
    field = answers["fields"][0]
    yield from native_values(metadata.native, answers)
    yield from _origin(real.content, metadata.native)
    if real.contract is not None:
        yield same("key_mismatches", key_mismatches(metadata, real.groups, real.contract), [])
    box = bounding_box(metadata.geometry)
    if (box[0], box[2]) != (-180, 180):
        yield from _box("bbox", box, answers["grids"][field["gridSha"]])
    yield from times(metadata, *times_of(answers["fields"], real.key if real.groups else ""))
    run = metadata.properties.get("forecast:reference_datetime", field["refTime"])
    yield seconds("run", datetime.fromisoformat(run), datetime.fromisoformat(field["refTime"]), within=0)
    if dimensions := metadata.properties.get("cube:dimensions"):
        valid = [datetime.fromisoformat(text) for text in dimensions["valid_time"]["values"]]
        # The reference has no seconds.
        yield same("valid_time", [f"{moment:%Y%m%d%H%M}" for moment in valid], sorted(answers["validity"]))
    if layers := metadata.layers:
        ranges = [(field["offset"], field["length"]) for field in answers["fields"]]
        yield same("layers", [(layer.offset, layer.length) for layer in layers], ranges)
    if real.groups:
        yield same("grib:message-count", metadata.properties["grib:message-count"], answers["n_fields"])


def times_of(fields: Sequence[Mapping[str, Any]], key: str) -> tuple[datetime, datetime, datetime]:
    """Return start, end and datetime by ecCodes' step range or the window in MRMS's name."""
    windows: dict[timedelta, list[datetime]] = defaultdict(list)
    for field in fields:
        run = datetime.fromisoformat(field["refTime"])
        unit = timedelta(minutes=1) if field["stepUnits"] == "m" else timedelta(hours=1)
        first, _, last = field["stepRange"].replace("m", "").partition("-")
        begin, end = int(first) * unit, int(last or first) * unit
        # The step range of NDFD's older windows begins at their end; the validity time has the true end.
        valid = datetime.strptime(f"{field['validityDate']}{field['validityTime']:04}", "%Y%m%d%H%M").replace(
            tzinfo=UTC
        )
        end = min(end, valid - run) if last else end
        if named := re.search(r"_QPE_(\d\d)H", key):
            begin = end - timedelta(hours=int(named[1]))
        windows[end - begin] += [run + begin, run + end]
    moments = windows[timedelta(0)] if timedelta(0) in windows else windows[max(windows)]
    return min(moments), max(moments), min(moments) if timedelta(0) in windows else max(moments)
