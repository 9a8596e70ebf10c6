"""All gates of a stage, in order. Not here: rules, and consequences (`stages/card.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kfm_dagster.stages.gates.citations import citation_compliance
from kfm_dagster.stages.gates.completeness import schema_completeness
from kfm_dagster.stages.gates.coverage import coverage
from kfm_dagster.stages.gates.dimensions import dimensional_closure
from kfm_dagster.stages.gates.freshness import freshness
from kfm_dagster.stages.gates.subject import Subject
from kfm_dagster.stages.gates.uniqueness import uniqueness
from kfm_dagster.stages.gates.verdict import Gate, Verdict

Rule = Callable[[Subject], Verdict]


def no_path(subject: Subject) -> Verdict:
    """Return G3's verdict for a stage without path quantities."""
    return Verdict.not_applicable(Gate.G3, "path arrays agree", f"{subject.stage} makes no path")


def no_covariance(subject: Subject) -> Verdict:
    """Return G7's verdict for a stage without covariances."""
    return Verdict.not_applicable(Gate.G7, "covariance is positive definite", f"{subject.stage} makes no covariance")


RULES: Mapping[Gate, Rule] = {
    Gate.G1: schema_completeness,
    Gate.G2: citation_compliance,
    Gate.G3: no_path,
    Gate.G4: dimensional_closure,
    Gate.G5: freshness,
    Gate.G6: coverage,
    Gate.G7: no_covariance,
    Gate.G8: uniqueness,
}


def evaluate(
    subject: Subject, *, gates: tuple[Gate, ...] = tuple(Gate), rules: Mapping[Gate, Rule] | None = None
) -> tuple[Verdict, ...]:
    """Return the verdicts of these gates, in order. `rules` override this package's.

    Depends on the subject alone: the order of the units does not change a verdict.
    """
    chosen = {**RULES, **(rules or {})}
    return tuple(chosen[gate](subject) for gate in gates)
