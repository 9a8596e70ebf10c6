"""Searching units: pages of what a filter means, the newest first, their number, and failures added up. Only reads.

Whatever the ledger holds, a question examines a bounded number of rows. A part of a key has no index, so a page may
come to its bound before it is full; `UnitPage.after` goes on from there. Does not belong here: the filter
(`unit_filter.py`), how rows are shown.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import Any

from sqlalchemy import RowMapping

from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.exports.unit_filter import BadFilterError, UnitFilter, moment_of
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.queries import END_OF_TIME
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.storage.database import Transaction

PAGE = 100
MOST_OF_A_PAGE = 1_000
MOST_EXAMINED = 10_000
"""Rows that a page or a count may examine: about 0.1 s, because the text of each is read from its table."""
MOST_ADDED_UP = 20_000
"""Rows that all groups of failures together may add up."""
MOST_COUNTED = 10_000
"""Beyond them a count says "at least"."""
MOST_GROUPS = 200
"""Pairs of a reason and a dataset; contracts and ledger have some dozens of reasons."""
FIRST_CHUNK = 50
_LARGEST_CHUNK = 5_000
_BEGINNING_OF_TIME = "0001-01-01T00:00:00.000000Z"
_CURSOR = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z)_([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitPage:
    """Units as rows of `kfm_units` (docs/sql-views.md), times in UTC. With `after` there may be more."""

    rows: Sequence[Mapping[str, Any]]
    after: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitCount:
    """How many units are meant; unless `exact` there may be more."""

    units: int
    exact: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureGroup:
    """Units of a dataset that are failed or quarantined for one code.

    `operator` is None where none complained (a lost worker, a gate, a person). `first_seen` and `last_seen` are when
    the first and the last of them failed; unless `exact` the group has older ones that are not counted.
    """

    code: str
    dataset: str
    operator: str | None
    units: int
    first_seen: datetime
    last_seen: datetime
    exact: bool


def search_units(pipeline: Pipeline, wanted: UnitFilter, *, after: str | None = None, limit: int = PAGE) -> UnitPage:
    """Return units, the newest event first; `after` of a page gives the next one.

    Raises BadFilterError for a wrong `after` or `limit`, and KfmError for an unknown dataset.
    """
    if not 1 <= limit <= MOST_OF_A_PAGE:
        raise BadFilterError(observed=f"limit {limit}", expected=f"1 to {MOST_OF_A_PAGE}")
    bounds = _bounds(wanted, after)
    budget = _Budget(MOST_EXAMINED)
    found: list[Mapping[str, Any]] = []
    position: tuple[datetime, str] | None = None
    with pipeline.database.snapshot() as view:
        walks = [
            _walk(view, f"units.page_of_{kind}", bounds | where, budget)
            for kind, where in _ranges(pipeline, wanted, view)
        ]
        for key, row in heapq.merge(*walks, key=itemgetter(0), reverse=True):
            if row is None:  # the budget is spent: another range may have what comes next
                return UnitPage(rows=found, after=_cursor(key))
            if row["is_meant"] and len(found) == limit:
                return UnitPage(rows=found, after=_cursor(position or key))
            position = key
            if row["is_meant"]:
                found.append({name: value for name, value in row.items() if name != "is_meant"})
    return UnitPage(rows=found, after=None)


def count_units(pipeline: Pipeline, wanted: UnitFilter) -> UnitCount:
    """Return how many units are meant, counted up to MOST_COUNTED. Raises KfmError for an unknown dataset."""
    bounds = _bounds(wanted, None)
    left = MOST_EXAMINED if wanted.text or wanted.operator else MOST_COUNTED
    units = 0
    with pipeline.database.snapshot() as view:
        for kind, where in _ranges(pipeline, wanted, view):
            # One more, so that as many as may be counted are known to be all.
            row = view.run(f"units.count_of_{kind}", bounds | where, limit=left + 1).one()
            units += row.units
            left -= row.examined
            if left < 0 or units > MOST_COUNTED:
                return UnitCount(units=min(units, MOST_COUNTED), exact=False)
    return UnitCount(units=units, exact=True)


def failure_groups(
    pipeline: Pipeline, *, dataset: str | None = None, since: datetime | None = None
) -> list[FailureGroup]:
    """Return the groups of failed and quarantined units, most units first; `since` bounds their event time.

    Raises KfmError for an unknown dataset.
    """
    bounds = _bounds(UnitFilter(dataset=dataset, since=since), None)
    groups = []
    with pipeline.database.snapshot() as view:
        pairs = list(_failures(pipeline, UnitFilter(dataset=dataset), view))
        left = MOST_ADDED_UP
        for number, pair in enumerate(pairs):
            # What a pair leaves the others may have.
            share = max(left // (len(pairs) - number), MOST_ADDED_UP // MOST_GROUPS)
            rows = view.run("units.failure_groups", bounds | pair, limit=share + 1).all()
            examined = sum(row.units for row in rows)
            left -= examined
            groups += [
                FailureGroup(
                    code=pair["code"],
                    dataset=pair["dataset"],
                    operator=row.operator,
                    units=row.units,
                    first_seen=row.first_at,
                    last_seen=row.last_at,
                    exact=examined <= share,
                )
                for row in rows
            ]
    return sorted(groups, key=lambda group: (-group.units, group.code, group.dataset, group.operator or ""))


@dataclass(kw_only=False, slots=True)
class _Budget:
    """Rows that may still be examined."""

    left: int


Keyed = tuple[tuple[datetime, str], RowMapping | None]


def _walk(view: Transaction, statement: str, where: Mapping[str, Any], budget: _Budget) -> Iterator[Keyed]:
    """Yield a range's rows in order with their keys: what is meant, the last of each chunk, and None at the bound."""
    chunk = FIRST_CHUNK
    key: tuple[datetime, str] | None = None
    while True:
        rows = view.run(statement, where, limit=chunk).mappings().all()
        budget.left -= chunk
        for row in rows:
            key = row["event_time"], row["wal_id"]
            yield key, row
        if not rows or key is None:
            return
        if budget.left <= 0:
            yield key, None
            return
        where = {**where, "before_time": rfc3339(key[0]), "before_id": key[1]}
        chunk = min(4 * chunk, _LARGEST_CHUNK)


