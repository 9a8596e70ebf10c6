"""Celery: whether its broker answers and keeps what it was given, and whether workers take steps as they should.

Only where KFM_CELERY_BROKER is set. Does not belong here: the configuration that both agree on (`defs/executors.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kfm_dagster.addresses import shown, without_secrets
from kfm_dagster.deployment.doctor.finding import Diagnosis, fault, ok, warning

BROKER = "KFM_CELERY_BROKER"
ANSWER_SECONDS = 3.0
"""Workers answer within milliseconds, unless all of their processes wait for a processor."""
LATE = ("task_acks_late", "task_reject_on_worker_lost")
"""Without both, Redis takes a step for done once a worker has received it."""


def check_broker(address: str) -> Iterator[Diagnosis]:
    """Ask the broker, and by it the workers."""
    try:
        import redis  # noqa: PLC0415 - the extra `celery`
    except ImportError:
        yield fault(
            f"{BROKER} is set, and what speaks to it is not installed",
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
            "the broker of Celery does not answer: no step of a run is done",
            observed=f"{shown(address)}: {without_secrets(str(error), address)}",
            expected="an answer",
            next_step=f"start it, or correct {BROKER}",
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


def _workers(found: Mapping[str, Mapping[str, Any]]) -> Iterator[Diagnosis]:
    early = sorted(name for name, conf in found.items() if not all(conf.get(key) for key in LATE))
    if early:
        yield fault(
            "the step of a worker that dies is lost: it counts as done once it is received",
            observed=f"{', '.join(early)} without {' and '.join(LATE)}",
            expected="workers with the configuration of the executor",
            next_step="start them by python -m kfm_dagster.defs.celery_worker",
        )
    elif found:
        yield ok(f"{len(found)} Celery workers answer")
    else:
        yield warning(
            "no Celery worker takes steps: runs wait at their first one",
            observed=f"no answer within {ANSWER_SECONDS:g} s",
            expected="at least one",
            next_step="start one: python -m kfm_dagster.defs.celery_worker",
        )
