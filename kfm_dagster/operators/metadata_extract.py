"""metadata-extract: read an object's headers and check them against its contract.

Belongs here: choosing the reader, the rules for every format, the STAC time fields, and the footprint (a reader's
geometry, rounded, checked by RFC 7946's rules, with its bounds). Does not belong here: formats, and how a reader
derives a geometry (`readers/`), Items (`catalog/`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache
from sys import intern
from typing import Any, TypeVar

from kfm_dagster.contracts.bounding_box import Box, bounding_box
from kfm_dagster.contracts.envelope import CheckStatus, Envelope, Metadata
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.contracts.key_grammar import InvalidKeyTimeError, KeyGrammarReader
from kfm_dagster.contracts.model import DatasetContract, MetadataRules
from kfm_dagster.contracts.quality import contradictions
from kfm_dagster.operators.integrity_check import apply_severities
from kfm_dagster.readers.base import (
    ByteSource,
    HeaderMetadata,
    Reader,
    ReadError,
    ReadRequest,
)
from kfm_dagster.readers.geometry import rectangle
from kfm_dagster.storage.object_handle import ObjectReadError

OpenSidecar = Callable[[str], ByteSource | None]
"""Open a sidecar by suffix; None if it does not exist. Raises ObjectReadError if the store fails."""

CHECKS = ("headers", "time_range", "required_properties", "sidecars", "geometry")

CLOCK_TOLERANCE = timedelta(minutes=5)
"""Maximum time that a producer's clock may be ahead of the store's clock: a radar's clock is set by hand or GPS."""

Answer = TypeVar("Answer")
Finding = tuple[MetadataIssue, str]


def metadata_extract(
    envelope: Envelope,
    *,
    contract: DatasetContract,
    grammar: KeyGrammarReader,
    source: ByteSource,
    open_sidecar: OpenSidecar,
    readers: Mapping[str, Reader],
) -> Metadata:
    """Read and check an object's headers. Never raises for faults of the object or its store.

    A unit whose integrity is neither `ok` nor `suspect` is not read. Its metadata status stays `unknown`, without an
    issue, because the integrity section has the reason. `readers` must include the contract's reader.
    """
    if envelope.integrity is None or envelope.integrity.status not in {CheckStatus.OK, CheckStatus.SUSPECT}:
        return Metadata(status=CheckStatus.UNKNOWN)
    reader = readers[contract.metadata_extract.reader]
    suffixes = {sidecar.suffix for sidecar in contract.storage.sidecars}
    store = _StoreWatch(source, lambda suffix: open_sidecar(suffix) if suffix in suffixes else None)
    header, findings = _read(reader, envelope, grammar, store)
    if header is None:
        status, issues = apply_severities(findings, contract.metadata_extract.severities)
        return Metadata(status=status, issues=issues, checks_run=CHECKS[:1])
    findings += _outdated(header, store.seen.written, contract, envelope.integrity.last_modified)
    return _checked(header, findings, envelope=envelope, contract=contract)


def unreadable(contract: DatasetContract, error: Exception) -> Metadata:
    """Return the metadata of an object whose headers cannot be read or checked."""
    if isinstance(error, ObjectReadError):
        finding = (MetadataIssue.STORAGE_UNAVAILABLE, str(error.observed))
    else:
        finding = (MetadataIssue.UNREADABLE_FORMAT, f"the checks failed with {type(error).__name__}")
    status, issues = apply_severities([finding], contract.metadata_extract.severities)
    return Metadata(status=status, issues=issues, checks_run=CHECKS[:1])


