"""Processes that advance a replay: `python -m kfm_dagster_tests.recovery.advancer URL HOME REPLAY killed|contend`.

killed: one process after the other, each killed by SIGKILL at a later point of its advance than the one before, until
one gets through; prints the points. contend: says `ready`, waits for a line, lets one batch in, says `won`, waits for
another line, advances until nothing is left to let in, and prints the batches that it let in.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from kfm_dagster import failpoints
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.recovery.replay.pace import HoldReason
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database, Transaction
from kfm_dagster_tests.integration.chain import Clock
from kfm_dagster_tests.recovery.replays import NOW

LAST = ("database.commit.before", "database.commit.after")


def open_engine(url: str, home: str, *, clock: Any) -> ReplayEngine:
    settings = Settings(home=Path(home), wal_dsn=url)
    database = Database.open(settings.database_url)
    return ReplayEngine(
        pipeline=Pipeline(settings=settings, registry=ContractRegistry.load(), database=database, clock=clock)
    )


def die_at(point: int, told: int) -> None:
    """Kill this process at the n-th statement or end of a transaction from now on; tell which it is just before."""
    reached = 0
    run = Transaction.run

    def reach(name: str) -> None:
        nonlocal reached
        reached += 1
        if reached == point:
            os.write(told, name.encode())
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(self: Transaction, name: str, *arguments: Any, **more: Any) -> Any:
        reach(name)
        return run(self, name, *arguments, **more)

    Transaction.run = counted  # type: ignore[method-assign]
    failpoints.install(lambda failpoint, _: reach(failpoint) if failpoint in LAST else None)


def killed(url: str, home: str, replay_run_id: str) -> list[str]:
    points: list[str] = []
    while True:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            engine = open_engine(url, home, clock=Clock(NOW))
            die_at(len(points) + 1, writing)
            engine.advance(replay_run_id)
            os._exit(0)
        os.close(writing)
        _, status = os.waitpid(child, 0)
        name = os.read(reading, 100).decode()
        os.close(reading)
        if status == 0:
            return points
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        points.append(name)


def contend(url: str, home: str, replay_run_id: str) -> list[int]:
    began = time.monotonic()
    engine = open_engine(url, home, clock=lambda: NOW + timedelta(seconds=time.monotonic() - began))
    print("ready", flush=True)  # noqa: T201, the parent reads it
    sys.stdin.readline()
    won: list[int] = []
    while True:
        step = engine.advance(replay_run_id)
        if step.admitted is not None:
            won.append(step.admitted.batch)
            if len(won) == 1:
                print("won", flush=True)  # noqa: T201, the parent reads it
                sys.stdin.readline()
        elif step.hold is None or step.hold.reason is not HoldReason.RATE:
            return won
        time.sleep(0.005)  # without it SQLite's lock goes back to the one that has just held it


if __name__ == "__main__":
    *where, mode = sys.argv[1:]
    print(json.dumps({"killed": killed, "contend": contend}[mode](*where)))  # noqa: T201
