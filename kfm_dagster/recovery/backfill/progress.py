"""Backfills and the progress of their days: the values, and the queries that read them.

Does not belong here: starting and advancing a backfill (`days.py`), and its state, which is the state of its replay
(`replay/runs.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum, unique
from typing import Any

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import KfmError, UnknownNameError
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.plural import counted
from kfm_dagster.recovery.replay import runs
from kfm_dagster.recovery.replay.runs import ENDED, ReplayRun, ReplayState
from kfm_dagster.recovery.replay.selection import Mode
from kfm_dagster.storage.database import Database, Transaction
from kfm_dagster.storage.statements import value_of


@unique
class DayState(StrEnum):
    """The state of a dataset's day; the database allows waiting > requested > listed."""

    WAITING = "waiting"
    """Not requested yet, or the dataset is switched off."""
    REQUESTED = "requested"
    """A run that lists the day is requested. If the run dies, another is requested."""
    LISTED = "listed"
    """The listing has ended, and each object that gives a unit has a record in the ledger."""


class BackfillError(KfmError):
    """The requested backfill is not possible."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Backfill:
    """A backfill: its replay, its datasets, and the number of their days by state."""

    run: ReplayRun
    datasets: tuple[str, ...]
    days: Mapping[DayState, int]

    @property
    def backfill_id(self) -> str:
        """The id of the replay."""
        return self.run.replay_run_id

    @property
    def state(self) -> ReplayState:
        """The state of the replay."""
        return self.run.state

    @property
    def days_listed(self) -> int:
        """Number of days whose listing has ended."""
        return self.days[DayState.LISTED]

    def as_json(self) -> dict[str, Any]:
        """Return the published form."""
        first_day, last_day = self.run.selection.days
        run = self.run.as_json()
        return {
            "backfill_id": self.backfill_id,
            "state": run["state"],
            "datasets": list(self.datasets),
            "first_day": first_day.isoformat(),
            "last_day": last_day.isoformat(),
            "days_listed": self.days_listed,
            "days": sum(self.days.values()),
            **{name: run[name] for name in ("actor", "reason", "change_ref")},
            "started_at": run["created_at"],
            "ended_at": run["updated_at"] if self.state in ENDED else None,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class DayProgress:
    """A day of a dataset. `units` counts all records of the day by status, from any source.

    After the end of the listing, `left_out` has the keys that gave no unit (`ingest.discovery.LeftOut`).
    """

    dataset: str
    day: date
    state: DayState
    requests: int
    listed: int
    created: int
    requeued: int
    left_out: Mapping[str, Any] = field(default_factory=dict)
    units: Mapping[Status, int] = field(default_factory=dict)

    @property
    def known(self) -> int:
        """Listed objects that the ledger knew before and left unchanged."""
        return max(0, self.listed - self.created - self.requeued)

    @property
    def open_units(self) -> int:
        """Number of units that are pending, in progress or failed."""
        return sum(self.units.get(status, 0) for status in (Status.PENDING, Status.IN_PROGRESS, Status.FAILED))


@dataclass(frozen=True, kw_only=True, slots=True)
class UnlistedDays:
    """Days of a dataset that a running backfill has still to list."""

    backfill_id: str
    dataset: str
    days: int


def find_backfill(database: Database, backfill_id: str) -> Backfill:
    """Return a backfill. Raises BackfillError when there is none."""
    with database.snapshot() as view, suppress(UnknownNameError):
        run = runs.get(view, backfill_id)
        if run.selection.spec.mode is Mode.BACKFILL:
            return _backfill(run, view)
    raise BackfillError("unknown backfill", observed=backfill_id, next_step="kfm backfill status")


def newest_backfills(database: Database, *, limit: int = 20) -> list[Backfill]:
    """Return the newest backfills, newest first."""
    with database.snapshot() as view:
        return [_backfill(run, view) for run in runs.newest(view, limit=limit, backfills=True)]


def unlisted_days(database: Database) -> list[UnlistedDays]:
    """Return the days that running backfills have still to list."""
    with database.snapshot() as view:
        return view.rows(UnlistedDays, "backfill.unlisted")


def listed_backfills(database: Database) -> list[str]:
    """Return running backfills with all days listed; each ends once none of its units waits."""
    with database.snapshot() as view:
        return list(view.run("backfill.all_listed").scalars())


def day_progress(database: Database, backfill_id: str) -> list[DayProgress]:
    """Return every day of a backfill, the earliest first."""
    with database.snapshot() as view:
        rows = view.run("backfill.progress", backfill_id=backfill_id).mappings().all()
    days: dict[tuple[str, str], DayProgress] = {}
    for row in rows:
        key = (row["day"], row["dataset"])
        units = dict(days[key].units) if key in days else dict.fromkeys(Status, 0)
        if row["status"] is not None:
            units[Status(row["status"])] = int(row["units"])
        days[key] = value_of(DayProgress, {**row, "left_out": row["left_out"] or {}, "units": units})
    return list(days.values())


def days_left_out(registry: ContractRegistry, datasets: Iterable[str], first_day: date) -> dict[str, str]:
    """Describe, by dataset, the days between `first_day` and the dataset's first day."""
    first_days = {name: registry[name].storage.first_day for name in datasets if name in registry.contracts}
    return {
        name: f"{counted((day - first_day).days, 'day')} from {first_day} on: {name} begins on {day}"
        for name, day in first_days.items()
        if day > first_day
    }


def _backfill(run: ReplayRun, view: Transaction) -> Backfill:
    days = view.run("backfill.days_by_state", backfill_id=run.replay_run_id).all()
    return Backfill(
        run=run,
        datasets=tuple(sorted({row.dataset for row in days})),
        days={state: sum(row.days for row in days if row.state == state) for state in DayState},
    )
