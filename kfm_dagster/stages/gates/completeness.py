"""Gate G1, schema completeness: sections of this and earlier stages exist and are complete.

A member may be missing if an issue of the unit reports this, because the unit then counts as suspect, not as failed.
Does not belong here: whether values are possible (`dimensions.py`), or the consequences (`stages/card.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping

from kfm_dagster.contracts.envelope import CheckStatus, Envelope, Metadata, ProvenanceStatus, StacStatus
from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.governance.masking import MASKING
from kfm_dagster.stages.gates.subject import Subject, shortened
from kfm_dagster.stages.gates.verdict import Finding, Gate, Verdict

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PASSED = frozenset({CheckStatus.OK, CheckStatus.SUSPECT})
_REGISTERED = frozenset({StacStatus.CREATED, StacStatus.UPDATED, StacStatus.NO_OP})
_EMITTED = frozenset({ProvenanceStatus.OK, ProvenanceStatus.PARTIAL})
_NO_GEOMETRY = frozenset({MetadataIssue.MISSING_GEOLOCATION.value, MetadataIssue.INVALID_GEOMETRY.value})
_NUMBER = (int, float)

Faults = Iterator[str]


def schema_completeness(subject: Subject) -> Verdict:
    """Check every unit that has not failed, and name the incomplete units."""
    due = subject.sections
    rule = "every unit has " + ", ".join(("its identity", *due))
    if not subject.current:
        return Verdict.not_applicable(Gate.G1, rule, "no unit is in the chain")
    findings = [
        Finding(wal_id=unit.wal_id, what=shortened(faults))
        for unit in subject.current
        if (faults := list(_faults(unit, subject, due)))
    ]
    return Verdict(
        gate=Gate.G1,
        rule=rule,
        observed=f"{len(subject.current) - len(findings)} of {len(subject.current)} units complete",
        expected="all",
        findings=tuple(sorted(findings, key=lambda finding: (str(finding.wal_id), finding.what))),
    )


def _faults(unit: Envelope, subject: Subject, due: tuple[str, ...]) -> Faults:
    yield from _identity(unit, subject.contract)
    for section in due:
        if getattr(unit, section) is None:
            yield f"section {section} is missing"
        elif section in _FORMS:
            yield from _FORMS[section](unit, subject)


def _identity(unit: Envelope, contract: DatasetContract) -> Faults:
    if not _UUID.fullmatch(unit.wal_id):
        yield "wal_id is not a UUID"
    if unit.dataset != contract.id:
        yield f"dataset is {unit.dataset!r}"
    if "/" not in unit.object_uri.partition("://")[2].strip("/"):
        yield "object_uri names no object"
    times = (unit.event_time, unit.time_range_start, unit.time_range_end)
    if any(time.tzinfo is None for time in times):
        yield "a time has no zone"
    elif unit.time_range_end < unit.time_range_start:
        yield "the time range ends before it starts"


def _integrity(unit: Envelope, _: Subject) -> Faults:
    if unit.integrity is not None and unit.integrity.status not in _PASSED:
        yield f"integrity is {unit.integrity.status}"


def _metadata(unit: Envelope, subject: Subject) -> Faults:
    metadata = unit.metadata
    if metadata is None:
        return
    if metadata.status not in _PASSED:
        yield f"metadata is {metadata.status}"
    codes = {issue.code for issue in metadata.issues}
    yield from _properties(metadata, subject.contract, codes)
    if metadata.geometry is None and metadata.bbox is None and codes & _NO_GEOMETRY:
        return
    if (fault := subject.footprints[id(metadata.geometry)].fault) is not None:
        yield fault
    box = metadata.bbox
    if box is None or len(box) != 4 or not all(type(edge) in _NUMBER and math.isfinite(edge) for edge in box):
        yield "bbox is not four finite numbers"


def _properties(metadata: Metadata, contract: DatasetContract, codes: set[str]) -> Faults:
    properties = metadata.stac_properties
    # metadata-extract has checked the required members before masking removed some.
    excused = MetadataIssue.INCOMPLETE_PRODUCT_METADATA in codes or MASKING in properties
    required = [] if excused else contract.metadata_extract.required
    yield from (f"property {name} is missing" for name in required if properties.get(name) is None)
    if not isinstance(properties.get("datetime"), str) and MetadataIssue.INVALID_TIME_RANGE not in codes:
        yield "property datetime is missing"


def _stac(unit: Envelope, subject: Subject) -> Faults:
    stac = unit.stac
    if stac is None:
        return
    if stac.write_status not in _REGISTERED:
        yield f"stac is {stac.write_status}"
    if stac.collection_id != subject.contract.stac.collection:
        yield f"the Item is of collection {stac.collection_id}"
    yield from (f"{name} is missing" for name in ("item_id", "item_href") if not getattr(stac, name))


def _provenance(unit: Envelope, _: Subject) -> Faults:
    provenance = unit.provenance
    if provenance is None:
        return
    if provenance.status not in _EMITTED:
        yield f"provenance is {provenance.status}"
    if not provenance.activity_id:
        yield "activity_id is missing"


_FORMS: Mapping[str, Callable[[Envelope, Subject], Faults]] = {
    "integrity": _integrity,
    "metadata": _metadata,
    "stac": _stac,
    "provenance": _provenance,
}
