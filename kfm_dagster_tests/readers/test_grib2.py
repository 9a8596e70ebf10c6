"""The GRIB2 reader: grids, indexes, times and names of fields, truncated and damaged objects."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import eccodes
import numpy as np
import pyproj
import pytest
import shapely
import shapely.geometry

from kfm_dagster.contracts.bounding_box import bounding_box
from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.demo.samples import cfs, gfs, hrrr, naqfc, ndfd
from kfm_dagster.demo.samples.grib2_messages import (
    SPHERE,
    Field,
    GridSection,
    Origin,
    at_hour,
    gaussian_grid,
    lat_lon_grid,
    mercator_grid,
    message,
    projected_grid,
    rotated_grid,
)
from kfm_dagster.readers.base import ReadError
from kfm_dagster.readers.geometry import first_column
from kfm_dagster.readers.grib2 import LAST_MESSAGE_BYTES
from kfm_dagster.readers.grib2_grids import describe_grid
from kfm_dagster.readers.grib2_properties import duration
from kfm_dagster_tests.readers.reading import Oversized, code_of, codes, header_of, patched
from kfm_dagster_tests.readers.truth.comparison import CountingSource

RUN = datetime(2025, 12, 3, 6, tzinfo=UTC)


read = partial(header_of, "grib2")
unindexed = partial(read, has_sidecars=False)


def groups_of(*, lead: int = 7, cycle: str = "06", day: str = "20251203") -> dict[str, str]:
    return {"date": day, "cycle": cycle, "lead": f"{lead:02d}", "region": "conus", "product": "sfc"}


def micro(degrees: float) -> int:
    """Return microdegrees with GRIB's sign bit."""
    return round(abs(degrees) * 1e6) | (0x80000000 if degrees < 0 else 0)


def latlon_grid(ni: int, nj: int, *, first: tuple[int, int], last: tuple[int, int], scan: int = 0) -> bytes:
    """Return section 3 (template 3.0) of a grid in degrees without increments."""
    (north, west), (south, east) = (map(micro, corner) for corner in (first, last))
    return lat_lon_grid(ni, nj, first=(north, west), last=(south, east), step=0).section[:-1] + bytes((scan,))


def test_the_bounding_box_of_a_grid_in_degrees_is_computed_from_its_corners() -> None:
    for case, (grid, bbox) in {
        "global": (latlon_grid(360, 181, first=(90, 0), last=(-90, 359)), (-180, -90, 180, 90)),
        "global closed": (latlon_grid(361, 181, first=(90, -180), last=(-90, 180)), (-180, -90, 180, 90)),
        "antimeridian": (latlon_grid(41, 21, first=(20, 170), last=(0, 210)), (170, 0, -150, 20)),
        "from the east": (latlon_grid(41, 21, first=(0, 210), last=(20, 170), scan=0xC0), (170, 0, -150, 20)),
        "most of a turn": (latlon_grid(301, 21, first=(0, 20), last=(20, 320), scan=0x40), (20, 0, -40, 20)),
        "ends at the antimeridian": (latlon_grid(11, 11, first=(50, 170), last=(40, 180)), (170, 40, 180, 50)),
    }.items():
        metadata = describe_grid(grid)
        assert bounding_box(metadata.geometry) == pytest.approx(bbox), case
        shape = shapely.geometry.shape(metadata.geometry)
        width = bbox[2] - bbox[0] + (360 if bbox[2] < bbox[0] else 0)
        assert shape.area == pytest.approx(width * (bbox[3] - bbox[1])), case


PRESSURE = Field(name="PRMSL", level="mean sea level", parameter=(0, 3, 1), surface=(101, 0), value=101_325.0)


def of_pressure(grid: GridSection) -> bytes:
    return message(PRESSURE, at_hour(0), run=RUN, origin=Origin(process=(2, 0, 96, 0, 0)), grid=grid)


