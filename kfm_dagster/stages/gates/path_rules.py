"""G3, G4 and G7 over path quantities (pipeline card, chapter 7, sections II, VIII and IX).

Belongs here: pure rules, from each unit's quantities to a verdict. Does not belong here: the computation (`path/`), the
consequence of a verdict (`stages/card.py`), or the other parts of G4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType
from typing import Any

import numpy as np

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.path.arrival import MIN_POINTS, path_faults
from kfm_dagster.path.beam import BeamPath
from kfm_dagster.path.quantities import DimensionalEntry, dimensional_report
from kfm_dagster.path.refractivity import Floats
from kfm_dagster.path.uncertainty import covariance_faults
from kfm_dagster.stages.gates.verdict import Finding, Gate, Verdict

_NO_PATH = "no unit has path quantities"


def path_conventions(
    paths: Mapping[WalId, Sequence[BeamPath]],
    *,
    refused: Mapping[WalId, str] = MappingProxyType({}),
    min_points: int = MIN_POINTS,
    sample_m: Mapping[WalId, float] = MappingProxyType({}),
) -> Verdict:
    """Check G3: arrays of equal length >= min_points, positive d_ell that sum to ell's extent.

    paths: the beams of each unit; a unit without beams has lost its path and fails. refused: for each unit without a
    computed path, the reason, such as a missing quantity. sample_m: c_ref / f_s of each unit, in metres.
    """
    rule = (
        f"len(gamma_ell) = len(d_ell) = len(n_eff) >= {min_points}, d_ell > 0, sum of d_ell = extent of ell, "
        "max(d_ell) <= ( c_ref / f_s ) / max(n_eff)"
    )
    if not paths and not refused:
        return Verdict.not_applicable(Gate.G3, rule, _NO_PATH)
    faults = cache(partial(path_faults, min_points=min_points))
    findings = [
        Finding(wal_id=wal_id, what=f"{beam.elevation_deg:g} degrees: {fault}")
        for wal_id, beams in paths.items()
        for beam in beams
        for fault in faults(beam, sample_m=sample_m.get(wal_id, math.inf))
    ]
    findings += [Finding(wal_id=wal_id, what="no path") for wal_id, beams in paths.items() if not beams]
    findings += [Finding(wal_id=wal_id, what=why) for wal_id, why in refused.items()]
    return _verdict(Gate.G3, rule, findings, of=sum(map(len, paths.values())), what="paths")


def dimensional_closure_of_path(
    quantities: Mapping[WalId, Sequence[Mapping[str, Any]]], *, min_p_dim: float = 1.0
) -> Verdict:
    """Check G4 of the path: each ingested unit's share of quantities and equations that close.

    quantities: for each unit a mapping per beam, or a single mapping of arrays (`path.quantities.as_array_quantities`).
    """
    rule = f"p_dim of the path quantities >= {min_p_dim:g}"
    if not quantities:
        return Verdict.not_applicable(Gate.G4, rule, _NO_PATH)
    entries = {
        wal_id: [entry for mapping in mappings for entry in dimensional_report(mapping)]
        for wal_id, mappings in quantities.items()
    }
    findings = [
        Finding(wal_id=wal_id, what=_fault(entry))
        for wal_id, report in entries.items()
        if _p_dim(report) < min_p_dim
        for entry in report
        if not entry.ok
    ]
    findings += [Finding(wal_id=wal_id, what="no quantities") for wal_id, report in entries.items() if not report]
    every = [entry for report in entries.values() for entry in report]
    return Verdict(
        gate=Gate.G4,
        rule=rule,
        observed=f"p_dim = {_p_dim(every):.4g} over {len(entries)} units",
        expected=f"p_dim >= {min_p_dim:g}",
        findings=tuple(findings),
        figures={"closed": sum(entry.ok for entry in every), "quantities": len(every)},
    )


def path_dim_report(quantities: Mapping[WalId, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return the path's lines of `check_dim_report.json`, as JSON values, a line per quantity.

    quantities: as for dimensional_closure_of_path. `values` counts an array once, as it counts a beam's single value.
    """
    by_quantity: dict[str, list[DimensionalEntry]] = {}
    for mappings in quantities.values():
        for mapping in mappings:
            for entry in dimensional_report(mapping):
                by_quantity.setdefault(entry.quantity, []).append(entry)
    lines = []
    for quantity, entries in by_quantity.items():
        wrong = [entry for entry in entries if not entry.ok]
        example = (wrong or entries)[0]
        lines.append(
            {
                "quantity": quantity,
                "unit": example.unit,
                "dimension_expected": example.expected,
                "dimension_observed": example.observed,
                "values": len(entries),
                "closed": len(entries) - len(wrong),
                "ok": not wrong,
                "fault": _fault(example) if wrong else None,
            }
        )
    return lines


def covariance_consistency(
    covariances: Mapping[WalId, Mapping[str, Floats]],
    *,
    residuals: Mapping[WalId, Floats] = MappingProxyType({}),
    k_sigma: float = 2.0,
    min_share: float = 0.95,
) -> Verdict:
    """Check G7: covariances are symmetric and positive definite, and cover the residuals.

    covariances: each unit's matrices, of any size, by a readable name. residuals: each unit's residuals, divided by
    their standard uncertainties; at least the share `min_share` of them must lie between -`k_sigma` and `k_sigma`.
    """
    rule = f"covariances are symmetric and positive definite, {min_share:g} of residuals within {k_sigma:g} sigma"
    if not covariances:
        return Verdict.not_applicable(Gate.G7, rule, _NO_PATH)
    # By identity, because units of a site and pattern share their matrices.
    distinct = {id(matrix): matrix for matrices in covariances.values() for matrix in matrices.values()}
    faults = {identity: covariance_faults(matrix) for identity, matrix in distinct.items()}
    findings = [
        Finding(wal_id=wal_id, what=f"{name}: {fault}")
        for wal_id, matrices in covariances.items()
        for name, matrix in matrices.items()
        for fault in faults[id(matrix)]
    ]
    findings += [Finding(wal_id=wal_id, what="no covariance") for wal_id, values in covariances.items() if not values]
    shares = {wal_id: float(np.mean(np.abs(values) <= k_sigma)) for wal_id, values in residuals.items()}
    findings += [
        Finding(wal_id=wal_id, what=f"{share:.3g} of the residuals within {k_sigma:g} sigma")
        for wal_id, share in shares.items()
        if not share >= min_share
    ]
    return _verdict(Gate.G7, rule, findings, of=sum(map(len, covariances.values())), what="covariances")


def _verdict(gate: Gate, rule: str, findings: Sequence[Finding], *, of: int, what: str) -> Verdict:
    return Verdict(
        gate=gate,
        rule=rule,
        observed=f"{len(findings)} faults in {of} {what}",
        expected="0 faults",
        findings=tuple(findings),
    )


def _p_dim(entries: Sequence[DimensionalEntry]) -> float:
    return sum(entry.ok for entry in entries) / len(entries) if entries else 0.0


def _fault(entry: DimensionalEntry) -> str:
    return f"{entry.quantity} has the dimension {entry.observed}; expected {entry.expected}"
