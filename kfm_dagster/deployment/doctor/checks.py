"""All checks of a deployment by name, in the order in which they are shown.

Belongs here: the list of checks and their arguments. Does not belong here: the checks themselves (the other modules).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from kfm_dagster.catalog.discovery import FollowerSource
from kfm_dagster.deployment.doctor.finding import Check, Diagnosis, fault, ok, refused
from kfm_dagster.deployment.doctor.instance import check_broker, check_daemons, check_instance
from kfm_dagster.deployment.doctor.queues import (
    check_clock,
    check_dead_letters,
    check_queue,
    check_senders,
    recorded_readings,
)
from kfm_dagster.deployment.doctor.stores import (
    check_backups,
    check_bucket,
    check_database,
    check_retention,
    check_room,
    check_store,
)
from kfm_dagster.ingest.calibration import time_server
from kfm_dagster.ingest.configuration import Configuration
from kfm_dagster.ingest.preflight import stores
from kfm_dagster.settings import Settings
from kfm_dagster.storage.objects import ObjectStores
from kfm_dagster.telemetry.clock.decision import ClockRules
from kfm_dagster.telemetry.clock.reading import ClockReading


def checks_of(settings: Settings, read: Configuration, *, clock: Callable[[], datetime]) -> Mapping[str, Check]:
    """Return the checks of the settings' deployment."""
    registry, rule = read.registry, read.card.machine.clock
    rules = ClockRules(tau_calib=rule.tau_calib, max_offset=rule.max_offset)
    objects = ObjectStores(object_root=settings.object_root, anonymous=settings.anonymous)
    locations, broker = stores(settings), settings.celery_broker

    def recorded() -> Sequence[ClockReading]:
        return recorded_readings(settings, clock() - rules.tau_calib)

    folders = [settings.home, settings.dagster_home, *(Path(place) for *_, place in locations if "://" not in place)]
    return {
        "configuration": partial(_configuration, read),
        "database": partial(check_database, settings),
        "backups": partial(check_backups, settings, clock),
        "retention": partial(check_retention, settings),
        "queue": partial(check_queue, settings, registry),
        "dead letters": partial(check_dead_letters, settings),
        "clock": partial(check_clock, rules, partial(time_server, settings, registry), clock, recorded=recorded),
        "senders": partial(check_senders, settings, registry),
        "instance": partial(check_instance, settings),
        "daemons": partial(check_daemons, settings),
        **{name: partial(check_store, name, setting, place) for name, setting, place in locations},
        **{
            f"objects {bucket}": partial(check_bucket, objects, contracts[0], bucket)
            for bucket, contracts in registry.buckets.items()
        },
        "room": partial(check_room, folders),
        **({"Celery": partial(check_broker, broker.get_secret_value())} if broker is not None else {}),
        **{source.title or name: partial(_ask, source) for name, source in read.followers.loaded.items()},
        **{f"follower {name}": partial(_left_out, error) for name, error in read.followers.errors.items()},
    }


def _ask(source: FollowerSource) -> Iterator[Diagnosis]:
    for answer in source.ask():
        if isinstance(answer, str):
            yield ok(answer)
        else:
            yield refused(answer)


def _left_out(error: str) -> Iterator[Diagnosis]:
    yield fault(
        "the follower is left out, and lacks every change of the catalog from now on",
        observed=error,
        expected="a package that can be loaded",
        next_step="install what it needs, or uninstall it",
    )


def _configuration(read: Configuration) -> Iterator[Diagnosis]:
    yield ok(f"settings, pipeline card and {len(list(read.registry))} contracts are in order")