RAP = bytes.fromhex(
    "000000500300000c20b20000800106" + "00" * 15 + "000003b90000034200000000" + "00000000"
    "80a1998b0d2ae1ea380337f9800f23bb800742b8080742b8084002c6efe80159c791"
)
"""Section 3 (template 3.32769) of real RAP objects: 953 by 834 points, 13,545 m apart about 54N 106W.

The earth is a sphere with a radius of 6,371 km."""


def rotated(
    pole: tuple[float, float], first: tuple[float, float], last: tuple[float, float], step: float
) -> GridSection:
    columns, rows = (round(abs(a - b) / step) + 1 for a, b in zip(first[::-1], last[::-1], strict=True))
    corners = [(micro(latitude), micro(longitude % 360)) for latitude, longitude in (first, last, pole)]
    return rotated_grid(columns, rows, first=corners[0], last=corners[1], step=micro(step), pole=corners[2])


def hemisphere(pole: int) -> GridSection:
    """Return a polar stereographic grid with cells of 200 by 200 km about a pole."""
    forward = pyproj.Proj(proj="stere", lat_0=pole, lat_ts=60 * pole / 90, lon_0=0, R=6371229)
    longitude, latitude = forward(-32 * 200e3, -32 * 200e3, inverse=True)
    first, true_at = (micro(latitude), micro(longitude % 360)), micro(60 * pole / 90)
    grid = projected_grid(65, 65, template=20, first=first, true_at=true_at, meridian=0, spacing=200_000_000)
    return replace(grid, section=grid.section[:-2] + bytes((0x80 if pole < 0 else 0, 0x40)))


def points_by_eccodes(grid: GridSection) -> tuple[Any, Any]:
    """Return longitudes and latitudes by row and column."""
    handle = eccodes.codes_new_from_message(of_pressure(grid))
    latitudes, longitudes = (
        eccodes.codes_get_array(handle, name).reshape(grid.rows, grid.columns) for name in ("latitudes", "longitudes")
    )
    eccodes.codes_release(handle)
    return (longitudes + 180) % 360 - 180, latitudes


