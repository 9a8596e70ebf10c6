"""Gate G5, freshness: the age of a live unit's event when the run claims the unit.

Bulk work is exempt: a backfill and a replay bring old data on purpose, and so does an archive that announces a day long
past, which is not urgent. A feed that is silent for a day is detected by its coverage (G6). Does not belong here: the
budget (the contract's `freshness`).
"""

from __future__ import annotations

from datetime import timedelta

from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.stages.gates.subject import Subject
from kfm_dagster.stages.gates.verdict import Finding, Gate, Verdict

FEED = timedelta(days=1)
"""Data from before the previous day comes from an archive, not a feed: the slowest feed here takes hours."""


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
