"""Gate G2, citation compliance: extracted fields name their source by volume, version, anchor and the anchor's kind.

The contract declares the sources, so what is found is of the batch. Does not belong here: what a declaration looks like
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
"""What is extracted besides the STAC properties."""


def citation_of(contract: DatasetContract, path: str) -> Citation | None:
    """Return the source that a contract names for a field, or None when it names none."""
    for citation in contract.metadata_extract.citations:
        if any(covers(pattern, path) for pattern in citation.fields):
            return citation
    return None


def uncited(contract: DatasetContract, paths: Iterable[str]) -> list[str]:
    """Return the fields for which a contract names no source, in order."""
    return sorted(path for path in set(paths) if citation_of(contract, path) is None)


def citation_compliance(subject: Subject) -> Verdict:
    """Hold the share of fields with a source against the threshold; a field counts once, however many units have it."""
    least = subject.rules.G2.min_anchor_coverage
    rule = f"anchor coverage >= {least:g}"
    paths = {path for extracted in subject.extracted for path, _ in extracted.fields}
    if not paths:
        return Verdict.not_applicable(Gate.G2, rule, "no field is extracted yet")
    paths |= {name for name in FOOTPRINT if any(getattr(one.metadata, name) is not None for one in subject.extracted)}
    bare = uncited(subject.contract, paths)
    kinds = Counter(source.kind for path in paths if (source := citation_of(subject.contract, path)))
    of_kind = ", ".join(f"{kinds[kind]} {kind}" for kind in AnchorKind)
    coverage = 1 - len(bare) / len(paths)
    findings: tuple[Finding, ...] = ()
    if coverage < least:
        findings = (Finding(what=f"no source is cited for {shortened(bare)}"),)
    return Verdict(
        gate=Gate.G2,
        rule=rule,
        observed=f"{len(paths) - len(bare)} of {len(paths)} fields cited ({of_kind}): {coverage:.3f}",
        expected=f"at least {least:g}",
        findings=findings,
    )
