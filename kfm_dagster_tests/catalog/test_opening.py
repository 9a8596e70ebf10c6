"""Assets open in common clients through an S3 server, using only the Item's values.

Each block of `docs/stac.md`, "Opening them", runs unchanged (`asset_clients.py`).
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pystac
import pytest

from kfm_dagster.catalog.assets import assets
from kfm_dagster.catalog.validation import validate_item
from kfm_dagster.contracts.envelope import CheckStatus, Metadata
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster_tests.catalog.asset_clients import CLIENTS, PAGE, blocks_run, run
from kfm_dagster_tests.catalog.envelopes import goes
from kfm_dagster_tests.catalog.official import OfficialSchemas
from kfm_dagster_tests.catalog.real_objects import item_of_file, write_objects
from kfm_dagster_tests.followers.virtual.buckets import put

GRIB_OF_2011 = "files/gfs/gfs.t12z.pgrbf120.2p5deg.grib2"

Stored = Callable[[str], list[pystac.Item]]

pytestmark = [
    # stackstac and odc-stac use a deprecated product of affine; a container of images has no georeference.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Dataset has no geotransform"),
    # odc-stac computes the corners of a fixed grid, which lie off the earth.
    pytest.mark.filterwarnings("ignore:invalid value encountered in multiply:RuntimeWarning"),
]


@pytest.fixture(scope="module")
def server(cloud: EmbeddedCloud, contracts: ContractRegistry) -> str:
    """Return the address of the demo's S3: a process of its own, because rasterio holds the GIL."""
    cloud.provision(contracts)
    return cloud.endpoint_url.removeprefix("http://")