def _checked(
    header: HeaderMetadata, others: list[Finding], *, envelope: Envelope, contract: DatasetContract
) -> Metadata:
    rules = contract.metadata_extract
    findings = [_as_declared(finding, contract) for finding in header.findings] + others
    times = _times(header)
    if times is None:
        findings.append((MetadataIssue.INVALID_TIME_RANGE, "a time without zone, or an end before its start"))
    properties = {**header.properties, **(times or {})}
    if missing := [name for name in rules.required if properties.get(name) is None]:
        findings.append((MetadataIssue.INCOMPLETE_PRODUCT_METADATA, "missing " + ", ".join(missing)))
    findings += _missing_sidecars(header, contract)
    findings += _created_after_storing(header, envelope.integrity.last_modified if envelope.integrity else None)
    geometry, bbox = None, None
    try:
        geometry, bbox = footprint(header.geometry, decimals=rules.coordinate_decimals)
    except ReadError as error:
        findings.append((error.code, str(error)))
    status, issues = apply_severities(findings, rules.severities)
    roles = {sidecar.suffix: sidecar.role for sidecar in contract.storage.sidecars}
    return Metadata(
        status=status,
        geometry=geometry,
        bbox=bbox,
        stac_properties=properties,
        sidecars={roles[suffix]: envelope.object_uri + suffix for suffix in header.sidecars if suffix in roles},
        layers={intern(layer.name): (layer.offset, layer.length) for layer in header.layers},
        checks_run=CHECKS,
        issues=issues,
    )


def _read(
    reader: Reader, envelope: Envelope, grammar: KeyGrammarReader, store: _StoreWatch
) -> tuple[HeaderMetadata | None, list[Finding]]:
    try:
        match = grammar.match(envelope.key)
    except InvalidKeyTimeError as error:
        return None, [(MetadataIssue.INVALID_TIME_RANGE, str(error))]
    if match is None:
        return None, [(MetadataIssue.UNREADABLE_FORMAT, "the key no longer matches the contract's key grammar")]
    request = ReadRequest(
        key=envelope.key,
        groups=match.groups,
        source=store,
        sidecar=store.sidecar,
        closed=envelope.is_closing,
        has_sidecars=bool(grammar.contract.storage.sidecars),
    )
    try:
        header = _placed(reader(request), match.groups, grammar.contract.metadata_extract)
        return header, key_mismatches(header, match.groups, grammar.contract)
    except Exception as error:  # a hostile file must fail its unit and never the run
        return None, [_failure(error, store)]


def _placed(header: HeaderMetadata, groups: Mapping[str, str], rules: MetadataRules) -> HeaderMetadata:
    """Return the header; if it has no geometry, add the contract's area for the object's key."""
    areas = (
        area
        for group, by_text in rules.areas.items()
        for pattern, area in by_text.items()
        if re.fullmatch(pattern, groups.get(group, ""))
    )
    if header.geometry or (area := next(areas, None)) is None:
        return header
    return replace(header, geometry=rectangle(*area), properties={**header.properties, "place:source": "contract"})


def key_mismatches(header: HeaderMetadata, groups: Mapping[str, str], contract: DatasetContract) -> list[Finding]:
    """Return where an object contradicts its key, by the contract's `key_values`.

    In `key_values`, a field `layers.X` means the attribute X of each layer.
    """

    def values_of(field: str) -> Iterable[object]:
        place, _, name = field.partition(".")
        if place == "layers":
            return sorted({getattr(layer, name) for layer in header.layers})
        return [header.native.get(name) if place == "native" else header.properties.get(field)]

    rules = contract.metadata_extract.key_values
    return [(MetadataIssue.KEY_MISMATCH, text) for text in contradictions(rules, groups, values_of)]


def _failure(error: Exception, store: _StoreWatch) -> Finding:
    # A library between the reader and the store may have wrapped the store's error into its own.
    if store.seen.failure is not None:
        return MetadataIssue.STORAGE_UNAVAILABLE, store.seen.failure
    if isinstance(error, ReadError):
        return error.code, str(error)
    if isinstance(error, MemoryError):
        return MetadataIssue.RESOURCE_LIMIT, "the headers need more memory than there is"
    return MetadataIssue.UNREADABLE_FORMAT, f"{type(error).__name__} while reading the headers"


