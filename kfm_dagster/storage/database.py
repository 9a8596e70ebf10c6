"""The database: its engine, its transactions and its schema.

SQLite is the embedded default, PostgreSQL the production database; both are used through SQLAlchemy Core and the
statements of `sql/`. Domain tables belong to other packages (`ledger/`, `run_state/`, ...); this module knows only
`schema_version`.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, CursorResult, make_url
from sqlalchemy.exc import DatabaseError, DBAPIError, OperationalError

from kfm_dagster.addresses import shown, without_secrets
from kfm_dagster.errors import ConfigurationError, DatabaseUnavailableError, NoLedgerError, SchemaVersionError
from kfm_dagster.failpoints import Failpoint, hit
from kfm_dagster.storage.private import private_file, private_folder
from kfm_dagster.storage.statements import Migration, T, migrations, typed_statement, value_of
from kfm_dagster.storage.text import json_value, parameter

BUSY_TIMEOUT_SECONDS = 60
"""Time that a SQLite writer waits for another writer; a batch's transaction takes well under a second."""
SQLITE_CACHE_KIB = 16 * 1024
"""Page cache of a connection. A batch changes an index page for nearly every unit, because ids are random. In SQLite's
default cache of 2 MiB, these pages would be written and read again within the transaction."""
SQLITE_CHECKPOINT_PAGES = 4_000
"""Pages (4 KiB) in the write-ahead log before a commit copies them into the database. A batch of a thousand units fills
more pages than SQLite's default of 1,000; with the default, each commit would wait for the copy."""
NO_DATABASE = frozenset({sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT})
"""Result codes of SQLite for a file that is not a database, or is corrupt."""
NO_ROOM = frozenset({"53100", sqlite3.SQLITE_FULL})
"""Codes of a full disk: PostgreSQL's (appendix A) and SQLite's. SQLite's also means that the file has reached its
PRAGMA max_page_count."""
AWAY = frozenset({"57P01", "57P02", "57P03", "53300", "58030", sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN})
"""Codes of a server that is stopped, not ready or out of connections, and of a failing disk."""
MAKE_ROOM = "free disk space for the database's files"
INSUFFICIENT_PRIVILEGE = "42501"
"""PostgreSQL's code for a statement that the role may not execute (appendix A)."""
LACKING = "the database role lacks rights that this release needs"
MIGRATION_LOCK = 0x6B666D
"""PostgreSQL advisory lock ("kfm") that serialises migrations."""
LOOK_HERE_FIRST = "SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true)"
"""Sets the search path of a migration; functions that the migration creates keep this path. PostgreSQL searches
`pg_temp` first if the path lacks it, and a role's temporary tables would shadow our tables in triggers. So the path
names `pg_temp` last."""


