"""Virtual stores open in xarray through S3 with the values that netCDF4 and ecCodes read.

The first code example of `docs/virtual-zarr.md` runs unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyproj
import pytest

import kfm_dagster as kfm
from kfm_dagster.catalog.changes import ChangeKind, ItemChange
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.followers.virtual import VirtualZarr
from kfm_dagster.reading.icechunk_form import write_icechunk
from kfm_dagster.storage.objects import ObjectStores
from kfm_dagster.storage.publisher import FolderPublisher
from kfm_dagster_tests.catalog.real_objects import REAL, item_of_file
from kfm_dagster_tests.followers.changes import change
from kfm_dagster_tests.followers.virtual.buckets import Opened, put
from kfm_dagster_tests.followers.virtual.forecasts import RUN, corners, decoded, forecast, messages_of, write
from kfm_dagster_tests.followers.virtual.granules import (
    NAME,
    Granule,
    change_of,
    decoded_values,
    numbers,
    stored_values,
)

# s3fs does not close a client that is used in zarr's own loop.
pytestmark = [
    pytest.mark.usefixtures("clients"),
    pytest.mark.filterwarnings(
        "ignore:Unclosed:ResourceWarning", "ignore:Exception ignored in.*Client:pytest.PytestUnraisableExceptionWarning"
    ),
]


def assert_same(store: Any, contents: Sequence[bytes]) -> None:
    """Check that each step equals its object: all variables, undecoded, bit for bit."""
    assert store.sizes["t"] == len(contents)
    for number, content in enumerate(contents):
        values = stored_values(content)
        assert {"t", "x", "y"} <= set(store.variables) <= values.keys()
        for name, variable in store.variables.items():
            variable_values = variable.values[number] if variable.dims[:1] == ("t",) else variable.values
            assert variable_values.dtype == values[name].dtype
            assert variable_values.tobytes() == values[name].tobytes(), name


def undecoded(opened: Opened, name: str, day: datetime, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Open the store without decoding."""
    import xarray

    whole = xarray.open_dataset
    with monkeypatch.context() as patch:
        patch.setattr(xarray, "open_dataset", lambda *arguments, **more: whole(*arguments, decode_cf=False, **more))
        return opened(name, day)


