"""Repairs: the usual cause of each error code, and who repairs it; shown with the unit.

The runbook of validation errors has the same table; a test keeps both equal. Does not belong here: the codes
themselves (`issues.py`), and the severities that a contract gives them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kfm_dagster.contracts.issues import GovernanceIssue, IntegrityIssue, MetadataIssue, StacIssue


@dataclass(frozen=True, kw_only=True, slots=True)
class Repair:
    """The usual cause and the repair, each a part of a sentence."""

    usually: str
    repair: str


_CUT = Repair(usually="cut off on its way, or rewritten meanwhile", repair="the provider's next writing")
_FORMAT = Repair(
    usually="another format under a known name, or something else behind the last GRIB2 message",
    repair="the provider's, or a reader of ours",
)
_PRODUCT = Repair(usually="a change of the product", repair="the contract, or a reader")
REPAIRS: Mapping[str, Repair] = {
    IntegrityIssue.MISSING_OBJECT: Repair(
        usually="announced before it was there, or removed since",
        repair="none of ours: wait for the provider, or discard",
    ),
    IntegrityIssue.SIZE_MISMATCH: _CUT,
    MetadataIssue.TRUNCATED_OBJECT: _CUT,
    IntegrityIssue.ETAG_MISMATCH: _CUT,
    MetadataIssue.COMPLETENESS_UNCHECKED: Repair(
        usually="suspect, never failed: the end could not be checked, or a radar stopped early",
        repair="none, unless a client misses data",
    ),
    MetadataIssue.OUT_OF_TABLE: Repair(
        usually="suspect, never failed: a code that its table does not have, as a coverage pattern of a test",
        repair="none, unless clients choose by it",
    ),
    IntegrityIssue.SIZE_UNLIKE_PEERS: Repair(
        usually="suspect, never failed: far from the recent sizes of its product, which the message says",
        repair="none, unless the data is missing in it",
    ),
    MetadataIssue.SIDECAR_OUTDATED: Repair(
        usually="suspect, never failed: the index is older than the object, which may have been written again",
        repair="the provider's: its next index completes the Item",
    ),
    IntegrityIssue.BAD_MAGIC: _FORMAT,
    MetadataIssue.UNREADABLE_FORMAT: _FORMAT,
    MetadataIssue.KEY_MISMATCH: Repair(
        usually="another member, grid, parameter or centre than the key names; the message has both values",
        repair="the provider's next writing; where every object of a product has it, `key_values` of the contract",
    ),
    MetadataIssue.SIDECAR_MISMATCH: Repair(
        usually="an index of another object, or one that lacks a line", repair="the provider's next index"
    ),
    MetadataIssue.INVALID_GEOMETRY: Repair(
        usually="corners of a grid that contradict its increments, or an outline that is none",
        repair="the provider's, or a reader of ours",
    ),
    StacIssue.STAC_VALIDATION_FAILED: _PRODUCT,
    MetadataIssue.INCOMPLETE_PRODUCT_METADATA: _PRODUCT,
    MetadataIssue.TIME_MISMATCH: _PRODUCT,
    GovernanceIssue.HARD_FAIL: Repair(
        usually="a rule of the contract refused it, and the message names it",
        repair="an embargo that is over: release; else the steward's, or discard",
    ),
}