@pytest.mark.clause("OPR-06")
@pytest.mark.parametrize(
    ("computed", "section", "covered"),
    [
        # HRDPS of Canada, a grid over the antimeridian, and a grid at the equator.
        (rotated((-36.08852, 245.305142), (-12.3, -14.82), (16.68, 42.33), 0.09), None, None),
        (rotated((-30.0, 180.0), (-20.0, -15.0), (15.0, 25.0), 0.1), None, None),
        (rotated((-89.0, 20.0), (-5.0, -8.0), (7.0, 8.0), 0.1), None, None),
        # Over a pole: RRFS, RAP, a grid whose border is half a cell from the pole, and a grid over the south pole.
        (rotated((-35.0, 247.0), (-36.9303, -61.0), (36.9303, 60.9458), 0.2166), None, 90.0),
        (rotated((-36.0, 254.0), (-50.743445, -57.992508), (50.743444, 57.992508), 0.121833), RAP, 90.0),
        (rotated((-35.0, 247.0), (-15.0, -20.0), (35.05, 20.0), 0.05), None, 90.0),
        (rotated((35.0, 20.0), (-10.0, 150.0), (50.0, 210.0), 0.1), None, -90.0),
        (hemisphere(90), None, 90.0),
        (hemisphere(-90), None, -90.0),
        # Lambert, whose northern edge is an arc with its top between the points of the thinned outline.
        (hrrr._GRIDS["conus"], None, None),
        # Polar stereographic, over the antimeridian.
        (hrrr._GRIDS["alaska"], None, None),
    ],
    ids=[
        "canada", "antimeridian", "equator", "rrfs", "rap", "by the pole", "south pole", "northern hemisphere",
        "southern hemisphere", "hrrr", "hrrr alaska",
    ],
)  # fmt: skip
def test_a_grid_has_the_points_that_eccodes_computes(
    computed: GridSection, section: bytes | None, covered: float | None
) -> None:
    longitudes, latitudes = points_by_eccodes(computed)
    grid = describe_grid(section or computed.section)
    assert (grid.shape, grid.fault) == (latitudes.shape, None)
    # ecCodes rounds the positions of rotated grids; the outline of a projected grid has fewer points than the grid.
    is_rotated = grid.template in {1, 32769}
    within, apart, placed = (0.01, 0.01, 3e-5) if is_rotated else (1e-9, 0.05, 1e-9)
    west, south, east, north = bounding_box(grid.geometry)
    if covered is None:
        turned = longitudes % 360 if west > east else longitudes
        expected = [turned.min() % 360, latitudes.min(), turned.max() % 360, latitudes.max()]
        assert [west % 360, south, east % 360, north] == pytest.approx(expected, abs=within)
    else:
        assert (west, east) == (-180, 180)
        assert (south, north) == pytest.approx(sorted((covered, (latitudes * covered).min() / covered)), abs=within)
    # Points of the border are on the outline, all other points within the outline.
    outline = shapely.geometry.shape(grid.geometry)
    assert outline.is_valid
    sides = [(slice(None), 0), (slice(None), -1), (0, slice(None)), (-1, slice(None))]
    rim = shapely.points(*(np.concatenate([axis[side] for side in sides]) for axis in (longitudes, latitudes)))
    assert shapely.distance(outline.boundary, rim).max() < apart
    inner = (axis[1:-1, 1:-1].ravel()[::97] for axis in (longitudes, latitudes))
    assert shapely.intersects_xy(outline, *inner).all()
    # The Item's projection fields give the position of each point.
    crs = pyproj.CRS.from_wkt(grid.wkt2)
    assert ("Pole rotation (GRIB convention)" in grid.wkt2) is is_rotated
    to_earth = pyproj.Transformer.from_crs(crs, crs.source_crs, always_xy=True)
    dx, _, x0, _, dy, y0 = grid.transform or ()
    assert grid.proj_bbox == pytest.approx((x0, y0 + dy * grid.shape[0], x0 + dx * grid.shape[1], y0))
    for row, column in ((0, 0), (-1, -1), (3, 5)):
        x = x0 + dx * (range(grid.shape[1])[column] + 0.5)
        y = y0 + dy * (grid.shape[0] - range(grid.shape[0])[row] - 0.5)
        longitude, latitude = to_earth.transform(x, y)
        assert (longitude % 360, latitude) == pytest.approx(
            (longitudes[row, column] % 360, latitudes[row, column]), abs=placed
        )


def test_columns_of_a_global_grid_begin_in_the_west() -> None:
    """GDAL has the same columns; `catalog/test_item.py` compares the columns of real objects."""
    for west, step, first in (
        (0.0, 0.25, -180.0), (-180.0, 0.25, -180.0), (180.0, 0.25, -180.0), (0.125, 0.25, -179.875),
        (-179.875, 0.25, -179.875), (0.0, 0.703125, -180.0), (0.0, 360 / 7, -154.285714), (20.0, 2.5, -180.0),
        # Steps rounded as in files.
        (0.0, 0.166667, -179.99964), (0.0, 359.833333 / 2159, -180.0),
    ):  # fmt: skip
        assert first_column(west, step) == pytest.approx(first, abs=1e-6)


def test_a_grid_without_a_known_position_is_refused() -> None:
    for octet, value, code in (
        (14, 99, MetadataIssue.MISSING_GEOLOCATION),  # template 3.99
        (15, 200, MetadataIssue.MISSING_GEOLOCATION),  # shape of the earth
        (34, 0, MetadataIssue.UNREADABLE_FORMAT),  # Ni that contradicts the number of points
        (39, 0xFF, MetadataIssue.UNREADABLE_FORMAT),  # latitude of the first point
        (65, 0x41, MetadataIssue.MISSING_GEOLOCATION),  # rows staggered by half a cell
        (66, 0xFF, MetadataIssue.INVALID_GEOMETRY),  # a standard parallel beyond the pole
    ):
        section = bytearray(SAMPLE[37:118])
        section[octet - 1] = value
        assert code_of(describe_grid, bytes(section)) is code
    # Rotated grids: turned about their own pole, half the earth wide, in the southern hemisphere.
    turned = bytearray(rotated((-35.0, 247.0), (-1.0, -1.0), (1.0, 1.0), 1.0).section)
    turned[80] = 0x41
    wide = rotated((-35.0, 247.0), (-1.0, -90.0), (1.0, 90.0), 1.0).section
    south = bytearray(RAP)
    south[55] |= 0x80
    for section in (turned, wide, south):
        assert code_of(describe_grid, bytes(section)) is MetadataIssue.MISSING_GEOLOCATION
    # A grid larger than any real one is refused before it is computed.
    huge = latlon_grid(4_000_000, 1000, first=(90, 0), last=(-90, 359))
    assert code_of(describe_grid, huge) is MetadataIssue.RESOURCE_LIMIT


