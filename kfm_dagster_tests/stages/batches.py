"""Batches for gates: units of samples, read by the real operators, at any point of a chain."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import islice, product
from pathlib import Path
from typing import Any

from kfm_dagster.contracts.envelope import (
    CheckStatus,
    Envelope,
    Integrity,
    ProvenanceResult,
    ProvenanceStatus,
    StacResult,
    StacStatus,
)
from kfm_dagster.contracts.key_grammar import KeyKind
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.samples import gfs, nbm
from kfm_dagster.demo.samples.ghcn import ghcn_daily_samples, ghcn_hourly_samples
from kfm_dagster.demo.samples.goes_abi import goes_abi_samples
from kfm_dagster.demo.samples.goes_glm import goes_glm_samples
from kfm_dagster.demo.samples.hrrr import BUCKET, PRODUCTS, REGIONS, make_hrrr
from kfm_dagster.demo.samples.isd import isd_samples
from kfm_dagster.demo.samples.mrms import mrms_samples
from kfm_dagster.demo.samples.nexrad_chunks import nexrad_chunk_samples
from kfm_dagster.demo.samples.nexrad_level2 import nexrad_level2_samples
from kfm_dagster.ingest.nodes import chain
from kfm_dagster.operators.metadata_extract import metadata_extract
from kfm_dagster.readers.base import READERS, HeaderMetadata, ReadError, ReadRequest
from kfm_dagster.readers.ranges import BytesSource
from kfm_dagster.stages.card import Card
from kfm_dagster.stages.gates.subject import Subject
from kfm_dagster.stages.gates.verdict import Gate, Gates
from kfm_dagster_tests.factories import envelope

DAY = date(2026, 3, 1)
REFERENCE = datetime(2026, 3, 2, 12, tzinfo=UTC)
"""The time of the run's claim, after the day's end."""
CONTRACTS = ContractRegistry.load()
SECTIONS = {node.operator: tuple(step.section for step in node.chain() if step.section) for node in chain()}
OPERATORS = tuple(SECTIONS)

Objects = Iterator[tuple[str, str, bytes, Callable[[str], BytesSource | None]]]
"""Bucket, key, content, and a function that opens a sidecar."""


def sample_objects(dataset: str, count: int) -> Objects:
    """Return sample objects of a dataset; a model's with their index."""
    if dataset in INDEXED:
        bucket, indexed = INDEXED[dataset]
        for key, content, index in islice(indexed(), count):
            yield bucket, key, content, lambda _, index=index: BytesSource(index.encode())
        return
    samples = {
        "ghcnd": ghcn_daily_samples,
        "ghcnh": ghcn_hourly_samples,
        "goes-abi": goes_abi_samples,
        "goes-glm": goes_glm_samples,
        "mrms": mrms_samples,
        "nexrad-l2": nexrad_level2_samples,
        "surface-obs": isd_samples,
        "nexrad-l2-chunks": nexrad_chunk_samples,
    }[dataset]
    for bucket, key, content in samples(DAY, count):
        yield bucket, key, content, lambda _: None


def run_of(hour: int) -> datetime:
    return datetime(DAY.year, DAY.month, DAY.day, hour, tzinfo=UTC)


def hrrr_samples() -> Iterator[tuple[str, bytes, str]]:
    for lead, region, kind, hour in product(range(24), REGIONS, PRODUCTS, range(0, 24, 3)):
        yield make_hrrr(run=run_of(hour), lead=lead, product=kind, region=region)


def gfs_samples() -> Iterator[tuple[str, bytes, str]]:
    for lead, hour in product(gfs.LEADS, gfs.CYCLES):
        for kind, resolution in gfs.PRODUCTS:
            yield gfs.make_gfs(run=run_of(hour), lead=lead, product=kind, resolution=resolution)
        for region, _ in gfs.WAVES:
            yield gfs.make_gfs_wave(run=run_of(hour), lead=lead, region=region)


def nbm_samples() -> Iterator[tuple[str, bytes, str]]:
    for lead, region, kind, hour in product(nbm.LEADS, nbm.REGIONS, nbm.PRODUCTS, range(0, 24, 3)):
        yield nbm.make_nbm(run=run_of(hour), lead=lead, product=kind, region=region)


