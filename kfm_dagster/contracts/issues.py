"""Issue codes: the bounded, machine-readable reasons of operators for a unit's status.

Each operator has an enum. A dataset contract maps codes to `failed` or `suspect`. A code that the contract does not
name means `failed`, except for four codes that mean `suspect`; storage_unavailable always means `failed`
(`integrity_check.py`). Does not belong here: exceptions that stop a program (`errors.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, unique


@unique
class Severity(StrEnum):
    """Effect of an issue on its unit."""

    SUSPECT = "suspect"
    """The unit continues; the issue stays visible downstream and in the STAC Item."""
    FAILED = "failed"
    """The unit leaves the chain."""


@unique
class ParseIssue(StrEnum):
    """Why a message gave no envelope; such a message is rejected and kept."""

    MALFORMED_JSON = "malformed_json"
    MISSING_REQUIRED_FIELD = "missing_required_field"
    MESSAGE_TOO_LARGE = "message_too_large"
    UNROUTABLE_TOPIC = "unroutable_topic"
    UNKNOWN_BUCKET = "unknown_bucket"
    KEY_GRAMMAR_MISMATCH = "key_grammar_mismatch"
    INVALID_TIME_RANGE = "invalid_time_range"
    UNSUPPORTED_SCHEMA_VERSION = "unsupported_schema_version"
    SIGNATURE_INVALID = "signature_invalid"
    DATABASE_REFUSED = "database_refused"
    """The message parses, but a row of the ledger cannot store it."""


@unique
class IntegrityIssue(StrEnum):
    """Faults of the stored object that integrity-check detects."""

    MISSING_OBJECT = "missing_object"
    ACCESS_DENIED = "access_denied"
    SIZE_ZERO = "size_zero"
    SIZE_TOO_SMALL = "size_too_small"
    SIZE_TOO_LARGE = "size_too_large"
    SIZE_MISMATCH = "size_mismatch"
    SIZE_UNLIKE_PEERS = "size_unlike_peers"
    """The size is far from the recent sizes of its product's objects."""
    ETAG_MISMATCH = "etag_mismatch"
    UNEXPECTED_CONTENT_TYPE = "unexpected_content_type"
    BAD_MAGIC = "bad_magic"
    STORAGE_UNAVAILABLE = "storage_unavailable"


@unique
class MetadataIssue(StrEnum):
    """Faults of the object's headers that metadata-extract detects."""

    MISSING_GEOLOCATION = "missing_geolocation"
    INVALID_GEOMETRY = "invalid_geometry"
    INVALID_TIME_RANGE = "invalid_time_range"
    TIME_MISMATCH = "time_mismatch"
    PLATFORM_MISMATCH = "platform_mismatch"
    KEY_MISMATCH = "key_mismatch"
    """Object and key differ in member, grid, parameter or centre, by the contract's `key_values`."""
    INCOMPLETE_PRODUCT_METADATA = "incomplete_product_metadata"
    SIDECAR_MISSING = "sidecar_missing"
    SIDECAR_MISMATCH = "sidecar_mismatch"
    SIDECAR_OUTDATED = "sidecar_outdated"
    """The sidecar was written long before the object, so it may describe an earlier revision of the object."""
    UNREADABLE_FORMAT = "unreadable_format"
    TRUNCATED_OBJECT = "truncated_object"
    OUT_OF_TABLE = "out_of_table"
    """The object states a code that the table of its format or instrument does not have."""
    COMPLETENESS_UNCHECKED = "completeness_unchecked"
    """The reader could not check whether the object is complete, e.g. for lack of an index; suspect by default."""
    CONTRACT_FAULT = "contract_fault"
    """The contract requires a value that no object can have; no attempt succeeds until the contract is corrected."""
    RESOURCE_LIMIT = "resource_limit"
    STORAGE_UNAVAILABLE = "storage_unavailable"


@unique
class StacIssue(StrEnum):
    """Why stac-register wrote no Item."""

    STAC_VALIDATION_FAILED = "stac_validation_failed"
    CATALOG_CONFLICT = "catalog_conflict"
    IO_ERROR = "io_error"
    STORAGE_UNAVAILABLE = "storage_unavailable"


@unique
class ProvenanceIssue(StrEnum):
    """Lineage path that did not accept the unit."""

    PROV_STORE_UNAVAILABLE = "prov_store_unavailable"
    OPENLINEAGE_EMIT_FAILED = "openlineage_emit_failed"


@unique
class GateIssue(StrEnum):
    """Gate of the pipeline card that dropped a unit; the member's name is that of the gate."""

    G1 = "gate_schema_incomplete"
    G2 = "gate_citation_missing"
    G3 = "gate_path_invalid"
    G4 = "gate_dimension_open"
    G5 = "gate_stale"
    G6 = "gate_coverage_low"
    G7 = "gate_covariance_not_pd"
    G8 = "gate_not_unique"