@pytest.mark.clause("OPR-26")
def test_corners_of_a_grid_in_degrees_must_agree_with_its_increments() -> None:
    whole: dict[str, Any] = {
        "first": (90_000_000, 0),
        "last": (0x80000000 | 90_000_000, 359_750_000),
        "step": 250_000,
    }
    for changes, sound in (
        ({}, True), ({"step": 249_999}, True), ({"step": 0}, True), ({"step": 500_000}, False),
        ({"last": (0x80000000 | 90_000_000, 359_500_000)}, False), ({"last": (0, 359_750_000)}, False),
    ):  # fmt: skip
        content = of_pressure(lat_lon_grid(1440, 721, **(whole | changes)))
        assert (MetadataIssue.INVALID_GEOMETRY in codes(read(content))) is not sound


@pytest.mark.clause("OPR-26")
def test_corners_of_a_mercator_grid_must_agree_with_its_spacing() -> None:
    for last, spacing, sound in (
        ((23_088_000, 206_131_000), 2_500_000, True),
        ((23_088_000, 206_131_000), 1_250_000, False),
        ((23_088_000, 207_131_000), 2_500_000, False),
        ((24_088_000, 206_131_000), 2_500_000, False),
    ):
        grid = mercator_grid(
            321, 225, first=(18_073_000, 198_475_000), last=last, true_at=20_000_000, spacing=spacing, earth=SPHERE
        )
        assert (describe_grid(grid.section).fault is None) is sound


def test_key_and_message_must_agree_on_time() -> None:
    for case, (groups, expected) in {
        "agrees": (groups_of(), []),
        "cycle with minutes": (groups_of(cycle="0600"), []),
        "other cycle": (groups_of(cycle="07"), [MetadataIssue.TIME_MISMATCH]),
        "other day": (groups_of(day="20251204"), [MetadataIssue.TIME_MISMATCH]),
        "earlier field": (groups_of(lead=8), [MetadataIssue.TIME_MISMATCH]),
        "later field": (groups_of(lead=6), [MetadataIssue.TIME_MISMATCH]),
        "no groups": ({}, []),
    }.items():
        assert codes(read(SAMPLE, groups=groups)) == [*expected, MetadataIssue.SIDECAR_MISSING], case


SAMPLE_KEY, SAMPLE, SAMPLE_INDEX = hrrr.make_hrrr(run=RUN, lead=7)
OTHER_RUN = hrrr.make_hrrr(run=RUN + timedelta(hours=1), lead=7)[2]
OTHER_LEAD = hrrr.make_hrrr(run=RUN, lead=8)[2]


def test_a_message_valid_before_the_first_message_s_run_gives_no_horizon() -> None:
    first, earlier = (hrrr.make_hrrr(run=RUN - timedelta(hours=hours), lead=0)[1] for hours in (0, 6))
    header = read(first + earlier, groups={})
    assert MetadataIssue.TIME_MISMATCH in codes(header)
    assert "forecast:horizon" not in header.properties