@dataclass(slots=True)
class _Seen:
    """Observations that the `_StoreWatch` of an object and those of its sidecars share."""

    failure: str | None = None
    """Text of the first error, because the error itself would keep its frames and the object alive."""
    written: dict[str, datetime] = field(default_factory=dict)
    """Write times of opened sidecars by suffix, without sidecars whose time the store does not give."""


class _StoreWatch:
    """A ByteSource with sidecars; records the store's first failure, and sidecars' times.

    After a failure of the store, the unit fails with this failure, whatever error the reader raises.
    """

    def __init__(self, source: ByteSource, open_sidecar: OpenSidecar, seen: _Seen | None = None) -> None:
        self._source = source
        self._open_sidecar = open_sidecar
        # Shared with the sidecars' watches: references from them to this watch would be a cycle, which only the
        # cyclic collector frees.
        self.seen = _Seen() if seen is None else seen

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self._watched(lambda: self._source.size)

    def read(self, start: int, length: int) -> bytes:
        """Bytes [start, start + length), cut at the end."""
        return self._watched(lambda: self._source.read(start, length))

    def sidecar(self, suffix: str) -> ByteSource | None:
        """Open a sidecar, which is watched, too."""
        source = self._watched(lambda: self._open_sidecar(suffix))
        if (written := getattr(source, "last_modified", None)) is not None:
            self.seen.written[suffix] = written
        return None if source is None else _StoreWatch(source, self._open_sidecar, self.seen)

    def _watched(self, ask: Callable[[], Answer]) -> Answer:
        try:
            return ask()
        except ObjectReadError as error:
            self.seen.failure = self.seen.failure or str(error.observed)
            raise


def _times(header: HeaderMetadata) -> dict[str, str] | None:
    """Return STAC times (Item 1.1, "datetime"), with a range if start < end; None if invalid."""
    if any(time.tzinfo is None for time in (header.start, header.end, header.datetime)) or header.end < header.start:
        return None
    times = {"datetime": rfc3339(header.datetime)}
    if header.start != header.end:
        times |= {"start_datetime": rfc3339(header.start), "end_datetime": rfc3339(header.end)}
    return times


def _as_declared(finding: Finding, contract: DatasetContract) -> Finding:
    """Return a missing sidecar as unchecked completeness if the contract declares no sidecar."""
    code, text = finding
    if code is MetadataIssue.SIDECAR_MISSING and not contract.storage.sidecars:
        return MetadataIssue.COMPLETENESS_UNCHECKED, text
    return finding


def _outdated(
    header: HeaderMetadata, written: Mapping[str, datetime], contract: DatasetContract, object_written: datetime | None
) -> list[Finding]:
    """Return findings on sidecars that match the object and were written too long before it."""
    findings: list[Finding] = []
    for sidecar in contract.storage.sidecars:
        sidecar_written = written.get(sidecar.suffix)
        if sidecar.suffix not in header.sidecars or sidecar_written is None or object_written is None:
            continue
        if object_written - sidecar_written > timedelta(seconds=sidecar.may_precede_seconds):
            times = f"{rfc3339(sidecar_written)}, the object at {rfc3339(object_written)}"
            expected = f"at most {sidecar.may_precede_seconds} s earlier"
            findings.append((MetadataIssue.SIDECAR_OUTDATED, f"{sidecar.suffix} was written at {times}: {expected}"))
    return findings


def _created_after_storing(header: HeaderMetadata, stored: datetime | None) -> list[Finding]:
    """Return a finding if the object was created over CLOCK_TOLERANCE after it was stored."""
    created = header.properties.get("processing:datetime")
    if created is None or stored is None or datetime.fromisoformat(created) <= stored + CLOCK_TOLERANCE:
        return []
    text = f"the object states that it was made at {created}, but it was stored at {rfc3339(stored)}"
    return [(MetadataIssue.TIME_MISMATCH, f"{text}; expected at most {CLOCK_TOLERANCE.seconds} s between the clocks")]


