"""The dataset contract: all facts that the pipeline needs about a dataset, in one YAML file.

Unknown keys are refused. `source.py` has messages, keys and listings, `quality.py` the parts for gates,
`stewardship.py` the parts for governance; `contracts/loader.py` reads files and checks contracts against each other;
`key_grammar.py` applies the key pattern. Nothing here reads the environment or a file.
"""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PositiveInt, model_validator

from kfm_dagster.configs import Line, Regex, Strict
from kfm_dagster.contracts.bounding_box import Box
from kfm_dagster.contracts.identity import pseudonym
from kfm_dagster.contracts.issues import GateIssue, IntegrityIssue, MetadataIssue, ProvenanceIssue, Severity, StacIssue
from kfm_dagster.contracts.quality import Citation, Coverage, Freshness, KeyValues, Peers, Quantity
from kfm_dagster.contracts.source import Notifications, QueueConfig, Storage, refuse_missing
from kfm_dagster.contracts.stewardship import Governance
from kfm_dagster.contracts.virtual import VirtualStore

CANONICAL_FIELDS: tuple[str, ...] = (
    "wal_id", "dataset", "object_uri", "provider", "queue", "event_time", "time_range_start", "time_range_end",
    "status", "attempts", "last_attempt_at", "last_error_code", "last_error_message", "integrity_status",
    "metadata_status", "stac_status", "provenance_status", "stac_item_id", "stac_collection_id", "stac_item_href",
    "ingest_run_id", "worker_id", "replay_reason", "created_at", "updated_at", "version",
)  # fmt: skip
"""Fields of a ledger record (NODD WAL specification, section 3); extension fields must have other names."""

DatasetId = Annotated[str, Field(pattern=r"^[a-z][a-z0-9]*(-[a-z0-9]+)*$", max_length=40)]


class Retirement(Strict):
    """End of a dataset's production."""

    since: date = Field(description="First UTC day without new objects.")
    successor: DatasetId | None = Field(None, description="Dataset that replaces this one. Default: none.")
    reason: Line = Field(description="Sentence for users, with its source in a comment.")


_NOTICES = {
    "preliminary": "Preliminary: its producer still changes it.",
    "untested": "Untested: this package has read no real object of it.",
}


class DatasetMetadata(Strict):
    """Identity of the dataset, and its stage of life."""

    id: DatasetId
    title: str = Field(min_length=1)
    description: str = Field(min_length=1)
    labels: dict[str, str] = Field({})
    owners: list[str] = Field([])
    status: Literal["operational", "preliminary", "untested", "retired"] = Field(
        "operational",
        description="preliminary: the producer still changes the dataset. untested: this package has read no real "
        "object of the dataset. retired: no new objects; `retired` has the date.",
    )
    retired: Retirement | None = Field(None, description="Required for status retired, else invalid.")

    @model_validator(mode="after")
    def _retired_since_a_day(self) -> DatasetMetadata:
        if (self.status == "retired") is (self.retired is None):
            raise ValueError(
                "status retired without `retired` (since, successor, reason), or `retired` with another status"
            )
        return self

    @property
    def notice(self) -> str | None:
        """Sentence on the status for users; None for an operational dataset."""
        if self.retired is not None:
            return f"Retired since {self.retired.since.isoformat()}: {self.retired.reason}"
        return _NOTICES.get(self.status)


class Magic(Strict):
    """Bytes that an object of the declared format must have at an offset."""

    hex: str = Field(pattern=r"^([0-9a-f]{2})+$")
    offset: int = Field(0, ge=0, le=1024)


class IntegrityRules(Strict):
    """Rules of integrity-check. Sizes in bytes."""

    checks: list[Literal["exists", "size", "etag_match", "headers", "magic"]] = Field(
        ["exists", "size", "etag_match", "magic"]
    )
    min_bytes: PositiveInt = 1
    max_bytes: PositiveInt = 5 * 1024**3
    content_types: list[str] = Field([])
    magic: list[Magic] = Field([], description="One of these must match.")
    peers: Peers | None = Field(
        None, description="Comparison of sizes with recent objects of the same product. Default: none."
    )
    severities: dict[IntegrityIssue, Severity] = Field({}, description="Default: failed; size_unlike_peers is suspect.")