def test_index_of_another_object_is_a_finding_and_not_a_sidecar() -> None:
    for case, index in {
        "other run": OTHER_RUN,
        "other lead": OTHER_LEAD,
        "offset too low": SAMPLE_INDEX.replace("2:188:", "2:180:"),
        "offset within a message": SAMPLE_INDEX.replace("3:376:", "3:380:"),
        "offset beyond the object": SAMPLE_INDEX.replace("3:376:", "3:37600:"),
        "first offset": SAMPLE_INDEX.replace("1:0:", "1:1:"),
        "line missing": "".join(SAMPLE_INDEX.splitlines(keepends=True)[::2]),
        "parameter": SAMPLE_INDEX.replace(":TMP:", ":DPT:"),
        "twice": SAMPLE_INDEX + SAMPLE_INDEX,
        "reversed": "".join(reversed(SAMPLE_INDEX.splitlines(keepends=True))),
        "html": "<html>404</html>",
        "empty": "",
        "no number": "1:0:d=NaN:TMP:surface:anl:\n",
        "no text": b"\xff\xfe" * 10,
        "too large": b"9" * 3_000_000,
        "too many lines": SAMPLE_INDEX * 30_000,
    }.items():
        metadata = read(SAMPLE, key=SAMPLE_KEY, groups=groups_of(), index=index)
        assert codes(metadata) == [MetadataIssue.SIDECAR_MISMATCH], case
        assert (metadata.sidecars, metadata.layers) == ((), ()), case
        assert "grib:variables" not in metadata.properties, case


LINES = SAMPLE_INDEX.splitlines()
SUBMESSAGES = [LINES[0], LINES[1].replace("2:", "2.1:", 1), LINES[1].replace("2:", "2.2:", 1), LINES[2]]


def test_index_is_compared_with_the_object() -> None:
    for case, (objects, index, expected, messages) in {
        # The object has grown by more bytes than are allowed between two messages.
        "older than its object": (3, SAMPLE_INDEX, [MetadataIssue.SIDECAR_MISMATCH], 9),
        "a field too late": (1, SAMPLE_INDEX.replace("7 hour acc", "9 hour acc"), [MetadataIssue.TIME_MISMATCH], 3),
        "submessages": (1, "\n".join(SUBMESSAGES) + "\n", [], 3),
    }.items():
        metadata = read(SAMPLE * objects, key=SAMPLE_KEY, groups=groups_of(), index=index)
        assert (codes(metadata), metadata.properties["grib:message-count"]) == (expected, messages), case


def stretched(last: bytes) -> tuple[bytes, str]:
    """Return the sample and its index; the first message fills a request, the last message has `last` as data."""
    content, lines = b"", []
    for line, data in zip(SAMPLE_INDEX.splitlines(), (bytes(10_000), b"", last), strict=True):
        number, start, rest = line.split(":", 2)
        message = SAMPLE[int(start) :][: struct.unpack_from(">Q", SAMPLE, int(start) + 8)[0]]
        length = len(message) + len(data)
        lines.append(f"{number}:{len(content)}:{rest}\n")
        content += message[:8] + struct.pack(">Q", length) + message[16:-9]
        content += struct.pack(">IB", 5 + len(data), 7) + data + b"7777"
    return content, "".join(lines)


LAST = len(stretched(b"")[0]) - 10_376
"""Length of the last message if its data are empty; the first two messages have 10,188 and 188 bytes."""


@pytest.mark.clause("OPR-06")
def test_a_small_last_message_costs_one_request_and_a_large_one_costs_two() -> None:
    for size, requests in (
        (1_000, [4096, 4096]),
        (10_000, [4096, 10_000]),
        (LAST_MESSAGE_BYTES, [4096, LAST_MESSAGE_BYTES]),
        (LAST_MESSAGE_BYTES + 1, [4096, 4096, 4096]),
    ):
        content, index = stretched(bytes(size - LAST))
        source = CountingSource(content)
        metadata = read(source, groups=groups_of(), index=index)
        assert metadata.findings == ()
        assert source.requests == requests
        assert [(layer.offset, layer.length) for layer in metadata.layers] == [
            (0, 10_188),
            (10_188, 188),
            (10_376, size),
        ]


