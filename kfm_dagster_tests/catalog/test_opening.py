"""Assets open with the clients that people have, through an S3 server, by what their Items say and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import boto3
import pystac
import pytest
from moto.server import ThreadedMotoServer

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster_tests.catalog.real_objects import item_of_file

HRRR = "noaa-hrrr-bdp-pds/hrrr.20230722/conus/hrrr.t06z.wrfsfcf01.grib2"
CMIP = (
    "noaa-goes16/ABI-L2-CMIPM/2017/193/18/OR_ABI-L2-CMIPM1-M3C03_G16_s20171931811268_e20171931811326_c20171931811389.nc"
)
VOLUME = "unidata-nexrad-level2/2020/01/01/KCRP/KCRP20200101_000431_V06"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """An S3 server on loopback, host and port."""
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    moto.start()
    host, port = moto.get_host_and_port()
    yield f"{host}:{port}"
    moto.stop()


@pytest.fixture
def opened(server: str, shared_data: Path, contracts: ContractRegistry, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put an object where its Item says that it is; return the Item, with GDAL pointed at the server."""
    for name, value in {
        "AWS_S3_ENDPOINT": server,
        "AWS_HTTPS": "NO",
        "AWS_VIRTUAL_HOSTING": "FALSE",
        "AWS_NO_SIGN_REQUEST": "YES",
        "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR",
    }.items():
        monkeypatch.setenv(name, value)

    def of(path: str) -> pystac.Item:
        bucket, key = path.split("/", 1)
        s3 = boto3.client(
            "s3",
            endpoint_url=f"http://{server}",
            aws_access_key_id="x",
            aws_secret_access_key="x",
            region_name="us-east-1",
        )
        s3.create_bucket(Bucket=bucket)
        s3.put_object(Bucket=bucket, Key=key, Body=(shared_data / "objects" / path).read_bytes(), ACL="public-read")
        return pystac.Item.from_dict(item_of_file(contracts, shared_data / "objects", path))

    return of


# stackstac and odc-stac multiply transforms as affine once wanted.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")
@pytest.mark.clause("OPR-21")
def test_a_grib_object_opens_in_gdal_xarray_and_stackstac(opened: Any) -> None:
    import rasterio
    import stackstac
    import xarray

    item = opened(HRRR)
    asset, said = item.assets["data"], item.properties
    with rasterio.open(asset.href) as dataset:
        assert [dataset.height, dataset.width] == said["proj:shape"]
        assert list(dataset.transform)[:6] == pytest.approx(said["proj:transform"], abs=1e-3)
        assert dataset.count == said["grib:message-count"]
        assert dataset.crs.is_projected
    with xarray.open_dataset(asset.href, **asset.extra_fields["xarray:open_kwargs"]) as found:
        assert found["band_data"].shape == (said["grib:message-count"], *said["proj:shape"])
        temperatures = found["band_data"].values
    # The middle of the United States, in degrees; a July morning, in degrees Celsius.
    stack = stackstac.stack(
        [item.to_dict()], assets=["data"], epsg=4326, resolution=0.1, bounds_latlon=(-100, 35, -95, 40)
    ).compute()
    assert temperatures.min() <= stack.min() < stack.max() <= temperatures.max()


# A container of images has no place of its own.
@pytest.mark.filterwarnings(
    "ignore:Dataset has no geotransform", "ignore::DeprecationWarning", "ignore::PendingDeprecationWarning"
)
@pytest.mark.clause("OPR-21")
def test_a_netcdf_object_opens_in_gdal_xarray_and_odc_stac(opened: Any, shared_data: Path) -> None:
    import odc.stac
    import rasterio
    import xarray

    item = opened(CMIP)
    asset, said = item.assets["data"], item.properties
    with rasterio.open(asset.href) as dataset:
        (image,) = [name for name in dataset.subdatasets if name.endswith(":CMI")]
    with rasterio.open(image) as dataset:
        assert [dataset.height, dataset.width] == said["proj:shape"]
        assert list(dataset.transform)[:6] == pytest.approx(said["proj:transform"], abs=0.1)
    content = BytesIO((shared_data / "objects" / CMIP).read_bytes())
    with xarray.open_dataset(content, **asset.extra_fields["xarray:open_kwargs"]) as found:
        assert list(found["CMI"].shape) == said["proj:shape"]
    loaded = odc.stac.load([item], bands=["data"], patch_url=lambda _: image)
    assert [loaded.sizes["y"], loaded.sizes["x"]] == said["proj:shape"]
    assert float(loaded["x"][0]) == pytest.approx(said["proj:transform"][2] + said["proj:transform"][0] / 2)


@pytest.mark.clause("OPR-21")
def test_a_volume_opens_in_xradar(opened: Any, shared_data: Path) -> None:
    import xarray

    asset = opened(VOLUME).assets["data"]
    path = str(shared_data / "objects" / VOLUME)
    with xarray.open_dataset(path, group="sweep_0", **asset.extra_fields["xarray:open_kwargs"]) as found:
        assert "DBZH" in found
