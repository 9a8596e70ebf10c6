"""A bad object fails only its own unit; units cost few requests; no Item mixes two versions."""

from __future__ import annotations

import gzip
import hashlib
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.alerts.plan import AlertRule
from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.contracts.issues import IntegrityIssue, MetadataIssue, StacIssue
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.demo.feed import ObjectEvent
from kfm_dagster.demo.samples.gfs import gfs_samples
from kfm_dagster.demo.samples.goes_abi import goes_abi_samples, make_goes_abi
from kfm_dagster.demo.samples.goes_glm import goes_glm_samples
from kfm_dagster.demo.samples.hrrr import hrrr_samples, make_hrrr
from kfm_dagster.demo.samples.mrms import mrms_samples
from kfm_dagster.demo.samples.nbm import nbm_samples
from kfm_dagster.demo.samples.nexrad_level2 import make_nexrad_level2, nexrad_level2_samples
from kfm_dagster.ingest import nodes
from kfm_dagster.ingest.nodes import (
    IntegrityCheck,
    MessageParse,
    MetadataExtract,
    ProvenanceEmit,
    Settle,
    Source,
    StacRegister,
)
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.run_replay import compare_run
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.operators import stac_register as operators_of_a_batch
from kfm_dagster.readers import nexrad_level2
from kfm_dagster.readers.base import BLOCK_BYTES
from kfm_dagster.run_state.record import Outcome
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster.storage.object_handle import ObjectHandle, UndeclaredObjectError
from kfm_dagster.storage.read_ahead import ReadAhead
from kfm_dagster_tests.catalog import trees
from kfm_dagster_tests.clouds import emptied
from kfm_dagster_tests.factories import repeat_units
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import (
    DAY,
    StoredObject,
    announce,
    deliver,
    good,
    missing,
    notify,
    notify_each,
    open_pipeline,
    put,
    replaced,
    run_chain,
    run_pending,
    take,
    truncated,
    volumes,
)
from kfm_dagster_tests.transactions import own_tx

HDF5 = bytes.fromhex("894844460d0a1a0a")
NOISE = random.Random(7).randbytes(20_000)


def goes(count: int) -> list[StoredObject]:
    return [good(*sample) for sample in goes_abi_samples(DAY, count)]


def hrrr(count: int) -> list[StoredObject]:
    run = datetime.combine(DAY, time(6), UTC)
    samples = [make_hrrr(run=run, lead=lead) for lead in range(count)]
    return [good("noaa-hrrr-bdp-pds", key, content) for key, content, _ in samples]


@dataclass(frozen=True, kw_only=True)
class Bad:
    """A kind of bad object, and its error code."""

    name: str
    make: Callable[[StoredObject], StoredObject]
    code: str


def content(make: Callable[[bytes], bytes]) -> Callable[[StoredObject], StoredObject]:
    """Return a function that changes an object's content, and announces the changed size and ETag."""
    return lambda item: replaced(item, make(item.announced))


