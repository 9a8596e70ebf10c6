"""Truncated, missing, empty, wrong and hostile objects in a batch with sound ones: each fails alone, with its code."""

from __future__ import annotations

import gzip
import random
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.contracts.issues import IntegrityIssue, MetadataIssue, StacIssue
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.demo.samples.goes_abi import goes_abi_samples
from kfm_dagster.demo.samples.hrrr import make_hrrr
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
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.operators import stac_register as operators_of_a_batch
from kfm_dagster.run_state.record import Outcome
from kfm_dagster.storage.object_handle import ObjectHandle, UndeclaredObjectError
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import (
    DAY,
    StoredObject,
    announce,
    good,
    missing,
    put,
    replaced,
    run_chain,
    take,
    truncated,
    volumes,
)

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
    """A way of being bad, and the code that says so."""

    name: str
    make: Callable[[StoredObject], StoredObject]
    code: str


def content(make: Callable[[bytes], bytes]) -> Callable[[StoredObject], StoredObject]:
    """Other content, announced as it is: only its headers can tell."""
    return lambda item: replaced(item, make(item.announced))


EVERYWHERE = [
    Bad(name="missing", make=missing, code=IntegrityIssue.MISSING_OBJECT),
    Bad(name="truncated", make=truncated, code=IntegrityIssue.SIZE_MISMATCH),
    Bad(name="empty", make=content(lambda _: b""), code=IntegrityIssue.SIZE_ZERO),
    Bad(name="another format", make=content(lambda _: b"<html>" + NOISE), code=IntegrityIssue.BAD_MAGIC),
]
OWN: dict[str, list[Bad]] = {
    "goes-abi": [
        Bad(name="cut early", make=content(lambda whole: whole[:2000]), code=MetadataIssue.TRUNCATED_OBJECT),
        Bad(name="noise", make=content(lambda _: HDF5 + NOISE), code=MetadataIssue.UNREADABLE_FORMAT),
    ],
    "nexrad-l2": [
        Bad(name="cut", make=content(lambda whole: whole[:-50]), code=MetadataIssue.TRUNCATED_OBJECT),
        Bad(
            name="cut, gzipped",
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
        Bad(name="cut", make=content(lambda whole: whole[:-50]), code=MetadataIssue.TRUNCATED_OBJECT),
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


def announce_all(pipeline: Pipeline, items: Iterable[StoredObject]) -> None:
    take(pipeline, announce([item.event() for item in items], registry=pipeline.registry))


@pytest.mark.clause("SEC-09")
@pytest.mark.parametrize(
    ("step", "code"),
    [
        ("integrity_check", IntegrityIssue.STORAGE_UNAVAILABLE),
        ("metadata_extract", MetadataIssue.UNREADABLE_FORMAT),
        ("stac_register", StacIssue.STAC_VALIDATION_FAILED),
    ],
)
def test_an_error_in_the_step_of_one_unit_fails_that_unit_alone(
    step: str, code: str, make_pipeline: Callable[..., Pipeline], objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd, *others = items = volumes(3)
    pipeline = make_pipeline()
    put(objects, items)
    announce_all(pipeline, items)
    room = operators_of_a_batch if step == "stac_register" else nodes
    work: Callable[..., Any] = getattr(room, step)

    def of_all_but_one(unit: Envelope, **parts: Any) -> Any:
        if unit.object_uri == odd.uri:
            raise OverflowError
        return work(unit, **parts)

    monkeypatch.setattr(room, step, of_all_but_one)
    run_chain(pipeline, "nexrad-l2", DAY.isoformat(), "run-1", Source.LEDGER)
    records = traces.records(pipeline)
    assert {records[item.uri].status for item in others} == {Status.SUCCEEDED}
    assert (records[odd.uri].last_error_code, "OverflowError" in str(records[odd.uri].last_error_message)) == (
        code,
        True,
    )


@pytest.mark.clause("SEC-09")
def test_a_unit_that_its_contract_names_no_more_fails_alone(
    make_pipeline: Callable[..., Pipeline], objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd, *others = items = volumes(3)
    pipeline = make_pipeline()
    put(objects, items)
    announce_all(pipeline, items)
    opened = pipeline.objects.open

    def undeclared(contract: DatasetContract, uri: str, **known: Any) -> ObjectHandle:
        if uri == odd.uri:
            raise UndeclaredObjectError(uri, "not named")
        return opened(contract, uri, **known)

    monkeypatch.setattr(pipeline.objects, "open", undeclared)
    run_chain(pipeline, "nexrad-l2", DAY.isoformat(), "run-1", Source.LEDGER)
    records = traces.records(pipeline)
    assert {records[item.uri].status for item in others} == {Status.SUCCEEDED}
    assert records[odd.uri].last_error_code == IntegrityIssue.ACCESS_DENIED


@pytest.mark.clause("OPR-05", "OPR-07", "BEY-03")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("dataset", SOUND)
def test_each_bad_object_fails_with_its_code_and_its_neighbours_succeed(
    dataset: str, make_pipeline: Callable[..., Pipeline], objects: Path
) -> None:
    kinds = [*EVERYWHERE, *OWN[dataset]]
    items = SOUND[dataset](NEIGHBOURS + len(kinds))
    sound, spoilt = items[:NEIGHBOURS], [kind.make(item) for kind, item in zip(kinds, items[NEIGHBOURS:], strict=True)]
    pipeline = make_pipeline()
    put(objects, [*sound, *spoilt])
    announce_all(pipeline, [*sound, *spoilt])

    outcomes: dict[str, Outcome] = {}
    batch = run_chain(
        pipeline, dataset, DAY.isoformat(), "run-1", Source.LEDGER,
        seen=lambda stage: outcomes.update({stage.state.dataset_id.split(".")[1]: stage.state.outcome}),
    )  # fmt: skip

    records = traces.records(pipeline)
    found = {kind.name: records[item.uri].last_error_code for kind, item in zip(kinds, spoilt, strict=True)}
    assert found == {kind.name: kind.code for kind in kinds}
    assert {records[item.uri].status for item in sound} == {Status.SUCCEEDED}
    retry = pipeline.registry[dataset].retry
    for item, kind in zip(spoilt, kinds, strict=True):
        once = retry.attempts_for(kind.code) == 1
        assert records[item.uri].status is (Status.QUARANTINED if once else Status.FAILED), kind.name
    assert set(traces.items(Path(pipeline.settings.catalog))) == {item.uri for item in sound}
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
        assert unit.integrity is not None
        if unit.failure is None:
            continue
        assert (unit.metadata is None) == (unit.failure.code in failed_at_integrity)
        assert (unit.stac, unit.provenance) == (None, None)
        # What a person reads in the ledger names no path of this machine.
        assert str(objects) not in (records[unit.object_uri].last_error_message or "")
