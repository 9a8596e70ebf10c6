"""The database of a benchmark: SQLite in the deployment's home, or a PostgreSQL server.

Does not belong here: the queries that are measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import make_url

from benchmarks.postgres import embedded_postgres

KINDS = ("sqlite", "postgresql")
SERVER = {"shared_buffers": "1GB"}
"""The value that PostgreSQL's documentation advises for a server with some gigabytes of memory (a quarter, section
19.4.1). The default of 128 MB does not hold the keys of a million records."""


@dataclass(frozen=True, kw_only=True)
class BenchDatabase:
    """Variables that name the database, and the process id of its server, if any, by name.

    Dagster's own storage is in the same server, in its schema `dagster`, as in production.
    """

    variables: dict[str, str] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)


@contextmanager
def bench_database(kind: str, folder: Path) -> Iterator[BenchDatabase]:
    """Yield a new database of this kind; a server stores its data below `folder`, which is new."""
    if kind == "sqlite":
        yield BenchDatabase()
        return
    folder.mkdir(parents=True)
    folder.chmod(0o755)  # the server may run as a user of its own
    data = folder / "postgres"
    with embedded_postgres(data, settings=SERVER) as url:
        pid = int((data / "postmaster.pid").read_text(encoding="utf-8").splitlines()[0])
        kept = make_url(url).update_query_dict({"plugin": "kfm_keep"}).render_as_string(hide_password=False)
        yield BenchDatabase(variables={"KFM_WAL_DSN": url, "KFM_DAGSTER_DSN": kept}, pids={"database": pid})
