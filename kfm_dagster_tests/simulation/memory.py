"""The simulated database: real SQLite in memory, cloned from one migrated template.

One connection serves every actor, so a transaction blocks the others, as SQLite's single writer does. Every
statement is a point at which its actor may die; the world is notified of each commit. Does not belong here: the content
of the statements, which the product defines.
"""

from __future__ import annotations

import gc
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import StaticPool
from typing_extensions import override

from kfm_dagster.storage.database import Database, Transaction
from kfm_dagster_tests.simulation.scheduling import LOCK, Scheduler


@dataclass(frozen=True, kw_only=True)
class RewrittenTrigger:
    """A trigger in which `new` replaces `old`; if `old` is None, the trigger is removed."""

    name: str
    old: str | None = None
    new: str = ""

    def apply(self, raw: sqlite3.Connection) -> None:
        """Rewrite the trigger."""
        ((source,),) = rows(raw, "SELECT sql FROM sqlite_schema WHERE type = 'trigger' AND name = ?", self.name)
        raw.execute(f"DROP TRIGGER {self.name}")
        if self.old is not None:
            if self.old not in source:
                raise AssertionError(f"{self.name} has no {self.old!r}: the mutation is out of date")
            raw.execute(source.replace(self.old, self.new))


class Template:
    """A migrated template database, and the single connection into which it is cloned."""

    def __init__(self, *, triggers: Sequence[RewrittenTrigger] = ()) -> None:
        self.raw: sqlite3.Connection = _connect()
        self.engine = sa.create_engine("sqlite://", creator=lambda: self.raw, poolclass=StaticPool)
        self.scheduler: Scheduler | None = None
        sa.event.listen(self.engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
        Database(self.engine)._check_schema()
        for trigger in triggers:
            trigger.apply(self.raw)
        self._image = _connect()
        self.raw.backup(self._image)
        sa.event.listen(self.engine, "before_cursor_execute", self._point)

    def clone(self, scheduler: Scheduler) -> SimulatedDatabase:
        """Return an empty ledger, which replaces the previous one."""
        try:
            self._image.backup(self.raw)
        except sqlite3.OperationalError:
            # The traceback of a dead process keeps its unfinished query open until it is collected.
            gc.collect()
            self._image.backup(self.raw)
        self.scheduler = scheduler
        return SimulatedDatabase(self.engine, scheduler)

    def _point(self, *_: object) -> None:
        if self.scheduler is not None:
            self.scheduler.statement()


class SimulatedDatabase(Database):
    """A database whose transactions wait for each other and end when their process dies."""

    def __init__(self, engine: sa.Engine, scheduler: Scheduler) -> None:
        super().__init__(engine)
        self._scheduler = scheduler
        self._open: Transaction | None = None

    @override
    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        with self._alone(), super().transaction() as tx:
            self._open = tx
            yield tx

    @override
    @contextmanager
    def snapshot(self) -> Iterator[Transaction]:
        actor = self._scheduler.current
        if actor is not None and actor.in_transaction and self._open is not None:
            # In SQLite a reader has its own connection beside a writer; here it uses the writer's connection.
            yield Transaction(self._open.connection)
            return
        with self._alone(), super().snapshot() as tx:
            yield tx

    @contextmanager
    def _alone(self) -> Iterator[None]:
        scheduler, actor = self._scheduler, self._scheduler.current
        if actor is None:
            yield
            return
        if actor.in_transaction:
            raise AssertionError("a transaction was begun inside another one: SQLite would wait for itself")
        scheduler.pause(LOCK)
        scheduler.holder, actor.in_transaction = actor, True
        try:
            yield
        finally:
            actor.in_transaction = False
            # After a commit the actor has already released the lock, and another actor can hold it.
            if scheduler.holder is actor:
                scheduler.holder = None


class _Kept(sqlite3.Connection):
    """A connection that ignores `close`: SQLAlchemy closes a connection whose process died."""

    @override
    def close(self) -> None:
        self.rollback()


def _connect() -> sqlite3.Connection:
    connection = sqlite3.connect(
        ":memory:", check_same_thread=False, isolation_level=None, cached_statements=512, factory=_Kept
    )
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def rows(raw: sqlite3.Connection, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Query the database directly."""
    return raw.execute(sql, parameters).fetchall()