def _is_box(area: Box) -> Box:
    west, south, east, north = area
    if not (-180 <= west < east <= west + 360 and west < 180 and -90 <= south < north <= 90):
        raise ValueError("west, south, east, north in degrees; east is beyond 180 over the antimeridian")
    return area


Area = Annotated[Box, AfterValidator(_is_box)]


class MetadataRules(Strict):
    """Rules of metadata-extract."""

    reader: str
    required: list[str] = Field(
        [], description="STAC properties that the reader must give; else incomplete_product_metadata."
    )
    key_values: KeyValues = Field(
        {},
        description="Values of the object that must agree with its key, else key_mismatch: by field, then by group of "
        "the key, then by pattern of the group's text. A field that begins with `native.` is a reader's own value; a "
        "field that begins with `layers.` is compared in each layer.",
    )
    areas: dict[str, dict[Regex, Area]] = Field(
        {},
        description="West, south, east and north in degrees, for objects that state no place. Nested by group of the "
        "key and pattern of the group's text; the first match applies.",
    )
    coordinate_decimals: int = Field(6, ge=3, le=9)
    citations: list[Citation] = Field(
        [],
        description="Citations of the dataset's own fields, looked up before the citations of the reader's format "
        "(contracts/formats/); gate G2 requires a source for 90 % of the extracted fields.",
    )
    units: list[Quantity] = Field(
        [],
        description="Units of the dataset's own numbers, before those of the reader's format; the first entry that "
        "covers a number applies.",
    )
    severities: dict[MetadataIssue, Severity] = Field(
        {}, description="Default: failed; completeness_unchecked, out_of_table and sidecar_outdated are suspect."
    )


class Provider(Strict):
    """A STAC provider."""

    name: str
    roles: list[Literal["producer", "licensor", "processor", "host"]]
    url: str | None = None


class AssetDefinition(Strict):
    """The data object as a STAC asset."""

    title: str
    media_type: str = Field(
        description="Media type of the object; if the key ends in .gz, the Item has application/gzip."
    )
    roles: list[str]
    open_kwargs: dict[str, Any] = Field({}, description="Arguments of xarray.open_dataset (xarray-assets extension).")


class StacRules(Strict):
    """Content of Items and of the Collection."""

    collection: DatasetId
    collection_of: DatasetId | None = Field(
        None,
        description="Owner of the Collection, if this dataset only adds Items to it. Default: this dataset.",
    )
    item_id: str = Field(description="Template over the groups of the key grammar; must not depend on the version.")
    precedence: str | None = Field(
        None,
        description="Group of the key that orders re-issues of an Item: one with a lower value of the group never "
        "overwrites one with a higher value.",
    )
    extensions: list[str] = Field([], description="STAC extensions besides those of the reader's format.")
    keywords: list[str] = Field([])
    providers: list[Provider] = Field([])
    data_asset: AssetDefinition
    summaries: list[str] = Field([], description="Item properties summarised in the Collection.")


class Backoff(Strict):
    """Seconds before attempt n+1, never more than `maximum_seconds`.

    const: base. exp: base * 2**(n-1). jitter: a share, between half and all, of the wait of const; exp+jitter: such a
    share of the wait of exp. The share differs from unit to unit, so units that failed together are not retried
    together ("equal jitter", AWS Architecture Blog, Exponential Backoff and Jitter, 2015). The share is computed from
    unit and attempt, so every worker computes the same time.
    """

    kind: Literal["const", "exp", "jitter", "exp+jitter"] = "exp+jitter"
    base_seconds: float = Field(60, ge=0)
    maximum_seconds: float = Field(1800, ge=0)


AWAITED = frozenset({IntegrityIssue.MISSING_OBJECT, IntegrityIssue.ACCESS_DENIED})
"""Permanent errors that may end: an object may be written late, a permission may be granted."""