@unique
class GovernanceIssue(StrEnum):
    """Why governance keeps a unit out of the catalog; the message names the rule."""

    HARD_FAIL = "governance_hard_fail"


@unique
class FenceIssue(StrEnum):
    """Why a worker may not write for a unit, although the unit's operators succeeded."""

    CLAIM_LOST = "claim_lost"
    """This attempt no longer holds the claim, because its lease expired, or its run died or was rolled back."""
    KILL_SWITCH = "kill_switch"
    """The dataset's kill switch is on; the unit is retried when the switch is off."""


@unique
class ChainIssue(StrEnum):
    """Why an attempt fails although no operator failed."""

    INCOMPLETE = "incomplete_chain"
    """A status of one of the unit's sections forbids success."""


ERROR_CODES: tuple[str, ...] = (
    *IntegrityIssue, *MetadataIssue, *StacIssue, *ProvenanceIssue, *GateIssue, *GovernanceIssue, *FenceIssue,
    *ChainIssue,
)  # fmt: skip
"""Codes that a run can give to a failed attempt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Issue:
    """A finding about a unit: a code of a fixed list, its severity by contract, a short text.

    The text may quote an object, so characters that are unsafe in a terminal are escaped.
    """

    code: str
    severity: Severity
    message: str

    def __post_init__(self) -> None:
        """Escape characters that are not printable."""
        if not self.message.isprintable():
            escaped = (sign if sign.isprintable() else ascii(sign)[1:-1] for sign in self.message)
            object.__setattr__(self, "message", "".join(escaped))


@dataclass(frozen=True, kw_only=True, slots=True)
class Repair:
    """The usual cause of an error code and its repair, each a part of a sentence."""

    usually: str
    repair: str


_CUT = Repair(
    usually="the object was truncated on upload, or rewritten meanwhile", repair="wait for the provider's next upload"
)
_FORMAT = Repair(
    usually="another format under a known name, or other bytes after the last GRIB2 message",
    repair="a correction by the provider, or of our reader",
)
_PRODUCT = Repair(usually="a change of the product", repair="a change of the contract, or of the reader")
REPAIRS: Mapping[str, Repair] = {
    IntegrityIssue.MISSING_OBJECT: Repair(
        usually="the object was announced before it existed, or was removed since",
        repair="wait for the provider, or discard",
    ),
    IntegrityIssue.SIZE_MISMATCH: _CUT,
    MetadataIssue.TRUNCATED_OBJECT: _CUT,
    IntegrityIssue.ETAG_MISMATCH: _CUT,
    MetadataIssue.COMPLETENESS_UNCHECKED: Repair(
        usually="suspect by default: the object's end could not be checked, or a radar stopped early",
        repair="no repair, unless a client misses data",
    ),
    MetadataIssue.OUT_OF_TABLE: Repair(
        usually="suspect by default: a code that its table does not contain, e.g. a radar's test pattern",
        repair="no repair, unless clients filter by this code",
    ),
    IntegrityIssue.SIZE_UNLIKE_PEERS: Repair(
        usually="suspect by default: the size is far from its product's recent sizes, whose range the message has",
        repair="no repair, unless the object lacks data",
    ),
    MetadataIssue.SIDECAR_OUTDATED: Repair(
        usually="suspect by default: the index is older than the object, which may have been rewritten",
        repair="wait for the provider's next index, which completes the Item",
    ),
    IntegrityIssue.BAD_MAGIC: _FORMAT,
    MetadataIssue.UNREADABLE_FORMAT: _FORMAT,
    MetadataIssue.KEY_MISMATCH: Repair(
        usually="the object has another member, grid, parameter or centre than its key states; the message has both "
        "values",
        repair="wait for the provider's next upload; if all objects of a product have this code, correct the "
        "`key_values`",
    ),
    MetadataIssue.SIDECAR_MISMATCH: Repair(
        usually="an index of another object, or an index with a missing line",
        repair="wait for the provider's next index",
    ),
    MetadataIssue.INVALID_GEOMETRY: Repair(
        usually="grid corners that contradict the increments, or an invalid outline",
        repair="a correction by the provider, or of our reader",
    ),
    StacIssue.STAC_VALIDATION_FAILED: _PRODUCT,
    MetadataIssue.INCOMPLETE_PRODUCT_METADATA: _PRODUCT,
    MetadataIssue.TIME_MISMATCH: _PRODUCT,
    GovernanceIssue.HARD_FAIL: Repair(
        usually="a rule of the contract, which the message names, refuses the unit",
        repair="release if an embargo is over; else ask the steward, or discard",
    ),
}
"""The usual cause and the repair of each error code, shown with the unit. The runbook of validation errors has the same
table; a test keeps both equal."""
