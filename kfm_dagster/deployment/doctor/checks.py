"""All checks of a deployment by name, in the order in which they are shown.

Belongs here: which there are, and what each is given. Does not belong here: what one looks at (the other modules).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.deployment.doctor.daemons import check_daemons
from kfm_dagster.deployment.doctor.databases import check_database
from kfm_dagster.deployment.doctor.finding import Check, Diagnosis, ok
from kfm_dagster.deployment.doctor.instance import check_instance, dagster_home
from kfm_dagster.deployment.doctor.places import check_bucket, check_room, check_store
from kfm_dagster.deployment.doctor.queues import check_dead_letters, check_queue
from kfm_dagster.deployment.doctor.senders import check_senders
from kfm_dagster.deployment.doctor.times import check_clock
from kfm_dagster.ingest.chain import read_configuration
from kfm_dagster.ingest.preflight import stores
from kfm_dagster.notifications.sqs import Queue, connect
from kfm_dagster.settings import Settings
from kfm_dagster.stages.card import Card
from kfm_dagster.storage.objects import ObjectStores
from kfm_dagster.telemetry.clock.decision import ClockRules
from kfm_dagster.telemetry.clock.server_dates import AnswerDates


def checks_of(
    settings: Settings, registry: ContractRegistry, card: Card, *, clock: Callable[[], datetime]
) -> Mapping[str, Check]:
    """Return the checks of the settings' deployment."""
    rules = ClockRules(tau_calib=card.machine.clock.tau_calib, max_offset=card.machine.clock.max_offset)
    objects = ObjectStores(object_root=settings.object_root, anonymous=settings.anonymous)
    chosen = stores(settings)

    def queue(name: str) -> Queue:
        return connect(settings, name=name)

    def heard(dates: AnswerDates) -> Queue:
        return connect(settings, dates=dates)

    folders = [settings.home, dagster_home(settings), *(Path(place) for *_, place in chosen if "://" not in place)]
    return {
        "configuration": partial(_configuration, settings),
        "database": partial(check_database, settings),
        "queue": partial(check_queue, settings, registry, queue),
        "dead letters": partial(check_dead_letters, settings, queue),
        "clock": partial(check_clock, rules, heard, clock),
        "senders": partial(check_senders, settings, registry),
        "instance": partial(check_instance, settings),
        "daemons": partial(check_daemons, settings),
        **{name: partial(check_store, name, setting, place) for name, setting, place in chosen},
        **{
            f"objects {bucket}": partial(check_bucket, objects, contracts[0], bucket)
            for bucket, contracts in registry.buckets.items()
        },
        "room": partial(check_room, folders),
    }


def _configuration(settings: Settings) -> Iterator[Diagnosis]:
    read = read_configuration(settings)
    yield ok(f"settings, pipeline card and {len(list(read.registry))} contracts are in order")
