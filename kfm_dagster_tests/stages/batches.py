"""Batches for gates: units of samples, read by the real operators, at any point of a chain."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, time, timedelta
from functools import cache
from itertools import islice
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
from kfm_dagster.demo.families import FAMILIES
from kfm_dagster.demo.samples.goes_abi import goes_abi_samples
from kfm_dagster.demo.samples.nexrad_level2 import nexrad_level2_samples
from kfm_dagster.ingest.nodes import chain
from kfm_dagster.readers.ranges import BytesSource
from kfm_dagster.stages.card import Card
from kfm_dagster.stages.gates.subject import Subject
from kfm_dagster.stages.gates.verdict import Gate, Gates
from kfm_dagster_tests.fuzz.specimens import DAY, MODELS, SUBJECTS, Specimen
from kfm_dagster_tests.readers.reading import CONTRACTS, metadata_of, unit_of

REFERENCE = datetime.combine(DAY + timedelta(days=1), time(12), UTC)
"""The time of the run's claim, after the day's end."""
SECTIONS = {node.operator: tuple(step.section for step in node.chain() if step.section) for node in chain()}
OPERATORS = tuple(SECTIONS)

SAMPLES = {name: samples for name, (samples, _) in FAMILIES.items()}
SAMPLES |= {"goes-abi": goes_abi_samples, "nexrad-l2": nexrad_level2_samples}


def sample_objects(dataset: str, count: int) -> Iterator[Specimen]:
    """Yield sample objects of a dataset, those of a model with their index."""
    if dataset in MODELS:
        yield from islice((sample for sample in SUBJECTS["grib2"].samples if sample.dataset == dataset), count)
        return
    for _, key, content in SAMPLES[dataset](DAY, count):
        yield Specimen(dataset=dataset, key=key, content=content)


def extracted(objects: Iterable[Specimen]) -> list[Envelope]:
    """Return units after metadata-extract, announced a minute before the run."""
    units = []
    for item in objects:
        etag, index = hashlib.md5(item.content).hexdigest(), item.index
        unit = unit_of(
            item.dataset,
            item.key,
            bucket=CONTRACTS[item.dataset].storage.buckets[0],
            event_time=REFERENCE - timedelta(minutes=1),
            object_version=etag,
            object_size=len(item.content),
            integrity=Integrity(status=CheckStatus.OK, actual_size_bytes=len(item.content), actual_etag=etag),
        )
        units.append(unit.evolve(metadata=metadata_of(unit, BytesSource(item.content), index=index)))
    return units


def emitted(unit: Envelope) -> Envelope:
    """Return the unit as it is after a successful chain."""
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
    """Return the unit as it is after a stage."""
    later = {"integrity", "metadata", "stac", "provenance"} - set(SECTIONS[stage])
    return unit.evolve(**dict.fromkeys(later))


def rules(gate: Gate = Gate.G1, **thresholds: float) -> Gates:
    """Return the card's rules, with other thresholds of one gate."""
    of_card = Card.load().machine.gates
    return of_card.model_copy(update={gate: getattr(of_card, gate).model_copy(update=thresholds)})


def subject(*units: Envelope, stage: str = "provenance_emit", **changes: Any) -> Subject:
    """Return a stage's output over units of one dataset, by default of NEXRAD's samples."""
    units = units or batch("nexrad-l2")
    values = {"contract": CONTRACTS[units[0].dataset], "reference_time": REFERENCE, "rules": rules()} | changes
    return Subject(stage=stage, sections=SECTIONS[stage], envelopes=units, **values)
