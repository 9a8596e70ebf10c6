"""Every reader: samples, truncated objects, no reference cycles, and few requests and bytes.

A run collects cycles rarely (`kfm_dagster/cyclic_gc.py`), so a cycle with an object's blocks would keep these in memory
for thousands of units. Tests elsewhere: the cost of a hostile object (`fuzz/`), and the requests of a whole run
(`integration/test_bad_objects.py`).
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from datetime import date
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from obstore.store import MemoryStore

from kfm_dagster.contracts.envelope import CheckStatus
from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.demo.families import Samples
from kfm_dagster.demo.samples import cfs, gefs, gfs, hrrr, mrms, naqfc, nbm
from kfm_dagster.demo.samples.goes_abi import goes_abi_samples
from kfm_dagster.demo.samples.goes_glm import FILES_A_DAY, goes_glm_samples
from kfm_dagster.demo.samples.nexrad_chunks import nexrad_chunk_samples
from kfm_dagster.demo.samples.nexrad_level2 import nexrad_level2_samples
from kfm_dagster.demo.samples.nexrad_level3 import nexrad_level3_samples
from kfm_dagster.demo.samples.oisst import oisst_samples
from kfm_dagster.operators.integrity_check import integrity_check
from kfm_dagster.readers.base import READERS
from kfm_dagster.readers.nexrad_radar import sites
from kfm_dagster.storage.objects import ObjectStores
from kfm_dagster_tests.fuzz.specimens import INDEX, MODELS, SUBJECTS, Specimen, structure_offsets
from kfm_dagster_tests.readers.reading import (
    CONTRACTS,
    TRUNCATION_CODES,
    header_of,
    is_unchecked,
    match_of,
    metadata_of,
    outcome,
    unit_of,
)

DAY = date(2024, 12, 31)
SAMPLES: dict[str, tuple[Samples, int]] = {
    "cfs": (cfs.cfs_samples, cfs.OBJECTS_PER_DAY),
    "gefs": (gefs.gefs_samples, gefs.OBJECTS_PER_DAY),
    "gfs": (gfs.gfs_samples, gfs.OBJECTS_PER_DAY),
    "goes-abi": (goes_abi_samples, 109_296),
    "goes-glm": (goes_glm_samples, FILES_A_DAY),
    "hrrr": (hrrr.hrrr_samples, hrrr.OBJECTS_PER_DAY),
    "mrms": (mrms.mrms_samples, mrms.OBJECTS_PER_DAY),
    "naqfc": (naqfc.naqfc_samples, naqfc.OBJECTS_PER_DAY),
    "nbm": (nbm.nbm_samples, nbm.OBJECTS_PER_DAY),
    "nexrad-l2": (nexrad_level2_samples, len(sites()) * 86_400),
    "nexrad-l3": (nexrad_level3_samples, len(sites()) * 86_400),
    "ocean": (oisst_samples, 2),
}
"""By dataset: a function that makes samples of a day, and their maximum number. Not here: ISD, whose samples are of a
year; NDFD, whose samples are of no particular day; chunks, which have no maximum."""


@pytest.mark.clause("OPR-14")
@pytest.mark.parametrize("dataset", [*SAMPLES, "nexrad-l2-chunks"])
def test_samples_of_a_day_are_distinct_and_read_without_a_finding(dataset: str) -> None:
    samples, limit = SAMPLES.get(dataset, (nexrad_chunk_samples, 9))
    drawn = list(samples(DAY, min(limit, 40)))
    assert drawn == list(samples(DAY, min(limit, 40)))
    assert len({key for _, key, _ in drawn}) == len({content for *_, content in drawn}) == min(limit, 40)
    contract = CONTRACTS[dataset]
    for bucket, key, content in drawn:
        match = match_of(dataset, key)
        assert (bucket in contract.storage.buckets, match.start.date()) == (True, DAY), key
        # The keys of Level III have no folders, and the contract's prefixes name only a few radars.
        prefixes = contract.storage.day_prefixes(DAY)
        assert any(fnmatchcase(key, f"{prefix}*") for prefix in prefixes) or dataset == "nexrad-l3", key
        assert contract.integrity.min_bytes <= len(content) < 150_000
        metadata = header_of(contract.metadata_extract.reader, content, key=key, groups=match.groups)
        assert {code for code, _ in metadata.findings} <= {"sidecar_missing"}, key
        required = set(contract.metadata_extract.required) - {"grib:variables"}
        assert required <= metadata.properties.keys(), key


def test_a_request_for_more_samples_than_a_day_has_keys_is_refused() -> None:
    for samples, limit in SAMPLES.values():
        with pytest.raises(ValueError, match=r"\d"):
            next(samples(DAY, limit + 1))


STRUCTURES = 40
"""The maximum number of a specimen's structures at which the test truncates the specimen."""
STREAMS = ("ghcn-daily", "grib2-gzip", "isd")