class PermanentErrors(Strict):
    """Errors that a retry hardly repairs: by default one attempt, except for AWAITED errors."""

    codes: list[str] = Field(
        [
            IntegrityIssue.MISSING_OBJECT,
            IntegrityIssue.ACCESS_DENIED,
            IntegrityIssue.SIZE_ZERO,
            IntegrityIssue.BAD_MAGIC,
            MetadataIssue.UNREADABLE_FORMAT,
            MetadataIssue.TRUNCATED_OBJECT,
            MetadataIssue.CONTRACT_FAULT,
            MetadataIssue.RESOURCE_LIMIT,
        ],
        description="Issue codes of operators and gates; every other code is transient.",
    )
    max_attempts: int | None = Field(
        None,
        ge=1,
        le=20,
        description="Default: 1; for missing_object and access_denied, max_attempts of transient errors.",
    )


class Retry(Strict):
    """When a failed unit is retried, and when it is quarantined instead."""

    max_attempts: int = Field(3, ge=1, le=20)
    backoff: Backoff = Backoff()
    deadline_seconds: PositiveInt | None = Field(
        None, description="Seconds from a unit's discovery after which no automatic retry begins. Default: no limit."
    )
    permanent: PermanentErrors = PermanentErrors()

    @model_validator(mode="after")
    def _permanent_is_no_more_patient(self) -> Retry:
        if self.permanent.max_attempts is not None and self.permanent.max_attempts > self.max_attempts:
            raise ValueError("permanent.max_attempts is greater than max_attempts")
        known = {*IntegrityIssue, *MetadataIssue, *StacIssue, *ProvenanceIssue, *GateIssue}
        if unknown := sorted(set(self.permanent.codes) - known):
            raise ValueError(f"permanent.codes {unknown} are not issue codes")
        return self

    def attempts_for(self, error_code: str) -> int:
        """Return the number of attempts of a unit that fails with this code."""
        if error_code not in self.permanent.codes:
            return self.max_attempts
        return self.permanent.max_attempts or (self.max_attempts if error_code in AWAITED else 1)


class LedgerFields(Strict):
    """Extension fields that the ledger stores for this dataset: groups of the key grammar."""

    extension_fields: list[str] = Field([])


