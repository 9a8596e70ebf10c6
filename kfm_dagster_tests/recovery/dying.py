"""A process that dies on its way, in this one: from a point on it reaches nothing of the world any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import pytest

from kfm_dagster import failpoints
from kfm_dagster.storage.database import Transaction
from kfm_dagster_tests.integration.chain import CrashError


@contextmanager
def dying(is_last: Callable[[str], bool]) -> Iterator[None]:
    """Raise CrashError at the first statement or failpoint that `is_last`, and at each one after it."""
    dead, lock, run = False, Lock(), Transaction.run

    def reach(name: str) -> None:
        nonlocal dead
        with lock:
            dead = dead or is_last(name)
        if dead:
            raise CrashError(name)

    def reaching(self: Transaction, name: str, *given: Any, **more: Any) -> Any:
        reach(name)
        return run(self, name, *given, **more)

    failpoints.install(lambda failpoint, _: reach(failpoint.value))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Transaction, "run", reaching)
            yield
    finally:
        failpoints.install(None)