class Database:
    """An open database with the schema of this release."""

    def __init__(self, engine: sa.Engine, url: str = "") -> None:
        self.engine = engine
        # The URL as configured, because drivers' errors quote this form, and redaction must find the secrets in it.
        self._url = url or engine.url.render_as_string(hide_password=False)

    @classmethod
    def open(cls, url: str, *, read_only: bool = False) -> Database:
        """Connect, and bring the schema up to date.

        With `read_only` nothing is migrated, and every write by this object's connections is refused. A PostgreSQL
        role that does not own the tables (`roles.py`) migrates nothing, either. Raises DatabaseUnavailableError if the
        database does not answer or gives this role no rights; SchemaVersionError if the schema is newer than this
        release, of other migrations, or older and may not be migrated here; NoLedgerError if a `read_only` database has
        no ledger; and ConfigurationError for another kind of database, or a SQLite folder that cannot be created.
        """
        parsed = make_url(url)
        database = cls(_engine(parsed, read_only=read_only), url)
        try:
            if read_only:
                database._look_at_schema()
            else:
                database._check_schema()
        except DatabaseError as error:
            database.dispose()
            if (unusable := _unusable(url, error)) is None:
                raise
            raise unusable from None
        except BaseException:
            database.dispose()
            raise
        return database

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self.engine.dialect.name

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Run a transaction: committed when the block ends, rolled back when it raises.

        On SQLite it begins IMMEDIATE, because a transaction that begins by reading can fail when it begins to write.
        The `after_commit` callbacks run after the commit, and their exceptions propagate. Raises
        DatabaseUnavailableError if the connection is lost or the disk is full.
        """
        with self._answering():
            hit(Failpoint.DATABASE_BEGIN)
            with self.engine.begin() as connection:
                tx = Transaction(connection)
                yield tx
                hit(Failpoint.DATABASE_COMMIT_BEFORE)
            hit(Failpoint.DATABASE_COMMIT_AFTER)
        for write in tx.committed:
            write()

    @contextmanager
    def snapshot(self) -> Iterator[Transaction]:
        """Run a transaction that must only read; on SQLite, it never waits for or blocks a writer.

        Raises DatabaseUnavailableError if the connection is lost.
        """
        with self._answering():
            hit(Failpoint.DATABASE_BEGIN)
            with self.engine.connect().execution_options(kfm_read_only=True) as connection, connection.begin():
                yield Transaction(connection)

    def schema(self) -> int:
        """Return the number of the newest applied migration."""
        with self.snapshot() as tx:
            return max(int(row.number) for row in tx.run("schema.applied"))

    def dispose(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Report an outage in one line, without the failed statement and its values."""
        try:
            yield
        except DBAPIError as error:
            if (away := outage(self._url, error)) is None:
                raise
            raise away from None

    def _check_schema(self) -> None:
        known = migrations(self.dialect)
        with self.snapshot() as tx:
            pending = _pending(known, self._applied(tx))
            if self.dialect == "postgresql":
                _check_rights(tx, pending, newest=len(known))
        if not pending:
            return
        with self.transaction() as tx:
            if self.dialect == "postgresql":
                tx.connection.exec_driver_sql("SELECT pg_advisory_xact_lock(%s)", (MIGRATION_LOCK,))
                tx.connection.exec_driver_sql(LOOK_HERE_FIRST)
            tx.run("schema.create_version_table")
            for migration in _pending(known, _recorded(tx)):
                _apply(tx, migration)

    @staticmethod
    def _applied(tx: Transaction) -> dict[int, tuple[str, str]]:
        """Return the migrations as `_recorded` does; none if the table does not exist."""
        return _recorded(tx) if sa.inspect(tx.connection).has_table("schema_version") else {}

    def _look_at_schema(self) -> None:
        with self.snapshot() as tx:
            applied = self._applied(tx)
        known = migrations(self.dialect)
        pending = _pending(known, applied)
        if not applied:
            raise _no_ledger("a database without a ledger")
        if pending:
            raise SchemaVersionError(
                "the database has an older schema than this release needs",
                observed=f"schema {max(applied)}",
                expected=str(len(known)),
                next_step="stop ingest, then run kfm init of this release",
            )


class Transaction:
    """An open transaction that runs the named statements of `sql/queries/`."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.committed: list[Callable[[], None]] = []

    def after_commit(self, write: Callable[[], None]) -> None:
        """Call `write` after the commit, so that no write elsewhere describes a rolled-back change.

        A process that dies after the commit does not call `write`, so callers must be able to detect a missing write.
        """
        self.committed.append(write)

    @contextmanager
    def nested(self) -> Iterator[None]:
        """Run a part of the transaction; an error rolls back the part and its after-commit calls."""
        before = len(self.committed)
        try:
            with self.connection.begin_nested():
                yield
        except BaseException:
            del self.committed[before:]
            raise

    def run(self, name: str, parameters: Mapping[str, Any] | None = None, /, **more: Any) -> CursorResult[Any]:
        """Execute a named statement; its rows have times in UTC and decoded JSON.

        Parameters are encoded (`text.parameter`), so that times, lists and mappings can be passed as they are.
        """
        values = _encoded({**(parameters or {}), **more})
        return self.connection.execute(typed_statement(self.connection.dialect.name, name), values)

    def lock(self, name: str) -> None:
        """Take a named lock until the transaction ends; wait for the transaction that holds it."""
        self.run("locks.take", lock=name).close()

    def rows(self, kind: type[T], name: str, parameters: Mapping[str, Any] | None = None, /, **more: Any) -> list[T]:
        """Execute a named statement and build a value of a dataclass from each row (`value_of`)."""
        return [value_of(kind, row) for row in self.run(name, parameters, **more).mappings()]

    def row(self, kind: type[T], name: str, parameters: Mapping[str, Any] | None = None, /, **more: Any) -> T | None:
        """Execute a named statement of at most one row, and build a value from it."""
        row = self.run(name, parameters, **more).mappings().one_or_none()
        return None if row is None else value_of(kind, row)

    def run_many(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Execute a named statement for many parameter sets; without sets, do nothing."""
        batch = [_encoded(row) for row in rows]
        if batch:
            self.connection.execute(typed_statement(self.connection.dialect.name, name), batch)