def test_scans_of_a_day_form_one_cube_with_the_bytes_of_each_object(
    server: str, follower: VirtualZarr, contract: DatasetContract, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    granules = [Granule(minute=minute, blank=minute == 2, fletcher32=True) for minute in range(4)]
    for granule in granules:
        put(server, "noaa-goes19", granule.key, granule.content)
    # The changes come in another order than the scans.
    follower.follow(contract, [change_of(scan) for scan in reversed(granules)])
    day = granules[0].start
    contents = [scan.content for scan in granules]
    assert_same(undecoded(opened, NAME, day, monkeypatch), contents)
    scene = opened(NAME, day)
    assert (
        scene["t"].values
        == np.array([scan.start.replace(tzinfo=None) for scan in granules], "M8[ns]") + np.timedelta64(3, "s")
    ).all()
    assert scene["Rad"].dims == ("t", "y", "x")
    for number, content in enumerate(contents):
        for name in ("Rad", "DQF", "x", "y"):
            values = scene[name].values[number] if scene[name].dims[0] == "t" else scene[name].values
            # Attributes from JSON are 64-bit numbers, and xarray computes with these.
            np.testing.assert_allclose(values, decoded_values(content, name), rtol=1e-5, atol=1e-7)
    assert scene.attrs == {"title": "ABI L1b Radiances"}
    assert "percent_good" not in scene["DQF"].attrs
    follower.follow(contract, [change_of(granules[1], kind=ChangeKind.WITHDRAWN)])
    assert_same(undecoded(opened, NAME, day, monkeypatch), [*contents[:1], *contents[2:]])


REAL_STORES = {
    REAL["goes-abi"][0]: "G16_ABI-L1b-RadM1_C01",
    REAL["goes-abi"][1]: "G17_ABI-L1b-RadC_C06_18h",
    REAL["goes-abi"][2]: "G16_ABI-L2-CMIPM1_C03",
    REAL["goes-abi"][3]: "G16_ABI-L2-LSTC",
    REAL["goes-abi"][4]: "G17_ABI-L2-FDCC",
}


@pytest.mark.parametrize(("real", "name"), REAL_STORES.items())
def test_the_store_of_a_real_object_has_the_bytes_of_the_object(
    real: str,
    name: str,
    server: str,
    shared_data: Path,
    follower: VirtualZarr,
    contracts: ContractRegistry,
    opened: Opened,
    reads: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (path,) = (shared_data / "objects").rglob(real)
    where = path.relative_to(shared_data / "objects").as_posix()
    content = path.read_bytes()
    put(server, *where.split("/", 1), content)
    changed = change(next(numbers), item_of_file(contracts, shared_data / "objects", where))
    follower.follow(contracts["goes-abi"], [changed])
    assert follower.report["added"] == 1, follower.report
    assert 0 < len(reads) <= 8
    day = datetime.fromisoformat(changed.partition)
    assert_same(undecoded(opened, name, day, monkeypatch), [content])


def test_an_overwritten_object_is_left_out_until_its_item_is_updated(
    server: str, follower: VirtualZarr, contract: DatasetContract, opened: Opened
) -> None:
    # Both objects have the same size, so that only the ETag distinguishes the stored object from that of the Item.
    granule, other = (Granule(minute=minute, zlib=False, shuffle=False) for minute in (7, 8))
    assert len(granule.content) == len(other.content)
    put(server, "noaa-goes19", granule.key, other.content)
    put(server, "noaa-goes19", other.key, other.content)
    follower.follow(contract, [change_of(granule), change_of(other)])
    assert follower.report == {"added": 1, "left_out": 1}
    assert opened(NAME, granule.start).sizes["t"] == 1


FORECASTS = "conus_sfc_t06z"
HUMIDITY, VISIBILITY, SUM, HOURLY = "RH_2_m_above_ground", "VIS_surface", "APCP_surface_acc", "APCP_surface_acc_1h"
TEMPERATURE = "TMP_2_m_above_ground"


def forecast_change(
    contracts: ContractRegistry, root: Path, path: str, *, kind: ChangeKind = ChangeKind.CREATED
) -> ItemChange:
    return change(next(numbers), item_of_file(contracts, root, path), kind=kind, day=f"{RUN:%Y-%m-%d}")


def test_a_forecast_run_is_one_cube_with_the_values_that_eccodes_reads(
    server: str,
    follower: VirtualZarr,
    contracts: ContractRegistry,
    opened: Opened,
    reads: list[int],
    tmp_path: Path,
) -> None:
    forecasts = [forecast(0), forecast(1, humid=False), forecast(2), forecast(3, fog=True)]
    paths = [write(tmp_path, file) for file in forecasts]
    for (key, content, _), path in zip(forecasts, paths, strict=True):
        put(server, path.partition("/")[0], key, content)
    changes = [forecast_change(contracts, tmp_path, path) for path in paths]
    follower.follow(contracts["hrrr"], changes[::-1])
    # One request for the header of each field of the contract; the last file's constant visibility is refused.
    assert follower.report == {"added": 4, "refused": 1}
    assert len(reads) == 3 + 3 + 5 + 5
    run = opened(FORECASTS, RUN, "hrrr")
    assert list(run["valid_time"].values) == [np.datetime64(f"2025-12-03T{6 + lead:02}", "ns") for lead in range(4)]
    assert (run["reference_time"].values == np.datetime64("2025-12-03T06", "ns")).all()
    by_lead = [messages_of(content) for _, content, _ in forecasts]
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
        for values, message in zip(run[name].values, messages, strict=True):
            if message is None:
                assert np.isnan(values).all()
            else:
                np.testing.assert_allclose(values, decoded(message), rtol=1e-14)
    assert np.isnan(run[VISIBILITY].values[0]).any()
    described = {"long_name": TEMPERATURE.replace("_", " "), "units": "K", "grid_mapping": "spatial_ref"}
    assert run[TEMPERATURE].attrs == described
    for axis in ("x", "y"):
        metres = {"standard_name": f"projection_{axis}_coordinate", "units": "m", "axis": axis.upper()}
        assert run[axis].attrs == metres
    times = {"reference_time": "forecast_reference_time", "valid_time": "time", "x": None, "y": None}
    assert {name: times[name] and run[name].attrs["standard_name"] for name in run.coords} == times
    points_are_where_eccodes_has_them(run, by_lead[0][0])
    the_same_in_icechunk(run, tmp_path / "icechunk")


def the_same_in_icechunk(run: Any, folder: Path) -> None:
    import icechunk
    import xarray

    assert write_icechunk(kfm.stores("hrrr"), str(folder)) == run.sizes["valid_time"]
    noaa = icechunk.containers_credentials({"s3://noaa-hrrr-bdp-pds/": icechunk.s3_anonymous_credentials()})
    storage = icechunk.local_filesystem_storage(str(folder))
    repository = icechunk.Repository.open(storage, authorize_virtual_chunk_access=noaa)
    dataset = xarray.open_zarr(repository.readonly_session("main").store, consolidated=False, chunks=None)
    xarray.testing.assert_equal(dataset, run)


def points_are_where_eccodes_has_them(run: Any, message: bytes) -> None:
    """Check the corners; the message's first row, the southernmost, is the first of `y`."""
    to_degrees = pyproj.Proj(run["spatial_ref"].attrs["crs_wkt"])
    x, y = run["x"].values, run["y"].values
    assert (np.diff(y) > 0).all()
    (first, last) = (to_degrees(x[at], y[at], inverse=True) for at in (0, -1))
    np.testing.assert_allclose(
        [first[1], first[0] % 360, last[1], last[0] % 360], np.array(corners(message)) % 360, atol=1e-5
    )


def test_a_store_depends_only_on_the_current_forecasts(contracts: ContractRegistry, tmp_path: Path) -> None:
    paths = [write(tmp_path, file) for file in (forecast(0), forecast(1, humid=False), forecast(2, humid=False))]
    drier, alone = tmp_path / "drier", tmp_path / "alone"
    follower = VirtualZarr(FolderPublisher(drier), ObjectStores(object_root=tmp_path))
    follower.follow(contracts["hrrr"], [forecast_change(contracts, tmp_path, path) for path in paths[:2]])
    follower.follow(contracts["hrrr"], [forecast_change(contracts, tmp_path, paths[2])])
    follower.follow(contracts["hrrr"], [forecast_change(contracts, tmp_path, paths[0], kind=ChangeKind.WITHDRAWN)])
    follower = VirtualZarr(FolderPublisher(alone), ObjectStores(object_root=tmp_path))
    follower.follow(contracts["hrrr"], [forecast_change(contracts, tmp_path, path) for path in paths[:0:-1]])
    listed = [(place / "hrrr/2025/2025-12-03/stores.json").read_bytes() for place in (drier, alone)]
    assert listed[0] == listed[1]
    assert HUMIDITY.encode() not in listed[0]
