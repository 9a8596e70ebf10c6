"""Envelopes: the canonical, frozen description of an ingest unit; each operator adds to it.

An envelope starts with the message's facts. Each operator adds exactly one section (`integrity`, `metadata`, `stac`,
`provenance`) and touches nothing else; `evolve` is the only way to add a section. All datetimes are aware and UTC.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum, unique
from typing import Any, NewType

from kfm_dagster.contracts.issues import Issue, Severity

SECTION = "section"
"""Key that marks a dataclass field, in its `metadata`, as a section that an operator adds."""
EXTENSION = "extension"
"""Key that marks a dataclass field, in its `metadata`, as one without a column of its own in the ledger."""


def section() -> Any:
    """Return a field that is None until an operator sets it to an object with `issues`."""
    return field(default=None, metadata={SECTION: True})


def extension(reason: str) -> Any:
    """Return an optional field that the ledger stores among a record's extension fields.

    `reason` explains why a unit needs the field (NODD WAL specification, section 3, last paragraph). The codec reads
    this declaration, so no other declaration is needed.
    """
    return field(default=None, metadata={EXTENSION: reason})


WalId = NewType("WalId", str)
"""UUIDv8 in its canonical text form."""


COMPLETED_BY = " "
"""Separator in `object_version` between an object's ETag and the version of the sidecar that completes the object; an
ETag has no blank."""
CLOSED = f"{COMPLETED_BY}closed"
"""`object_version` of a closing, which reads a chunk again as its volume's last chunk; chunks have no version."""