EVERYWHERE = [
    Bad(name="missing", make=missing, code=IntegrityIssue.MISSING_OBJECT),
    Bad(name="truncated", make=truncated, code=IntegrityIssue.SIZE_MISMATCH),
    Bad(name="empty", make=content(lambda _: b""), code=IntegrityIssue.SIZE_ZERO),
    Bad(name="another format", make=content(lambda _: b"<html>" + NOISE), code=IntegrityIssue.BAD_MAGIC),
]
OWN: dict[str, list[Bad]] = {
    "goes-abi": [
        Bad(
            name="announced truncated",
            make=content(lambda whole: whole[:2000]),
            code=MetadataIssue.TRUNCATED_OBJECT,
        ),
        Bad(name="noise", make=content(lambda _: HDF5 + NOISE), code=MetadataIssue.UNREADABLE_FORMAT),
    ],
    "nexrad-l2": [
        Bad(name="announced truncated", make=content(lambda whole: whole[:-50]), code=MetadataIssue.TRUNCATED_OBJECT),
        Bad(
            name="gzipped, announced truncated",
            make=content(lambda whole: gzip.compress(whole)[:-50]),
            code=MetadataIssue.TRUNCATED_OBJECT,
        ),
        Bad(name="noise", make=content(lambda whole: whole[:24] + NOISE), code=MetadataIssue.TRUNCATED_OBJECT),
        Bad(
            name="a record of 2 GiB",
            make=content(lambda whole: whole[:24] + struct.pack(">i", 2**31 - 1) + whole[28:]),
            code=MetadataIssue.RESOURCE_LIMIT,
        ),
        Bad(
            name="a gzip bomb",
            make=content(lambda whole: gzip.compress(whole[:24] + bytes(200_000_000), 9)),
            code=MetadataIssue.RESOURCE_LIMIT,
        ),
    ],
    "hrrr": [
        Bad(name="announced truncated", make=content(lambda whole: whole[:-50]), code=MetadataIssue.TRUNCATED_OBJECT),
        Bad(name="noise", make=content(lambda _: b"GRIB" + NOISE), code=MetadataIssue.UNREADABLE_FORMAT),
        Bad(
            name="a message of 8 EiB",
            make=content(lambda whole: whole[:8] + struct.pack(">Q", 2**63 - 1) + whole[16:]),
            code=MetadataIssue.TRUNCATED_OBJECT,
        ),
    ],
}
SOUND: dict[str, Callable[[int], list[StoredObject]]] = {"goes-abi": goes, "nexrad-l2": volumes, "hrrr": hrrr}
NEIGHBOURS = 2