@pytest.fixture(autouse=True)
def clients(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Point every S3 client at the server, without credentials."""
    import s3fs

    for name, value in {
        "AWS_S3_ENDPOINT": server,
        "AWS_HTTPS": "NO",
        "AWS_VIRTUAL_HOSTING": "FALSE",
        "AWS_NO_SIGN_REQUEST": "YES",
        "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR",
        "AWS_ENDPOINT_URL": f"http://{server}",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)

    class Loopback(urllib.request.HTTPSHandler):
        """Send path and host name unchanged to the server."""

        def https_open(self, request: urllib.request.Request) -> Any:
            # S3 decodes + in a path as a space; moto does not.
            request.selector = request.selector.replace("+", "%20")
            return self.do_open(lambda _host, **more: HTTPConnection(server, **more), request)  # type: ignore[arg-type]

    urllib.request.install_opener(urllib.request.build_opener(Loopback))
    yield
    urllib.request.install_opener(None)  # type: ignore[arg-type]
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def stored(server: str, tmp_path: Path, shared_data: Path, contracts: ContractRegistry) -> Stored:
    """Return a function that stores a dataset's objects and returns their Items."""

    def of(dataset: str) -> list[pystac.Item]:
        paths = write_objects(tmp_path, shared_data, dataset)
        for file in (file for file in tmp_path.rglob("*") if file.is_file()):
            bucket, key = file.relative_to(tmp_path).as_posix().split("/", 1)
            put(f"http://{server}", bucket, key, file.read_bytes())
        return [pystac.Item.from_dict(item_of_file(contracts, tmp_path, path)) for path in paths]

    return of


@pytest.mark.clause("OPR-21", "OPR-28", "BEY-19")
@pytest.mark.parametrize("dataset", CLIENTS)
def test_assets_of_every_dataset_open_with_the_items_values(dataset: str, stored: Stored, shared_data: Path) -> None:
    official = OfficialSchemas(shared_data / "schemas/stac-extensions")
    items = stored(dataset)
    assert items or dataset in {"nwm", "ofs", "rtofs"}  # no object with a known key is available
    for item in items:
        written = item.to_dict(include_self_link=False, transform_hrefs=False)
        assert validate_item(written) == official.errors(written) == []
        CLIENTS[dataset](item)


def test_the_page_has_every_dataset_with_its_engine_and_type(contracts: ContractRegistry) -> None:
    assert {contract.id for contract in contracts} == set(CLIENTS)
    rows = re.findall(r"(?m)^\| ((?:`[a-z0-9-]+`(?:, )?)+) \| (\S+).*? \| `(\S+/\S+)` \|", PAGE)
    stated = {
        name: (engine.strip("`"), kind) for names, engine, kind in rows for name in re.findall(r"[a-z0-9-]+", names)
    }
    data = {contract.id: contract.stac.data_asset for contract in contracts}
    assert stated == {name: (asset.open_kwargs.get("engine", "none"), asset.media_type) for name, asset in data.items()}


@pytest.mark.clause("OPR-28")
def test_every_python_block_of_the_page_is_run_by_these_tests() -> None:
    assert blocks_run() == set(re.findall(r"(?s)```python\n(.*?)```", PAGE))


def assert_layers(item: pystac.Item, content: bytes, names: list[str]) -> None:
    """Check that each layer equals its band of the whole object, by GDAL and by https."""
    bands = run("rasterio.open(address(asset))", item)["bands"]
    layers = item.assets["data"].extra_fields["grib:layers"]
    for name in names:
        variables = run("elements", item, NAME=name)
        # Earlier messages have one band per field.
        before = sum(layer["start_byte"] < layers[name]["start_byte"] for layer in layers.values())
        number = before + variables["elements"].get(name.split()[0], 1)
        assert (variables["field"] == bands.read(number)).all()
        begin, length = layers[name]["start_byte"], layers[name]["byte_size"]
        message = run("Range", item, NAME=name)["message"]
        assert message == content[begin : begin + length]
        assert (message[:4], message[-4:]) == (b"GRIB", b"7777")


@pytest.mark.clause("OPR-21")
def test_a_single_field_is_read_without_the_other_fields(stored: Stored, tmp_path: Path) -> None:
    items = [item for dataset in ("gfs", "hrrr") for item in stored(dataset)]
    indexed = [item for item in items if "grib:layers" in item.assets["data"].extra_fields]
    assert len(indexed) == 2
    for item in indexed:
        content = (tmp_path / item.assets["data"].href.removeprefix("s3://")).read_bytes()
        assert_layers(item, content, list(item.assets["data"].extra_fields["grib:layers"]))


@pytest.mark.clause("OPR-21")
def test_the_wind_components_share_a_message_and_are_read_separately(
    server: str, shared_data: Path, reference: Mapping[str, Any], contracts: ContractRegistry, tmp_path: Path
) -> None:
    """A real object of 307 messages and 343 fields, indexed by an independent reader's offsets."""
    path = "noaa-gfs-bdp-pds/gfs.20110110/12/gfs.t12z.pgrb2.2p50.f120"
    content = (shared_data / GRIB_OF_2011).read_bytes()
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_bytes(content)
    lines, fields = [], reference[GRIB_OF_2011]["reference"]["fields"]
    shared = [field["offset"] for field in fields]
    for number, field in enumerate(fields, start=1):
        message = len(set(shared[:number]))
        sub = f".{shared[:number].count(field['offset'])}" if shared.count(field["offset"]) > 1 else ""
        element = {"u": "UGRD", "10u": "UGRD", "v": "VGRD", "10v": "VGRD"}.get(field["shortName"], f"FIELD{number}")
        level = f"{field['level']} {field['typeOfLevel']}"
        lines.append(f"{message}{sub}:{field['offset']}:d=2011011012:{element}:{level}:120 hour fcst:\n")
    (tmp_path / f"{path}.idx").write_text("".join(lines), encoding="ascii")
    put(f"http://{server}", *path.split("/", 1), content)
    item = pystac.Item.from_dict(item_of_file(contracts, tmp_path, path))
    names = [name for name in item.assets["data"].extra_fields["grib:layers"] if name[1:4] == "GRD"]
    assert len(names) == 72
    assert_layers(item, content, names[:4] + names[-4:])


KEYS = ("plain.nc", "YEAR=2020/ELEMENT=TMAX/00:15:00.nc", "a+b.nc", "a b.nc", "50%/a%2Fb.nc", "é.nc")


@pytest.mark.clause("OPR-21")
@pytest.mark.parametrize("key", KEYS)
def test_a_key_with_any_characters_is_opened(key: str, server: str, contracts: ContractRegistry) -> None:
    import fsspec

    content = key.encode()
    put(f"http://{server}", "noaa-goes19", key, content)
    envelope = goes().evolve(object_uri=f"s3://noaa-goes19/{key}")
    (asset_list,) = assets(
        envelope, contract=contracts["goes-abi"], metadata=Metadata(status=CheckStatus.OK), groups={}
    ).values()
    with urllib.request.urlopen(asset_list["alternate"]["https"]["href"]) as answer:
        assert answer.read() == content
    with fsspec.open(unquote(asset_list["href"]), **asset_list["xarray:storage_options"]) as file:
        assert file.read() == content
    assert (unquote(asset_list["href"]) == asset_list["href"]) == (key in KEYS[:3])