@unique
class Priority(StrEnum):
    """Urgency of a dataset's units, set by the contract."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


@unique
class Lane(StrEnum):
    """Lane of a waiting unit: live units never wait for bulk units."""

    LIVE = "live"
    """Announced by a message: the first attempt and its automatic retries."""
    BULK = "bulk"
    """Discovered by a listing, requeued for another reason than a retry, or a completion or closing."""


@unique
class CheckStatus(StrEnum):
    """Outcome of integrity-check and metadata-extract."""

    UNKNOWN = "unknown"
    OK = "ok"
    SUSPECT = "suspect"
    FAILED = "failed"


@unique
class StacStatus(StrEnum):
    """Outcome of stac-register."""

    UNKNOWN = "unknown"
    CREATED = "created"
    UPDATED = "updated"
    NO_OP = "no-op"
    FAILED = "failed"


@unique
class ProvenanceStatus(StrEnum):
    """Outcome of provenance-emit."""

    UNKNOWN = "unknown"
    OK = "ok"
    PARTIAL = "partial"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class RawReference:
    """The ids of the message that announced a unit; all None for a unit from a bucket listing."""

    sqs_message_id: str | None = None
    sns_message_id: str | None = None
    topic_arn: str | None = None
    subject: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Integrity:
    """Section set by integrity-check. Size in bytes; ETag without quotes; time in UTC."""

    status: CheckStatus
    actual_size_bytes: int | None = None
    actual_etag: str | None = None
    last_modified: datetime | None = None
    """When the object was written, by the store's clock."""
    checks_run: tuple[str, ...] = ()
    issues: tuple[Issue, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Metadata:
    """Section added by metadata-extract.

    geometry is GeoJSON (WGS 84 degrees, split at the antimeridian), bbox is (west, south, east, north) with west > east
    when it crosses the antimeridian, stac_properties enter the Item unchanged, sidecars map roles to object URIs.
    """

    status: CheckStatus
    geometry: Mapping[str, Any] | None = None
    bbox: tuple[float, float, float, float] | None = None
    stac_properties: Mapping[str, Any] = field(default_factory=dict)
    sidecars: Mapping[str, str] = field(default_factory=dict)
    layers: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Offset and length in bytes of each field that can be read alone, by the field's name in the format."""
    checks_run: tuple[str, ...] = ()
    issues: tuple[Issue, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class StacResult:
    """Section added by stac-register. item_href is relative to the catalog's root."""

    write_status: StacStatus
    item_id: str | None = None
    collection_id: str | None = None
    item_href: str | None = None
    content_sha256: str | None = None
    superseded: bool = False
    """Whether a newer unit wrote the current Item; this unit was then read and checked, but not registered."""
    superseded_by: WalId | None = None
    """The newer unit that wrote the current Item."""
    replaces: WalId | None = None
    """Unit of the Item that this Item replaced; this unit itself if it replaced its own earlier Item."""
    issues: tuple[Issue, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ProvenanceResult:
    """Section set by provenance-emit; a repeated emit gives the same ids."""

    status: ProvenanceStatus
    activity_id: str | None = None
    entity_ids: tuple[str, ...] = ()
    agent_ids: tuple[str, ...] = ()
    openlineage_run_id: str | None = None
    issues: tuple[Issue, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Envelope:
    """An ingest unit. `attempt` and `record_version` are those of its claim, 0 before the claim."""

    wal_id: WalId
    dataset: str
    object_uri: str
    provider: str
    queue: str
    event_time: datetime
    time_range_start: datetime
    time_range_end: datetime
    priority: Priority = Priority.NORMAL
    schema_version: str
    object_version: str | None = None
    """ETag announced by the source, without quotes. For a completion, the sidecar's version is appended
    (`completion_of`); for a closing, it is CLOSED."""
    object_size: int | None = None
    """Size announced by the source, in bytes."""
    sequencer: str | None = None
    raw: RawReference = RawReference()
    peer_sizes: tuple[int, ...] | None = extension(
        "sizes for comparison, fixed at admission, so that each attempt compares with the same sizes"
    )
    """The members of `contracts.quality.PeerSizes`; None if no peers are known, or if the contract has no `peers`."""
    lane: Lane = Lane.LIVE
    replay_reason: str | None = None
    """Why the unit was requeued; None before any replay."""
    replay_run_id: str | None = None
    """The replay that requeued the unit; None outside a replay."""
    attempt: int = 0
    record_version: int = 0
    integrity: Integrity | None = section()
    metadata: Metadata | None = section()
    stac: StacResult | None = section()
    provenance: ProvenanceResult | None = section()
    gate_issues: tuple[Issue, ...] = ()
    """Issues of the gates and governance rules that dropped the unit from the chain."""

    @property
    def partition(self) -> str:
        """UTC day on which the time range starts, `YYYY-MM-DD`: the Dagster partition key."""
        return self.time_range_start.date().isoformat()

    @property
    def bucket(self) -> str:
        """Bucket part of object_uri (`s3://bucket/key`)."""
        return self.object_uri.split("://", 1)[1].split("/", 1)[0]

    @property
    def key(self) -> str:
        """Decoded key part of object_uri."""
        return self.object_uri.split("://", 1)[1].split("/", 1)[1]

    @property
    def etag(self) -> str | None:
        """ETag that the source announced for the object itself."""
        return None if self.object_version is None else self.object_version.partition(COMPLETED_BY)[0] or None

    @property
    def is_closing(self) -> bool:
        """Whether the unit closes its volume, because the radar has begun a later volume (ADR 028)."""
        return self.object_version == CLOSED

    @property
    def issues(self) -> tuple[Issue, ...]:
        """Issues of the operators in the chain's order, then of gates and governance rules."""
        results = (getattr(self, name) for name in _SECTIONS)
        return tuple(issue for result in results if result is not None for issue in result.issues) + self.gate_issues

    @property
    def failure(self) -> Issue | None:
        """The first issue that dropped this unit from the chain, if any.

        If only one lineage path failed, provenance is `partial`, which does not fail the unit.
        """
        for name in _SECTIONS:
            result: Any = getattr(self, name)
            partial = isinstance(result, ProvenanceResult) and result.status is not ProvenanceStatus.FAILED
            if result is None or partial:
                continue
            for issue in result.issues:
                if issue.severity is Severity.FAILED:
                    return issue  # type: ignore[no-any-return]
        return next(iter(self.gate_issues), None)

    def evolve(self, **changes: Any) -> Envelope:
        """Return a copy with these fields replaced."""
        return dataclasses.replace(self, **changes)


_SECTIONS = tuple(entry.name for entry in dataclasses.fields(Envelope) if SECTION in entry.metadata)
"""Fields that operators set, in the order of the chain."""
