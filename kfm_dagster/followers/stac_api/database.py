"""The database of a STAC API: its installation, and the statements of `sql/queries/pgstac`.

Only `kfm init` uses pypgstac (extra `stac-api`), for pgstac's migration; loading uses this package's own driver. Does
not belong here: the loaded content (`follower.py`).
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, CursorResult, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from kfm_dagster.addresses import shown, without_secrets
from kfm_dagster.catalog.changes import FollowError
from kfm_dagster.errors import ConfigurationError, DatabaseUnavailableError
from kfm_dagster.failpoints import Failpoint, hit
from kfm_dagster.storage.statements import statement

LINES = 10_000
"""Maximum lines that are copied at a time."""
SUPPORTED = "0.10."
"""Supported releases of pgstac. Before 0.10, a load refreshed materialised views under a lock that made searches fail
(pgstac#311, #460)."""
CONNECT = {
    "connect_timeout": 10,
    "application_name": "kfm_dagster",
    # Detects within half a minute that a server has disappeared.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
LOCK_TIMEOUT = "10s"
DDL_LOCK_TIMEOUT = "2s"
"""Short, because later searches queue behind a statement that waits for a table's lock."""
STATEMENT_TIMEOUT = "5min"
IDLE_TIMEOUT = "60s"
"""Time after which a stalled process loses its transaction, and thereby its lock of the collection."""


class StacApiTransaction:
    """An open transaction in the API's database."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def run(self, name: str, **parameters: Any) -> CursorResult[Any]:
        """Execute a named statement."""
        return self._connection.execute(statement("pgstac", f"stac_api.{name}"), parameters)

    def stream(self, name: str, **parameters: Any) -> CursorResult[Any]:
        """Execute a named statement whose rows do not fit into memory."""
        query = statement("pgstac", f"stac_api.{name}")
        return self._connection.execute(query, parameters, execution_options={"stream_results": True})

    def copy(self, table: str, lines: Iterable[str]) -> None:
        """Fill a table from lines in the text format of COPY."""
        remaining = iter(lines)
        driver: Any = self._connection.connection.cursor()
        with driver:
            while part := "".join(islice(remaining, LINES)):
                driver.copy_expert(f"COPY {table} FROM STDIN", io.StringIO(part))


class StacApiDatabase:
    """Database of a STAC API; connects only when needed, because runs are forked."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._engine = sa.create_engine(url, poolclass=NullPool, connect_args=CONNECT)

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """Connect for several transactions. Raises FollowError on failure or an unsupported pgstac."""
        try:
            with self._engine.connect() as connection:
                with connection.begin():
                    installed, version = _installed(StacApiTransaction(connection))
                if not (installed.has_pgstac and installed.has_tables):
                    raise FollowError(
                        observed=f"{shown(self.url)} lacks pgstac, or this package's tables",
                        next_step="run kfm init with KFM_STAC_API_DSN set",
                    )
                if not version.startswith(SUPPORTED):
                    raise FollowError(observed=f"pgstac {version}", expected=f"{SUPPORTED}x", next_step="run kfm init")
                yield connection
        except DBAPIError as error:
            raise FollowError(
                observed=self._error_text(error), next_step="check that the database of KFM_STAC_API_DSN answers"
            ) from error

    @contextmanager
    def begin(self, connection: Connection, *, lock_timeout: str = LOCK_TIMEOUT) -> Iterator[StacApiTransaction]:
        """Run a transaction: commit when the block ends, roll back when it raises."""
        hit(Failpoint.DATABASE_BEGIN)
        with connection.begin():
            tx = StacApiTransaction(connection)
            tx.run(
                "set_up",
                lock_timeout=lock_timeout,
                statement_timeout=STATEMENT_TIMEOUT,
                idle_timeout=IDLE_TIMEOUT,
            )
            yield tx
            hit(Failpoint.DATABASE_COMMIT_BEFORE)
        hit(Failpoint.DATABASE_COMMIT_AFTER)

    @contextmanager
    def transaction(self, *, lock_timeout: str = LOCK_TIMEOUT) -> Iterator[StacApiTransaction]:
        """Connect for a transaction. Raises FollowError as `connected` does."""
        with self.connected() as connection, self.begin(connection, lock_timeout=lock_timeout) as tx:
            yield tx

    def install(self) -> Mapping[str, str]:
        """Install or update pgstac and our tables; return database and version. Raises KfmError."""
        try:
            with self._engine.begin() as locked:
                StacApiTransaction(locked).run("lock_installation")
                return self._install()
        except DBAPIError as error:
            raise DatabaseUnavailableError(
                observed=self._error_text(error), next_step="start the database or correct KFM_STAC_API_DSN"
            ) from None

    def _install(self) -> Mapping[str, str]:
        with self._engine.begin() as connection:
            installed, version = _installed(StacApiTransaction(connection))
        if not (installed.has_pgstac and version.startswith(SUPPORTED)):
            self._migrate()
        if not installed.has_tables:
            with self._engine.begin() as connection:
                StacApiTransaction(connection).run("create_tables")
        with self._engine.begin() as connection:
            return {"database": shown(self.url), "pgstac": _installed(StacApiTransaction(connection))[1]}

    def _migrate(self) -> None:
        try:
            from pypgstac.db import PgstacDB  # noqa: PLC0415 - an optional dependency
            from pypgstac.migrate import Migrate  # noqa: PLC0415
        except ImportError:
            raise ConfigurationError(
                "the database lacks pgstac, and the package pypgstac, which installs it, is missing",
                observed=shown(self.url),
                expected=f"pgstac {SUPPORTED}x",
                next_step="pip install 'kfm-dagster[stac-api]', or pypgstac migrate",
            ) from None
        database = PgstacDB(dsn=make_url(self.url).set(drivername="postgresql").render_as_string(hide_password=False))
        try:
            Migrate(database).run_migration()
        except Exception as error:
            raise DatabaseUnavailableError(
                "pgstac cannot be installed",
                observed=f"{shown(self.url)}: {without_secrets(str(error).strip(), self.url)}",
                next_step="for kfm init, set KFM_STAC_API_DSN to a role that can create extensions, roles and schemas",
            ) from None
        finally:
            database.disconnect()
            database.close()

    def _error_text(self, error: DBAPIError) -> str:
        return f"{shown(self.url)}: {without_secrets(str(error.orig).strip(), self.url)}"


def _installed(tx: StacApiTransaction) -> tuple[Any, str]:
    """Return whether pgstac and our tables exist, and pgstac's version (empty without pgstac)."""
    installed = tx.run("installed").one()
    return installed, str(tx.run("version").scalar_one()) if installed.has_pgstac else ""
