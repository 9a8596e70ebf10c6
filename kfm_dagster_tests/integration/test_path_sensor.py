"""When the beams of a day are asked for by themselves, and that G3 and G7 look at them (PCS-22)."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kfm_dagster.defs.jobs import PATH_JOB
from kfm_dagster.exports.validation import validate_report
from kfm_dagster.ingest.path_arrivals import LOOKS_BACK, PAUSE
from kfm_dagster.ingest.pipeline import utc_now
from kfm_dagster_tests.integration.chain import DAY, announce, put, take, volumes
from kfm_dagster_tests.integration.face import Face, asked_datasets

pytestmark = pytest.mark.one_database

SENSOR, PARTITION, JOB = "nodd_due", DAY.isoformat(), "ingest_nexrad_l2"


def arrive(face: Face, objects: Path, *, first: int, last: int) -> None:
    items = volumes(last)[first:]
    put(objects, items)
    take(face.pipeline, announce([item.event() for item in items], registry=face.pipeline.registry))


def asked(face: Face) -> list[dict[str, Any]]:
    return [
        {"day": one.partition_key, "assets": one.asset_selection, "key": one.run_key, "of": asked_datasets(one)}
        for one in face.tick(SENSOR).run_requests or ()
        if one.job_name == PATH_JOB
    ]


def ingest(face: Face) -> None:
    assert face.execute(JOB, partition=PARTITION).success


@pytest.mark.clause("PCS-22")
def test_a_day_s_beams_are_asked_for_once_its_units_have_ended_and_again_after_a_pause_for_more(
    face: Face, objects: Path
) -> None:
    sensor = face.repository.get_sensor_def(SENSOR)
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    assert PATH_JOB in {job.name for job in sensor.jobs}
    assert asked(face) == []
    arrive(face, objects, first=0, last=2)
    ingest(face)
    arrive(face, objects, first=2, last=3)
    assert asked(face) == [], "a unit waits"
    ingest(face)
    [once] = asked(face)
    assert (once["day"], once["assets"]) == (PARTITION, [dg.AssetKey(["nexrad_l2", "path_arrival"])])
    assert once["of"] == {"nexrad-l2"}
    assert asked(face) == [once], "until the table is there; Dagster takes a run key once"
    assert face.execute(PATH_JOB, partition=PARTITION).success
    assert asked(face) == []
    report = validate_report(face.pipeline, since=face.pipeline.clock() - timedelta(days=1))
    assert {name: report["gates"][name]["looked_at"] for name in ("G3", "G7")} == {"G3": 1, "G7": 1}

    arrive(face, objects, first=3, last=4)
    ingest(face)
    assert asked(face) == [], "the table is of late"
    face.pipeline.clock = lambda: utc_now() + PAUSE
    [again] = asked(face)
    assert again["key"] != once["key"]
    face.pipeline.clock = lambda: utc_now() + LOOKS_BACK
    assert asked(face) == [], "what is that old is a person's"
