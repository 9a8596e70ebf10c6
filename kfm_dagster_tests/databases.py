"""Databases for tests: copies of a migrated database, because a migration costs more than most tests.

Belongs here: creating databases. Does not belong here: fixtures (`conftest.py`).
"""

from __future__ import annotations

import fcntl
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from benchmarks.postgres import embedded_postgres
from kfm_dagster.storage.database import Database

BOTH_DATABASES = pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
"""Marks tests in integration/ that need both databases: tests of SQL, locks, roles and types."""


def migrated_sqlite(path: Path) -> str:
    """Write a migrated database to `path`, unless the file exists, and return its URL."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_sqlite())
    return f"sqlite:///{path}"


@cache
def _sqlite() -> bytes:
    with tempfile.TemporaryDirectory(prefix="kfm-sqlite-") as folder:
        path = Path(folder) / "kfm.db"
        Database.open(f"sqlite:///{path}").dispose()  # closing the last connection writes the journal into the file
        return path.read_bytes()


@contextmanager
def shared_server(folder: Path) -> Iterator[str]:
    """Run the PostgreSQL of the suite's workers and yield its URL; the last worker stops it."""
    # On some machines the server runs as another user, who must reach its data.
    folder.mkdir(mode=0o755, exist_ok=True)
    with ExitStack() as stack:
        with locked(folder / "lock"):
            url = stack.enter_context(embedded_postgres(folder / "data"))
            if not (folder / "set").exists():
                forget_power_loss(url)
                (folder / "set").touch()
        yield url


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file against the suite's other workers."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def created(server: str, *, template: str = "template1") -> Iterator[str]:
    """Yield the URL of a new database on a PostgreSQL server, and drop it afterwards."""
    name = f"kfm_{secrets.token_hex(6)}"
    # `file_copy` takes half the time of the default, which journals every page; tests do this 1,000 times.
    execute(server, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
    yield sa.make_url(server).set(database=name).render_as_string(hide_password=False)
    execute(server, f"DROP DATABASE {name} WITH (FORCE)")


def execute(url: str, *statements: str) -> None:
    """Execute statements over one new connection, each in its own transaction."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement.replace("%", "%%"))


def forget_power_loss(server: str) -> None:
    """Disable the syncs of a server that no test crashes; a killed client loses nothing.

    The server's journal is kept small, because `scratch.py` can put it in memory. Campaigns that crash a server
    start another one, with the defaults.
    """
    settings = ("fsync = off", "full_page_writes = off", "max_wal_size = '256MB'")
    execute(server, *(f"ALTER SYSTEM SET {setting}" for setting in settings), "SELECT pg_reload_conf()")


@contextmanager
def unguarded(connection: Connection, *tables: str) -> Iterator[None]:
    """Disable the triggers that guard tables, as the owner can, and enable them afterwards."""
    if connection.dialect.name == "postgresql":
        for table in tables:
            connection.exec_driver_sql(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        yield
        for table in tables:
            connection.exec_driver_sql(f"ALTER TABLE {table} ENABLE TRIGGER USER")
        return
    triggers = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ?"
    trigger_rows = [row for table in tables for row in connection.exec_driver_sql(triggers, (table,)).all()]
    for name, _ in trigger_rows:
        connection.exec_driver_sql(f"DROP TRIGGER {name}")
    yield
    for _, sql in trigger_rows:
        connection.exec_driver_sql(sql)


def as_role(url: str, role: str) -> str:
    """Return the URL of a role without a password, which the tests' servers accept."""
    return sa.make_url(url).set(username=role, password=None).render_as_string(hide_password=False)


def drop_role(server: str, role: str) -> None:
    """Drop a role without rights in any database."""
    execute(server, f'DROP ROLE IF EXISTS "{role}"')


def ask(database: Database, query: str) -> list[Any]:
    """Return the first column of a query's rows."""
    with database.engine.connect() as connection:
        return list(connection.exec_driver_sql(query).scalars())


def refusal(database: Database, statement: str) -> str | None:
    """Execute and roll back a statement; return PostgreSQL's error code, or None."""
    with database.engine.connect() as connection, connection.begin() as transaction:
        try:
            connection.exec_driver_sql(statement)
        except DBAPIError as error:
            return str(getattr(error.orig, "pgcode", None))
        finally:
            transaction.rollback()
    return None


def every_row(database: Database) -> dict[str, list[str]]:
    """Return the rows of every table as JSON, sorted."""
    with database.snapshot() as tx:
        return {
            name: sorted(
                orjson.dumps(dict(row), default=str).decode()
                for row in tx.connection.execute(sa.select(sa.text("*")).select_from(sa.table(name))).mappings()
            )
            for name in sorted(sa.inspect(tx.connection).get_table_names())
        }


def refuse_rows(database: Database, table: str, condition: str) -> None:
    """Make the database refuse rows for which a condition over NEW holds."""
    with database.engine.begin() as connection:
        if database.dialect == "sqlite":
            connection.exec_driver_sql(
                f"CREATE TRIGGER refused_{table} BEFORE INSERT ON {table} WHEN {condition} "
                f"BEGIN SELECT RAISE(ABORT, 'no_such_place'); END"
            )
        else:
            trigger = (
                f"CREATE TRIGGER refused_{table} BEFORE INSERT ON {table} FOR EACH ROW WHEN ({condition}) "
                "EXECUTE FUNCTION kfm_refuse('no_such_place')"
            )
            connection.exec_driver_sql(trigger.replace("%", "%%"))
