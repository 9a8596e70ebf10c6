"""LadybugDB, the maintained successor of Kuzu: what reads an exported graph as other people would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ladybug

from kfm_dagster.exports.graph import LABELS, RELATIONSHIPS

QUESTION = """
MATCH (item:Item)-[:WAS_DERIVED_FROM]->(object:Object {uri: $uri})
WHERE item.state = 'current'
RETURN item.collection, item.stac_item_id ORDER BY item.collection, item.stac_item_id
"""
"""Which Items came from this object? As docs/explain-and-export.md asks it."""


class Engine:
    """One database in memory."""

    def __init__(self, connection: ladybug.Connection) -> None:
        self._connection = connection

    def load(self, folder: Path, statements: str | None = None) -> None:
        """Run an export's files as they are, or its tables and other statements."""
        self._connection.execute((folder / "schema.cypher").read_text(encoding="utf-8"))
        self._connection.execute(statements or (folder / "graph.cypher").read_text(encoding="utf-8"))

    def everything(self) -> list[list[list[Any]]]:
        """Return every node with its properties, and every edge, in an order of their own."""
        nodes = [self.ask(f"MATCH (n:{label}) RETURN n.* ORDER BY n.{key}") for label, (key, *_) in LABELS.items()]
        edges = [self.ask(f"MATCH (a)-[e:{kind}]->(b) RETURN a.*, b.*") for kind in RELATIONSHIPS]
        return [*nodes, *(sorted(rows, key=str) for rows in edges)]

    def ask(self, question: str, **values: str) -> list[list[Any]]:
        """Rows of an answer."""
        result = self._connection.execute(question, values)
        assert isinstance(result, ladybug.QueryResult)
        return [list(row) for row in result.get_all()]

    def items_of(self, uri: str) -> list[str]:
        """Which Items came from this object, as COLLECTION/ID."""
        return [f"{collection}/{item_id}" for collection, item_id in self.ask(QUESTION, uri=uri)]


@contextmanager
def engine() -> Iterator[Engine]:
    """Open an empty one. It takes 80 % of the machine's memory unless it is given a bound."""
    with (
        ladybug.Database(":memory:", buffer_pool_size=128 << 20, max_num_threads=1, max_db_size=1 << 30) as database,
        ladybug.Connection(database) as connection,
    ):
        yield Engine(connection)
