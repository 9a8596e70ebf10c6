"""What a materialisation shows, from batches made by hand."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any
from xml.etree import ElementTree as ET

import dagster as dg
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.contracts.envelope import CheckStatus, Envelope, Integrity, Metadata
from kfm_dagster.contracts.issues import IntegrityIssue, Issue, MetadataIssue, Severity
from kfm_dagster.defs.display import MAX_TABLE_ROWS, stage_metadata
from kfm_dagster.defs.footprint_map import MAX_OUTLINES, WIDTH, footprint_map
from kfm_dagster.ledger.reports import DayReport
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.run_state.record import RunState, ValidationSummary
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster_tests.factories import envelope, finished

MISSING = Integrity(
    status=CheckStatus.FAILED,
    issues=(Issue(code=IntegrityIssue.MISSING_OBJECT, severity=Severity.FAILED, message="not there"),),
)
TRUNCATED = Metadata(
    status=CheckStatus.FAILED,
    issues=(Issue(code=MetadataIssue.TRUNCATED_OBJECT, severity=Severity.FAILED, message="half of it"),),
)


DAY = DayReport(
    counts={**dict.fromkeys(Status, 0), Status.SUCCEEDED: 40, Status.QUARANTINED: 3, Status.IN_PROGRESS: 2},
    failing={"missing_object": 3},
)


def batch(units: Sequence[Envelope], *, checks: int, failed: int) -> StageBatch:
    summary = ValidationSummary(checks=checks, passed=checks - failed, failed=failed)
    state = RunState(
        dataset_id="nexrad-l2.metadata_extract",
        run_id="9f9f6dd0-6a9e-4a4c-9d0c-5b8b9a0c1d2e",
        lakefs_branch="main",
        inputs_hash=f"sha256:{'0' * 64}",
        validation_summary=summary.as_json(),
        outcome=summary.outcome,
        recorded_at=datetime(2025, 12, 3, tzinfo=UTC),
        artifact_uri="artifacts/x.parquet",
        artifact_sha256="0" * 64,
    )
    return StageBatch(envelopes=units, state=state)


def box(west: float, south: float, east: float, north: float) -> dict[str, Any]:
    ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
    return {"type": "Polygon", "coordinates": [ring]}


def drawn(markdown: str | None) -> ET.Element:
    assert markdown is not None
    encoded = re.match(r"!\[footprints\]\(data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)\)\n", markdown)
    assert encoded is not None
    return ET.fromstring(base64.b64decode(encoded[1]))


def outlines(picture: ET.Element) -> list[list[tuple[float, float]]]:
    paths = [path.attrib["d"] for path in picture.iterfind("{*}g[@fill]/{*}path")]
    return [[(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path)] for path in paths]


@pytest.mark.clause("DAG-08")
def test_a_materialisation_shows_counts_failing_units_link_and_footprints() -> None:
    units = [
        finished(envelope(0)),
        finished(envelope(1)),
        envelope(2, integrity=Integrity(status=CheckStatus.OK), metadata=TRUNCATED),
        envelope(3, integrity=MISSING),
    ]
    shown = stage_metadata("metadata", batch(units, checks=3, failed=1), day=DAY, catalog="/home/catalog")
    assert tuple(shown[f"run_{name}"] for name in ("units", "passed", "failed", "failed_earlier")) == (4, 2, 1, 1)
    rows = [record.data for record in shown["failing_units"].records]
    assert [(row["code"], row["message"], row["object_uri"]) for row in rows] == [
        ("truncated_object", "half of it", units[2].object_uri),
        ("missing_object", "not there", units[3].object_uri),
    ]
    assert "data:image/svg+xml" in shown["footprints"].md_str
    items = stage_metadata("stac_items", batch(units, checks=2, failed=0), day=DAY, catalog="/home/catalog")
    assert (items["run_passed"], items["run_failed"], items["run_failed_earlier"], items["items_created"]) == (
        2,
        0,
        2,
        2,
    )
    assert items["catalog"] == dg.MetadataValue.path("/home/catalog/catalog.json")


@pytest.mark.clause("DAG-11")
@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ({}, "empty: nothing of this day is known"),
        ({Status.SUCCEEDED: 2}, "2 of 2 succeeded"),
        ({Status.PENDING: 1}, "1 pending; 0 of 1 succeeded"),
        (
            {Status.IN_PROGRESS: 1, Status.FAILED: 2, Status.QUARANTINED: 3, Status.SUCCEEDED: 4},
            "3 quarantined, 2 failed, 1 in progress; 4 of 10 succeeded",
        ),
    ],
)
def test_a_day_is_one_sentence_that_begins_with_what_needs_care(counts: dict[Status, int], sentence: str) -> None:
    day = DayReport(counts={**dict.fromkeys(Status, 0), **counts}, failing={})
    shown = stage_metadata("ledger", batch([], checks=0, failed=0), day=day, catalog="/home/catalog")
    # The day first, whatever the run did.
    assert next(iter(shown.items())) == ("day", sentence)
    assert {status: shown[f"day_{status}"] for status in Status} == day.counts
    assert (shown["day_units"], shown["run_units"]) == (sum(counts.values()), 0)


def test_a_catalog_in_a_bucket_is_a_link() -> None:
    shown = stage_metadata(
        "stac_items", batch([], checks=0, failed=0), day=DAY, catalog="https://catalog.example/root/"
    )
    assert shown["catalog"] == dg.MetadataValue.url("https://catalog.example/root/catalog.json")


def test_an_empty_batch_shows_counts_and_no_picture() -> None:
    shown = stage_metadata("metadata", batch([], checks=0, failed=0), day=DAY, catalog="/home/catalog")
    assert shown["run_units"] == 0
    assert not {"footprints", "failing_units", "run_failed_earlier"} & set(shown)


def test_the_table_of_failing_units_has_a_bound() -> None:
    units = [envelope(number, integrity=MISSING) for number in range(MAX_TABLE_ROWS + 1)]
    shown = stage_metadata(
        "integrity", batch(units, checks=len(units), failed=len(units)), day=DAY, catalog="/home/catalog"
    )
    assert (shown["run_failed"], len(shown["failing_units"].records)) == (MAX_TABLE_ROWS + 1, MAX_TABLE_ROWS)


@given(
    st.lists(
        st.tuples(st.floats(-180, 179), st.floats(-90, 89), st.floats(0.01, 1), st.floats(0.01, 1)),
        min_size=1,
        max_size=5,
    )
)
def test_every_outline_lies_inside_the_picture(corners: list[tuple[float, float, float, float]]) -> None:
    picture = drawn(footprint_map([box(west, south, west + dx, south + dy) for west, south, dx, dy in corners]))
    height = float(picture.attrib["height"])
    for outline in outlines(picture):
        for x, y in outline:
            assert -0.1 <= x <= WIDTH + 0.1
            assert -0.1 <= y <= height + 0.1


def test_a_footprint_over_the_antimeridian_is_one_outline() -> None:
    east, west = box(170, 10, 180, 20), box(-180, 10, -150, 20)
    halves = {"type": "MultiPolygon", "coordinates": [east["coordinates"], west["coordinates"]]}
    [whole] = outlines(drawn(footprint_map([halves])))
    # Of its place and size as one box would be that needs no cut.
    assert set(whole) == set(outlines(drawn(footprint_map([box(-160, 10, -120, 20)])))[0])


def land_around(longitude: float, latitude: float) -> bool:
    """Whether the middle of a map is land; all of it is, or none."""
    picture = drawn(footprint_map([box(longitude - 0.2, latitude - 0.2, longitude + 0.2, latitude + 0.2)]))
    land = picture.findall("{*}g[@transform]/{*}path")[0].attrib["d"]
    steps = [int(number) for number in re.findall(r"-?\d+", land)]
    corners = list(zip(accumulate(steps[::2]), accumulate(steps[1::2]), strict=True))
    return bool(corners) and shapely.Polygon(corners).covers(shapely.Point(WIDTH, float(picture.attrib["height"])))


@pytest.mark.parametrize(
    ("longitude", "latitude", "is_land"),
    # Kansas; Siberia east of the antimeridian, as each of its names; the South Pole; seas.
    [(-98, 38.5, True), (-176, 67, True), (184, 67, True), (30, -88, True), (-150, 20, False), (-90, 26, False)],
)
def test_footprints_lie_over_land_and_sea(longitude: float, latitude: float, is_land: bool) -> None:
    assert land_around(longitude, latitude) is is_land


def test_a_map_of_the_world_takes_few_bytes() -> None:
    world = footprint_map([box(-180, -90, 180, 90)])
    assert world is not None
    assert len(world) < 25_000


def test_equal_footprints_are_drawn_once_and_many_are_bounded() -> None:
    assert len(outlines(drawn(footprint_map([box(0, 0, 1, 1)] * 3)))) == 1
    many = footprint_map([box(number / 10, 0, number / 10 + 1, 1) for number in range(MAX_OUTLINES + 50)])
    assert len(outlines(drawn(many))) == MAX_OUTLINES
    assert many is not None
    assert f"distinct outlines: {MAX_OUTLINES + 50}; drawn: {MAX_OUTLINES}" in many


def test_a_place_without_extent_is_a_dot() -> None:
    points = {"type": "MultiPoint", "coordinates": [[10, 20], [11, 21]]}
    picture = drawn(footprint_map([{"type": "Point", "coordinates": [9, 20]}, points, box(9, 20, 11, 21)]))
    dots = [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in picture.iterfind("{*}g[@fill]/{*}circle")]
    [outline] = outlines(picture)
    # West to east and south to north: two of them are corners of the box.
    assert dots == [
        min(outline, key=lambda point: (point[0], -point[1])),
        dots[1],
        max(outline, key=lambda point: (point[0], -point[1])),
    ]


def test_nothing_to_draw_is_no_picture() -> None:
    assert footprint_map([]) is None
