"""The clients of `docs/virtual-zarr.md` read the values that netCDF4 reads, and only of the indexed version.

The page's code examples run unchanged, in this Python and in the newest Python of the machine: KFM_CLIENTS_PYTHON, or
`.venv-clients/bin/python` of `make clients`. The newest Python runs all examples in one process.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pystac
import pytest
from click.testing import CliRunner

import kfm_dagster as kfm
from kfm_dagster.catalog.changes import ChangeKind
from kfm_dagster.catalog.validation import _validators
from kfm_dagster.cli.stac import stac
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.errors import UnknownNameError
from kfm_dagster.followers.virtual import VirtualZarr
from kfm_dagster.storage.object_handle import ObjectReadError
from kfm_dagster_tests.followers.virtual.buckets import PAGE, Opened, put
from kfm_dagster_tests.followers.virtual.client_blocks import results
from kfm_dagster_tests.followers.virtual.granules import NAME, Granule, change_of, decoded_values

pytestmark = [
    pytest.mark.clause("BEY-20"),
    pytest.mark.usefixtures("clients"),
    # s3fs does not close a client that is used in zarr's own loop.
    pytest.mark.filterwarnings(
        "ignore:Unclosed:ResourceWarning",
        "ignore:Exception ignored in.*Client:pytest.PytestUnraisableExceptionWarning",
        # Zarr 3 warns of numcodecs' filters, which VirtualiZarr and Icechunk use.
        "ignore:Numcodecs codecs are not in the Zarr version 3",
    ),
]

FIRST, XPYSTAC, ZARR, ICECHUNK, FSSPEC, VIRTUALIZARR, GDAL = re.findall(r"(?s)```python\n(.*?)```", PAGE)
CLIENTS = {
    "kfm": FIRST + 'image = scene["Rad"][0].values\n',
    "xpystac": FIRST + XPYSTAC,
    "zarr": FIRST + ZARR + 'image[rad[0] == rad.attrs["_FillValue"]] = float("nan")\n',
    "icechunk": ICECHUNK,
    "fsspec": FIRST + FSSPEC,
    "virtualizarr": FIRST + VIRTUALIZARR,
    "gdal": FIRST + GDAL + 'image = image.filled(float("nan"))\n',
}
NEWER = {"gdal", "virtualizarr"}
"""Clients that need Python 3.12: then rasterio has GDAL 3.11, and VirtualiZarr reads small arrays in references."""
ROOT = Path(__file__).resolve().parents[3]
Images = Callable[[], Mapping[str, Any]]


class Rewritten(Granule):
    """Another object at a granule's address, with the same size."""

    @property
    def key(self) -> str:
        return replace(self, revision=0).key if self.revision else super().key


def granule(minute: int, **more: Any) -> Rewritten:
    return Rewritten(minute=minute, zlib=False, shuffle=False, **more)


def newest() -> str:
    python = os.environ.get("KFM_CLIENTS_PYTHON") or str(ROOT / ".venv-clients/bin/python")
    if not Path(python).exists():
        pytest.skip("no newer Python with the clients: make clients, or KFM_CLIENTS_PYTHON")
    return python