@pytest.mark.clause("OPR-07", "OPR-20", "BEY-04")
@pytest.mark.parametrize("name", sorted(SUBJECTS.keys() - {"grib2", "grib2-idx"}))
def test_a_sample_truncated_at_any_structure_is_refused_or_unchecked(name: str) -> None:
    subject = SUBJECTS[name]
    for specimen in subject.samples[:8]:
        content, groups = specimen.content, specimen.groups
        size, structures = len(content), structure_offsets(content)
        # Tenths, the last bytes, beginnings of files and blocks, and each structure's offset with the bytes around it.
        ends = {size * tenth // 10 for tenth in range(10)} | {size - away for away in range(1, 10)}
        ends |= {0, 4, 8, 48, 96, 4096, 1 << 16}
        ends |= {at + by for at in structures[:: len(structures) // STRUCTURES + 1] for by in (-1, 0, 1)}
        if name == "ghcn-hourly":
            # Plain text that ends between two lines looks complete; only the object's size and ETag show the cut.
            ends = {end for end in ends if content[end - 1 : end] != b"\n"}
        for end in sorted(end for end in ends if 0 <= end < size):
            result = outcome(header_of, subject.reader, content[:end], key=specimen.key, groups=groups)
            if subject.is_hdf5 or name in STREAMS:
                assert result is MetadataIssue.TRUNCATED_OBJECT, (specimen.key, end, result)
            else:
                assert is_unchecked(result) or result in TRUNCATION_CODES, (specimen.key, end, result)


@pytest.fixture
def _no_collection() -> Iterator[None]:
    gc.collect()
    # Exclude the objects of other tests from garbage collection.
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


@pytest.mark.usefixtures("_no_collection")
@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.parametrize("part", [1.0, 0.5], ids=["complete", "truncated"])
def test_reading_leaves_no_reference_cycles(name: str, part: float) -> None:
    subject = SUBJECTS[name]
    for specimen in subject.samples:
        content = specimen.content[: int(len(specimen.content) * part)]
        options = {"key": specimen.key, "groups": specimen.groups, "index": specimen.index}
        # The first reading fills caches.
        outcome(header_of, subject.reader, content, **options)
        gc.collect()
        outcome(header_of, subject.reader, content, **options)
        assert gc.collect() == 0, specimen.key


KIB, MIB = 1 << 10, 1 << 20
PAGE = Path(__file__).resolve().parents[2] / "docs" / "datasets.md"


class Limit(NamedTuple):
    """The maximum of requests, and the maximum of bytes read as a function of the object's size."""

    requests: int
    read_bytes: Callable[[int], float]


def front(size: int) -> float:
    """Return 64 KiB, or 2 % of a large object."""
    return max(64 * KIB, 0.02 * size)


LIMITS = {
    "goes-abi": Limit(3, lambda _: 320 * KIB),
    "goes-glm": Limit(2, lambda _: 320 * KIB),
    **dict.fromkeys(("nclimgrid-daily", "nclimgrid-monthly", "ocean"), Limit(1, front)),
    # Headers, and positions or the first and last values of axes.
    **dict.fromkeys(
        ("nwm", "nwm-retrospective", "ofs", "rtofs", "sea-ice-cdr", "sea-ice-cdr-monthly"),
        Limit(5, lambda size: min(size, 4 * MIB)),
    ),
    # The first LDM record of up to 270 KB in blocks of 128 KiB, and the last 256 KiB. A gzipped object is read whole.
    "nexrad-l2": Limit(4, lambda size: max(front(size) + (256 + 3 * 128) * KIB, min(size, 8 * MIB))),
    # Read whole: a chunk is one record, a product one message, and the end shows if a gzip stream or text is complete.
    "nexrad-l2-chunks": Limit(1, lambda size: size),
    "nexrad-l3": Limit(1, lambda size: size),
    "mrms": Limit(2, lambda size: size),
    "ghcnh": Limit(2, lambda size: size),
    # Parquet: the beginning, which proves the format, and the footer.
    "ghcnd": Limit(2, lambda size: 2 * size),
    "surface-obs": Limit(2, lambda size: size),
    # Beginning, index, and the last message: whole (`grib2.LAST_MESSAGE_BYTES`), because two requests for its start and
    # its end cost more. Objects without an index have no limit here.
    **dict.fromkeys({*MODELS} - {"naqfc", "ndfd"}, Limit(3, lambda size: front(size) + 2 * MIB)),
}


class CountedBucket(MemoryStore):
    """A bucket that counts requests and bytes read."""

    requests = read_bytes = 0

    def get(self, path: str, *, options: Any = None) -> Any:
        self.requests += 1
        answer = super().get(path, options=options)
        self.read_bytes += answer.range[1] - answer.range[0]
        return answer


def costs(specimen: Specimen) -> tuple[CheckStatus, CountedBucket]:
    """Run integrity_check on an object, and then metadata_extract with the results."""
    contract = CONTRACTS[specimen.dataset]
    bucket = CountedBucket()
    stored = bucket.put(specimen.key, specimen.content)
    if specimen.index is not None:
        bucket.put(specimen.key + INDEX, specimen.index)
    objects = ObjectStores()
    cast("Any", objects)._store = lambda *_: bucket
    described = {"object_version": str(stored["e_tag"]).strip('"'), "object_size": len(specimen.content)}
    unit = unit_of(specimen.dataset, specimen.key, bucket=contract.storage.buckets[0], **described)
    handle = objects.open(contract, unit.object_uri)
    first_bytes = READERS[contract.metadata_extract.reader].first_bytes
    checked = integrity_check(unit, contract=contract, handle=handle, first_bytes=first_bytes)
    size, etag = checked.actual_size_bytes, checked.actual_etag
    source = objects.open(contract, unit.object_uri, size=size, etag=etag, first=handle.first)
    open_sidecar = partial(objects.open_sidecar, contract, unit.object_uri)
    return metadata_of(unit.evolve(integrity=checked), source, open_sidecar=open_sidecar).status, bucket


def test_the_datasets_page_has_the_requests_of_each_dataset() -> None:
    rows = re.findall(r"(?m)^\| (`[^|]+`) \| (\d) \| ", PAGE.read_text(encoding="utf-8"))
    stated = {name: int(requests) for names, requests in rows for name in re.findall(r"[a-z0-9-]+", names)}
    assert stated == {name: limit.requests for name, limit in LIMITS.items()}


@pytest.mark.clause("OPR-06")
@pytest.mark.parametrize(
    "name",
    [name for name, subject in SUBJECTS.items() if not subject.of_index],
)
def test_an_object_costs_few_requests_and_bytes(name: str) -> None:
    statuses = []
    for specimen in SUBJECTS[name].specimens:
        if specimen.dataset in MODELS and specimen.index is None:
            continue  # without its index, an object takes a request for each message
        status, bucket = costs(specimen)
        limit = LIMITS[specimen.dataset]
        cost = f"{specimen.key}, {len(specimen.content)} bytes: {bucket.requests} requests, {bucket.read_bytes} bytes"
        assert bucket.requests <= limit.requests, cost
        assert bucket.read_bytes <= limit.read_bytes(len(specimen.content)), cost
        statuses.append(status)
    assert CheckStatus.OK in statuses
