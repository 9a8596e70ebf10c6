"""The metadata of materialisations, for synthetic batches."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import dagster as dg
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.contracts.envelope import CheckStatus, Envelope, Integrity, Metadata
from kfm_dagster.contracts.issues import IntegrityIssue, Issue, MetadataIssue, Severity
from kfm_dagster.defs.display import (
    MAX_TABLE_ROWS,
    SHOWN_IN_PLACE,
    WIDTH,
    failing_of_day,
    footprint_map,
    stage_metadata,
)
from kfm_dagster.drawing.footprints import MAX_OUTLINES
from kfm_dagster.exports.explanations.run_report import NodeAccount, StepResult
from kfm_dagster.ledger.reports import DayReport, FailingUnit
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.run_state.record import RunState, ValidationSummary
from kfm_dagster.settings import Settings
from kfm_dagster.stages.batch import SkipCause, StageBatch
from kfm_dagster_tests.factories import envelope, finished

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "images" / "footprints"
MISSING = Integrity(
    status=CheckStatus.FAILED,
    issues=(Issue(code=IntegrityIssue.MISSING_OBJECT, severity=Severity.FAILED, message="not there"),),
)
TRUNCATED = Metadata(
    status=CheckStatus.FAILED,
    issues=(Issue(code=MetadataIssue.TRUNCATED_OBJECT, severity=Severity.FAILED, message="half of it"),),
)


SETTINGS = Settings(catalog_url="/home/catalog", console_url="https://console.example/kfm/")
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
    encoded = re.match(r"!\[footprints\]\(data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)\)\n", markdown)
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
    shown = stage_metadata("metadata", batch(units, checks=3, failed=1), day=DAY, settings=SETTINGS)
    assert tuple(shown[f"run_{name}"] for name in ("units", "passed", "failed", "failed_earlier")) == (4, 2, 1, 1)
    rows = [record.data for record in shown["failing_units"].records]
    assert [(row["code"], row["message"], row["object_uri"]) for row in rows] == [
        ("truncated_object", "half of it", units[2].object_uri),
        ("missing_object", "not there", units[3].object_uri),
    ]
    assert "data:image/svg+xml" in shown["footprints"].md_str
    items = stage_metadata("stac_items", batch(units, checks=2, failed=0), day=DAY, settings=SETTINGS)
    assert [items[name] for name in ("run_passed", "run_failed", "run_failed_earlier", "items_created")] == [2, 0, 2, 2]
    assert items["catalog"] == dg.MetadataValue.path("/home/catalog/catalog.json")


@pytest.mark.clause("DAG-11")
def test_a_day_is_described_in_one_sentence_that_begins_with_the_failures() -> None:
    days: list[tuple[dict[Status, int], str]] = [
        ({}, "empty: nothing of this day is known"),
        ({Status.SUCCEEDED: 2}, "2 of 2 succeeded"),
        ({Status.PENDING: 1}, "1 pending; 0 of 1 succeeded"),
        (
            {Status.IN_PROGRESS: 1, Status.FAILED: 2, Status.QUARANTINED: 3, Status.SUCCEEDED: 4},
            "3 quarantined, 2 failed, 1 in progress; 4 of 10 succeeded",
        ),
    ]
    for counts, sentence in days:
        day = DayReport(counts={**dict.fromkeys(Status, 0), **counts}, failing={})
        shown = stage_metadata("ledger", batch([], checks=0, failed=0), day=day, settings=SETTINGS)
        # The day's sentence does not depend on the run.
        assert list(shown.items())[1] == ("day", sentence)
        assert {status: shown[f"day_{status}"] for status in Status} == day.counts
        assert (shown["day_units"], shown["run_units"]) == (sum(counts.values()), 0)


@pytest.mark.clause("DAG-08")
def test_the_outcome_comes_first_and_all_hashes_are_in_the_evidence() -> None:
    units = [finished(envelope(0)), envelope(1, integrity=Integrity(status=CheckStatus.OK), metadata=TRUNCATED)]
    worked = batch(units, checks=2, failed=1)
    account = NodeAccount(
        node="nexrad-l2.metadata_extract",
        fate=StepResult.RAN,
        did="read the headers of 2 objects, 1 failed",
        content_hash="c" * 64,
        forced="the reader was wrong",
        inputs=[{"uri": "s3://bucket/a|b", "version": "d" * 64}],
        took={"seconds": 1.5},
    )
    shown = stage_metadata("metadata", worked, day=DAY, settings=SETTINGS, account=account)
    # Texts come first, then numbers; the evidence comes last.
    first = ["outcome", "forced", "day", "failing_units", "in_console", "all_in_console", "footprints"]
    assert list(shown)[: len(first)] == first
    assert list(shown)[-2:] == ["seconds", "evidence"]
    assert (shown["outcome"], shown["forced"]) == ("partial", "the reader was wrong")
    evidence = shown.pop("evidence").md_str
    assert len(evidence) >= SHOWN_IN_PLACE
    for known in ("c" * 64, "d" * 64, worked.state.inputs_hash, worked.state.run_id, r"s3://bucket/a\|b"):
        assert known in evidence
        assert known not in str({name: value for name, value in shown.items() if name != "all_in_console"})
    skipped = replace(worked, skipped=SkipCause.CONTENT_APPLIED)
    again = stage_metadata("metadata", skipped, day=DAY, settings=SETTINGS)
    assert list(again.items())[:2] == [("outcome", "skipped"), ("cause", "CONTENT_APPLIED")]


@pytest.mark.clause("DAG-08")
def test_failing_units_are_linked_to_the_console_up_to_the_page_s_limit() -> None:
    units = [envelope(number, integrity=MISSING) for number in range(MAX_TABLE_ROWS + 1)]
    worked = batch(units, checks=len(units), failed=len(units))
    shown = stage_metadata("integrity", worked, day=DAY, settings=SETTINGS)
    assert (shown["run_failed"], len(shown["failing_units"].records)) == (MAX_TABLE_ROWS + 1, MAX_TABLE_ROWS)
    links = re.findall(r"- \[(.+)\]\((\S+)\)", shown["in_console"].md_str)
    first = units[0].object_uri.rpartition("/")[2]
    assert links[0] == (f"missing_object: {first}", f"https://console.example/kfm/units/{units[0].wal_id}")
    assert shown["all_in_console"] == dg.MetadataValue.url(f"https://console.example/kfm/runs/{worked.state.run_id}")
    assert 3 < len(links) < 40
    assert len(shown["in_console"].md_str) < SHOWN_IN_PLACE
    failing = FailingUnit(
        wal_id=units[0].wal_id, object_uri="s3://b/a[1]", status=Status.FAILED, attempts=1, code="late", message="late"
    )
    of_day = failing_of_day([failing], console="https://console.example", dataset="hrrr")
    assert of_day["in_console"].md_str == f"- [late: a(1)](https://console.example/units/{units[0].wal_id})"
    assert of_day["all_in_console"].url == "https://console.example/failures?dataset=hrrr"
    assert failing_of_day([], console="https://console.example", dataset="hrrr") == {}
    unknown = stage_metadata("integrity", worked, day=DAY, settings=Settings(catalog_url="/home/catalog"))
    assert not {"in_console", "all_in_console"} & unknown.keys()


@pytest.mark.clause("DAG-11")
def test_counts_with_units_in_progress_are_marked_as_those_when_the_step_ended() -> None:
    def day_of(noun: str, day: DayReport) -> Any:
        return stage_metadata(noun, batch([], checks=0, failed=0), day=day, settings=SETTINGS)["day"]

    assert day_of("ledger", DAY) == "3 quarantined, 2 in progress; 40 of 45 succeeded"
    assert day_of("metadata", DAY) == f"{day_of('ledger', DAY)} when this step ended; final: asset ledger"
    ended = DayReport(counts={**DAY.counts, Status.IN_PROGRESS: 0}, failing={})
    assert day_of("metadata", ended) == day_of("ledger", ended)


def test_an_empty_batch_has_counts_without_picture_and_a_public_catalog_is_a_link() -> None:
    public = Settings(catalog_url="https://catalog.example/root/")
    shown = stage_metadata("stac_items", batch([], checks=0, failed=0), day=DAY, settings=public)
    assert shown["catalog"] == dg.MetadataValue.url("https://catalog.example/root/catalog.json")
    assert shown["run_units"] == 0
    assert not {"footprints", "failing_units", "run_failed_earlier"} & set(shown)


@given(
    st.lists(
        st.tuples(st.floats(-180, 179), st.floats(-90, 89), st.floats(0.01, 1), st.floats(0.01, 1)),
        min_size=1,
        max_size=5,
    )
)
def test_every_outline_is_within_the_picture(corners: list[tuple[float, float, float, float]]) -> None:
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
    # It has the position and size of a box that does not cross the antimeridian.
    assert set(whole) == set(outlines(drawn(footprint_map([box(-160, 10, -120, 20)])))[0])


def land_around(longitude: float, latitude: float) -> bool:
    """Return whether the middle of a map is land, for places with only land or only sea."""
    picture = drawn(footprint_map([box(longitude - 0.2, latitude - 0.2, longitude + 0.2, latitude + 0.2)]))
    land = picture.findall("{*}g[@transform]/{*}path")[0].attrib["d"]
    steps = [int(number) for number in re.findall(r"-?\d+", land)]
    corners = list(zip(accumulate(steps[::2]), accumulate(steps[1::2]), strict=True))
    return bool(corners) and shapely.Polygon(corners).covers(shapely.Point(WIDTH, float(picture.attrib["height"])))


def test_land_is_drawn_below_footprints_and_the_documents_pictures_are_current() -> None:
    # On land: Kansas; a point of Siberia, once at -176 and once at 184 degrees; a point near the South Pole.
    for land in ((-98, 38.5), (-176, 67), (184, 67), (30, -88)):
        assert land_around(*land), land
    for sea in ((-150, 20), (-90, 26)):
        assert not land_around(*sea), sea
    # Two pictures of the documents: the whole world, and countries with their states.
    for name, corners in (("gefs", (-180, -90, 180, 90)), ("mrms", (-129.995, 20.005, -60.005, 54.995))):
        shown = ET.parse(PICTURES / f"{name}.svg").getroot()
        assert ET.tostring(drawn(footprint_map([box(*corners)]))) == ET.tostring(shown), name


def test_equal_footprints_are_drawn_once_and_their_number_is_bounded() -> None:
    assert len(outlines(drawn(footprint_map([box(0, 0, 1, 1)] * 3)))) == 1
    many = footprint_map([box(number / 10, 0, number / 10 + 1, 1) for number in range(MAX_OUTLINES + 50)])
    assert len(outlines(drawn(many))) == MAX_OUTLINES
    assert f"distinct outlines: {MAX_OUTLINES + 50}; drawn: {MAX_OUTLINES}" in many


def test_a_footprint_without_extent_is_a_dot() -> None:
    points = {"type": "MultiPoint", "coordinates": [[10, 20], [11, 21]]}
    picture = drawn(footprint_map([{"type": "Point", "coordinates": [9, 20]}, points, box(9, 20, 11, 21)]))
    dots = [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in picture.iterfind("{*}g[@fill]/{*}circle")]
    [outline] = outlines(picture)
    # The first and the last dot are corners of the box.
    assert dots == [
        min(outline, key=lambda point: (point[0], -point[1])),
        dots[1],
        max(outline, key=lambda point: (point[0], -point[1])),
    ]