def _missing_sidecars(header: HeaderMetadata, contract: DatasetContract) -> list[Finding]:
    if any(code is MetadataIssue.SIDECAR_MISSING for code, _ in header.findings):
        return []
    return [
        (MetadataIssue.SIDECAR_MISSING, f"there is no {sidecar.suffix} beside the object")
        for sidecar in contract.storage.sidecars
        if sidecar.required and sidecar.suffix not in header.sidecars
    ]


_DEPTHS = {"Point": 0, "MultiPoint": 1, "Polygon": 2, "MultiPolygon": 3}
"""Geometry types of NODD datasets, and the number of arrays around a position (RFC 7946, section 3.1)."""


def footprint(geometry: Mapping[str, Any] | None, *, decimals: int) -> tuple[Mapping[str, Any], Box]:
    """Return a valid GeoJSON geometry in WGS 84 degrees, and its exact bounds.

    Bounds across the antimeridian have west > east. The caller must not change the result, because units of a scene
    share it. Raises ReadError(MISSING_GEOLOCATION, INVALID_GEOMETRY).
    """
    if not geometry:
        raise ReadError(MetadataIssue.MISSING_GEOLOCATION, "the headers give no geometry")
    return _footprint(_Same(geometry), decimals)


class _Same:
    """A geometry, equal to itself only.

    Readers share the geometry of a fixed scene, and hashing it would cost more than rounding it. The cache keeps a
    reference, so Python cannot reuse the identity for another object.
    """

    def __init__(self, geometry: Mapping[str, Any]) -> None:
        self.geometry = geometry

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.geometry is other.geometry

    def __hash__(self) -> int:
        return id(self.geometry)


@lru_cache(maxsize=512)
def _footprint(same: _Same, decimals: int) -> tuple[Mapping[str, Any], Box]:
    kind = same.geometry.get("type")
    depth = _DEPTHS.get(kind) if isinstance(kind, str) else None
    if depth is None:
        raise _invalid(f"type {str(kind)[:40]!r} is not one of {', '.join(_DEPTHS)}")
    try:
        coordinates = _nested(same.geometry["coordinates"], depth, decimals)
    except (KeyError, OverflowError, TypeError, ValueError):
        raise _invalid("coordinates are not arrays of finite longitude and latitude in range") from None
    polygons = {2: [coordinates], 3: coordinates}.get(depth, ())
    if not all(len(ring) >= 4 and ring[0] == ring[-1] for polygon in polygons for ring in polygon):
        raise _invalid("a ring is not closed, or has fewer than four positions")
    if depth == 3:
        # Rounding may reduce a part beyond the antimeridian to nothing; such a part is left out.
        coordinates = [part for part in coordinates if _has_extent(part[0])] or coordinates
    rounded = {"type": kind, "coordinates": coordinates}
    return rounded, bounding_box(rounded)


def _invalid(text: str) -> ReadError:
    return ReadError(MetadataIssue.INVALID_GEOMETRY, text)


def _nested(values: Any, depth: int, decimals: int) -> list[Any]:
    if depth:
        if not isinstance(values, list | tuple) or not values:
            raise TypeError("no array")
        return [_nested(value, depth - 1, decimals) for value in values]
    longitude, latitude = (_degrees(value, decimals) for value in values)
    if not (-180 <= longitude <= 180 and -90 <= latitude <= 90):
        raise ValueError("out of range")
    return [longitude, latitude]


def _has_extent(ring: list[list[float]]) -> bool:
    return all(len(set(axis)) > 1 for axis in zip(*ring, strict=True))


def _degrees(value: Any, decimals: int) -> float:
    if not math.isfinite(value):
        raise ValueError("not finite")
    # Adding zero turns -0.0 into 0.0, so that canonical JSON has one form of zero.
    return round(float(value), decimals) + 0.0
