"""Gate G6, coverage: the partition's objects against the contract's products, hour by hour.

An hour is expected once it is over and has settled, from the product's first announcement to this deployment on, or all
day where the day was listed. So a warning means that objects are missing which should be here. Surplus in one hour does
not compensate for a hole in another, nor one product for another. Does not belong here: counting (`facts.py`), the
hours (`contracts/cadence.py`), and the table of gaps (`ledger/gaps.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from kfm_dagster.contracts.cadence import ProductHour, product_hours
from kfm_dagster.stages.gates.subject import Subject
from kfm_dagster.stages.gates.verdict import Finding, Gate, Verdict


def coverage(subject: Subject) -> Verdict:
    """Compare each product's share of the due objects with the threshold."""
    least = subject.rules.G6.min_coverage
    rule = f"coverage of each product >= {least:g}"
    if subject.sampled:
        return Verdict.not_applicable(Gate.G6, rule, "the feed is a sample (KFM_FEED): no day of it is expected whole")
    expected, facts = subject.contract.coverage, subject.partition
    if expected is None or facts is None:
        why = "the contract expects no product" if expected is None else "the ledger was not asked for the partition"
        return Verdict.not_applicable(Gate.G6, rule, why)
    due: dict[str, list[ProductHour]] = defaultdict(list)
    hours = product_hours(expected, facts.day, facts.counts, at=subject.reference_time, followed=facts.followed)
    for hour in hours:
        due[hour.product].append(hour)
    if not due:
        return Verdict.not_applicable(Gate.G6, rule, _nothing_is_due(followed=facts.followed is not None))
    shares = {name: _share(group) for name, group in due.items()}
    findings = [_finding(name, due[name]) for name, share in shares.items() if share < least]
    worst = min(shares, key=lambda name: (shares[name], name))
    return Verdict(
        gate=Gate.G6,
        rule=rule,
        observed=f"{len(shares) - len(findings)} of {len(shares)} products covered, the worst {shares[worst]:.3f}",
        expected=f"at least {least:g} of each",
        findings=tuple(sorted(findings, key=lambda finding: finding.what)),
    )


def _nothing_is_due(*, followed: bool) -> str:
    if followed:
        return "no hour is over in which a product was followed here, and the day was not listed"
    return "no hour with an expected product is over yet"


def _share(hours: Sequence[ProductHour]) -> float:
    """Return the share of expected objects that exist; surplus counts for no other hour."""
    return _found(hours) / sum(hour.expected for hour in hours)


def _found(hours: Sequence[ProductHour]) -> int:
    return sum(min(hour.seen, hour.expected) for hour in hours)


def _finding(name: str, hours: Sequence[ProductHour]) -> Finding:
    short = [hour.hour.hour for hour in hours if not hour.whole]
    expected = sum(hour.expected for hour in hours)
    text = f"{name}: {_found(hours)} of {expected} objects, {len(short)} of {len(hours)} hours"
    return Finding(what=f"{text} short, the first {short[0]:02} UTC")