@pytest.mark.clause("OPR-20")
@pytest.mark.parametrize("room", [4_000, LAST_MESSAGE_BYTES], ids=["small", "large"])
def test_truncated_or_zeroed_data_that_look_like_the_end_of_a_message_are_refused(room: int) -> None:
    content, index = stretched(b"7777" * (room // 4))
    assert codes(read(content, groups=groups_of(), index=index)) == []
    size = len(content)
    for end in (*range(size - 20, size), *range(10_600, size, room // 37)):
        assert code_of(read, content[:end], groups=groups_of(), index=index) is MetadataIssue.TRUNCATED_OBJECT
    # The object has its full length, but the last part of the upload is zeros.
    for hole in (1, 4, 1000):
        cut = content[:-hole] + bytes(hole)
        for sidecar in (index, None):
            assert code_of(read, cut, groups=groups_of(), index=sidecar) is MetadataIssue.TRUNCATED_OBJECT
    # The sample's last message has no data, so 50 zeros replace a part of its sections.
    for sidecar in (SAMPLE_INDEX, None):
        cut = SAMPLE[:-50] + bytes(50)
        assert code_of(read, cut, groups=groups_of(), index=sidecar) is MetadataIssue.TRUNCATED_OBJECT


def test_a_gaussian_grid_without_all_its_parallels_has_a_fault() -> None:
    _, content, index = cfs.make_cfs(run=RUN, lead=6)
    metadata = read(content, index=index)
    assert (codes(metadata), metadata.properties["grib:gaussian-parallels"]) == ([], 95)
    assert not {"proj:transform", "proj:bbox"} & metadata.properties.keys()
    assert metadata.properties["cube:dimensions"]["y"]["step"] is None
    section = gaussian_grid(384, 190, north=89_277_000, east=359_062_000, step=938_000).section
    for changed, fault in (
        (section, None),
        (section[:67] + struct.pack(">I", 94) + section[71:], "190 rows, expected 188"),
        (gaussian_grid(384, 190, north=89_279_000, east=359_062_000, step=938_000).section, "do not end at"),
        (gaussian_grid(384, 190, north=89_277_000, east=359_062_000, step=950_000).section, "the increments of the"),
    ):
        described = describe_grid(changed)
        assert (described.fault is None) is (fault is None)
        assert (fault or "") in (described.fault or "")


def test_fields_have_the_same_names_with_and_without_an_index() -> None:
    fluxes = {"product": "sfluxgrb", "resolution": ""}
    for _, content, index in (
        hrrr.make_hrrr(run=RUN, lead=7),
        cfs.make_cfs(run=RUN, lead=6),
        gfs.make_gfs(run=RUN, lead=6, **fluxes),
    ):
        alone, indexed = unindexed(content), read(content, index=index)
        assert alone.layers == indexed.layers != ()
        assert alone.properties == indexed.properties
        assert read(content).layers == ()
    pop = unindexed(ndfd.make_ndfd(issued=RUN, element="pop12")[1])
    assert [(layer.variable, layer.step, layer.qualifier) for layer in pop.layers[:1]] == [
        ("APCP", "2-14 hour acc fcst", "prob >0.254")
    ]
    assert list(pop.properties["cube:variables"]) == ["APCP prob"]
    # Relative humidity has a parameter number local to NWS, whose table the reader does not have.
    assert unindexed(ndfd.make_ndfd(issued=RUN, element="minrh")[1]).layers == ()


def test_an_object_with_all_hours_of_a_run_covers_the_run() -> None:
    _, content = naqfc.make_naqfc(run=RUN)
    metadata = unindexed(content)
    assert (metadata.start, metadata.end, metadata.datetime) == (RUN, *[RUN + timedelta(hours=72)] * 2)
    assert (metadata.properties["forecast:horizon"], metadata.properties["grib:message-count"]) == ("PT72H", 72)
    assert len(metadata.properties["cube:dimensions"]["valid_time"]["values"]) == 72
    assert (metadata.layers[-1].name, metadata.layers[-1].offset) == (
        "PMTF 1 sigma level 71-72 hour ave fcst",
        len(content) - 212,
    )


@pytest.mark.clause("OPR-20")
def test_an_object_that_states_its_length_is_complete_or_refused() -> None:
    _, content = ndfd.make_ndfd(issued=RUN, element="maxt")
    whole = read(content)
    assert (codes(whole), whole.properties["grib:message-count"]) == ([], 4)
    # Cut between two messages: only the stated length shows the truncation.
    assert code_of(read, content[: content.rindex(b"****0000")]) is MetadataIssue.TRUNCATED_OBJECT
    # Without its first 40 bytes the object begins with its first bulletin's length, so its own length is unknown.
    assert codes(read(content[40:])) == [MetadataIssue.SIDECAR_MISSING]


def test_wmo_headers_between_messages_are_skipped() -> None:
    header = b"\r\r\n123\r\r\nYEUZ98 KWBN 060000\r\r\n"
    message = SAMPLE[:188]
    metadata = read(header + message + header + message + b"\r\r\n\x03")
    assert metadata.native["offset"] == len(header)
    assert metadata.properties["grib:message-count"] == 2


def test_files_of_one_grid_share_only_the_immutable_geometry() -> None:
    first, second = read(SAMPLE), read(SAMPLE)
    assert first.geometry is second.geometry
    assert isinstance(first.geometry["coordinates"], tuple)
    assert len(first.geometry["coordinates"][0]) <= 4 * 24 + 1
    sides = ("longitudeWest", "latitudeMin", "longitudeEast", "latitudeMax")
    assert bounding_box(first.geometry) == tuple(first.native[side] for side in sides)
    first.properties["proj:shape"].append(0)
    assert read(SAMPLE).properties["proj:shape"] == second.properties["proj:shape"] == [1059, 1799]


corrupt = partial(patched, SAMPLE)


def test_codes_of_the_first_message_have_their_names() -> None:
    def named(content: bytes, at: int, layout: str, code: int) -> Mapping[str, Any]:
        return read(patched(content, at, struct.pack(layout, code))).properties

    # Code tables 1.3 and 1.4, common code table C-11.
    assert [named(SAMPLE, 35, ">B", code).get("grib:production-status") for code in range(5)] == [
        "operational", "test", "research", "reanalysis", None
    ]  # fmt: skip
    assert [named(SAMPLE, 36, ">B", code).get("grib:data-type") for code in range(9)] == [
        "analysis", "forecast", "analysis and forecast", "control forecast", "perturbed forecast",
        "control and perturbed forecast", "processed satellite observations", "processed radar observations", None,
    ]  # fmt: skip
    assert [named(SAMPLE, 21, ">H", code)["grib:centre"] for code in (7, 34, 54, 74, 78, 98, 8)] == [
        "kwbc", "rjtd", "cwao", "egrr", "edzw", "ecmf", "8"
    ]  # fmt: skip
    # Code table 4.4: seven of each unit of time. Months and longer units of time have no fixed length.
    message = SAMPLE[:188]
    horizons = [named(message, 118 + 17, ">B", code).get("forecast:horizon") for code in (0, 1, 2, 10, 11, 12, 13, 3)]
    assert horizons == ["PT7M", "PT7H", "PT168H", "PT21H", "PT42H", "PT84H", "PT7S", None]
    # Processed observations (6, 7) are described as a forecast only if their time is later than their reference time.
    analysis = hrrr.make_hrrr(run=RUN, lead=0)[1]
    for content, without in ((analysis, {6, 7}), (SAMPLE, set())):
        of_forecast = {code for code in range(9) if "forecast:reference_datetime" in named(content, 36, ">B", code)}
        assert of_forecast == set(range(9)) - without


def test_properties_of_the_key_begin_with_the_model_s_name() -> None:
    for key, implied, prefix in (("gdas.20251203/06/x", "gfs", "gfs"), ("blend.2025", "", "blend"), ("6", "", "grib")):
        assert read(SAMPLE, key=key, groups=groups_of() | {"prefix": implied}).properties[f"{prefix}:cycle"] == 6


def test_a_horizon_is_a_whole_number_of_the_largest_possible_unit_of_time() -> None:
    for seconds, text in ((0, "PT0H"), (7200, "PT2H"), (5400, "PT90M"), (5401, "PT5401S")):
        assert duration(timedelta(seconds=seconds)) == text


@pytest.mark.clause("OPR-07")
def test_damaged_object_is_refused_with_its_code() -> None:
    for case, (content, code) in {
        "empty": (b"", MetadataIssue.UNREADABLE_FORMAT),
        "netcdf": (b"\x89HDF\r\n\x1a\n" + bytes(5000), MetadataIssue.UNREADABLE_FORMAT),
        "magic only": (b"GRIB", MetadataIssue.TRUNCATED_OBJECT),
        "edition 1": (corrupt(7, b"\x01"), MetadataIssue.UNREADABLE_FORMAT),
        "zero length": (corrupt(8, bytes(8)), MetadataIssue.UNREADABLE_FORMAT),
        "huge length": (corrupt(8, b"\xff" * 8), MetadataIssue.TRUNCATED_OBJECT),
        "longer than the object": (corrupt(8, struct.pack(">Q", len(SAMPLE) + 1)), MetadataIssue.TRUNCATED_OBJECT),
        "shorter than its sections": (corrupt(8, struct.pack(">Q", 100)), MetadataIssue.UNREADABLE_FORMAT),
        "zero section": (corrupt(16, bytes(4)), MetadataIssue.UNREADABLE_FORMAT),
        "huge section": (corrupt(16, b"\xff" * 4), MetadataIssue.UNREADABLE_FORMAT),
        "section twice": (corrupt(20, b"\x03"), MetadataIssue.UNREADABLE_FORMAT),
        "month 13": (corrupt(30, b"\x0d"), MetadataIssue.INVALID_TIME_RANGE),
        "section number": (corrupt(41, b"\x01"), MetadataIssue.UNREADABLE_FORMAT),
        "far forecast": (corrupt(118 + 18, b"\x7f\xff\xff\xff"), MetadataIssue.INVALID_TIME_RANGE),
        "negative forecast": (corrupt(118 + 18, b"\x80\x00\x00\x01"), MetadataIssue.INVALID_TIME_RANGE),
        "cut end": (SAMPLE[:-1], MetadataIssue.TRUNCATED_OBJECT),
        "fewer bytes than its size": (Oversized(SAMPLE[:100], 10_000_000), MetadataIssue.TRUNCATED_OBJECT),
    }.items():
        assert code_of(read, content, groups=groups_of()) is code, case


@pytest.mark.clause("OPR-26")
@pytest.mark.parametrize("index", [None, SAMPLE_INDEX], ids=["alone", "with index"])
def test_an_object_with_more_than_a_few_bytes_after_its_last_message_is_refused(index: str | None) -> None:
    for stray in (b"", b"\n", b"GRI", b"\r\r\n\x03", bytes(6)):
        assert read(SAMPLE + stray, index=index).properties["grib:message-count"] == 3
    for other in (bytes(9), bytes(3000), b"<html><body>503</body></html>\n"):
        assert code_of(read, SAMPLE + other, index=index) is MetadataIssue.UNREADABLE_FORMAT


@pytest.mark.clause("OPR-07")
@pytest.mark.parametrize("index", [None, SAMPLE_INDEX], ids=["alone", "with index"])
def test_an_object_truncated_at_any_byte_is_never_read_as_complete(index: str | None) -> None:
    for end in range(len(SAMPLE)):
        try:
            metadata = read(SAMPLE[:end], groups=groups_of(), index=index)
        except ReadError:
            continue
        # An object that is cut between two messages, or within the next message's `GRIB`, looks like a shorter object;
        # only an index shows the mismatch.
        assert end in (*range(188, 192), *range(376, 380))
        assert codes(metadata) == [MetadataIssue.SIDECAR_MISSING if index is None else MetadataIssue.SIDECAR_MISMATCH]
