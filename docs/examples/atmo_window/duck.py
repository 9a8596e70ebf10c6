"""DuckDB for transforms: the statements of `sql/`, in a session in which equal input gives equal bytes.

Belongs here: the session, and Parquet with fixed settings. Does not belong here: the meaning of a statement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

SQL = Path(__file__).resolve().parent / "sql"


@contextmanager
def session() -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database in memory: one thread, UTC, no access to a network."""
    connection = duckdb.connect(
        config={"threads": 1, "autoinstall_known_extensions": False, "autoload_known_extensions": False}
    )
    try:
        connection.execute("SET TimeZone = 'UTC'")
        yield connection
    finally:
        connection.close()


@cache
def statement(name: str) -> str:
    """Return the text of `sql/<name>.sql`."""
    return (SQL / f"{name}.sql").read_text(encoding="utf-8")


def table(connection: duckdb.DuckDBPyConnection, name: str, parameters: Mapping[str, str] | None = None) -> pa.Table:
    """Run a statement and return its rows, in its order."""
    return connection.sql(statement(name), params=dict(parameters or {})).to_arrow_table()


def to_parquet(rows: pa.Table) -> bytes:
    """Encode rows; the same rows give the same bytes under one pyarrow release, which the lockfile pins."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        rows.replace_schema_metadata().combine_chunks(),
        sink,
        version="2.6",
        compression="zstd",
        use_dictionary=False,
        write_statistics=False,
        store_schema=False,
    )
    return bytes(sink.getvalue())


def from_parquet(content: bytes) -> pa.Table:
    """Decode what `to_parquet` wrote."""
    return pq.read_table(pa.BufferReader(content))
