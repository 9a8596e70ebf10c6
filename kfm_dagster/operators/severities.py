"""From a finding to an issue: what a dataset's contract says about a code, and the status that follows.

Belongs here: the rule that integrity-check and metadata-extract share. Does not belong here: the findings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TypeVar

from kfm_dagster.contracts.envelope import CheckStatus
from kfm_dagster.contracts.issues import IntegrityIssue, Issue, MetadataIssue, Severity

UNLESS_NAMED: Mapping[StrEnum, Severity] = {
    IntegrityIssue.SIZE_UNLIKE_PEERS: Severity.SUSPECT,
    MetadataIssue.COMPLETENESS_UNCHECKED: Severity.SUSPECT,
    MetadataIssue.OUT_OF_TABLE: Severity.SUSPECT,
    MetadataIssue.SIDECAR_OUTDATED: Severity.SUSPECT,
}
"""Severities of codes that a contract need not name: nothing was found wrong, and nothing was found sound."""

ALWAYS_FAILED = frozenset({IntegrityIssue.STORAGE_UNAVAILABLE, MetadataIssue.STORAGE_UNAVAILABLE})
"""A store that does not answer says nothing about the object, so no contract can let the unit go on."""


Code = TypeVar("Code", bound=StrEnum)


def apply_severities(
    findings: Iterable[tuple[Code, str]], severities: Mapping[Code, Severity]
) -> tuple[CheckStatus, tuple[Issue, ...]]:
    """Give each finding the severity of the contract, or its own where the contract names none; derive the status."""
    issues = tuple(
        Issue(
            code=code.value,
            severity=_severity(code, severities),
            message=message,
        )
        for code, message in findings
    )
    if any(issue.severity is Severity.FAILED for issue in issues):
        return CheckStatus.FAILED, issues
    return (CheckStatus.SUSPECT if issues else CheckStatus.OK), issues


def _severity(code: Code, severities: Mapping[Code, Severity]) -> Severity:
    if code in ALWAYS_FAILED:
        return Severity.FAILED
    return severities.get(code) or UNLESS_NAMED.get(code, Severity.FAILED)
