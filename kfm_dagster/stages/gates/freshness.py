"""Gate G5, freshness: how old a live unit's event was when the run took the unit up. Bulk work is exempt.

A backfill and a replay bring old data on purpose, and so does an archive that announces a day long past: nobody waits
for that any more, and a feed that is silent for a day is missed by its coverage (G6). Does not belong here: the budget
(the contract's `freshness`).
"""

from __future__ import annotations

from datetime import timedelta

from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.stages.gates.subject import Subject
from kfm_dagster.stages.gates.verdict import Finding, Gate, Verdict

FEED = timedelta(days=1)
"""Data of an earlier day than the one before is an archive's, not a feed's: the slowest here is through in hours."""


def freshness(subject: Subject) -> Verdict:
    """Name every live unit that is older than the contract's budget at the run's reference time."""
    if subject.contract.freshness is None:
        return Verdict.not_applicable(Gate.G5, "age <= budget", "the contract has no budget")
    budget = subject.contract.freshness.budget_seconds
    feed = (subject.reference_time - FEED).date()
    rule = f"age of live units <= {budget} s"
    ages = sorted(
        (unit.wal_id, (subject.reference_time - unit.event_time).total_seconds())
        for unit in subject.current
        if unit.lane is Lane.LIVE and unit.time_range_end.date() >= feed
    )
    if not ages:
        return Verdict.not_applicable(Gate.G5, rule, "no live unit is in the chain")
    return Verdict(
        gate=Gate.G5,
        rule=rule,
        observed=f"the oldest of {len(ages)} live units is {max(age for _, age in ages):.0f} s old",
        expected=f"at most {budget} s",
        findings=tuple(Finding(wal_id=wal_id, what=f"{age:.0f} s old") for wal_id, age in ages if age > budget),
    )
