"""Virtual stores of GRIB2 messages open with xarray through an S3 server, and have the values that ecCodes reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyproj
import pytest

from kfm_dagster.catalog.changes import ChangeKind, ItemChange
from kfm_dagster.catalog.publisher import FolderPublisher
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.followers.virtual import VirtualZarr
from kfm_dagster.storage.objects import ObjectStores
from kfm_dagster_tests.catalog.real_objects import item_of_file
from kfm_dagster_tests.followers.changes import change
from kfm_dagster_tests.followers.virtual.buckets import Opened, put
from kfm_dagster_tests.followers.virtual.forecasts import RUN, corners, decoded, forecast, messages_of, write
from kfm_dagster_tests.followers.virtual.granules import numbers

NAME = "conus_sfc_t06z"
HUMIDITY, VISIBILITY, SUM, HOURLY = "RH_2_m_above_ground", "VIS_surface", "APCP_surface_acc", "APCP_surface_acc_1h"
TEMPERATURE = "TMP_2_m_above_ground"

# s3fs leaves the closing of a client that zarr's own loop uses to nobody.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Unclosed:ResourceWarning", "ignore:Exception ignored in.*Client:pytest.PytestUnraisableExceptionWarning"
)


def change_of(
    contracts: ContractRegistry, root: Path, path: str, *, kind: ChangeKind = ChangeKind.CREATED
) -> ItemChange:
    return change(next(numbers), item_of_file(contracts, root, path), kind=kind, day=f"{RUN:%Y-%m-%d}")


def test_a_run_is_one_cube_with_the_values_that_eccodes_reads(
    server: str,
    bucket_follower: VirtualZarr,
    contracts: ContractRegistry,
    opened: Opened,
    reads: list[int],
    tmp_path: Path,
) -> None:
    made = [forecast(0), forecast(1, humid=False), forecast(2), forecast(3, fog=True)]
    paths = [write(tmp_path, one) for one in made]
    for (key, content, _), path in zip(made, paths, strict=True):
        put(server, path.partition("/")[0], key, content)
    changes = [change_of(contracts, tmp_path, path) for path in paths]
    bucket_follower.follow(contracts["hrrr"], changes[::-1])
    # A request for each message's header, of this contract's fields; the constant visibility of the last is refused.
    assert bucket_follower.report == {"added": 4, "refused": 1}
    assert len(reads) == 3 + 3 + 5 + 5
    run = opened(NAME, RUN, "hrrr")
    assert list(run["valid_time"].values) == [np.datetime64(f"2025-12-03T{6 + lead:02}", "ns") for lead in range(4)]
    assert (run["reference_time"].values == np.datetime64("2025-12-03T06", "ns")).all()
    by_lead = [messages_of(content) for _, content, _ in made]
    expected: dict[str, list[Any]] = {
        TEMPERATURE: [by_lead[0][0], by_lead[1][0], by_lead[2][0], by_lead[3][0]],
        HUMIDITY: [by_lead[0][1], None, by_lead[2][1], by_lead[3][1]],
        VISIBILITY: [by_lead[0][2], by_lead[1][1], by_lead[2][2], None],
        SUM: [None, by_lead[1][2], by_lead[2][3], by_lead[3][3]],
        HOURLY: [None, by_lead[1][2], by_lead[2][4], by_lead[3][4]],
    }
    assert set(run.data_vars) == {*expected, "spatial_ref"}
    for name, messages in expected.items():
        assert run[name].dims == ("valid_time", "y", "x")
        for found, message in zip(run[name].values, messages, strict=True):
            if message is None:
                assert np.isnan(found).all()
            else:
                np.testing.assert_allclose(found, decoded(message), rtol=1e-14)
    assert np.isnan(run[VISIBILITY].values[0]).any()
    assert run[TEMPERATURE].attrs["units"] == "K"
    points_are_where_eccodes_has_them(run, by_lead[0][0])


def points_are_where_eccodes_has_them(run: Any, message: bytes) -> None:
    """The first row of the message is the first of `y`, which is the south."""
    to_degrees = pyproj.Proj(run["spatial_ref"].attrs["crs_wkt"])
    x, y = run["x"].values, run["y"].values
    assert (np.diff(y) > 0).all()
    (first, last) = (to_degrees(x[at], y[at], inverse=True) for at in (0, -1))
    np.testing.assert_allclose(
        [first[1], first[0] % 360, last[1], last[0] % 360], np.array(corners(message)) % 360, atol=1e-5
    )


def test_a_store_is_a_function_of_the_forecasts_that_stand(contracts: ContractRegistry, tmp_path: Path) -> None:
    paths = [write(tmp_path, one) for one in (forecast(0), forecast(1, humid=False), forecast(2, humid=False))]
    drier, alone = tmp_path / "drier", tmp_path / "alone"
    follower = VirtualZarr(FolderPublisher(drier), ObjectStores(object_root=tmp_path))
    follower.follow(contracts["hrrr"], [change_of(contracts, tmp_path, path) for path in paths[:2]])
    follower.follow(contracts["hrrr"], [change_of(contracts, tmp_path, paths[2])])
    follower.follow(contracts["hrrr"], [change_of(contracts, tmp_path, paths[0], kind=ChangeKind.WITHDRAWN)])
    follower = VirtualZarr(FolderPublisher(alone), ObjectStores(object_root=tmp_path))
    follower.follow(contracts["hrrr"], [change_of(contracts, tmp_path, path) for path in paths[:0:-1]])
    listed = [(place / "hrrr/2025/2025-12-03/stores.json").read_bytes() for place in (drier, alone)]
    assert listed[0] == listed[1]
    assert HUMIDITY.encode() not in listed[0]
