"""Daemons: that one works in the instance, and no second one beside it.

Two daemons launch every run and evaluate every sensor twice. Each writes its id with its heartbeats, which are one row
a kind of work: rows of the last minute that have two ids are of two. On this machine processes are counted, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from kfm_dagster.deployment.doctor.finding import Diagnosis, fault, ok, warning
from kfm_dagster.deployment.doctor.instance import dagster_home
from kfm_dagster.settings import Settings

BEAT = timedelta(seconds=30)
"""A daemon writes its heartbeats so often (dagster._daemon.controller)."""
SILENT = timedelta(minutes=5)
_ASKED = sa.text("SELECT daemon_type, daemon_id, timestamp FROM daemon_heartbeats").columns(timestamp=sa.DateTime())
_PROGRAM = "dagster-daemon"


def check_daemons(settings: Settings, *, now: datetime | None = None) -> Iterator[Diagnosis]:
    """Look who works in the instance."""
    home = dagster_home(settings)
    moment = now or datetime.now(UTC)
    beats = _heartbeats(settings, home)
    processes = _processes(home)
    fresh = {daemon for daemon, at in beats if moment - at <= 2 * BEAT}
    if len(fresh) > 1 or len(processes) > 1:
        seen = (
            f"processes {', '.join(map(str, processes))}" if len(processes) > 1 else f"{len(fresh)} ids in heartbeats"
        )
        yield fault(
            "several daemons work in one instance: runs are launched and sensors evaluated twice",
            observed=seen,
            expected="one dagster-daemon for each DAGSTER_HOME (after a restart the old one is seen for a minute)",
            next_step="end all but one",
        )
    elif not processes and not any(moment - at <= SILENT for _, at in beats):
        last = max((at for _, at in beats), default=None)
        yield warning(
            "no daemon works here: no sensor is evaluated and no queued run starts",
            observed="no heartbeat yet" if last is None else f"the last heartbeat at {last:%Y-%m-%dT%H:%M:%SZ}",
            expected=f"one within {SILENT.seconds // 60} minutes",
            next_step="start it: dagster-daemon run (kfm ui starts one of its own)",
        )
    else:
        yield ok("one daemon works in the instance")


def _heartbeats(settings: Settings, home: Path) -> Sequence[tuple[str, datetime]]:
    """Return id and time of every heartbeat; nothing where Dagster has no storage yet."""
    if settings.dagster_dsn:
        engine = sa.create_engine(
            settings.dagster_dsn,
            poolclass=sa.NullPool,
            connect_args={"connect_timeout": 5, "options": "-csearch_path=dagster"},
            execution_options={"postgresql_readonly": True},
        )
    else:
        file = home / "history" / "runs.db"
        if not file.is_file():
            return []
        engine = sa.create_engine(f"sqlite:///file:{file}?mode=ro&uri=true", poolclass=sa.NullPool)
    try:
        with engine.connect() as connection:
            return [(row.daemon_id, row.timestamp.replace(tzinfo=UTC)) for row in connection.execute(_ASKED)]
    except SQLAlchemyError:
        return []  # no such table yet, or no such database: what the ledger's check and kfm init say
    finally:
        engine.dispose()


def _processes(home: Path) -> list[int]:
    """Return the daemons of this machine whose DAGSTER_HOME it is, where /proc shows them."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = [os.fsdecode(word) for word in (entry / "cmdline").read_bytes().split(b"\0")]
            if any(Path(word).name == _PROGRAM for word in words) and _home_of(entry) == home:
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended, or is somebody else's
    return sorted(found)


def _home_of(process: Path) -> Path | None:
    pairs: Mapping[str, str] = dict(
        os.fsdecode(one).split("=", 1) for one in (process / "environ").read_bytes().split(b"\0") if b"=" in one
    )
    return Path(pairs["DAGSTER_HOME"]).absolute() if pairs.get("DAGSTER_HOME") else None