@pytest.mark.clause("SEC-09")
def test_an_exception_in_a_step_fails_only_the_unit_that_caused_it(
    make_pipeline: Callable[..., Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[Any, str, str]] = [
        (nodes, "integrity_check", IntegrityIssue.STORAGE_UNAVAILABLE),
        (nodes, "metadata_extract", MetadataIssue.UNREADABLE_FORMAT),
        (operators_of_a_batch, "stac_register", StacIssue.STAC_VALIDATION_FAILED),
    ]
    undeclared, *odd, sound = items = volumes(len(steps) + 2)
    pipeline = make_pipeline()
    deliver(pipeline, *items)

    def of_all_but_one(work: Callable[..., Any], odd_uri: str) -> Callable[..., Any]:
        def step(unit: Envelope, **parts: Any) -> Any:
            if unit.object_uri == odd_uri:
                raise OverflowError
            return work(unit, **parts)

        return step

    for (module, name, _), item in zip(steps, odd, strict=True):
        monkeypatch.setattr(module, name, of_all_but_one(getattr(module, name), item.uri))
    opened = pipeline.objects.open

    def declared(contract: DatasetContract, uri: str, **known: Any) -> ObjectHandle:
        if uri == undeclared.uri:
            raise UndeclaredObjectError(uri, "not named")
        return opened(contract, uri, **known)

    monkeypatch.setattr(pipeline.objects, "open", declared)
    run_pending(pipeline, "run-1")
    records = traces.records(pipeline)
    assert records[sound.uri].status is Status.SUCCEEDED
    assert [records[item.uri].last_error_code for item in odd] == [code for *_, code in steps]
    assert all("OverflowError" in str(records[item.uri].last_error_message) for item in odd)
    assert records[undeclared.uri].last_error_code == IntegrityIssue.ACCESS_DENIED


@pytest.mark.clause("OPR-05", "OPR-07", "BEY-03")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("dataset", SOUND)
def test_each_bad_object_fails_with_its_code_and_the_sound_objects_succeed(
    dataset: str, make_pipeline: Callable[..., Pipeline], objects: Path
) -> None:
    kinds = [*EVERYWHERE, *OWN[dataset]]
    items = SOUND[dataset](NEIGHBOURS + len(kinds))
    sound, spoilt = items[:NEIGHBOURS], [kind.make(item) for kind, item in zip(kinds, items[NEIGHBOURS:], strict=True)]
    pipeline = make_pipeline()
    deliver(pipeline, *sound, *spoilt)

    outcomes: dict[str, Outcome] = {}
    batch = run_chain(
        pipeline, dataset, DAY.isoformat(), "run-1", Source.LEDGER,
        seen=lambda stage: outcomes.update({stage.state.dataset_id.split(".")[1]: stage.state.outcome}),
    )  # fmt: skip

    records = traces.records(pipeline)
    codes = {kind.name: records[item.uri].last_error_code for kind, item in zip(kinds, spoilt, strict=True)}
    assert codes == {kind.name: kind.code for kind in kinds}
    assert {records[item.uri].status for item in sound} == {Status.SUCCEEDED}
    retry = pipeline.registry[dataset].retry
    for item, kind in zip(spoilt, kinds, strict=True):
        once = retry.attempts_for(kind.code) == 1
        assert records[item.uri].status is (Status.QUARANTINED if once else Status.FAILED), kind.name
    assert set(traces.catalog_items(pipeline)) == {item.uri for item in sound}
    assert outcomes == {
        MessageParse.operator: Outcome.SUCCESS,
        IntegrityCheck.operator: Outcome.PARTIAL,
        MetadataExtract.operator: Outcome.PARTIAL,
        StacRegister.operator: Outcome.SUCCESS,
        ProvenanceEmit.operator: Outcome.SUCCESS,
        Settle.operator: Outcome.PARTIAL,
    }
    failed_at_integrity = {kind.code for kind in EVERYWHERE}
    for unit in batch.envelopes:
        if unit.failure is None:
            continue
        assert (unit.metadata is None) == (unit.failure.code in failed_at_integrity)
        assert (unit.stac, unit.provenance) == (None, None)
        # Error messages in the ledger contain no path of this machine.
        assert str(objects) not in (records[unit.object_uri].last_error_message or "")


BUCKET = "noaa-hrrr-bdp-pds"
KEY, CONTENT, INDEX = make_hrrr(run=datetime.combine(DAY, time(6), UTC), lead=7)


def announce_peers(pipeline: Pipeline, hours: range, *, size: int) -> None:
    """Announce objects of one lead time from the previous day's model runs; none of them is ingested."""
    events = []
    for hour in hours:
        run = datetime.combine(DAY - timedelta(days=1), time(hour), UTC)
        key = f"hrrr.{run:%Y%m%d}/conus/hrrr.t{run:%H}z.wrfsfcf07.grib2"
        etag = hashlib.md5(f"{size} {key}".encode()).hexdigest()
        events.append(ObjectEvent(bucket=BUCKET, key=key, size=size, etag=etag, event_time=run))
    take(pipeline, announce(events, registry=pipeline.registry))


def ingest(pipeline: Pipeline, objects: Path) -> str:
    data = good(BUCKET, KEY, CONTENT)
    put(objects, [data, good(BUCKET, f"{KEY}.idx", INDEX.encode())])
    notify(pipeline, data)
    run_chain(pipeline, "hrrr", DAY.isoformat(), "first", Source.LEDGER)
    (item,) = traces.catalog_items(pipeline).values()
    return str(item["properties"]["kfm:wal_id"])


def issues(pipeline: Pipeline) -> list[Mapping[str, Any]]:
    (item,) = traces.catalog_items(pipeline).values()
    return list(item["properties"].get("kfm:issues", ()))


def statuses(pipeline: Pipeline, wal_id: str) -> tuple[Any, ...]:
    record = own_tx(pipeline.ledger).get(wal_id)
    return (record.status, record.integrity_status, record.metadata_status, record.provenance_status)


@pytest.mark.clause("BEY-04", "WAL-06")
def test_an_unusually_small_object_stays_suspect_if_later_peers_are_as_small(pipeline: Pipeline, objects: Path) -> None:
    size = len(CONTENT)
    announce_peers(pipeline, range(8), size=2 * size)
    unit = ingest(pipeline, objects)
    (issue,) = issues(pipeline)
    assert (issue["code"], issue["severity"]) == ("size_unlike_peers", "suspect")
    usual = f"the middle half of 8 peers has {2 * size} to {2 * size}"
    assert issue["message"] == f"{size} bytes, expected {-(-4 * size // 3)} to {3 * size}: {usual}"
    assert statuses(pipeline, unit) == (Status.SUCCEEDED, "suspect", "ok", "ok")
    before = traces.catalog_items(pipeline)

    # Now most peers are as small as this object; the result of its first check still holds.
    announce_peers(pipeline, range(8, 24), size=size)
    comparisons = list(compare_run(pipeline, dataset="hrrr", run_id="first"))
    assert comparisons
    assert not [stage for stage in comparisons if stage.keys_differing or stage.results_differing]
    repeat_units(pipeline.ledger, unit)
    run_chain(pipeline, "hrrr", DAY.isoformat(), "second", Source.LEDGER)
    assert statuses(pipeline, unit) == (Status.SUCCEEDED, "suspect", "ok", "ok")
    assert traces.catalog_items(pipeline) == before
    assert pipeline.ledger.mismatches(limit=10) == []


BEGIN = datetime.combine(DAY, time(6), UTC)
GOOD = {
    "goes-abi": ("noaa-goes19", *make_goes_abi(product="ABI-L1b-RadC", start=BEGIN, satellite=19, band=13)),
    "hrrr": ("noaa-hrrr-bdp-pds", *make_hrrr(run=BEGIN, lead=7)[:2]),
    "nexrad-l2": ("unidata-nexrad-level2", *make_nexrad_level2(site="KICT", start=BEGIN)),
}


def bring(pipeline: Pipeline, objects: Path, dataset: str, content: bytes, *, hour: int) -> None:
    """Store a version of the dataset's object, announce it, and run pending units."""
    bucket, key, _ = GOOD[dataset]
    item = good(bucket, key, content)
    put(objects, [item])
    notify(pipeline, item, event_time=datetime(2025, 4, 3, hour, tzinfo=UTC))
    run_chain(pipeline, dataset, DAY.isoformat(), f"run-{hour}", Source.LEDGER)


def firing(pipeline: Pipeline) -> list[tuple[str, str, str]]:
    evaluator = pipeline.alert_evaluator()
    evaluator.evaluate()
    return [
        (alert.subject, alert.place, alert.run_id or "")
        for alert in evaluator.store.listed()
        if alert.rule == AlertRule.WORSE_OBJECT
    ]


@pytest.mark.clause("OPR-20")
@pytest.mark.parametrize("dataset", GOOD)
def test_a_truncated_version_is_quarantined_and_the_item_keeps_the_last_complete_version(
    pipeline: Pipeline, objects: Path, dataset: str
) -> None:
    whole = GOOD[dataset][2]
    bring(pipeline, objects, dataset, whole, hour=1)
    catalog = Path(pipeline.settings.catalog)
    before = trees.walk(catalog)
    assert firing(pipeline) == []

    bring(pipeline, objects, dataset, whole[:-50], hour=2)
    assert trees.walk(catalog) == before
    unit = next(iter(traces.records(pipeline).values())).wal_id
    first, second = own_tx(pipeline.ledger).versions(unit)
    assert (first.status, second.status) == (Status.SUCCEEDED, Status.QUARANTINED)
    record = own_tx(pipeline.ledger).get(second.wal_id)
    assert (record.attempts, record.last_error_code) == (1, "truncated_object")
    assert firing(pipeline) == [(dataset, "truncated_object", "run-2")]
    if dataset == "hrrr":
        second_whole = whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:]
        bring(pipeline, objects, dataset, second_whole, hour=3)
        assert firing(pipeline) == []
        (item,) = traces.items(catalog).values()
        assert item["assets"]["data"]["file:checksum"] == "d50110" + hashlib.md5(second_whole).hexdigest()


