"""Units: pages and counts of matches, newest first, and failures by group. Only reads.

A query examines a bounded number of rows, however large the ledger is. The search for a part of a key uses no index, so
a page may reach this bound before the page is full; `Page.after` continues from there. Does not belong here: how rows
are matched (`ledger/search.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from pydantic import Field, create_model

from kfm_dagster.contracts.filters import Moment, OfDataset
from kfm_dagster.contracts.identity import SHORTEST_PREFIX, rfc3339
from kfm_dagster.errors import UnknownNameError
from kfm_dagster.ledger.queries import LedgerQueries
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.search import (
    MOST_FAILURES,
    Budget,
    Operator,
    Position,
    UnitFilter,
    failures,
    index_ranges,
    walk,
)
from kfm_dagster.storage.database import Transaction
from kfm_dagster.views.view import Page, Parts, View, place_of, require_contract

MOST_EXAMINED = 10_000
"""Maximum rows that a page or a count examines: some 0.1 s, because texts are read from the table, not an index."""
MOST_ADDED_UP = 20_000
"""Maximum rows that a list of failures examines, over all its groups."""
MOST_COUNTED = 10_000
"""Largest exact count; the console shows a larger count as "10,000 or more"."""
UNIT_COLUMNS = (
    *("wal_id", "dataset", "object_uri", "object_version", "object_size", "event_time", "time_range_start"),
    *("time_range_end", "partition_key", "status", "attempts", "last_attempt_at", "next_attempt_at"),
    *("last_error_code", "last_error_message", "operator", "integrity_status", "metadata_status", "stac_status"),
    *("provenance_status", "stac_collection_id", "stac_item_id", "stac_item_href", "ingest_run_id", "replay_run_id"),
    *("lane", "created_at", "updated_at"),
)
"""Fields of a unit in console and JSON API: fields of its record, and the operator that failed."""
_CURSOR = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z)_([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")


class FailureFilter(OfDataset):
    """Failed and quarantined units of a dataset since a time."""

    since: Moment | None = Field(None, description=UnitFilter.model_fields["since"].description)


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitCount:
    """How many units match; unless `exact` there may be more."""

    units: int
    exact: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureGroup:
    """Units of a dataset that are failed or quarantined with the same code.

    `operator` is None if no operator failed (a lost worker, a gate, a person). `first_seen` and `last_seen` are the
    earliest and the latest time at which a unit of the group last changed. Unless `exact`, the group has older
    units that are not counted.
    """

    code: str
    dataset: str
    operator: Operator | None
    units: int
    first_seen: datetime
    last_seen: datetime
    exact: bool


def search_units(parts: Parts, row_filter: UnitFilter, after: str | None, limit: int) -> Page:
    """Return a page of UNIT_COLUMNS mappings, newest event first; `after` starts the next page.

    Raises BadFilterError for a wrong `after`, and KfmError for an unknown dataset.
    """
    before = place_of(after, _CURSOR, lambda at, wal_id: (datetime.fromisoformat(at), wal_id))
    require_contract(parts, row_filter.dataset)
    rows: list[Mapping[str, Any]] = []
    last: Position | None = None
    with parts.database.snapshot() as view:
        for position, row in walk(view, row_filter, before=before, budget=Budget(rows=MOST_EXAMINED)):
            if row is None:  # the budget is spent: another range may have the next match
                return Page(rows=rows, after=_cursor(position))
            if row["is_match"] and len(rows) == limit:
                return Page(rows=rows, after=_cursor(last or position))
            last = position
            if row["is_match"]:
                rows.append({name: row[name] for name in UNIT_COLUMNS})
    return Page(rows=rows)


def count_units(parts: Parts, row_filter: UnitFilter) -> UnitCount:
    """Count the matching units, up to MOST_COUNTED. Raises KfmError for an unknown dataset."""
    require_contract(parts, row_filter.dataset)
    budget = MOST_EXAMINED if row_filter.text or row_filter.operator or row_filter.suspect else MOST_COUNTED
    units = 0
    with parts.database.snapshot() as view:
        for where in index_ranges(view, row_filter):
            # One more than allowed, to know whether a full count is exact.
            row = view.run("units.count", row_filter.conditions() | where, limit=budget + 1).one()
            units += row.units
            budget -= row.examined
            if budget < 0 or units > MOST_COUNTED:
                return UnitCount(units=min(units, MOST_COUNTED), exact=False)
    return UnitCount(units=units, exact=True)


def record_of(ledger: LedgerQueries, wal_id: str, *, tx: Transaction) -> NoddWalRecord:
    """Return the record of a unit. Raises UnknownNameError."""
    record = ledger.get(wal_id, tx=tx)
    if record is None:
        expected = f"the id of a unit; commands also accept its first {SHORTEST_PREFIX} or more characters"
        what = "there is no such unit"
        raise UnknownNameError(what, observed=repr(wal_id[:80]), expected=expected, next_step="kfm units list")
    return record


def failure_groups(parts: Parts, row_filter: FailureFilter) -> list[FailureGroup]:
    """Return the failed and quarantined units by group, the largest group first.

    Raises KfmError for an unknown dataset.
    """
    require_contract(parts, row_filter.dataset)
    groups = []
    with parts.database.snapshot() as view:
        units = UnitFilter(**row_filter.model_dump())
        pairs = list(failures(view, units))
        budget = MOST_ADDED_UP
        for number, pair in enumerate(pairs):
            # Each pair of code and dataset gets an equal share of the rows that earlier pairs have left.
            share = max(budget // (len(pairs) - number), MOST_ADDED_UP // MOST_FAILURES)
            rows = view.run("units.failure_groups", units.conditions() | pair, limit=share + 1).all()
            examined = sum(row.units for row in rows)
            budget -= examined
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


def _cursor(position: Position) -> str:
    return f"{rfc3339(position[0])}_{position[1]}"


def _units_of(group: FailureGroup) -> str:
    """Return the console's page of a group's units."""
    units = UnitFilter(dataset=group.dataset, code=group.code, operator=group.operator)
    return f"/units?{urlencode(units.query())}"


_OPERATOR = Field(description="Operator where the unit left the chain; null if no operator failed.")
_FIELDS: dict[str, Any] = {
    **{name: (field.annotation, field) for name, field in NoddWalRecord.model_fields.items()},
    "operator": (Operator | None, _OPERATOR),
}
UNITS = View(
    name="units",
    operation="searchUnits",
    tool="search_units",
    summary="Search units, the newest event first. A short page may still have a next page.",
    filter=UnitFilter,
    row=create_model("Unit", **{name: _FIELDS[name] for name in UNIT_COLUMNS}),
    query=search_units,
    columns=("wal_id", "dataset", "status", "object_uri", "partition_key", "last_error_code", "attempts", "updated_at"),
    links={"object_uri": lambda row: f"/units/{row['wal_id']}"},
    end="next",
)
FAILURES = View(
    name="failures",
    operation="listFailures",
    tool="failures",
    summary="Failed and quarantined units by error code, dataset and operator, most units first.",
    filter=FailureFilter,
    row=FailureGroup,
    query=lambda parts, row_filter, _, __: Page(rows=failure_groups(parts, row_filter)),
    columns=("code", "dataset", "operator", "units", "exact", "first_seen", "last_seen"),
    links={"code": _units_of},
)
