"""Set questions over what is in memory already: DuckDB, by the named statements of `sql/queries/duckdb`.

DuckDB takes 0.2 s to import, so only who asks imports it. Does not belong here: what is asked (the gates, the reports),
or anything that is stored.
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

    Raises ConfigurationError for a statement that there is not.
    """
    # A cursor for each question: stages of one process may run side by side.
    with closing(_connection().cursor()) as cursor:
        for table, content in tables.items():
            cursor.register(table, content)
        return cursor.execute(statement("duckdb", name).text).fetchall()


@cache
def _connection() -> duckdb.DuckDBPyConnection:
    """Return the process's database in memory; opening one costs more than asking it."""
    import duckdb  # noqa: PLC0415, see above

    return duckdb.connect(config={"threads": 1})