def _encoded(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: parameter(value) for name, value in row.items()}


def _no_ledger(observed: str) -> NoLedgerError:
    return NoLedgerError(
        observed=observed,
        expected="a database created by an ingest",
        next_step="ingest something (kfm demo), or correct KFM_HOME or KFM_WAL_DSN",
    )


def _engine(url: URL, *, read_only: bool) -> sa.Engine:
    if url.get_backend_name() == "postgresql":
        return sa.create_engine(
            url,
            json_deserializer=json_value,
            pool_pre_ping=True,
            connect_args={"connect_timeout": 10, "application_name": "kfm_dagster"},
            execution_options={"postgresql_readonly": read_only},
        )
    if url.get_backend_name() != "sqlite":
        raise ConfigurationError("unknown database", observed=url.get_backend_name(), expected="sqlite or postgresql")
    if url.database and not url.database.startswith((":memory:", "file:")):
        if not read_only:
            _make_file(Path(url.database))
        elif not Path(url.database).is_file():  # opening would create it
            raise _no_ledger(url.database)
    engine = sa.create_engine(url, json_deserializer=json_value, connect_args={"timeout": BUSY_TIMEOUT_SECONDS})

    @sa.event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: object) -> None:
        # Without this, Python's sqlite3 would begin deferred transactions; `_begin` begins them IMMEDIATE.
        connection.isolation_level = None
        cursor = connection.cursor()
        # The journal mode is stored in the file, and a reader must not change the file.
        cursor.execute("PRAGMA query_only = ON" if read_only else "PRAGMA journal_mode = WAL")
        # FULL survives a power loss; NORMAL in WAL mode survives only a kill. FULL is cheap with a commit per batch.
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA foreign_keys = ON")
        # Triggers query the foreign_keys pragma, which some builds of SQLite allow only to a trusted schema.
        cursor.execute("PRAGMA trusted_schema = ON")
        cursor.execute(f"PRAGMA cache_size = -{SQLITE_CACHE_KIB}")
        cursor.execute(f"PRAGMA wal_autocheckpoint = {SQLITE_CHECKPOINT_PAGES}")
        cursor.close()

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        read_only = connection.get_execution_options().get("kfm_read_only", False)
        connection.exec_driver_sql("BEGIN DEFERRED" if read_only else "BEGIN IMMEDIATE")

    return engine


def _make_file(file: Path) -> None:
    """Create a SQLite file and folder for this user alone; the journals get the file's mode."""
    try:
        private_folder(file.parent)
    except OSError as error:
        raise ConfigurationError(
            "the folder of the database cannot be created",
            observed=f"{file.parent}: {error.strerror}",
            next_step="correct KFM_HOME or KFM_WAL_DSN",
        ) from None
    with suppress(OSError):  # SQLite reports an unwritable file itself
        private_file(file)


def outage(url: str, error: DBAPIError) -> DatabaseUnavailableError | None:
    """Return the error for an unreachable or full database; None for refusals and conflicts."""
    code = getattr(error.orig, "pgcode", None) or getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
    observed = _observed(url, error)
    if code in NO_ROOM:
        return DatabaseUnavailableError("the database's disk is full", observed=observed, next_step=MAKE_ROOM)
    # The driver's own errors, such as for an unreachable server, have no code.
    is_lost = error.connection_invalidated or (isinstance(error, OperationalError) and not code)
    if not (is_lost or code in AWAY) or is_conflict(error):
        return None
    return DatabaseUnavailableError(observed=observed, next_step="start the database or correct KFM_WAL_DSN")


def _observed(url: str, error: DBAPIError) -> str:
    """Return the database's address and the driver's text, without statement and secrets."""
    return f"{shown(url)}: {without_secrets(str(error.orig).strip(), url)}"


