"""Gate G6, coverage: of the partition against the products that the contract expects, hour by hour.

An hour is expected once it is over and has settled. Surplus in one hour makes up for no hole in another, and a product
that is there for none that is missing. Does not belong here: counting (`facts.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any

from kfm_dagster.contracts.quality import Coverage, ExpectedProduct
from kfm_dagster.stages.gates.subject import PartitionFacts, Subject
from kfm_dagster.stages.gates.verdict import Finding, Gate, Verdict


def coverage(subject: Subject) -> Verdict:
    """Hold each product's share of the objects that are due against the threshold."""
    least = subject.thresholds.min_coverage
    rule = f"coverage of each product >= {least:g}"
    if subject.sampled:
        return Verdict.not_applicable(Gate.G6, rule, "the feed is a sample (KFM_FEED): no day of it is expected whole")
    expected, facts = subject.contract.coverage, subject.partition
    if expected is None or facts is None:
        why = "the contract expects no product" if expected is None else "the ledger was not asked for the partition"
        return Verdict.not_applicable(Gate.G6, rule, why)
    settled = _settled_hours(expected, facts, subject.reference_time)
    due = {product.name: hours for product in expected.products if (hours := _hours(product, facts, settled))}
    if not due:
        return Verdict.not_applicable(Gate.G6, rule, "no hour with an expected product is over yet")
    totals = _totals(expected, facts)
    shares: dict[str, float] = {}
    findings = []
    for product in expected.products:
        if product.name in due:
            found, holes = _found(product, totals, due[product.name])
            wanted = product.per_hour * len(due[product.name])
            shares[product.name] = found / wanted
            if found / wanted < least:
                text = f"{product.name}: {found} of {wanted} objects, {len(holes)} of {len(due[product.name])} hours"
                findings.append(Finding(what=f"{text} short, the first {holes[0]:02} UTC"))
    worst = min(shares, key=lambda name: (shares[name], name))
    return Verdict(
        gate=Gate.G6,
        rule=rule,
        observed=f"{len(shares) - len(findings)} of {len(shares)} products covered, the worst {shares[worst]:.3f}",
        expected=f"at least {least:g} of each",
        findings=tuple(sorted(findings, key=lambda finding: finding.what)),
    )


def _settled_hours(expected: Coverage, facts: PartitionFacts, at: datetime) -> list[int]:
    midnight = datetime.combine(facts.day, time(), UTC)
    settling = timedelta(hours=1, seconds=expected.settles_after_seconds)
    return [hour for hour in range(24) if midnight + timedelta(hours=hour) + settling <= at]


def _hours(product: ExpectedProduct, facts: PartitionFacts, settled: list[int]) -> list[int]:
    """Hours of the day in which a product is due."""
    if product.since is not None and facts.day < product.since:
        return []
    if product.until is not None and facts.day >= product.until:
        return []
    return [hour for hour in settled if not product.hours or hour in product.hours]


def _totals(expected: Coverage, facts: PartitionFacts) -> _Totals:
    """Objects by hour and by the groups that tell products apart: the ledger keeps more of a key than those."""
    names = tuple(sorted({name for product in expected.products for name in product.groups}))
    objects: Counter[tuple[int, tuple[Any, ...]]] = Counter()
    for count in facts.counts:
        objects[count.hour, tuple(map(count.groups.get, names))] += count.objects
    by_hour: dict[int, dict[tuple[Any, ...], int]] = defaultdict(dict)
    for (hour, values), number in objects.items():
        by_hour[hour][values] = number
    return _Totals(names=names, by_hour=by_hour)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Totals:
    names: tuple[str, ...]
    by_hour: Mapping[int, Mapping[tuple[Any, ...], int]]

    def of(self, product: ExpectedProduct, hour: int) -> int:
        """Objects of a product that began in an hour."""
        wanted = [(self.names.index(name), value) for name, value in product.groups.items()]
        return sum(
            number
            for values, number in self.by_hour.get(hour, {}).items()
            if all(values[index] == value for index, value in wanted)
        )


def _found(product: ExpectedProduct, totals: _Totals, hours: list[int]) -> tuple[int, list[int]]:
    """Objects that count, at most the expected ones of each hour, and the hours that lack some."""
    found = {hour: totals.of(product, hour) for hour in hours}
    holes = [hour for hour in hours if found[hour] < product.per_hour]
    return sum(min(number, product.per_hour) for number in found.values()), holes