def _ranges(pipeline: Pipeline, wanted: UnitFilter, view: Transaction) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the index ranges that hold what is meant, as the statement's kind and its parameters."""
    if wanted.of_failures:
        for pair in _failures(pipeline, wanted, view):
            yield "failure", pair
        return
    if wanted.dataset is not None:
        _ = pipeline.registry[wanted.dataset]
    for status in [wanted.status] if wanted.status else Status:
        names = [wanted.dataset] if wanted.dataset else pipeline.ledger.datasets(status, tx=view)
        for name in names:
            yield "status", {"status": status, "dataset": name}


def _failures(pipeline: Pipeline, wanted: UnitFilter, view: Transaction) -> Iterator[dict[str, Any]]:
    """Yield the pairs of a code and a dataset that units failed with; one index lookup each."""
    if wanted.dataset is not None:
        _ = pipeline.registry[wanted.dataset]
    pair: dict[str, Any] = {"code": "", "dataset": ""}
    for _ in range(MOST_GROUPS):
        row = view.run("units.next_failure", pair).one_or_none()
        if row is None:
            return
        pair = {"code": row.last_error_code, "dataset": row.dataset}
        if wanted.dataset in {None, row.dataset} and wanted.code in {None, row.last_error_code}:
            yield pair


def _bounds(wanted: UnitFilter, after: str | None) -> dict[str, Any]:
    """Return the parameters that all ranges share."""
    before = (END_OF_TIME if wanted.until is None else rfc3339(wanted.until), "")
    if after is not None:
        match = _CURSOR.fullmatch(after)
        if match is None:
            raise BadFilterError(observed=f"after={after[:80]!r}", expected="what the page before gave")
        before = min(before, (rfc3339(moment_of("after", match[1])), match[2]))
    return {
        "before_time": before[0],
        "before_id": before[1],
        "since": _BEGINNING_OF_TIME if wanted.since is None else rfc3339(wanted.since),
        "text": wanted.text,
        "status": wanted.status or "",
        "operator": wanted.operator or "",
    }


def _cursor(key: tuple[datetime, str]) -> str:
    return f"{rfc3339(key[0])}_{key[1]}"
