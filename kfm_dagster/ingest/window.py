"""The partition window: the deployment's first day, stored in its database (ADR 017).

The first day is set at the first use of a database, to KFM_FIRST_DAY or DEFAULT_DAYS back. That day is lowered if
earlier days are needed, and never raised, so that the day of every unit of the ledger has a partition. Does not belong
here: Dagster's definition of the days (`defs/chain.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from kfm_dagster.contracts.identity import DayWindow
from kfm_dagster.errors import DatabaseUnavailableError, NoLedgerError, SchemaVersionError
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database, Transaction

DEFAULT_DAYS = timedelta(days=1_000)
"""Number of past days with partitions in a new database, as many as one view of the UI shows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionWindow:
    """The window of a database."""

    database: Database
    settings: Settings
    clock: Callable[[], datetime]

    def make(self) -> None:
        """Set the first day if none is set, so that existing units and backfills are in the window."""
        with self.database.snapshot() as tx:
            is_set = self._stored(tx) is not None
        if not is_set:
            with self.database.transaction() as tx:
                self._settled(tx)

    def first_day(self) -> date:
        """Return the first day, or the default if none is set."""
        with self.database.snapshot() as tx:
            return self._stored(tx) or default_first_day(self.settings, clock=self.clock)

    def current(self) -> DayWindow:
        """Return the days whose units may be ingested now."""
        return DayWindow(first=self.first_day(), today=self.clock().date())

    def lower(self, day: date, *, actor: str, reason: str, tx: Transaction) -> bool:
        """Set an earlier first day, known to Dagster after a reload; False if `day` is not earlier."""
        if self._settled(tx) <= day:
            return False
        self._begin(day, actor=actor, reason=reason, tx=tx)
        return True

    def _begin(self, day: date, *, actor: str, reason: str, tx: Transaction) -> None:
        at = self.clock()
        tx.run("deployment.add", fact="first_day", value=day.isoformat(), at=at, actor=actor, reason=reason)

    def _settled(self, tx: Transaction) -> date:
        """Return the first day; set it if none is set."""
        if (stored := self._stored(tx)) is not None:
            return stored
        first_day = default_first_day(self.settings, clock=self.clock)
        if (known := tx.run("deployment.earliest_known_day").scalar_one()) is not None:
            first_day = min(first_day, date.fromisoformat(known))
        self._begin(first_day, actor="kfm_dagster", reason="the first day of a new database", tx=tx)
        return first_day

    def _stored(self, tx: Transaction) -> date | None:
        days = tx.run("deployment.values", fact="first_day").scalars().all()
        return date.fromisoformat(days[0]) if days else None


def default_first_day(settings: Settings, *, clock: Callable[[], datetime]) -> date:
    """Return the first day of a new database: KFM_FIRST_DAY or DEFAULT_DAYS back, at most today."""
    today = clock().date()
    return min(settings.first_day or today - DEFAULT_DAYS, today)


def stored_first_day(settings: Settings, *, clock: Callable[[], datetime]) -> date:
    """Return a deployment's first day, even if its database is missing; change nothing.

    A code location must load without its database, and then uses the default until the next load.
    """
    try:
        database = Database.open(settings.database_url, read_only=True)
    except NoLedgerError:
        return default_first_day(settings, clock=clock)
    except (DatabaseUnavailableError, SchemaVersionError) as error:
        logging.getLogger(__name__).warning("the partitions begin with the default day: %s", error)
        return default_first_day(settings, clock=clock)
    try:
        return PartitionWindow(database=database, settings=settings, clock=clock).first_day()
    finally:
        database.dispose()
