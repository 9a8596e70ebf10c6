from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from kfm_dagster.catalog.publisher import open_publisher
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.followers.virtual import VirtualZarr
from kfm_dagster.storage.object_handle import FolderObject, RemoteObject
from kfm_dagster.storage.objects import ObjectStores
from kfm_dagster_tests.followers.virtual.buckets import PAGE, Opened, client


@pytest.fixture
def contract(contracts: ContractRegistry) -> DatasetContract:
    return contracts["goes-abi"]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the ranges of objects that are read."""
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
    """The server is where S3 is looked for; nobody has credentials but who writes."""
    import s3fs

    for name, value in {
        "AWS_ENDPOINT_URL": server,
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
    """Where a test's stores are published in a bucket."""
    return f"s3://ours/{re.sub('[^a-z0-9]', '-', request.node.name)}"


@pytest.fixture
def follower(server: str, clients: None, bucket_place: str) -> VirtualZarr:
    """One that publishes to a bucket of its own and reads objects from the server."""
    client(server).create_bucket(Bucket="ours")
    return VirtualZarr(open_publisher(bucket_place), ObjectStores(anonymous=True))


@pytest.fixture
def opened(bucket_place: str) -> Opened:
    """Run the page's block: the store of a name on a day of a collection, as an xarray Dataset."""
    (code,) = re.findall(r"(?s)```python\n(.*?)```", PAGE)

    def open_(name: str, day: datetime, collection: str = "goes-abi") -> Any:
        named = {
            "G19_ABI-L1b-RadM1_C13": name,
            "s3://my-virtual": bucket_place,
            "goes-abi": collection,
            "2025/2025-06-01": f"{day:%Y/%Y-%m-%d}",
        }
        text = code
        for shown, meant in named.items():
            assert shown in text
            text = text.replace(shown, meant)
        found: dict[str, Any] = {}
        exec(text, found)
        return found["scene"]

    return open_
