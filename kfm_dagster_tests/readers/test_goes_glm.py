"""The GOES GLM reader and its samples: properties, agreement with the key, hostile bytes."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import chain, pairwise
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shapely.geometry import shape

from kfm_dagster.contracts.bounding_box import bounding_box
from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.demo.samples.goes_glm import make_goes_glm
from kfm_dagster.readers import geometry
from kfm_dagster_tests.readers.reading import Reading, attribute, deleted, replaced, rewritten

READING = Reading("goes-glm")
GRAMMAR, read, refusal = READING.grammar, READING.read, READING.refusal
START = datetime(2025, 12, 3, 5, 1, 20, tzinfo=UTC)
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
J2000 = datetime(2000, 1, 1, 12, tzinfo=UTC)


def sample(**changes: Any) -> tuple[str, bytes]:
    return make_goes_glm(**{"start": START, "satellite": 18, "flashes": 2, **changes})


def test_a_file_that_spans_the_end_of_a_year_is_read() -> None:
    key, content = sample(start=NEW_YEAR - timedelta(seconds=20))
    assert key.startswith("GLM-L2-LCFA/2025/365/23/OR_GLM-L2-LCFA_G18_s20253652359400_e20260010000000_c20260010000013")
    header = read(key, content)
    assert (header.start, header.end) == (NEW_YEAR - timedelta(seconds=20), NEW_YEAR)
    assert GRAMMAR.contract.storage.day_prefixes(date(2025, 12, 31)) == ["GLM-L2-LCFA/2025/365/"]


@pytest.mark.clause("OPR-28")
def test_an_item_describes_the_lists_of_events_and_the_detector() -> None:
    key, content = sample(satellite=18, flashes=2)

    def as_in_2018(file: h5py.File) -> None:
        file["group_area"].attrs["units"] = np.bytes_(b"km2")
        file["group_time_offset"].attrs["units"] = np.bytes_(b"milliseconds since 2025-12-03 05:01:20.000")
        file["group_frame_time_offset"] = np.zeros(4, "<i2")

    properties = read(key, rewritten(content, as_in_2018)).properties
    assert properties["cube:dimensions"] == {
        "number_of_events": {"type": "index", "extent": [0, 11]},
        "number_of_groups": {"type": "index", "extent": [0, 3]},
        "number_of_flashes": {"type": "index", "extent": [0, 1]},
    }
    variables = properties["cube:variables"]
    assert len(variables) == 25
    assert variables["flash_area"] == {
        "dimensions": ["number_of_flashes"],
        "type": "data",
        "unit": "km2",
        "description": "flash area coverage (pixels containing at least one constituent event only)",
    }
    assert variables["event_time_offset"]["unit"] == "milliseconds since 2025-12-03 05:01:20.000"
    units = {"id": "1", "lat": "degrees_north", "lon": "degrees_east", "energy": "J"}
    columns = {f"{kind}_{name}": unit for kind in ("event", "group", "flash") for name, unit in units.items()}
    columns |= dict.fromkeys((name for name in variables if name.endswith(("_id", "_flag"))), "1")
    assert {name: variables[name]["unit"] for name in columns} == columns
    detector = {
        "glm:group-time-threshold": 0.0, "glm:flash-time-threshold": 3.33, "eo:center_wavelength": 0.77737,
        "eo:full_width_half_max": 0.001, "goes:subsatellite-latitude": 0.0, "goes:subsatellite-longitude": -137.2,
    }  # fmt: skip
    assert {name: properties[name] for name in detector} == detector
    assert len(read(*sample(flashes=0)).properties["cube:variables"]) == 22
    filled = rewritten(content, replaced("lightning_wavelength", data=np.float32(-999)))
    assert "eo:center_wavelength" not in read(key, filled).properties


def test_content_that_contradicts_its_key_is_refused() -> None:
    key, content = sample()
    for part, other, code in (
        ("_G18_", "_G17_", MetadataIssue.PLATFORM_MISMATCH),
        ("_s20253370501200", "_s20253370501220", MetadataIssue.TIME_MISMATCH),
        ("_e20253370501400", "_e20253370501420", MetadataIssue.TIME_MISMATCH),
        ("_e20253370501400", "_e20253370501403", MetadataIssue.INCOMPLETE_PRODUCT_METADATA),
    ):
        assert part in key
        assert refusal(key.replace(part, other), content) is code
    # A key with a later creation time is accepted for the same file.
    assert read(key[: key.rindex("_c")] + "_c20253370600000.nc", content).start == START


def _seconds(*moments: datetime) -> list[float]:
    return [(moment - J2000).total_seconds() for moment in moments]


@pytest.mark.clause("OPR-07")
def test_impossible_headers_are_refused_with_a_code() -> None:
    key, content = sample()
    for change, code in (
        (deleted("lat_field_of_view_bounds"), MetadataIssue.MISSING_GEOLOCATION),
        (deleted("lon_field_of_view_bounds"), MetadataIssue.MISSING_GEOLOCATION),
        (replaced("lat_field_of_view_bounds", data=np.zeros(1)), MetadataIssue.UNREADABLE_FORMAT),
        (replaced("lat_field_of_view_bounds", data=np.array([-66.56, 66.56])), MetadataIssue.INVALID_GEOMETRY),
        (replaced("lat_field_of_view_bounds", data=np.array([np.nan, -66.56])), MetadataIssue.INVALID_GEOMETRY),
        (replaced("lon_field_of_view_bounds", data=np.array([-1e300, 1e300])), MetadataIssue.INVALID_GEOMETRY),
        (replaced("lon_field_of_view_bounds", data=np.array([-203.0, np.inf])), MetadataIssue.INVALID_GEOMETRY),
        (replaced("lon_field_of_view_bounds", data=np.array([10.0, 10.0])), MetadataIssue.INVALID_GEOMETRY),
        (replaced("lon_field_of_view_bounds", data=np.array([b"east", b"west"])), MetadataIssue.UNREADABLE_FORMAT),
        (replaced("product_time_bounds", data=_seconds(START + timedelta(seconds=2), START)),
         MetadataIssue.TIME_MISMATCH),
        (replaced("product_time_bounds", data=_seconds(START, START)), MetadataIssue.TIME_MISMATCH),
        (replaced("product_time_bounds", data=np.array([np.nan, 0])), MetadataIssue.TIME_MISMATCH),
        (attribute("time_coverage_end", np.bytes_(b"2025-12-03T05:01:19.9Z")), MetadataIssue.INVALID_TIME_RANGE),
        (attribute("time_coverage_start", np.bytes_(b"noon")), MetadataIssue.INVALID_TIME_RANGE),
        (attribute("id", np.bytes_(b"x" * 60_000)), MetadataIssue.RESOURCE_LIMIT),
    ):  # fmt: skip
        assert refusal(key, rewritten(content, change)) is code
    assert refusal(key, content + b"\0") is MetadataIssue.UNREADABLE_FORMAT


def test_an_invalid_count_is_omitted_and_a_field_of_view_has_the_same_box_with_longitudes_modulo_360() -> None:
    key, content = sample()
    values = (np.int32(-1), np.float64(np.nan), np.float64(np.inf))
    for change in (deleted("event_count"), *(replaced("event_count", data=value) for value in values)):
        properties = read(key, rewritten(content, change)).properties
        assert "glm:event-count" not in properties
        assert properties["glm:flash-count"] == 2
    wrapped = rewritten(content, replaced("lon_field_of_view_bounds", data=np.array([156.44, -70.44], "<f4")))
    expected = bounding_box(read(key, content).geometry)
    assert bounding_box(read(key, wrapped).geometry) == pytest.approx(expected, abs=1e-4)


@given(west=st.floats(-360, 180), span=st.floats(0.001, 360), south=st.floats(-90, 89.9), height=st.floats(0.001, 180))
def test_a_rectangle_is_valid_counterclockwise_and_has_sides_of_at_most_45_degrees(
    west: float, span: float, south: float, height: float
) -> None:
    north = min(south + height, 90)
    outline = shape(geometry.rectangle(west, south, west + span, north))
    assert outline.is_valid
    assert outline.area == pytest.approx(span * (north - south), rel=1e-3)
    parts = getattr(outline, "geoms", [outline])
    assert all(part.exterior.is_ccw and -180 <= part.bounds[0] < part.bounds[2] <= 180 for part in parts)
    sides = [pairwise(part.exterior.coords) for part in parts]
    assert max(abs(end[0] - start[0]) for start, end in chain.from_iterable(sides)) <= 45 + 1e-6