@pytest.fixture(params=["this Python", "the newest Python"])
def images(request: pytest.FixtureRequest, opened: Opened, bucket_place: str, tmp_path: Path) -> Images:
    """Return a function that runs the clients and returns the first scan, or the error, of each client."""
    storage = f"icechunk.local_filesystem_storage({str(tmp_path / 'june')!r})"
    blocks = {name: re.sub(r"icechunk\.s3_storage\(.*\)", storage, code) for name, code in CLIENTS.items()}
    blocks["virtualizarr"] = blocks["virtualizarr"].replace("my-virtual", "ours")
    if request.param == "this Python":
        return lambda: results({name: code for name, code in blocks.items() if name not in NEWER})
    command = [newest(), str(Path(__file__).with_name("client_blocks.py"))]

    def run() -> Mapping[str, Any]:
        ended = subprocess.run(command, input=json.dumps(blocks), capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        images: Mapping[str, Any] = json.loads(ended.stdout.splitlines()[-1])
        return images

    return run


def to_icechunk(tmp_path: Path) -> None:
    (command,) = re.findall(r"kfm stac (icechunk .*)", PAGE)
    arguments = command.replace("s3://my-icechunk/june", str(tmp_path / "june")).split()
    ended = CliRunner().invoke(stac, arguments, catch_exceptions=False, standalone_mode=False)
    assert ended.stdout == "3 steps\n"


def scanned(images: Images, content: bytes) -> None:
    for name, image in images().items():
        assert not isinstance(image, str), f"{name}: {image}"
        np.testing.assert_allclose(image, decoded_values(content), rtol=1e-6, atol=1e-6, err_msg=name)


def test_no_client_reads_an_object_that_was_overwritten(
    server: str, follower: VirtualZarr, contract: DatasetContract, images: Images, tmp_path: Path
) -> None:
    old, new = granule(0), granule(0, revision=1)
    assert (old.uri, len(old.content)) == (new.uri, len(new.content))
    indexed(server, follower, contract, old, granule(1), granule(2))
    to_icechunk(tmp_path)
    scanned(images, old.content)
    put(server, "noaa-goes19", new.key, new.content)
    for name, error in images().items():
        assert isinstance(error, str), f"{name} reads {error}"
        assert re.search("written again|checksum of the object", error), f"{name}: {error}"
    # The new object's Item gets its own references.
    follower.follow(contract, [change_of(new, kind=ChangeKind.UPDATED)])
    to_icechunk(tmp_path)
    scanned(images, new.content)


def indexed(server: str, follower: VirtualZarr, contract: DatasetContract, *granules: Granule) -> None:
    for scan in granules:
        put(server, "noaa-goes19", scan.key, scan.content)
    follower.follow(contract, [change_of(scan) for scan in granules])


def test_reading_an_object_that_is_overwritten_meanwhile_raises(
    server: str, follower: VirtualZarr, contract: DatasetContract, opened: Opened
) -> None:
    indexed(server, follower, contract, granule(0), granule(1))
    new = granule(0, revision=1)
    scene = opened(NAME, new.start)
    (store,) = kfm.stores("goes-abi", NAME)
    with pytest.raises(ObjectReadError, match="written again"), kfm.unchanged(store):
        put(server, "noaa-goes19", new.key, new.content)
    with pytest.raises(ObjectReadError, match="written again"):
        scene["Rad"][0].load()
    np.testing.assert_allclose(scene["Rad"][1].values, decoded_values(granule(1).content), rtol=1e-6, atol=1e-6)


def test_stores_of_several_days_are_one_array_if_grid_type_scale_and_unit_are_equal(
    server: str, follower: VirtualZarr, contract: DatasetContract, opened: Opened, tmp_path: Path
) -> None:
    scans = [granule(minute) for minute in (0, 1, 24 * 60, 48 * 60)]
    indexed(server, follower, contract, *scans, granule(72 * 60, west=0.02))
    opened(NAME, scans[0].start)
    month = kfm.open(kfm.stores("goes-abi", NAME, time="2025-06-01/2025-06-03"))
    assert month.sizes["t"] == len(scans)
    for number, scan in enumerate(scans):
        np.testing.assert_allclose(month["Rad"][number].values, decoded_values(scan.content), rtol=1e-6, atol=1e-6)
    with pytest.raises(UnknownNameError, match=r"grid, type, scale or unit.*2025-06-04"):
        kfm.open(kfm.stores("goes-abi", NAME))
    with pytest.raises(UnknownNameError, match=f"no such store.*{NAME}"):
        kfm.stores("goes-abi", "G19_ABI-L1b-RadM1_C14")


def test_a_store_is_found_by_clients_of_stac(
    server: str, follower: VirtualZarr, contract: DatasetContract, opened: Opened, bucket_place: str, tmp_path: Path
) -> None:
    import fsspec

    indexed(server, follower, contract, granule(0))
    opened(NAME, granule(0).start)
    collection = pystac.Collection.from_file(str(tmp_path / "catalog/goes-abi/collection.json"))
    (days,) = [asset.href for asset in collection.assets.values() if asset.has_role("virtual")]
    with fsspec.open(days) as file:
        catalog = pystac.Catalog.from_dict(json.load(file))
    (items,) = [link.href for link in catalog.links if link.rel == "items"]
    with fsspec.open(f"{days.rpartition('/')[0]}/{items.removeprefix('./')}") as file:
        document = json.load(file)
    (item,) = pystac.ItemCollection.from_dict(document)
    assert list(_validators()["item"][0].iter_errors(document["features"][0])) == []
    (asset,) = [asset for asset in item.assets.values() if asset.has_role("virtual")]
    assert [link.href for link in item.links if link.rel == "store"] == [asset.href]
    assert kfm.open(asset.href, field="Rad").shape == kfm.open(item)["Rad"].shape == (1, 30, 50)
