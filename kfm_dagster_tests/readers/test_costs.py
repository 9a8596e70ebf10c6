"""Requests and bytes: what an object costs of a remote store, integrity and metadata together, in one table.

Of samples, and of the real objects that are there. Does not belong here: what a hostile object may cost (`fuzz/`), and
that a whole run makes no more (`integration/test_requests.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from kfm_dagster.contracts.envelope import CheckStatus
from kfm_dagster.operators.integrity_check import integrity_check
from kfm_dagster.operators.metadata_extract import metadata_extract
from kfm_dagster.readers.base import READERS
from kfm_dagster.storage.objects import ObjectStores
from kfm_dagster.storage.s3 import Fetched
from kfm_dagster_tests.fuzz.specimens import CONTRACTS, INDEX, SUBJECTS, Specimen
from kfm_dagster_tests.readers.reading import unit_of

KIB, MIB = 1 << 10, 1 << 20
PAGE = Path(__file__).resolve().parents[2] / "docs" / "datasets.md"


class Most(NamedTuple):
    """Requests at most, and bytes at most of an object of so many."""

    requests: int
    read_bytes: Callable[[int], float]


def front(size: int) -> float:
    """64 KiB, or 2 % of a large object."""
    return max(64 * KIB, 0.02 * size)


MOST = {
    "goes-abi": Most(3, lambda _: 320 * KIB),
    "goes-glm": Most(2, lambda _: 320 * KIB),
    "ocean": Most(1, front),
    # The first LDM record has up to 270 KB, and is read in blocks of 128 KiB; the end brings 256 KiB. Gzipped: whole.
    "nexrad-l2": Most(4, lambda size: max(front(size) + (256 + 3 * 128) * KIB, min(size, 8 * MIB))),
    # Read whole: a chunk is one record, a product one message, and the last two are streams that only their end proves.
    "nexrad-l2-chunks": Most(1, lambda size: size),
    "nexrad-l3": Most(1, lambda size: size),
    "mrms": Most(2, lambda size: size),
    "surface-obs": Most(2, lambda size: size),
    # Beginning, index, and the last message whole (`grib2.LAST_MESSAGE_BYTES`): two requests more would cost more time
    # than its bytes. Without an index each message's beginning is read, which is what `completeness_unchecked` bounds.
    "hrrr": Most(3, lambda size: front(size) + 2 * MIB),
    "gfs": Most(3, lambda size: front(size) + 2 * MIB),
    "gefs": Most(3, lambda size: front(size) + 2 * MIB),
    "nbm": Most(3, lambda size: front(size) + 2 * MIB),
}


class CountedBucket:
    """Objects by key, and how many requests were made for how many bytes."""

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        self._objects = objects
        self.requests = 0
        self.read_bytes = 0

    def get(self, path: str, *, options: Mapping[str, Any] | None = None) -> Fetched:
        self.requests += 1
        if path not in self._objects:
            raise FileNotFoundError(path)
        start, stop = (options or {}).get("range", (0, 0))
        found = self._objects[path][start:stop]
        self.read_bytes += len(found)
        meta = {"size": len(self._objects[path]), "e_tag": '"e"', "last_modified": datetime(2025, 12, 4, tzinfo=UTC)}
        return Fetched(meta=meta, attributes={}, content=found)


def costs(specimen: Specimen) -> tuple[CheckStatus, CountedBucket]:
    """Look at an object as the chain's two operators do, with what the first hands on to the second."""
    contract, grammar = CONTRACTS[specimen.dataset], CONTRACTS.grammars[specimen.dataset]
    index = {} if specimen.index is None else {specimen.key + INDEX: specimen.index}
    bucket = CountedBucket({specimen.key: specimen.content, **index})
    objects = ObjectStores()
    cast("Any", objects)._store = lambda *_: bucket
    described = {"object_version": "e", "object_size": len(specimen.content)}
    unit = unit_of(specimen.dataset, specimen.key, bucket=contract.storage.buckets[0], **described)
    handle = objects.open(contract, unit.object_uri)
    first_bytes = READERS[contract.metadata_extract.reader].first_bytes
    checked = integrity_check(unit, contract=contract, handle=handle, first_bytes=first_bytes)
    size, etag = checked.actual_size_bytes, checked.actual_etag
    found = metadata_extract(
        unit.evolve(integrity=checked),
        contract=contract,
        grammar=grammar,
        source=objects.open(contract, unit.object_uri, size=size, etag=etag, first=handle.first),
        open_sidecar=lambda suffix: objects.open_sidecar(contract, unit.object_uri, suffix),
        readers=READERS,
    )
    return found.status, bucket


def indexed(specimen: Specimen) -> bool:
    """Whether a model's object has its index: without one its messages are walked."""
    return specimen.dataset not in {"hrrr", "gfs", "gefs", "nbm"} or specimen.index is not None


def test_the_page_has_the_requests_of_every_dataset() -> None:
    rows = re.findall(r"(?m)^\| (`[^|]+`) \| (\d) \| ", PAGE.read_text(encoding="utf-8"))
    stated = {name: int(requests) for names, requests in rows for name in re.findall(r"[a-z0-9-]+", names)}
    assert stated == {name: most.requests for name, most in MOST.items()}


@pytest.mark.clause("OPR-06")
@pytest.mark.parametrize(
    "subject", [subject for subject in SUBJECTS.values() if not subject.of_index], ids=lambda s: s.reader
)
def test_an_object_costs_few_requests_and_bytes(subject: Any) -> None:
    seen = []
    for specimen in filter(indexed, subject.specimens):
        status, bucket = costs(specimen)
        most = MOST[specimen.dataset]
        cost = f"{specimen.key}, {len(specimen.content)} bytes: {bucket.requests} requests, {bucket.read_bytes} bytes"
        assert bucket.requests <= most.requests, cost
        assert bucket.read_bytes <= most.read_bytes(len(specimen.content)), cost
        seen.append(status)
    assert CheckStatus.OK in seen
