"""A temporary PostgreSQL server with PostGIS, which the embedded server does not have.

Belongs here: its start and stop, and databases with pgstac. Does not belong here: loading data into them.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from kfm_dagster.deployment.local import free_port
from kfm_dagster.followers.stac_api.database import StacApiDatabase

PACKAGES = ("postgresql-15", "postgresql-15-postgis-3", "postgresql-15-postgis-3-scripts")
BIN = Path("/usr/lib/postgresql/15/bin")
EXTENSION = Path("/usr/share/postgresql/15/extension/postgis.control")
USER = "postgres"
"""PostgreSQL refuses to run as root."""
START_SECONDS = 60


def lacking() -> str | None:
    """Return why this machine cannot run such a server; None if it can."""
    if (BIN / "initdb").is_file() and EXTENSION.is_file():
        return None
    return f"no PostgreSQL 15 with PostGIS: apt-get install {' '.join(PACKAGES)}"


@contextmanager
def postgis_server(*, settings: Sequence[str] = ()) -> Iterator[str]:
    """Run Debian's server on a loopback port with temporary data; yield the URL of `postgres`.

    `settings` are settings of the server, as NAME=VALUE.
    """
    with tempfile.TemporaryDirectory(prefix="kfm-postgis-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if os.geteuid() == 0:
            shutil.chown(folder, USER)
        port = free_port()
        options = ["listen_addresses=127.0.0.1", f"port={port}", "unix_socket_directories=", *settings]
        _run("initdb", "-D", f"{folder}/data", "-U", USER, "-A", "trust", "--encoding=UTF8", "--no-locale", "-N")
        server_options = " ".join(f"-c {option}" for option in options)
        log = f"{folder}/server.log"
        _run("pg_ctl", "-D", f"{folder}/data", "-l", log, "-w", "-t", str(START_SECONDS), "-o", server_options, "start")
        try:
            yield f"postgresql+psycopg2://{USER}@127.0.0.1:{port}/postgres"
        finally:
            _run("pg_ctl", "-D", f"{folder}/data", "-m", "immediate", "stop")


@contextmanager
def stac_api_database(server: str, *, template: str | None = None) -> Iterator[str]:
    """Yield the URL of a new database with pgstac, or of a template's copy; drop it afterwards."""
    name = f"stac_{secrets.token_hex(6)}"
    admin = sa.create_engine(server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name} TEMPLATE {template or 'template1'} STRATEGY file_copy")
    url = sa.make_url(server).set(database=name).render_as_string(hide_password=False)
    try:
        if template is None:
            StacApiDatabase(url).install()
        yield url
    finally:
        with admin.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
        admin.dispose()


def _run(command: str, *arguments: str) -> None:
    whole = [str(BIN / command), *arguments]
    if os.geteuid() == 0:
        whole = ["runuser", "-u", USER, "--", *whole]
    # Not a pipe: the server would keep it open.
    subprocess.run(whole, check=True, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603, our own arguments