@pytest.mark.clause("OPR-20")
def test_a_bad_object_without_an_earlier_item_raises_no_alert(pipeline: Pipeline, objects: Path) -> None:
    bring(pipeline, objects, "hrrr", GOOD["hrrr"][2][:-50], hour=1)
    assert {record.status for record in traces.records(pipeline).values()} == {Status.QUARANTINED}
    assert firing(pipeline) == []


Samples = Callable[[date, int], Iterator[tuple[str, str, bytes]]]
UNITS = 3


def lightning(day: date, count: int) -> Iterator[tuple[str, str, bytes]]:
    """Yield GLM files larger than a block: a smaller one, without flashes, needs only one request."""
    large = (sample for sample in goes_glm_samples(day, 4 * count) if len(sample[2]) > BLOCK_BYTES)
    return islice(large, count)


SAMPLES: dict[str, tuple[Samples, int]] = {
    "goes-abi": (goes_abi_samples, 1),
    "goes-glm": (lightning, 2),
    "nexrad-l2": (nexrad_level2_samples, 1),
    "hrrr": (hrrr_samples, 2),
    "gfs": (gfs_samples, 2),
    "nbm": (nbm_samples, 2),
    "mrms": (mrms_samples, 1),
}
"""Dataset > its samples, and the requests for an object; a model's two include one for the index."""


