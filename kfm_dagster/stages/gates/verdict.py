"""Names, settings and verdicts of the gates (pipeline card, chapter 7, section IX).

Belongs here: the vocabulary that rules, stage machine, audit and asset checks share. Does not belong here: a rule, or
the consequence of a verdict (`stages/card.py` reads that from `configs/state_machine.yaml`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum, unique
from typing import Self

from pydantic import Field

from kfm_dagster.configs import Strict
from kfm_dagster.contracts.envelope import WalId


@unique
class Gate(StrEnum):
    """A rule over a stage's output, with its name in words and its meaning."""

    words: str
    description: str

    def __new__(cls, value: str, words: str = "", description: str = "") -> Self:
        """Create a gate."""
        gate = str.__new__(cls, value)
        gate._value_, gate.words, gate.description = value, words, description
        return gate

    G1 = "G1", "schema completeness", "Every section of this step and of the earlier steps is present and complete."
    G2 = (
        "G2",
        "citation compliance",
        "The contract names the sources of the extracted fields by volume, version, anchor.",
    )
    G3 = "G3", "path conventions", "Path arrays have the same length, at least two, and path elements are positive."
    G4 = "G4", "dimensional closure", "Every quantity has a fitting unit of measurement, and a possible value."
    G5 = "G5", "freshness", "Live units were no older than the contract's budget when the run claimed them."
    G6 = "G6", "coverage", "The day has the products that the contract expects of it."
    G7 = "G7", "covariance consistency", "Covariances are symmetric and positive definite, and cover the residuals."
    G8 = "G8", "uniqueness", "wal_id, object version and Item id are unique in batch and catalog."


@unique
class OnFailure(StrEnum):
    """The effect of a failing gate."""

    FAIL_UNITS = "fail_units"
    """The units at fault leave the chain. A fault of the batch stops the stage. So does a fault that all units share,
    if there are several units and the gate has a stop."""
    STOP = "stop"
    """The stage fails."""
    RESTRICT = "restrict"
    """The degraded path: the stage continues, and the output is marked [Restricted]."""


class GateRule(Strict):
    """The effect of a failing gate."""

    on_failure: OnFailure


class CitationGate(GateRule):
    """G2. The Pipeline Card Template requires that at least 0.9 of the fields are cited."""

    min_anchor_coverage: float = Field(ge=0.9, le=1)


class PathGate(GateRule):
    """G3. The Pipeline Card Template requires at least 2 points."""

    min_points: int = Field(ge=2)


class DimensionGate(GateRule):
    """G4. A release bundle needs p_dim = 1.0."""

    min_p_dim: float = Field(gt=0, le=1)


class CoverageGate(GateRule):
    """G6. Minimum share of each product's expected objects."""

    min_coverage: float = Field(ge=0, le=1)


class CovarianceGate(GateRule):
    """G7. Minimum share of residuals within `k_sigma` standard uncertainties (else E_UQ)."""

    k_sigma: float = Field(2, gt=0)
    min_share: float = Field(0.95, gt=0, le=1)


class Gates(Strict):
    """The rules of all gates."""

    G1: GateRule
    G2: CitationGate
    G3: PathGate
    G4: DimensionGate
    G5: GateRule
    G6: CoverageGate
    G7: CovarianceGate
    G8: GateRule

    def on_failure(self, gate: Gate) -> OnFailure:
        """Return the effect of a failed gate."""
        rule: GateRule = getattr(self, gate.value)
        return rule.on_failure


@unique
class Stop(StrEnum):
    """The reason for stopping a stage."""

    S1 = "S1"
    """Dimensional failure."""
    S2 = "S2"
    """Freshness failure."""
    S3 = "S3"
    """Path failure."""
    S4 = "S4"
    """Covariance failure."""
    S5 = "S5"
    """Citation failure."""


STOPS: Mapping[Gate, Stop] = {Gate.G4: Stop.S1, Gate.G5: Stop.S2, Gate.G3: Stop.S3, Gate.G7: Stop.S4, Gate.G2: Stop.S5}
"""The stop that a failed gate triggers if it stops its stage; G1, G6 and G8 have no stop."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A fault that a gate reports, of a unit, or of the whole batch if `wal_id` is None."""

    what: str
    wal_id: WalId | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A gate's verdict on a batch. A gate without data passes and does not apply."""

    gate: Gate
    rule: str
    """The rule in words, e.g. `anchor coverage >= 0.9`."""
    observed: str
    expected: str
    findings: tuple[Finding, ...] = ()
    applies: bool = True
    figures: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Numbers for the audit that can be added up, such as G4's `closed` and `quantities`."""

    @property
    def passed(self) -> bool:
        """Whether the gate has no findings."""
        return not self.findings

    @property
    def units(self) -> frozenset[WalId]:
        """The units at fault; empty if the batch as a whole is at fault."""
        return frozenset(finding.wal_id for finding in self.findings if finding.wal_id is not None)

    @property
    def of_batch(self) -> bool:
        """Whether a finding concerns the batch and no single unit."""
        return any(finding.wal_id is None for finding in self.findings)

    @classmethod
    def not_applicable(cls, gate: Gate, rule: str, why: str) -> Verdict:
        """Return the verdict of a gate without data."""
        return cls(gate=gate, rule=rule, observed=why, expected="data to check", applies=False)


def of_every_gate(verdicts: Iterable[Verdict], *, maker: str) -> list[Verdict]:
    """Return a verdict for every gate, in order; missing gates do not apply to `maker`'s output."""
    by_gate = {verdict.gate: verdict for verdict in verdicts}
    return [by_gate.get(gate) or Verdict.not_applicable(gate, "checked elsewhere", maker) for gate in Gate]
