"""Dagster: its `dagster.yaml`, the daemons of the instance, and Celery's broker and workers.

The file is read as YAML, and the heartbeats are read from their table: Dagster itself would create or migrate tables.
Two daemons would launch every run and evaluate every sensor twice. A daemon writes its id with its heartbeats, in a row
for each kind of work, so two ids in rows of the last minute mean two daemons. This machine's daemons are counted, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import yaml
from sqlalchemy.exc import SQLAlchemyError

from kfm_dagster.addresses import shown, without_secrets
from kfm_dagster.deployment.doctor.finding import Diagnosis, fault, ok, warning
from kfm_dagster.documents import read_yaml
from kfm_dagster.settings import Environment, Settings

LANE, BULK = "kfm/lane", "bulk"
_FILE = "dagster.yaml of this release (kfm init writes it if it is missing)"


def check_instance(settings: Settings) -> Iterator[Diagnosis]:
    """Check `dagster.yaml`."""
    file = settings.dagster_home / "dagster.yaml"
    if not file.is_file():
        yield fault("Dagster has no instance here", observed=f"no {file}", expected=_FILE, next_step="run kfm init")
        return
    try:
        document: Any = read_yaml(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        yield fault(
            "dagster.yaml cannot be read",
            observed=f"{file}: {type(error).__name__}",
            expected=_FILE,
            next_step="correct the file, or move it away and run kfm init",
        )
        return
    config = document if isinstance(document, dict) else {}
    if settings.env is Environment.PROD and "postgres" not in _part(config, "storage"):
        yield warning(
            "Dagster keeps its runs in files of one machine",
            observed="no storage.postgres",
            expected="PostgreSQL in prod",
            next_step="set KFM_DAGSTER_DSN, move dagster.yaml away and run kfm init",
        )
    monitoring, retries = _part(config, "run_monitoring"), _part(config, "run_retries")
    if not monitoring.get("enabled", False):
        yield fault(
            "the death of a run's process is not detected, so the run stays started and keeps its slot for ever",
            observed="run_monitoring is not enabled",
            expected="run_monitoring: {enabled: true}",
            next_step=f"enable it in dagster.yaml, as in {_FILE}",
        )
    else:
        yield ok("run monitoring is on")
        if not monitoring.get("free_slots_after_run_end_seconds"):
            yield warning(
                "pool slots of a run that died are never released",
                observed="no run_monitoring.free_slots_after_run_end_seconds",
                expected="30, as in the dagster.yaml of this release",
                next_step="set it in dagster.yaml",
            )
    retries_steps = retries.get("retry_on_asset_or_op_failure", True)
    if retries.get("enabled", False) and retries_steps and retries.get("max_retries", 0) != 0:
        yield warning(
            "Dagster retries failed runs, although the ledger already retries failed units",
            observed="run_retries is enabled for failures of steps",
            expected="run_retries: {enabled: false}, or retry_on_asset_or_op_failure: false",
            next_step="set it in dagster.yaml",
        )
    else:
        yield ok("only the ledger retries failed units")
    yield from _slots(settings, config)


def _slots(settings: Settings, config: Mapping[str, Any]) -> Iterator[Diagnosis]:
    coordinator = _part(config, "run_coordinator")
    # An older dagster.yaml has the limits in the coordinator; Dagster reads both sections.
    runs = {**_part(coordinator, "config"), **_part(_part(config, "concurrency"), "runs")}
    slots = runs.get("max_concurrent_runs")
    if coordinator.get("class") != "QueuedRunCoordinator" and slots is None:
        yield fault(
            "runs are not queued, so every requested run starts immediately",
            observed=coordinator.get("class", "no run_coordinator"),
            expected="QueuedRunCoordinator with max_concurrent_runs",
            next_step=f"set it in dagster.yaml, as in {_FILE}",
        )
        return
    if not isinstance(slots, int):
        yield warning(
            "the number of runs at a time is Dagster's default",
            observed="no max_concurrent_runs",
            expected="one more than this machine has cores",
            next_step="set max_concurrent_runs in dagster.yaml",
        )
        return
    limits = runs.get("tag_concurrency_limits") or []
    bulk = [limit.get("limit") for limit in limits if limit.get("key") == LANE and limit.get("value") == BULK]
    allowed = settings.bulk_runs(slots)
    if not bulk or int(bulk[0]) > allowed:
        yield warning(
            "bulk runs that a person starts may take the slots of live messages",
            observed=f"tag_concurrency_limits let {bulk[0] if bulk else 'all'} of {slots} runs be of {LANE}: {BULK}",
            expected=f"{allowed}, the runs that KFM_LIVE_SHARE ({settings.live_share:g}) leaves to bulk work",
            next_step="set the limit in dagster.yaml",
        )
    else:
        yield ok(f"{slots} runs at a time, {bulk[0]} of them bulk")


def _part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = config.get(name)
    return part if isinstance(part, dict) else {}


BEAT = timedelta(seconds=30)
"""Interval of a daemon's heartbeats (dagster._daemon.controller)."""
SILENT = timedelta(minutes=5)
_ASKED = sa.text("SELECT daemon_type, daemon_id, timestamp FROM daemon_heartbeats").columns(timestamp=sa.DateTime())
_PROGRAM = "dagster-daemon"


