"""The partition window: the first day that the deployment has partitions of, kept in its database (ADR 017).

Made once, when a database is first worked with: so many days back, or KFM_FIRST_DAY. Lowered when earlier days are
wanted, and never raised, so that no unit of the ledger is ever of a day without a partition. Does not belong here:
Dagster's definition of the days (`defs/chain.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path

from sqlalchemy.engine import make_url

from kfm_dagster.contracts.identity import DayWindow
from kfm_dagster.errors import DatabaseUnavailableError, NoLedgerError, SchemaVersionError
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database, Transaction

DEFAULT_DAYS = timedelta(days=1_000)
"""How far back the partitions of a new database go: as many as the UI shows at a glance."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionWindow:
    """The window of one database."""

    database: Database
    settings: Settings
    clock: Callable[[], datetime]

    def make(self) -> None:
        """Settle the first day, where none is settled yet: units and backfills that are there stay within."""
        with self.database.snapshot() as tx:
            is_settled = self._stored(tx) is not None
        if not is_settled:
            with self.database.transaction() as tx:
                self._settled(tx)

    def first_day(self) -> date:
        """Return the first day; where none is settled yet, what would be settled now."""
        with self.database.snapshot() as tx:
            return self._stored(tx) or default_first_day(self.settings, clock=self.clock)

    def current(self) -> DayWindow:
        """Return the days of which units may come in now."""
        return DayWindow(first=self.first_day(), today=self.clock().date())

    def lower(self, day: date, *, actor: str, reason: str, tx: Transaction) -> bool:
        """Begin with an earlier day; False where the window begins there or before. Running code has to be reloaded."""
        if self._settled(tx) <= day:
            return False
        self._begin(day, actor=actor, reason=reason, tx=tx)
        return True

    def _begin(self, day: date, *, actor: str, reason: str, tx: Transaction) -> None:
        at = self.clock()
        tx.run("deployment.add", fact="first_day", value=day.isoformat(), at=at, actor=actor, reason=reason)

    def _settled(self, tx: Transaction) -> date:
        """Return the first day, settled now where it was not."""
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
    """Return the first day of a new database: as set, else DEFAULT_DAYS back; never in the future."""
    today = clock().date()
    return min(settings.first_day or today - DEFAULT_DAYS, today)


def stored_first_day(settings: Settings, *, clock: Callable[[], datetime]) -> date:
    """Return the first day of a deployment whose database need not be there, nor answer; changes nothing.

    A code location must load without its database: until it is loaded again, the default stands for what is stored.
    """
    url = make_url(settings.database_url)
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).is_file():
        return default_first_day(settings, clock=clock)  # opening would make the file
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
