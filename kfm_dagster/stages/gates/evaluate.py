"""Evaluation of a stage's gates in order, and the rules of G2, G5, G6 and G8.

Does not belong here: the rules of G1 and G4 (`completeness.py`, `dimensions.py`), querying facts (`subject.py`), and
consequences (`stages/card.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa

from kfm_dagster.contracts.cadence import ProductHour, product_hours
from kfm_dagster.contracts.envelope import Envelope, Lane, StacStatus, WalId
from kfm_dagster.contracts.key_grammar import InvalidKeyTimeError, KeyGrammarReader
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.contracts.quality import AnchorKind, Citation, covers
from kfm_dagster.stages.gates.completeness import schema_completeness
from kfm_dagster.stages.gates.dimensions import dimensional_closure
from kfm_dagster.stages.gates.subject import CatalogOwner, Subject, shortened
from kfm_dagster.stages.gates.verdict import Finding, Gate, Verdict
from kfm_dagster.storage.set_questions import ask

_RULE = "wal_id, object version and Item id are unique"
_TEXT = pa.string()
_TEXTS = {
    "wal_id": "the batch has the unit {times} times",
    "object_version": "{times} units of the batch have the same object version, {other} among them",
    "item_id": "{times} units of the batch have the same Item id, {other} among them",
    "catalog_version": "the catalog has this object version as unit {other}",
    "catalog_item": "the Item is or was of another object: {other}",
}


def uniqueness(subject: Subject) -> Verdict:
    """Find duplicates (G8) within batch and catalog, and name every unit at fault.

    Not duplicates: a unit whose Item was superseded; a rewritten object (same URI, another version); a re-issue (a
    later file of the same Item, recognised by a part of its key), whichever version is current (docs/adr/008). DuckDB
    computes the collisions as sets (`sql/queries/duckdb/gates.sql`).
    """
    if not subject.envelopes:
        return Verdict.not_applicable(Gate.G8, _RULE, "the batch is empty")
    rows = _collisions(subject.envelopes, subject.catalog or ())
    grammar = KeyGrammarReader(subject.contract)
    uris = {unit.wal_id: unit.object_uri for unit in subject.envelopes}
    findings = {
        Finding(wal_id=WalId(wal_id), what=_TEXTS[rule].format(times=times, other=other))
        for rule, wal_id, other, times in rows
        # The query returns other objects with the same Item id; a re-issue does not count as another object.
        if rule != "catalog_item" or _precedence(grammar, uris[WalId(wal_id)]) == _precedence(grammar, other)
    }
    scope = "batch" if subject.catalog is None else "batch and catalog"
    colliding = len({finding.wal_id for finding in findings})
    return Verdict(
        gate=Gate.G8,
        rule=_RULE,
        observed=f"{colliding} of {len(subject.envelopes)} units collide in {scope}",
        expected="none",
        findings=tuple(sorted(findings, key=lambda finding: (str(finding.wal_id), finding.what))),
    )


def _collisions(units: Iterable[Envelope], owners: Iterable[CatalogOwner]) -> list[tuple[Any, ...]]:
    """Return rows of (rule, wal_id, other, times)."""
    return ask(
        "gates.collisions",
        units=_table("wal_id object_uri object_version item_id", map(_unit_row, units)),
        owners=_table("item_id wal_id object_uri object_version", map(_owner_row, owners)),
    )


def _table(names: str, rows: Iterable[tuple[str | None, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(names.split())
    return pa.table([pa.array(column, _TEXT) for column in columns], names=names.split())


def _unit_row(unit: Envelope) -> tuple[str | None, ...]:
    stac = unit.stac
    is_current = stac is not None and stac.write_status is not StacStatus.FAILED and not stac.superseded
    item_id = stac.item_id if stac is not None and is_current else None
    return unit.wal_id, unit.object_uri, unit.object_version, item_id


def _owner_row(owner: CatalogOwner) -> tuple[str | None, ...]:
    return owner.item_id, owner.wal_id, owner.object_uri, owner.object_version


def _precedence(grammar: KeyGrammarReader, object_uri: str) -> str | None:
    """Return an object's precedence among its Item's re-issues; None for an unmatched key."""
    try:
        match = grammar.match(object_uri.partition("://")[2].partition("/")[2])
    except InvalidKeyTimeError:
        return None
    return None if match is None else match.precedence


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
    """Compare the share of cited fields (G2) with the threshold; each field counts once.

    The contract declares the sources, so findings concern the whole batch.
    """
    least = subject.rules.G2.min_anchor_coverage
    rule = f"anchor coverage >= {least:g}"
    paths = {path for extracted in subject.extracted for path, _ in extracted.fields}
    if not paths:
        return Verdict.not_applicable(Gate.G2, rule, "no field is extracted yet")
    paths |= {name for name in FOOTPRINT if any(getattr(item.metadata, name) is not None for item in subject.extracted)}
    missing = uncited(subject.contract, paths)
    kinds = Counter(source.kind for path in paths if (source := citation_of(subject.contract, path)))
    of_kind = ", ".join(f"{kinds[kind]} {kind}" for kind in AnchorKind)
    share = 1 - len(missing) / len(paths)
    findings: tuple[Finding, ...] = ()
    if share < least:
        findings = (Finding(what=f"no source is cited for {shortened(missing)}"),)
    return Verdict(
        gate=Gate.G2,
        rule=rule,
        observed=f"{len(paths) - len(missing)} of {len(paths)} fields cited ({of_kind}): {share:.3f}",
        expected=f"at least {least:g}",
        findings=findings,
    )


def coverage(subject: Subject) -> Verdict:
    """Compare each product's share of expected objects that exist (G6) with the threshold.

    An hour is expected when it has been over for the contract's `settles_after_seconds`. Hours before the first
    announcement are expected only if all of the day's buckets were listed. So a finding means missing objects.
    A surplus in one hour or product does not compensate for a hole in another.
    """
    least = subject.rules.G6.min_coverage
    rule = f"coverage of each product >= {least:g}"
    if subject.sampled:
        return Verdict.not_applicable(Gate.G6, rule, "the feed is a sample (KFM_FEED): no day of it is expected whole")
    expected, facts = subject.contract.coverage, subject.partition
    if expected is None or facts is None:
        why = "the contract expects no product" if expected is None else "the partition was not queried"
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
        return "no hour with a followed product is over yet, and the day was not listed"
    return "no hour with an expected product is over yet"


def _share(hours: Sequence[ProductHour]) -> float:
    """Return the share of expected objects that exist; a surplus counts for no other hour."""
    return _present(hours) / sum(hour.expected for hour in hours)


def _present(hours: Sequence[ProductHour]) -> int:
    return sum(min(hour.seen, hour.expected) for hour in hours)


def _finding(name: str, hours: Sequence[ProductHour]) -> Finding:
    short = [hour.hour.hour for hour in hours if not hour.whole]
    expected = sum(hour.expected for hour in hours)
    text = f"{name}: {_present(hours)} of {expected} objects, {len(short)} of {len(hours)} hours"
    return Finding(what=f"{text} short, the first {short[0]:02} UTC")


def freshness(subject: Subject) -> Verdict:
    """Name the live units that are older than the budget (G5) at the run's reference time.

    Bulk work is exempt, because backfills and replays bring old data on purpose. Data from before the previous day is
    exempt, too, because it comes from an archive. A feed that is silent for a day is detected by its coverage (G6).
    """
    if subject.contract.freshness is None:
        return Verdict.not_applicable(Gate.G5, "age <= budget", "the contract has no budget")
    budget = subject.contract.freshness.budget_seconds
    # Even the slowest feed here delivers within hours.
    feed = (subject.reference_time - timedelta(days=1)).date()
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


RULES: Mapping[Gate, Callable[[Subject], Verdict]] = {
    Gate.G1: schema_completeness,
    Gate.G2: citation_compliance,
    Gate.G4: dimensional_closure,
    Gate.G5: freshness,
    Gate.G6: coverage,
    Gate.G8: uniqueness,
}
"""The rules of the chain's stages; `path_rules.py` has the rules of a beam's path."""


def evaluate(subject: Subject, *, gates: Iterable[Gate] = RULES) -> tuple[Verdict, ...]:
    """Return the verdicts of these gates, in order; gates without a rule in RULES are omitted.

    The verdicts depend only on the subject, and not on the order of its units.
    """
    return tuple(RULES[gate](subject) for gate in gates if gate in RULES)
