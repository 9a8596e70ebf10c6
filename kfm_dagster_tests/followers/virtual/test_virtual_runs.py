"""A run's Items are in the day's virtual stores when it has settled, and leave with an undo; nothing else does."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from kfm_dagster.demo.samples.goes_abi import make_goes_abi
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster_tests.integration.chain import good, open_pipeline, put, run_chain
from kfm_dagster_tests.transactions import own_tx

DAY = datetime(2025, 6, 1, 12, tzinfo=UTC)
NAME = "G19_ABI-L1b-RadM1_C13"


def scan(minute: int) -> Any:
    start = DAY + timedelta(minutes=minute)
    return good("noaa-goes19", *make_goes_abi(product="ABI-L1b-RadM1", start=start, satellite=19, band=13))


def steps_of(place: Path) -> list[tuple[str, int]]:
    stores = json.loads((place / "goes-abi/2025/2025-06-01/stores.json").read_bytes())["stores"]
    return [(one["name"], one["steps"]) for one in stores]


def test_stores_follow_runs_and_their_undo(tmp_path: Path) -> None:
    objects, place = tmp_path / "objects", tmp_path / "virtual"
    with closing(open_pipeline(tmp_path, objects, virtual_url=str(place))) as pipeline:
        for run_id, minutes in (("first", (0, 1)), ("second", (2,))):
            put(objects, map(scan, minutes))
            run_chain(pipeline, "goes-abi", "2025-06-01", run_id)
        assert steps_of(place) == [(NAME, 3)]
        assert own_tx(pipeline.ledger).counts()["goes-abi"][Status.SUCCEEDED] == 3
        own_tx(pipeline.catalog).undo("goes-abi", "first")
        pipeline.following.catch_up(pipeline.followers)
        assert steps_of(place) == [(NAME, 1)]
        (follower,) = pipeline.followers
        pipeline.following.rebuild(follower, pipeline.registry["goes-abi"])
        assert steps_of(place) == [(NAME, 1)]


def test_a_place_that_takes_no_file_costs_no_unit(tmp_path: Path) -> None:
    objects, place = tmp_path / "objects", tmp_path / "virtual"
    place.write_text("a file stands where the folder would be")
    put(objects, [scan(0)])
    with closing(open_pipeline(tmp_path, objects, virtual_url=str(place))) as pipeline:
        run_chain(pipeline, "goes-abi", "2025-06-01", "first")
        assert own_tx(pipeline.ledger).counts()["goes-abi"][Status.SUCCEEDED] == 1
        (stalled,) = pipeline.following.states()
    assert (stalled.follower, stalled.failures) == ("virtual-zarr", 1)
    assert "KFM_VIRTUAL_URL" in str(stalled.last_error)
