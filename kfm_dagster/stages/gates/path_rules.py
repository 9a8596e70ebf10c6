"""What G3, G4 and G7 ask of a batch's path quantities (pipeline card, chapter 7, sections II, VIII and IX).

Belongs here: pure rules, from what was computed for each unit to a verdict. Does not belong here: the computation
(`path/`), what a verdict leads to (`stages/card.py`), or the other parts of G4.
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
    """G3: arrays of one length, of at least min_points, d ell lengths that close with the path, ell in step with them.

    paths: the beams of each unit; a unit without any has lost its path and fails. refused: units of which no path
    could be computed (what is missing is rejected), and why. sample_m: c_ref / f_s of each unit, in metres.
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
    """G4's part of the path: the share of quantities and equations whose dimensions are right, for each unit.

    quantities: of each unit, of its beams one by one or in arrays (`path.quantities.as_array_quantities`).
    """
    rule = f"p_dim of the path quantities >= {min_p_dim:g}"
    if not quantities:
        return Verdict.not_applicable(Gate.G4, rule, _NO_PATH)
    entries = {
        wal_id: [entry for each in mappings for entry in dimensional_report(each)]
        for wal_id, mappings in quantities.items()
    }
    findings = [
        Finding(wal_id=wal_id, what=_told(entry))
        for wal_id, told in entries.items()
        if _p_dim(told) < min_p_dim
        for entry in told
        if not entry.ok
    ]
    findings += [Finding(wal_id=wal_id, what="no quantities") for wal_id, told in entries.items() if not told]
    every = [entry for told in entries.values() for entry in told]
    return Verdict(
        gate=Gate.G4,
        rule=rule,
        observed=f"p_dim = {_p_dim(every):.4g} over {len(entries)} units",
        expected=f"p_dim >= {min_p_dim:g}",
        findings=tuple(findings),
        figures={"closed": sum(entry.ok for entry in every), "quantities": len(every)},
    )


def path_dim_report(quantities: Mapping[WalId, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return what `check_dim_report.json` says of path quantities, as JSON values: a line each, as for extracted ones.

    quantities: as for dimensional_closure_of_path; a value is a unit's array, or a beam's number.
    """
    told: dict[str, list[DimensionalEntry]] = {}
    for mappings in quantities.values():
        for each in mappings:
            for entry in dimensional_report(each):
                told.setdefault(entry.quantity, []).append(entry)
    lines = []
    for quantity, entries in told.items():
        wrong = [entry for entry in entries if not entry.ok]
        shown = (wrong or entries)[0]
        lines.append(
            {
                "quantity": quantity,
                "unit": shown.unit,
                "dimension_expected": shown.expected,
                "dimension_observed": shown.observed,
                "values": len(entries),
                "closed": len(entries) - len(wrong),
                "ok": not wrong,
                "fault": _told(shown) if wrong else None,
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
    """G7: every covariance is symmetric and positive definite, and residuals are as small as it says.

    covariances: of each unit, by a name that a person knows it by, matrices of any size. residuals: of each unit, in
    standard uncertainties; `min_share` of them must lie within `k_sigma`.
    """
    rule = f"covariances are symmetric and positive definite, {min_share:g} of residuals within {k_sigma:g} sigma"
    if not covariances:
        return Verdict.not_applicable(Gate.G7, rule, _NO_PATH)
    # By identity: units of one site and pattern share their matrices.
    distinct = {id(matrix): matrix for matrices in covariances.values() for matrix in matrices.values()}
    faults = {identity: covariance_faults(matrix) for identity, matrix in distinct.items()}
    findings = [
        Finding(wal_id=wal_id, what=f"{name}: {fault}")
        for wal_id, matrices in covariances.items()
        for name, matrix in matrices.items()
        for fault in faults[id(matrix)]
    ]
    findings += [Finding(wal_id=wal_id, what="no covariance") for wal_id, found in covariances.items() if not found]
    shares = {wal_id: float(np.mean(np.abs(found) <= k_sigma)) for wal_id, found in residuals.items()}
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


def _told(entry: DimensionalEntry) -> str:
    return f"{entry.quantity} has the dimension {entry.observed}; expected {entry.expected}"
