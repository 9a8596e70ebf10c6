"""The death of a process at its n-th statement or failpoint, or an action of another process at that point.

Belongs here: acting at a failpoint. Does not belong here: deaths of real processes (`integration/test_kill.py`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import sqlalchemy as sa

from kfm_dagster import failpoints
from kfm_dagster.failpoints import Failpoint
from kfm_dagster.storage.database import Database


class DeathError(BaseException):
    """The end of the process, which no handler of the package may catch."""


@dataclass
class Death:
    """A death at the `at`-th moment; `reached` has the moments so far."""

    at: int
    reached: list[str] = field(default_factory=list)

    def reach(self, moment: str) -> None:
        """Die at this moment if it is the chosen one or later. Raises DeathError."""
        self.reached.append(moment)
        if self.died:
            raise DeathError(moment)

    @property
    def died(self) -> bool:
        """Return whether the chosen moment was reached."""
        return len(self.reached) >= self.at

    def __str__(self) -> str:
        return f"died at {self.at}: {self.reached[self.at - 1 :][:1]}"


@contextmanager
def dying(database: Database | None = None, *, at: int | Death, only: str = "") -> Iterator[Death]:
    """End the context at its `at`-th statement or failpoint; with `only`, at its `at`-th failpoint with this prefix."""
    death = at if isinstance(at, Death) else Death(at)

    def executed(_connection: Any, statement: Any, *_: Any) -> None:
        if death.died or not only:
            death.reach(str(statement))

    if database is not None:
        sa.event.listen(database.engine, "after_execute", executed)
    failpoints.install(
        lambda failpoint, _: death.reach(failpoint.value) if death.died or failpoint.startswith(only) else None
    )
    try:
        yield death
    except DeathError:
        assert death.died
        if database is not None:
            # The end of a process closes cursors, too. From Python 3.13 on, an open cursor blocks the next commit.
            database.dispose()
    finally:
        failpoints.install(None)
        if database is not None:
            sa.event.remove(database.engine, "after_execute", executed)


def deaths() -> Iterator[tuple[int, Death]]:
    """Yield a death at the context's first moment, then its second, until the context survives."""
    for at in count(1):
        yield at, (death := Death(at))
        if not death.died:
            return


@contextmanager
def meanwhile(failpoint: Failpoint, act: Callable[[], object], *, nth: int = 1) -> Iterator[None]:
    """Act once when a failpoint is reached for the n-th time; an error of `act` is raised there."""
    remaining = nth

    def reached(point: Failpoint, _: object) -> None:
        nonlocal remaining
        remaining -= point is failpoint
        if remaining == 0 and point is failpoint:
            failpoints.install(None)
            act()

    failpoints.install(reached)
    try:
        yield
        assert remaining <= 0, f"{failpoint} was not reached"
    finally:
        failpoints.install(None)


def full() -> None:
    """Raise the error of a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
