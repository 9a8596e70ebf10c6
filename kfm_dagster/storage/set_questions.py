"""Queries over tables in memory, by DuckDB and the named statements of `sql/queries/duckdb`.

DuckDB takes 0.2 s to import, so it is imported on the first query. Does not belong here: the code that asks (gates,
reports), or stored data.
"""

from __future__ import annotations

from contextlib import closing
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kfm_dagster.storage.statements import statement

if TYPE_CHECKING:
    import duckdb


def ask(name: str, **tables: pa.Table) -> list[tuple[Any, ...]]:
    """Return the rows of the statement `room.identifier` over Arrow tables of these names.

    Raises ConfigurationError for an unknown statement.
    """
    # A cursor for each query, because stages of a process may run concurrently.
    with closing(_connection().cursor()) as cursor:
        for table, content in tables.items():
            cursor.register(table, content)
        return cursor.execute(statement("duckdb", name).text).fetchall()


@cache
def _connection() -> duckdb.DuckDBPyConnection:
    """Return the process's in-memory database; opening a database costs more than a query."""
    import duckdb  # noqa: PLC0415, see above

    return duckdb.connect(config={"threads": 1})
