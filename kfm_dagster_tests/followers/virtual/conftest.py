from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from kfm_dagster.catalog.documents import collection_document
from kfm_dagster.catalog.index import Extent, Places
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.followers.virtual import VirtualZarr
from kfm_dagster.storage.object_handle import FolderObject, RemoteObject
from kfm_dagster.storage.objects import ObjectStores
from kfm_dagster.storage.publisher import open_publisher
from kfm_dagster_tests.followers.virtual.buckets import PAGE, Opened, client


@pytest.fixture
def contract(contracts: ContractRegistry) -> DatasetContract:
    return contracts["goes-abi"]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the length of each range that is read from objects."""
    lengths: list[int] = []
    for kind in (FolderObject, RemoteObject):

        def read(self: Any, start: int, length: int, inner: Any = kind.read) -> bytes:
            content: bytes = inner(self, start, length)
            lengths.append(len(content))
            return content

        monkeypatch.setattr(kind, "read", read)
    return lengths


@pytest.fixture(scope="module")
def server(cloud: EmbeddedCloud) -> str:
    return cloud.endpoint_url


@pytest.fixture
def clients(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Point S3 clients at the server; only writers have credentials."""
    import s3fs

    for name, value in {
        "AWS_ENDPOINT_URL": server,
        # Variables of obstore and GDAL.
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_S3_ENDPOINT": server.removeprefix("http://"),
        "AWS_HTTPS": "NO",
        "AWS_VIRTUAL_HOSTING": "FALSE",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
    }.items():
        monkeypatch.setenv(name, value)
    yield
    s3fs.S3FileSystem.clear_instance_cache()
    gc.collect()


@pytest.fixture
def bucket_place(request: pytest.FixtureRequest) -> str:
    """The URL in a bucket below which a test publishes its stores."""
    return f"s3://ours/{re.sub('[^a-z0-9]', '-', request.node.name)}"


@pytest.fixture
def follower(server: str, clients: None, bucket_place: str) -> VirtualZarr:
    """A follower that publishes to its own bucket and reads objects from the server."""
    client(server).create_bucket(Bucket="ours")
    return VirtualZarr(open_publisher(bucket_place), ObjectStores(anonymous=True), root=bucket_place)


@pytest.fixture
def opened(bucket_place: str, tmp_path: Path, contracts: ContractRegistry, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Return a function that opens a store (name, day, collection) by the first code of `docs/virtual-zarr.md`."""
    code = re.findall(r"(?s)```python\n(.*?)```", PAGE)[0]
    extent = Extent(start="2025-01-01T00:00:00Z", end="2025-12-31T00:00:00Z", bbox=None)
    places = Places(virtual=bucket_place)
    links = []
    for contract in (contracts["goes-abi"], contracts["hrrr"]):
        path = tmp_path / "catalog" / contract.stac.collection / "collection.json"
        path.parent.mkdir(parents=True)
        path.write_bytes(
            orjson.dumps(collection_document(contract, extent=extent, summaries={}, years=[], places=places))
        )
        links.append({"rel": "child", "href": f"./{contract.stac.collection}/collection.json"})
    (tmp_path / "catalog" / "catalog.json").write_bytes(orjson.dumps({"links": links}))
    monkeypatch.setenv("KFM_CATALOG_URL", str(tmp_path / "catalog"))

    def open_(name: str, day: datetime, collection: str = "goes-abi") -> Any:
        named = {"G19_ABI-L1b-RadM1_C13": name, "goes-abi": collection, "2025-06-01": f"{day:%Y-%m-%d}"}
        text = code
        for example, value in named.items():
            assert example in text
            text = text.replace(example, value)
        scope: dict[str, Any] = {}
        exec(text, scope)
        return scope["scene"]

    return open_