def _unusable(url: str, error: DatabaseError) -> DatabaseUnavailableError | None:
    """Return why the database cannot be used, or None for any other error."""
    observed = _observed(url, error)
    if isinstance(error, OperationalError):
        return DatabaseUnavailableError(observed=observed, next_step="start the database or correct KFM_WAL_DSN")
    if str(error.orig).startswith("invalid dsn"):  # psycopg2's text for options that libpq does not know
        return DatabaseUnavailableError("the DSN is wrong", observed=observed, next_step="correct KFM_WAL_DSN")
    if getattr(error.orig, "pgcode", None) == INSUFFICIENT_PRIVILEGE:
        return DatabaseUnavailableError(LACKING, observed=observed, next_step="run kfm init --role NAME as the owner")
    if getattr(error.orig, "sqlite_errorcode", None) in NO_DATABASE:
        return DatabaseUnavailableError(
            "the file is damaged, or not a database",
            observed=observed,
            expected="a SQLite database",
            next_step="correct KFM_HOME or KFM_WAL_DSN, or put the database's backup in the file's place",
        )
    return None


def _check_rights(tx: Transaction, pending: Sequence[Migration], *, newest: int) -> None:
    """Refuse a role that does not own the tables, if the owner must act first. Raises KfmError."""
    rights = tx.run("roles.may_migrate").one()
    if rights.may_migrate:
        return
    option = "--retention-role" if rights.only_reads else "--role"
    next_step = f"run kfm init {option} {rights.role} as the owner"
    if pending:
        raise SchemaVersionError(
            "the database has an older schema than this release needs, and this role may not migrate it",
            observed=f"schema {pending[0].number - 1}",
            expected=str(newest),
            next_step=next_step,
        )
    lacking = tx.run("roles.lacking").scalar()
    if lacking is not None:
        raise DatabaseUnavailableError(
            LACKING, observed=f"no access to {lacking}", expected="the rights that kfm init grants", next_step=next_step
        )


def _apply(tx: Transaction, migration: Migration) -> None:
    raw: Any = tx.connection.connection.dbapi_connection
    for part in migration.statements:
        if tx.connection.dialect.name == "sqlite":
            raw.execute(part)
        else:
            tx.connection.exec_driver_sql(part.replace("%", "%%"))
    tx.run("schema.record", number=migration.number, name=migration.name, sha256=_digest(migration))


def _recorded(tx: Transaction) -> dict[int, tuple[str, str]]:
    """Return name and digest of each applied migration, by number."""
    return {row.number: (row.name, row.sha256) for row in tx.run("schema.applied")}


def _pending(known: Sequence[Migration], applied: Mapping[int, tuple[str, str]]) -> list[Migration]:
    """Return the migrations that are not applied yet. Raises SchemaVersionError."""
    if applied and (first := applied[min(applied)][0]) != known[0].name:
        raise SchemaVersionError(
            "the database was made by a pre-release and cannot be upgraded",
            observed=f"schema {max(applied)}, which begins with {first}",
            expected=f"a schema that begins with {known[0].name} (0.1.0)",
            next_step="name another database (KFM_HOME or KFM_WAL_DSN) and ingest again; this database stays unchanged",
        )
    if applied and max(applied) > len(known):
        raise SchemaVersionError(
            observed=f"schema {max(applied)}",
            expected=f"at most {len(known)}",
            next_step="run the release that migrated the database, or a newer release",
        )
    _refuse_changed(known, applied)
    return [migration for migration in known if migration.number not in applied]


def _refuse_changed(known: Iterable[Migration], applied: Mapping[int, tuple[str, str]]) -> None:
    for migration in known:
        if migration.number in applied and applied[migration.number] != (migration.name, _digest(migration)):
            raise SchemaVersionError(
                "an applied migration was edited afterwards",
                observed=f"{migration.number:04d}_{migration.name}.sql",
                expected="the text that was applied",
                next_step="restore the file and write a new migration",
            )


_COMMENT = re.compile(r"('(?:[^']|'')*')|--[^\n]*")
"""A text, which is group 1 and may contain dashes, or a comment."""


def _digest(migration: Migration) -> str:
    """Return a migration's digest, without comments and line breaks, which may be edited."""
    code = _COMMENT.sub(r"\1", ";\n".join(migration.statements))
    return hashlib.sha256(" ".join(code.split()).encode()).hexdigest()


def is_conflict(error: DBAPIError) -> bool:
    """Return whether a lock timeout, a failed serialisation or a deadlock is the cause."""
    code = getattr(error.orig, "pgcode", None)
    return code in {"40001", "40P01", "55P03"} or "database is locked" in str(error.orig)