@pytest.fixture
def s3(aws: EmbeddedCloud) -> Any:
    return emptied(aws).client("s3")


@pytest.mark.parametrize("dataset", SAMPLES)
def test_the_first_bytes_of_an_object_are_requested_once_and_give_the_metadata_of_a_local_file(
    s3: Any, fetched: list[tuple[str, int]], dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples, requests = SAMPLES[dataset]
    stored = [good(*sample) for sample in samples(DAY, UNITS)]
    for bucket in {item.bucket for item in stored}:
        s3.create_bucket(Bucket=bucket)
    for item in stored:
        s3.put_object(Bucket=item.bucket, Key=item.key, Body=item.stored)
    remote = _metadata(tmp_path / "remote", None, dataset, stored)
    assert len(remote) == UNITS
    assert set(Counter(path.removesuffix(".idx") for path, _ in fetched).values()) == {requests}
    put(tmp_path / "objects", stored)
    assert _metadata(tmp_path / "folder", tmp_path / "objects", dataset, stored) == remote
    fetched.clear()
    monkeypatch.setattr(ReadAhead, "take", lambda *_: b"")
    assert _metadata(tmp_path / "again", None, dataset, stored) == remote
    assert set(Counter(path.removesuffix(".idx") for path, _ in fetched).values()) == {requests + 1}


def _metadata(home: Path, objects: Path | None, dataset: str, stored: list[StoredObject]) -> dict[str, Any]:
    pipeline = open_pipeline(home, objects)
    data = [item for item in stored if not item.key.endswith(".idx")]
    notify(pipeline, *data)
    batch = run_chain(pipeline, dataset, DAY.isoformat(), "run", Source.LEDGER)
    pipeline.close()
    return {unit.key: unit.metadata for unit in batch.envelopes}


@pytest.mark.clause("BEY-04")
def test_an_object_overwritten_after_its_integrity_check_gives_no_item_that_mixes_versions(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Fewer bytes than the header has, so that the rest is requested after the object was overwritten.
    monkeypatch.setattr(nexrad_level2, "FIRST_BYTES", 100)
    pipeline = open_pipeline(tmp_path / "home", None)
    rewritten, unchanged = volumes(2)
    s3.create_bucket(Bucket=unchanged.bucket)
    for item in (rewritten, unchanged):
        s3.put_object(Bucket=item.bucket, Key=item.key, Body=item.stored)
    notify_each(pipeline, rewritten, unchanged)
    read = []

    def write_again(batch: StageBatch) -> None:
        operator = batch.state.dataset_id.partition(".")[2]
        if operator == IntegrityCheck.operator:
            s3.put_object(Bucket=rewritten.bucket, Key=rewritten.key, Body=unchanged.stored)
        if operator == MetadataExtract.operator:
            read.extend(batch.envelopes)

    run_pending(pipeline, "run", seen=write_again)
    issues = {unit.key: [issue.code for issue in unit.issues] for unit in read}
    assert issues == {rewritten.key: [IntegrityIssue.STORAGE_UNAVAILABLE], unchanged.key: []}
    records = {
        record.object_uri.partition(f"{unchanged.bucket}/")[2]: record for record in traces.records(pipeline).values()
    }
    assert (records[rewritten.key].status, records[rewritten.key].stac_item_id) == (Status.FAILED, None)
    assert records[unchanged.key].status is Status.SUCCEEDED
    pipeline.close()
