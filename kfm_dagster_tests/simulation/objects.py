"""The simulated objects: the providers' buckets as the product reads them.

An object is its format's first bytes and a JSON document, which `DocumentReader` returns as the readers of the real
formats do. Does not belong here: the writer of objects (`feed.py`), stores that the product writes to (`services.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import orjson
from typing_extensions import override

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.contracts.issues import IntegrityIssue
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.failpoints import Failpoint, hit
from kfm_dagster.readers.base import HeaderMetadata, ReadRequest
from kfm_dagster.storage.object_handle import ObjectHead, ObjectReadError, RemoteObject
from kfm_dagster.storage.objects import ListedObject, ObjectStores
from kfm_dagster_tests.simulation.scheduling import Scheduler

OMITTED = frozenset({"datetime", "start_datetime", "end_datetime", "goes:percent-uncorrectable"})
"""Properties that objects omit: times, which have their own fields, and one without citation and unit in contracts."""
SIZE = 4_000_000
"""The size that a store reports of every object, whatever its document's size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """The object under a key of a bucket; it is missing before `appears_at`."""

    etag: str
    content: bytes
    appears_at: datetime


class Buckets:
    """The providers' objects by URI, each in its last version."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.objects: dict[str, Stored] = {}
        self._scheduler = scheduler

    def find(self, uri: str) -> Stored | None:
        """Return an object as it is now."""
        stored = self.objects.get(uri)
        return stored if stored is not None and stored.appears_at <= self._scheduler.now else None


class SimulatedObjects(ObjectStores):
    """Simulated stores: every method of `ObjectStores` that would reach a network is replaced."""

    def __init__(self, buckets: Buckets, *, silent: Callable[[], bool]) -> None:
        super().__init__()
        self._buckets = buckets
        self._silent = silent

    @override
    def open(
        self,
        contract: DatasetContract,
        uri: str,
        *,
        size: int | None = None,
        etag: str | None = None,
        first: bytes = b"",
    ) -> SimulatedObject:
        return SimulatedObject(self._buckets, uri, etag, first, self._silent)

    @override
    def open_sidecar(self, contract: DatasetContract, uri: str, suffix: str) -> None:
        return None

    @override
    def list_day(self, contract: DatasetContract, day: date, **_: object) -> Iterator[ListedObject]:
        hit(Failpoint.OBJECT_LIST_BEFORE)
        for uri in sorted(self._buckets.objects):
            stored = self._buckets.find(uri)
            if stored is not None and uri.split("/")[2] in contract.storage.buckets:
                yield ListedObject(uri=uri, size=SIZE, etag=stored.etag, last_modified=stored.appears_at)
        hit(Failpoint.OBJECT_LIST_AFTER)


class SimulatedObject(RemoteObject):
    """An object that every request looks up in the buckets; once its ETag is known, only this version is read."""

    size = SIZE

    def __init__(self, buckets: Buckets, uri: str, etag: str | None, first: bytes, silent: Callable[[], bool]) -> None:
        self.uri = uri
        self.first = first
        self._buckets = buckets
        self._etag = etag
        self._silent = silent
        self.last_modified = None

    def head(self) -> ObjectHead:
        return self.probe(0)[0]

    def probe(self, length: int) -> tuple[ObjectHead, bytes]:
        stored = self._request(Failpoint.OBJECT_HEAD_BEFORE, Failpoint.OBJECT_HEAD_AFTER)
        self._etag = stored.etag
        self.first = stored.content[:length]
        head = ObjectHead(size=SIZE, etag=stored.etag, content_type=None, last_modified=stored.appears_at)
        return head, self.first

    def read(self, start: int, length: int) -> bytes:
        stored = self._request(Failpoint.OBJECT_READ_BEFORE, Failpoint.OBJECT_READ_AFTER)
        if self._etag not in {None, stored.etag}:
            raise ObjectReadError(IntegrityIssue.STORAGE_UNAVAILABLE, self.uri, "simulated")
        available = self.first[start : start + length]
        return available + stored.content[start + len(available) : start + length]

    def _request(self, before: Failpoint, after: Failpoint) -> Stored:
        hit(before)
        stored = self._buckets.find(self.uri)
        if self._silent():
            raise ObjectReadError(IntegrityIssue.STORAGE_UNAVAILABLE, self.uri, "simulated")
        if stored is None:
            raise ObjectReadError(IntegrityIssue.MISSING_OBJECT, self.uri, "simulated")
        hit(after)
        return stored


def content_of(sample: Envelope, contract: DatasetContract, properties: dict[str, Any]) -> bytes:
    """Return an object's bytes with a sample's properties, extended and replaced by `properties`."""
    sample_properties = {name: value for name, value in sample.metadata.stac_properties.items() if name not in OMITTED}
    document = {
        "start": sample.time_range_start,
        "end": sample.time_range_end,
        "geometry": sample.metadata.geometry,
        "properties": {**sample_properties, **properties},
    }
    return bytes.fromhex(contract.integrity.magic[0].hex) + orjson.dumps(document)


class DocumentReader:
    """A reader of an object's document in two parts; the integrity check has read the first part."""

    first_bytes = 64

    def __call__(self, request: ReadRequest, /) -> HeaderMetadata:
        content = request.source.read(0, request.source.size)
        document = orjson.loads(content[content.index(b"{") :])
        start, end = datetime.fromisoformat(document["start"]), datetime.fromisoformat(document["end"])
        return HeaderMetadata(
            start=start, end=end, datetime=start, geometry=document["geometry"], properties=document["properties"]
        )
