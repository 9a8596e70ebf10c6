"""Dagster's storage for processes that open it again and again: a code server does for every tick.

Dagster's own looks through its migrations whenever it opens SQLite files, makes an engine for every question to them,
and a connection for every question to PostgreSQL: most of what a quiet deployment took. Here a process looks once, and
keeps its engines. What is stored, and where, is Dagster's.

Belongs here: keeping. Does not belong here: which storage it is (`instance_storage.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from dagster._core.storage.base_storage import DagsterStorage
from dagster._core.storage.event_log import SqliteEventLogStorage
from dagster._core.storage.runs import SqliteRunStorage
from dagster._core.storage.schedules import SqliteScheduleStorage, SqlScheduleStorage
from dagster._core.storage.sqlite import create_db_conn_string
from dagster._core.storage.sqlite_storage import DagsterSqliteStorage
from dagster._serdes import ConfigurableClassData
from dagster_postgres import DagsterPostgresStorage, PostgresScheduleStorage
from sqlalchemy.engine import Connection

IDLE_CONNECTIONS = 1
"""Of a process to each database; threads that ask at the same moment have connections that are closed afterwards."""


def open_sqlite(base_dir: str, inst_data: ConfigurableClassData | None) -> DagsterStorage:
    """Return the storage of a folder; the first time in a process, Dagster makes or checks its files."""
    # Files that have gone since are made again.
    if base_dir not in _looked_through or not Path(base_dir, "history", "runs.db").is_file():
        _sqlite.cache_clear()
        DagsterSqliteStorage.from_local(base_dir).dispose()
        _looked_through.add(base_dir)
    return _SqliteStorage(base_dir, inst_data)


def open_postgres(url: str, inst_data: ConfigurableClassData | None) -> DagsterStorage:
    """Return the storage of a database whose tables are there."""
    storage = DagsterPostgresStorage(url, should_autocreate_tables=False, inst_data=inst_data)
    storage._schedule_storage = _PostgresSchedules(url, should_autocreate_tables=False)  # noqa: SLF001, nobody asks for it
    parts: tuple[Any, ...] = (storage.run_storage, storage.event_log_storage, storage.schedule_storage)
    for part in parts:
        part._engine = _postgres(url)  # noqa: SLF001, as their optimize_for_webserver does it
    return storage


class _SqliteStorage(DagsterSqliteStorage):
    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None) -> None:
        # Not Dagster's own, which looks through the migrations.
        super(DagsterSqliteStorage, self).__init__()  # type: ignore[no-untyped-call]
        history = str(Path(base_dir, "history"))
        self.base_dir = base_dir
        self._inst_data = inst_data
        self._run_storage = _Runs(create_db_conn_string(history, "runs"))
        self._event_log_storage = SqliteEventLogStorage(str(Path(history, "runs")))
        self._schedule_storage = _Schedules(create_db_conn_string(str(Path(base_dir, "schedules")), "schedules"))


class _Runs(SqliteRunStorage):
    @contextmanager
    def connect(self) -> Iterator[Connection]:
        with _sqlite(self._conn_string).begin() as connection:
            yield connection


class _KnownTables(SqlScheduleStorage):
    """Each question about a sensor begins with whether these are there; what is there once stays."""

    @property
    def address(self) -> str:
        """URL of the database."""
        raise NotImplementedError

    def has_instigators_table(self) -> bool:
        return self._known("instigators", super().has_instigators_table)

    def _has_instigators_table(self, conn: Connection) -> bool:
        return self._known("instigators", partial(super()._has_instigators_table, conn))

    def has_built_index(self, migration_name: str) -> bool:
        return self._known(migration_name, partial(super().has_built_index, migration_name))

    def _known(self, what: str, look: Callable[[], bool]) -> bool:
        key = (self.address, what)
        if key not in _there and look():
            _there.add(key)
        return key in _there


class _Schedules(_KnownTables, SqliteScheduleStorage):
    @property
    def address(self) -> str:
        return self._conn_string

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        # A tick is written five times. What a failing power supply takes of the last ones is in no run's way: which
        # runs there are stands in the other file, and what they are to do in the ledger.
        with _sqlite(self._conn_string, synchronous="NORMAL").begin() as connection:
            yield connection


class _PostgresSchedules(_KnownTables, PostgresScheduleStorage):
    @property
    def address(self) -> str:
        return self.postgres_url


_there: set[tuple[str, str]] = set()
_looked_through: set[str] = set()


@cache
def _sqlite(url: str, *, synchronous: str = "FULL") -> sa.Engine:
    # The last connection to close copies the journal into the file and deletes it; so one stays.
    engine = sa.create_engine(url, pool_size=IDLE_CONNECTIONS, max_overflow=-1)

    @sa.event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: object) -> None:
        connection.execute(f"PRAGMA synchronous = {synchronous}")

    return engine


@cache
def _postgres(url: str) -> sa.Engine:
    return sa.create_engine(
        url, isolation_level="AUTOCOMMIT", pool_size=IDLE_CONNECTIONS, max_overflow=-1, pool_pre_ping=True
    )
