"""Values built from rows: each column is converted to its field's type, as either database returns it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from kfm_dagster.contracts.envelope import Lane, WalId
from kfm_dagster.storage.statements import value_of

RUN = "0123abcd-0000-4000-8000-000000000000"


@dataclass(frozen=True, kw_only=True)
class Record:
    wal_id: WalId
    units: int
    done: bool
    lane: Lane | None
    day: date
    at: datetime | None
    codes: Sequence[str]
    details: Mapping[str, Any]
    run_id: str = ""


ROW: dict[str, Any] = {
    "wal_id": UUID(RUN),
    "units": Decimal(3),
    "done": 1,
    "lane": "bulk",
    "day": "2025-12-03",
    "at": "2025-12-03T00:00:00.000000Z",
    "codes": ["a"],
    "details": {"a": 1},
}


def test_each_column_is_converted_to_the_type_of_its_field() -> None:
    built = value_of(Record, {**ROW, "of_no_field": 1})
    at = datetime(2025, 12, 3, tzinfo=UTC)
    assert built == Record(
        wal_id=WalId(RUN), units=3, done=True, lane=Lane.BULK, day=at.date(), at=at, codes=("a",), details={"a": 1}
    )
    assert type(built.units) is int
    assert type(built.wal_id) is str
    assert value_of(Record, {**ROW, "at": at}).at is at


def test_a_null_is_kept_and_a_missing_column_is_refused() -> None:
    built = value_of(Record, {**ROW, "lane": None, "at": None, "run_id": "r"})
    assert (built.lane, built.at, built.run_id) == (None, None, "r")
    with pytest.raises(TypeError):
        value_of(Record, {name: value for name, value in ROW.items() if name != "units"})