def check_daemons(settings: Settings, *, now: datetime | None = None) -> Iterator[Diagnosis]:
    """Check that a single daemon works in the instance."""
    home = settings.dagster_home
    moment = now or datetime.now(UTC)
    beats = _heartbeats(settings, home)
    processes = _processes(home)
    fresh = {daemon for daemon, at in beats if moment - at <= 2 * BEAT}
    if len(fresh) > 1 or len(processes) > 1:
        evidence = (
            f"processes {', '.join(map(str, processes))}" if len(processes) > 1 else f"{len(fresh)} ids in heartbeats"
        )
        yield fault(
            "several daemons work in one instance: runs are launched and sensors evaluated twice",
            observed=evidence,
            expected="one dagster-daemon for each DAGSTER_HOME (after a restart the old one is seen for a minute)",
            next_step="end all daemons but one",
        )
    elif not processes and not any(moment - at <= SILENT for _, at in beats):
        last = max((at for _, at in beats), default=None)
        yield warning(
            "no daemon works here: no sensor is evaluated and no queued run starts",
            observed="no heartbeat yet" if last is None else f"the last heartbeat at {last:%Y-%m-%dT%H:%M:%SZ}",
            expected=f"one within {SILENT.seconds // 60} minutes",
            next_step="start a daemon: dagster-daemon run (kfm ui starts its own daemon)",
        )
    else:
        yield ok("one daemon works in the instance")


def _heartbeats(settings: Settings, home: Path) -> Sequence[tuple[str, datetime]]:
    """Return id and time of every heartbeat; no heartbeats if Dagster has no storage yet."""
    if settings.dagster_dsn:
        engine = sa.create_engine(
            settings.dagster_dsn,
            poolclass=sa.NullPool,
            connect_args={"connect_timeout": 5},
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
        return []  # no such table or database yet: the ledger's check and kfm init report it
    finally:
        engine.dispose()


def _processes(home: Path) -> list[int]:
    """Return the process ids of daemons with this DAGSTER_HOME, as far as /proc shows them."""
    pids: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = [os.fsdecode(word) for word in (entry / "cmdline").read_bytes().split(b"\0")]
            if any(Path(word).name == _PROGRAM for word in words) and _home_of(entry) == home:
                pids.append(int(entry.name))
        except OSError:
            continue  # the process has ended, or belongs to another user
    return sorted(pids)


def _home_of(process: Path) -> Path | None:
    pairs: Mapping[str, str] = dict(
        os.fsdecode(pair).split("=", 1) for pair in (process / "environ").read_bytes().split(b"\0") if b"=" in pair
    )
    return Path(pairs["DAGSTER_HOME"]).absolute() if pairs.get("DAGSTER_HOME") else None


BROKER = "KFM_CELERY_BROKER"
ANSWER_SECONDS = 3.0
"""Workers answer within milliseconds unless all their processes wait for a processor."""
LATE = ("task_acks_late", "task_reject_on_worker_lost")
"""Settings of a worker. Unless both are set, no other worker repeats the step of a dead worker process."""


def check_broker(address: str) -> Iterator[Diagnosis]:
    """Check the broker, and the workers that answer through it."""
    try:
        import redis  # noqa: PLC0415 - the extra `celery`
    except ImportError:
        yield fault(
            f"{BROKER} is set, but the client of Redis is not installed",
            observed="no package redis",
            expected="the extra celery",
            next_step=f"pip install 'kfm-dagster[celery]', or unset {BROKER}",
        )
        return
    try:
        with redis.Redis.from_url(address, socket_connect_timeout=5, socket_timeout=5) as client:
            memory: Mapping[str, Any] = client.info("memory")
    except (redis.RedisError, OSError) as error:
        yield fault(
            "the broker of Celery does not answer, so no step of a run is executed",
            observed=f"{shown(address)}: {without_secrets(str(error), address)}",
            expected="an answer",
            next_step=f"start the broker, or correct {BROKER}",
        )
        return
    yield from _kept(address, memory)
    yield from _workers(workers(address))


def workers(address: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the configuration of each worker that answers in time."""
    from celery import Celery  # noqa: PLC0415 - the extra `celery`

    with Celery(broker=address, set_as_current=False) as app:
        return app.control.inspect(timeout=ANSWER_SECONDS).conf() or {}


def _kept(address: str, memory: Mapping[str, Any]) -> Iterator[Diagnosis]:
    policy, limit = memory.get("maxmemory_policy"), memory.get("maxmemory", 0)
    if limit and policy != "noeviction":
        yield fault(
            "the broker forgets steps when its memory is full, and their runs wait for ever",
            observed=f"maxmemory {limit}, maxmemory-policy {policy}",
            expected="maxmemory-policy noeviction",
            next_step="set it in redis.conf, or in the parameter group of ElastiCache",
        )
    else:
        yield ok(f"the broker {shown(address)} answers")


def _workers(configurations: Mapping[str, Mapping[str, Any]]) -> Iterator[Diagnosis]:
    unsafe = sorted(name for name, conf in configurations.items() if not all(conf.get(key) for key in LATE))
    if unsafe:
        yield fault(
            "if a worker process dies, its step is lost, because no other worker repeats the step",
            observed=f"{', '.join(unsafe)} without {' and '.join(LATE)}",
            expected="workers with the configuration of the executor",
            next_step="start the workers by python -m kfm_dagster.defs.celery_worker",
        )
    elif configurations:
        yield ok(f"{len(configurations)} Celery workers answer")
    else:
        yield warning(
            "no Celery worker answers, so runs wait at their first step",
            observed=f"no answer within {ANSWER_SECONDS:g} s",
            expected="at least one worker",
            next_step="start a worker: python -m kfm_dagster.defs.celery_worker",
        )
