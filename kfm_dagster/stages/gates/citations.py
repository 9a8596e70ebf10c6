"""Gate G2, citation compliance: fields cite source volume, version, anchor and its kind.

The contract declares the sources, so findings are of the batch. Does not belong here: the model of a declaration
(`contracts/quality.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.contracts.quality import AnchorKind, Citation, covers
from kfm_dagster.stages.gates.subject import Subject, shortened
from kfm_dagster.stages.gates.verdict import Finding, Gate, Verdict

FOOTPRINT = ("bbox", "geometry")
"""Extracted fields besides the STAC properties."""


def citation_of(contract: DatasetContract, path: str) -> Citation | None:
    """Return the source that a contract names for a field, or None."""
    for citation in contract.metadata_extract.citations:
        if any(covers(pattern, path) for pattern in citation.fields):
            return citation
    return None


def uncited(contract: DatasetContract, paths: Iterable[str]) -> list[str]:
    """Return the fields without a source in the contract, in order."""
    return sorted(path for path in set(paths) if citation_of(contract, path) is None)


def citation_compliance(subject: Subject) -> Verdict:
    """Compare the share of cited fields with the threshold; a field counts once for all units."""
    least = subject.rules.G2.min_anchor_coverage
    rule = f"anchor coverage >= {least:g}"
    paths = {path for extracted in subject.extracted for path, _ in extracted.fields}
    if not paths:
        return Verdict.not_applicable(Gate.G2, rule, "no field is extracted yet")
    paths |= {name for name in FOOTPRINT if any(getattr(item.metadata, name) is not None for item in subject.extracted)}
    missing = uncited(subject.contract, paths)
    kinds = Counter(source.kind for path in paths if (source := citation_of(subject.contract, path)))
    of_kind = ", ".join(f"{kinds[kind]} {kind}" for kind in AnchorKind)
    coverage = 1 - len(missing) / len(paths)
    findings: tuple[Finding, ...] = ()
    if coverage < least:
        findings = (Finding(what=f"no source is cited for {shortened(missing)}"),)
    return Verdict(
        gate=Gate.G2,
        rule=rule,
        observed=f"{len(paths) - len(missing)} of {len(paths)} fields cited ({of_kind}): {coverage:.3f}",
        expected=f"at least {least:g}",
        findings=findings,
    )
