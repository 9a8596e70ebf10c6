"""Gate G8, uniqueness: wal_id, object version and Item id, within batch and catalog.

These are not findings: a unit whose Item was superseded, a rewritten object (same URI, another version) and a re-issue
(another precedence under the contract's key grammar), whichever of the two is current (docs/adr/008). DuckDB computes
the collisions as sets (`sql/queries/duckdb/gates.sql`). Does not belong here: querying the catalog (`facts.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from kfm_dagster.contracts.envelope import Envelope, StacStatus, WalId
from kfm_dagster.contracts.key_grammar import InvalidKeyTimeError, KeyGrammarReader
from kfm_dagster.stages.gates.subject import CatalogOwner, Subject
from kfm_dagster.stages.gates.verdict import Finding, Gate, Verdict
from kfm_dagster.storage.set_questions import ask

_RULE = "wal_id, object version and Item id are unique"
_TEXT = pa.string()
_TEXTS = {
    "wal_id": "the batch has the unit {times} times",
    "object_version": "{times} units of the batch are of one object version, {other} among them",
    "item_id": "{times} units of the batch stand as one Item, {other} among them",
    "catalog_version": "the catalog has this object version as unit {other}",
    "catalog_item": "the Item stands, or stood, for another object: {other}",
}


def uniqueness(subject: Subject) -> Verdict:
    """Find duplicates, and name every unit at fault."""
    if not subject.envelopes:
        return Verdict.not_applicable(Gate.G8, _RULE, "the batch is empty")
    rows = _collisions(subject.envelopes, subject.catalog or ())
    grammar = KeyGrammarReader(subject.contract)
    uris = {unit.wal_id: unit.object_uri for unit in subject.envelopes}
    findings = {
        Finding(wal_id=WalId(wal_id), what=_TEXTS[rule].format(times=times, other=other))
        for rule, wal_id, other, times in rows
        # DuckDB found another object under the same Item id: a re-issue does not count as another one.
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
    """Return the order of an Item's re-issues; None for a key that the contract no longer names."""
    try:
        match = grammar.match(object_uri.partition("://")[2].partition("/")[2])
    except InvalidKeyTimeError:
        return None
    return None if match is None else match.precedence