class DatasetContract(Strict):
    """Contract of a dataset."""

    apiVersion: Literal["kfm.nodd.dataset/v1"]  # noqa: N815 - the key's name in the file, as in Kubernetes
    kind: Literal["NoddDatasetContract"]
    metadata: DatasetMetadata
    notifications: Notifications = Notifications()
    queue: QueueConfig = QueueConfig()
    storage: Storage
    integrity: IntegrityRules = IntegrityRules()
    metadata_extract: MetadataRules
    stac: StacRules
    governance: Governance
    retry: Retry = Retry()
    ledger: LedgerFields = LedgerFields()
    freshness: Freshness | None = Field(None, description="Default: any age is fresh.")
    coverage: Coverage | None = Field(None, description="Default: nothing is expected.")
    virtual: list[VirtualStore] = Field(
        [],
        description="Virtual Zarr stores (docs/virtual-zarr.md); an Item belongs to the first store that matches its "
        "key. Default: none.",
    )

    @property
    def id(self) -> str:
        """Dataset id, e.g. `goes-abi`."""
        return self.metadata.id

    @property
    def governed(self) -> bool:
        """Whether public outputs omit the dataset's internal name (run-state pattern, FAIR+CARE)."""
        return self.governance.sensitivity != "none" or self.governance.indigenous_data_flag

    @property
    def public_id(self) -> str:
        """Name of the dataset in public outputs."""
        return pseudonym(self.id) if self.governed else self.id

    def is_live(self, day: date) -> bool:
        """Return whether a UTC day is before the dataset's retirement, so that objects can come."""
        return self.metadata.retired is None or day < self.metadata.retired.since

    def live_topics(self, day: date) -> list[str]:
        """Return the ARNs of the topics that deliver on a UTC day."""
        topics = self.notifications.topics if self.is_live(day) else []
        return [topic.arn for topic in topics if topic.until is None or day < topic.until]

    @model_validator(mode="after")
    def _coverage_ends_with_the_dataset(self) -> DatasetContract:
        # Each product's `until` is set here, so that gates, gaps and pictures need no rule for a retired dataset.
        retired, coverage = self.metadata.retired, self.coverage
        if retired is None or coverage is None:
            return self
        ends = [min(retired.since, product.until or retired.since) for product in coverage.products]
        products = [
            product.model_copy(update={"until": end}) for product, end in zip(coverage.products, ends, strict=True)
        ]
        return self.model_copy(update={"coverage": coverage.model_copy(update={"products": products})})

    @model_validator(mode="after")
    def _objects_are_discoverable(self) -> DatasetContract:
        if not self.notifications.topics and self.storage.scheduled_listing is None:
            raise ValueError(
                "no object can be discovered: name notifications.topics that announce them, or give "
                "storage.scheduled_listing"
            )
        return self

    @model_validator(mode="after")
    def _templates_use_known_groups(self) -> DatasetContract:
        groups = set(re.compile(self.storage.key_grammar.pattern).groupindex)
        mirrors = " ".join(self.storage.mirrors.values())
        implied = self.storage.key_grammar.implied.keys()
        used = {
            "stac.item_id": set(re.findall(r"{(\w+)}", self.stac.item_id)) - implied,
            "storage.mirrors": set(re.findall(r"{(\w+)}", mirrors)) - {"bucket", "key"} - implied,
            "stac.precedence": {self.stac.precedence} if self.stac.precedence else set(),
            "ledger.extension_fields": set(self.ledger.extension_fields),
            "integrity.peers.groups": set(self.integrity.peers.groups) if self.integrity.peers else set(),
            "virtual": {name for store in self.virtual for name in store.groups},
            "metadata_extract.key_values": {
                name for by_group in self.metadata_extract.key_values.values() for name in by_group
            }
            - implied,
            "metadata_extract.areas": set(self.metadata_extract.areas) - implied,
        }
        refuse_missing(used, groups)
        if shadowed := set(self.ledger.extension_fields) & set(CANONICAL_FIELDS):
            raise ValueError(f"ledger.extension_fields {sorted(shadowed)} shadow canonical fields of the ledger")
        return self

    @model_validator(mode="after")
    def _ledger_has_counted_fields(self) -> DatasetContract:
        # Fields needed to find the previous volume and its newest chunk (sql/queries/ledger.sql, endless_volumes).
        lacking = {"site", "chunk", "kind"} - set(self.ledger.extension_fields)
        if not self.notifications.names_versions and lacking:
            raise ValueError(f"ledger.extension_fields of a chunk feed lack {sorted(lacking)}")
        products = self.coverage.products if self.coverage else []
        groups = {name for product in products for name in product.groups}
        if unknown := groups - set(self.ledger.extension_fields):
            raise ValueError(
                f"coverage distinguishes products by {sorted(unknown)}, which ledger.extension_fields lacks"
            )
        return self

    @model_validator(mode="after")
    def _masking_keeps_required_properties(self) -> DatasetContract:
        masking = self.governance.masking
        if masking and (hidden := set(self.metadata_extract.required) - set(masking.properties)):
            raise ValueError(f"metadata_extract.required {sorted(hidden)} are not in governance.masking.properties")
        return self

    @model_validator(mode="after")
    def _virtual_stores_are_possible(self) -> DatasetContract:
        # A virtual store shows where an object's pixels are; it neither masks them nor checks who reads them.
        if self.virtual and (self.governance.access != "open" or self.governance.masking is not None):
            raise ValueError(
                "virtual needs objects that anyone may read: governance.access is not open, or masking is set"
            )
        of_messages = self.metadata_extract.reader == "grib2"
        if any(bool(store.fields) is not of_messages for store in self.virtual):
            raise ValueError("virtual.fields are required for GRIB2 objects (reader grib2), and invalid for others")
        return self