INDEXED: dict[str, tuple[str, Callable[[], Iterator[tuple[str, bytes, str]]]]] = {
    "hrrr": (BUCKET, hrrr_samples),
    "gfs": (gfs.BUCKET, gfs_samples),
    "nbm": (nbm.BUCKET, nbm_samples),
}
"""Bucket, and objects as (key, content, index)."""


def real_objects(folder: Path) -> Objects:
    """Return real objects of every dataset with a contract."""

    def beside(path: Path) -> Callable[[str], BytesSource | None]:
        def sidecar(suffix: str) -> BytesSource | None:
            file = path.with_name(path.name + suffix)
            return BytesSource(file.read_bytes()) if file.is_file() else None

        return sidecar

    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        bucket, key = path.relative_to(folder).as_posix().split("/", 1)
        if CONTRACTS.route(bucket=bucket, key=key).kind is KeyKind.DATA:
            yield bucket, key, path.read_bytes(), beside(path)


def headers(objects: Objects) -> Iterator[tuple[str, HeaderMetadata]]:
    """Yield the readers' headers of objects by dataset; refused objects are left out."""
    for bucket, key, content, sidecar in objects:
        contract = CONTRACTS.route(bucket=bucket, key=key).contract
        match = CONTRACTS.grammars[contract.id].match(key)
        request = ReadRequest(key=key, groups=match.groups, source=BytesSource(content), sidecar=sidecar)
        try:
            yield contract.id, READERS[contract.metadata_extract.reader](request)
        except ReadError:
            continue


def extracted(objects: Objects) -> list[Envelope]:
    """Return units after metadata-extract, announced a minute before the run."""
    units = []
    for bucket, key, content, sidecar in objects:
        contract = CONTRACTS.route(bucket=bucket, key=key).contract
        grammar = CONTRACTS.grammars[contract.id]
        match = grammar.match(key)
        etag = hashlib.md5(content).hexdigest()
        unit = envelope(
            dataset=contract.id,
            object_uri=f"s3://{bucket}/{key}",
            event_time=REFERENCE - timedelta(minutes=1),
            time_range_start=match.start,
            time_range_end=match.end,
            object_version=etag,
            object_size=len(content),
            integrity=Integrity(status=CheckStatus.OK, actual_size_bytes=len(content), actual_etag=etag),
        )
        metadata = metadata_extract(
            unit,
            contract=contract,
            grammar=grammar,
            source=BytesSource(content),
            open_sidecar=sidecar,
            readers=READERS,
        )
        units.append(unit.evolve(metadata=metadata))
    return units


def emitted(unit: Envelope) -> Envelope:
    """Return the unit after a successful chain."""
    match = CONTRACTS.grammars[unit.dataset].match(unit.key)
    return unit.evolve(
        stac=StacResult(
            write_status=StacStatus.CREATED,
            item_id=match.item_id,
            collection_id=CONTRACTS[unit.dataset].stac.collection,
            item_href=f"{unit.dataset}/{match.item_id}.json",
            content_sha256="0" * 64,
        ),
        provenance=ProvenanceResult(status=ProvenanceStatus.OK, activity_id=f"urn:uuid:{unit.wal_id}"),
    )


@cache
def batch(dataset: str, count: int = 6) -> tuple[Envelope, ...]:
    """Return units of sample objects at the end of the chain."""
    return tuple(emitted(unit) for unit in extracted(sample_objects(dataset, count)))


def at(stage: str, unit: Envelope) -> Envelope:
    """Return the unit after a stage."""
    later = {"integrity", "metadata", "stac", "provenance"} - set(SECTIONS[stage])
    return unit.evolve(**dict.fromkeys(later))


def rules(gate: Gate = Gate.G1, **thresholds: float) -> Gates:
    """Return the card's rules, with other thresholds of one gate."""
    own = Card.load().machine.gates
    return own.model_copy(update={gate: getattr(own, gate).model_copy(update=thresholds)})


def subject(*units: Envelope, stage: str = "provenance_emit", **changes: Any) -> Subject:
    """Return a stage's output over units of one dataset, by default a whole sample of NEXRAD."""
    units = units or batch("nexrad-l2")
    values = {"contract": CONTRACTS[units[0].dataset], "reference_time": REFERENCE, "rules": rules()} | changes
    return Subject(stage=stage, sections=SECTIONS[stage], envelopes=units, **values)
