"""integrity-check: check that an object is as announced, whole, and of the declared format.

Belongs here: the checks that need a single request, and the severities of findings, also for metadata-extract. The
operator only reads. Does not belong here: opening the object (`storage/objects.py`), headers (`metadata_extract.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TypeVar

from kfm_dagster.contracts.envelope import CheckStatus, Envelope, Integrity
from kfm_dagster.contracts.issues import IntegrityIssue, Issue, MetadataIssue, Severity
from kfm_dagster.contracts.model import DatasetContract, IntegrityRules
from kfm_dagster.contracts.quality import PeerSizes
from kfm_dagster.storage.object_handle import ObjectHandle, ObjectHead, ObjectReadError

UNLESS_NAMED: Mapping[StrEnum, Severity] = {
    IntegrityIssue.SIZE_UNLIKE_PEERS: Severity.SUSPECT,
    MetadataIssue.COMPLETENESS_UNCHECKED: Severity.SUSPECT,
    MetadataIssue.OUT_OF_TABLE: Severity.SUSPECT,
    MetadataIssue.SIDECAR_OUTDATED: Severity.SUSPECT,
}
"""Default severities of codes that a contract need not name. These findings do not prove that the object is wrong."""

ALWAYS_FAILED = frozenset({IntegrityIssue.STORAGE_UNAVAILABLE, MetadataIssue.STORAGE_UNAVAILABLE})
"""Codes with the severity `failed` in every contract: if the store is unavailable, the object was not checked."""


Code = TypeVar("Code", bound=StrEnum)


def apply_severities(
    findings: Iterable[tuple[Code, str]], severities: Mapping[Code, Severity]
) -> tuple[CheckStatus, tuple[Issue, ...]]:
    """Return the status, and the findings as issues, with the contract's or default severities."""
    issues = tuple(
        Issue(code=code.value, severity=_severity(code, severities), message=message) for code, message in findings
    )
    if any(issue.severity is Severity.FAILED for issue in issues):
        return CheckStatus.FAILED, issues
    return (CheckStatus.SUSPECT if issues else CheckStatus.OK), issues


def _severity(code: Code, severities: Mapping[Code, Severity]) -> Severity:
    if code in ALWAYS_FAILED:
        return Severity.FAILED
    return severities.get(code) or UNLESS_NAMED.get(code, Severity.FAILED)


Finding = tuple[IntegrityIssue, str]


def integrity_check(
    envelope: Envelope, *, contract: DatasetContract, handle: ObjectHandle, first_bytes: int = 0
) -> Integrity:
    """Run the contract's checks over an object with one request (none if there are no checks).

    The request covers at least `first_bytes` of the object, which the reader needs anyway. A check without a value to
    compare with is skipped: `checks_run` names the checks that ran. Never raises for faults of the object or its store.
    """
    rules = contract.integrity
    if not rules.checks:
        return _result(rules, (), [], head=None)
    try:
        head, first = _look(envelope, rules, handle, first_bytes)
    except ObjectReadError as error:
        return unreadable(contract, error)
    run: list[str] = ["exists"]
    findings: list[Finding] = []
    if "size" in rules.checks:
        run.append("size")
        findings += _size(head, rules, announced=envelope.object_size)
    unlike = _unlike_peers(head.size, envelope, rules)
    if unlike is not None:
        run.append("size_peers")
        findings += unlike
    if "etag_match" in rules.checks and head.etag is not None and envelope.etag is not None:
        run.append("etag_match")
        if head.etag != envelope.etag:
            findings.append((IntegrityIssue.ETAG_MISMATCH, f"{head.etag}, announced {envelope.etag}"))
    if "headers" in rules.checks and head.content_type is not None and rules.content_types:
        run.append("headers")
        findings += _content_type(head.content_type, rules)
    if "magic" in rules.checks and rules.magic and head.size > 0:
        run.append("magic")
        findings += _magic(first, rules)
    return _result(rules, tuple(run), findings, head=head)


def unreadable(contract: DatasetContract, error: Exception) -> Integrity:
    """Return the integrity of an object that cannot be opened, requested or checked."""
    if isinstance(error, ObjectReadError):
        finding = (error.code, str(error.observed))
    else:
        finding = (IntegrityIssue.STORAGE_UNAVAILABLE, f"the checks failed with {type(error).__name__}")
    return _result(contract.integrity, ("exists",), [finding], head=None)


def _look(
    envelope: Envelope, rules: IntegrityRules, handle: ObjectHandle, first_bytes: int
) -> tuple[ObjectHead, bytes]:
    magic = rules.magic if "magic" in rules.checks else ()
    needed = max([first_bytes, *(signature.offset + len(signature.hex) // 2 for signature in magic)])
    # An object announced as empty has no first bytes, and requesting them would cost a second request.
    return handle.probe(needed) if needed and envelope.object_size != 0 else (handle.head(), b"")


def _size(head: ObjectHead, rules: IntegrityRules, *, announced: int | None) -> list[Finding]:
    findings: list[Finding] = []
    if head.size == 0:
        findings.append((IntegrityIssue.SIZE_ZERO, "the object is empty"))
    elif head.size < rules.min_bytes:
        findings.append((IntegrityIssue.SIZE_TOO_SMALL, f"{head.size} bytes, expected at least {rules.min_bytes}"))
    elif head.size > rules.max_bytes:
        findings.append((IntegrityIssue.SIZE_TOO_LARGE, f"{head.size} bytes, expected at most {rules.max_bytes}"))
    if announced is not None and head.size != announced:
        findings.append((IntegrityIssue.SIZE_MISMATCH, f"{head.size} bytes, announced {announced}"))
    return findings


def _unlike_peers(size: int, envelope: Envelope, rules: IntegrityRules) -> list[Finding] | None:
    """Compare a size with its product's earlier sizes (peers); None for too few peers or size 0."""
    if rules.peers is None or envelope.peer_sizes is None or size == 0:
        return None
    peers = PeerSizes(*envelope.peer_sizes)
    if peers.number < rules.peers.minimum:
        return None
    low, high = peers.expected(rules.peers.factor)
    if low <= size <= high:
        return []
    usual = f"the middle half of {peers.number} peers has {peers.lower} to {peers.upper}"
    return [(IntegrityIssue.SIZE_UNLIKE_PEERS, f"{size} bytes, expected {low} to {high}: {usual}")]


def _content_type(observed: str, rules: IntegrityRules) -> list[Finding]:
    # Type and subtype are case-insensitive; parameters are ignored (RFC 9110, 8.3.1).
    media_type = observed.partition(";")[0].strip().lower()
    if media_type in {accepted.lower() for accepted in rules.content_types}:
        return []
    return [(IntegrityIssue.UNEXPECTED_CONTENT_TYPE, f"{media_type[:80]!r} is not a media type of the dataset")]


def _magic(first: bytes, rules: IntegrityRules) -> list[Finding]:
    for magic in rules.magic:
        if first[magic.offset :].startswith(bytes.fromhex(magic.hex)):
            return []
    return [(IntegrityIssue.BAD_MAGIC, f"the object begins with {first[:16].hex()}")]


def _result(
    rules: IntegrityRules, run: tuple[str, ...], findings: list[Finding], *, head: ObjectHead | None
) -> Integrity:
    status, issues = apply_severities(findings, rules.severities)
    return Integrity(
        status=status,
        actual_size_bytes=None if head is None else head.size,
        actual_etag=None if head is None else head.etag,
        last_modified=None if head is None else head.last_modified,
        checks_run=run,
        issues=issues,
    )
