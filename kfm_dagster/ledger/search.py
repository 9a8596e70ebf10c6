"""Unit search: reads the rows that match a filter, newest event first.

Each statement examines a bounded number of rows of an index range; this module merges the ranges. Does not
belong here: pages and their counts (`views/units.py`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from operator import itemgetter
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, Field, model_validator
from sqlalchemy import RowMapping

from kfm_dagster.contracts.envelope import CheckStatus
from kfm_dagster.contracts.filters import EXPECTED, BadFilterError, Flag, Moment, OfDataset
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.storage.database import Transaction

Operator = Literal["integrity_check", "metadata_extract", "stac_register", "provenance_emit"]
OPERATORS: tuple[str, ...] = get_args(Operator)
BEGINNING_OF_TIME = datetime(1, 1, 1, tzinfo=UTC)
END_OF_TIME = datetime(9999, 12, 31, tzinfo=UTC)
"""Later than every event, as the start of the first page."""
MOST_TEXT = 300
MOST_FAILURES = 200
"""Maximum pairs of code and dataset that a search reads; usually few pairs have failures."""
FIRST_CHUNK = 50
_LARGEST_CHUNK = 5_000
_FAILING = (Status.FAILED, Status.QUARANTINED)
_Code = Annotated[
    str,
    Field(pattern=r"^[\w.:-]{1,100}$", json_schema_extra={EXPECTED: "an error code, such as missing_object"}),
]
_Text = Annotated[
    str,
    Field(pattern=rf"^[ -~]{{0,{MOST_TEXT}}}$", json_schema_extra={EXPECTED: f"1 to {MOST_TEXT} characters of ASCII"}),
]
_Day = Annotated[
    str,
    Field(pattern=r"^\d{4}-\d\d-\d\d$", json_schema_extra={EXPECTED: "a day, YYYY-MM-DD"}),
    AfterValidator(lambda day: date.fromisoformat(day).isoformat()),
]
Position = tuple[datetime, str]
"""Event time and id of a unit, the order of every list."""


class UnitFilter(OfDataset):
    """Units; `since` and `until` bound the time of their events."""

    status: Status | None = Field(None, description="Only of this status.")
    code: _Code | None = Field(
        None,
        description="Only failed or quarantined units with this error code; with a status, only units of that status.",
    )
    operator: Operator | None = Field(None, description="Only units that failed or are quarantined at this operator.")
    text: _Text = Field("", description="Only objects whose URI or Item id contains this text; case is ignored.")
    since: Moment | None = Field(None, description="Only of events since this day or time (UTC without a zone).")
    until: Moment | None = Field(None, description="Only of events before this day or time.")
    partition: _Day | None = Field(None, description="Only of this day, YYYY-MM-DD.")
    suspect: Flag = Field(
        default=False, description="Only with suspect integrity or metadata; reasons: kfm units show."
    )

    @model_validator(mode="after")
    def _can_match(self) -> Self:
        """Raise BadFilterError for a combination that no unit has."""
        without_code = {Status.SUCCEEDED} if self.operator is None else set(Status) - set(_FAILING)
        if self.is_of_failures and self.status in without_code:
            raise BadFilterError(
                observed=f"status {self.status} with a code or an operator", expected=" or ".join(_FAILING)
            )
        return self

    @property
    def is_of_failures(self) -> bool:
        """Whether only units with an error can match."""
        return self.code is not None or self.operator is not None

    def conditions(self) -> dict[str, Any]:
        """Return the conditions as parameters of the statements."""
        return {
            "before_time": self.until or END_OF_TIME,
            "before_id": "",
            "since": self.since or BEGINNING_OF_TIME,
            "text": self.text.lower(),
            "wanted_status": self.status or "",
            "wanted_code": self.code or "",
            "operator": self.operator or "",
            "check_status": CheckStatus.SUSPECT if self.suspect else "",
        }


@dataclass(kw_only=True, slots=True)
class Budget:
    """Rows that a search may still examine; None means any number."""

    rows: int | None = None

    def spend(self, rows: int) -> bool:
        """Spend examined rows; return whether the budget is exhausted."""
        if self.rows is None:
            return False
        self.rows -= rows
        return self.rows <= 0


def walk(
    view: Transaction, criteria: UnitFilter, *, before: Position | None = None, budget: Budget
) -> Iterator[tuple[Position, RowMapping | None]]:
    """Yield positions and rows in order; a row is None where the budget ends a range.

    A row whose `is_match` is false shows how far a range was examined. `before` is where an earlier search ended.
    """
    end: Position = (criteria.until or END_OF_TIME, "")
    time, wal_id = min(before or end, end)
    conditions = {**criteria.conditions(), "before_time": time, "before_id": wal_id}
    ranges = [_chunks(view, conditions | where, budget) for where in index_ranges(view, criteria)]
    return heapq.merge(*ranges, key=itemgetter(0), reverse=True)


def _chunks(
    view: Transaction, where: Mapping[str, Any], budget: Budget
) -> Iterator[tuple[Position, RowMapping | None]]:
    chunk = FIRST_CHUNK
    position: Position | None = None
    while True:
        rows = view.run("units.page", where, limit=chunk).mappings().all()
        is_spent = budget.spend(chunk)
        for row in rows:
            position = row["event_time"], row["wal_id"]
            yield position, row
        if not rows or position is None:
            return
        if is_spent:
            yield position, None
            return
        where = {**where, "before_time": position[0], "before_id": position[1]}
        chunk = min(4 * chunk, _LARGEST_CHUNK)


def index_ranges(view: Transaction, criteria: UnitFilter) -> Iterator[dict[str, Any]]:
    """Yield the index ranges that contain every match, as parameters of the statements."""
    by_code = criteria.is_of_failures and criteria.status in {None, *_FAILING}
    if by_code and criteria.partition is None:
        for pair in failures(view, criteria):
            yield {"range": "failure", "status": "", "partition": "", **pair}
        return
    every: Iterable[Status] = _FAILING if by_code else Status
    for status in [criteria.status] if criteria.status else every:
        for name in [criteria.dataset] if criteria.dataset else datasets_of(view, status):
            kind = "status" if criteria.partition is None else "partition"
            yield {"range": kind, "status": status, "dataset": name, "partition": criteria.partition or "", "code": ""}


def failures(view: Transaction, criteria: UnitFilter) -> Iterator[dict[str, str]]:
    """Yield the matching pairs of error code and dataset of failed units; an index lookup each."""
    pair = {"code": "", "dataset": ""}
    for _ in range(MOST_FAILURES):
        row = view.run("units.next_failure", pair).one_or_none()
        if row is None:
            return
        pair = {"code": row.last_error_code, "dataset": row.dataset}
        if criteria.dataset in {None, row.dataset} and criteria.code in {None, row.last_error_code}:
            yield pair


def datasets_of(view: Transaction, status: Status) -> list[str]:
    """Return the ids of the datasets with units of a status; an index lookup each."""
    return list(view.run("ledger.datasets_of_status", status=status).scalars())
