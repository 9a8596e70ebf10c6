"""`kfm doctor`: check a deployment, report faults with their next steps. Changes nothing.

Belongs here: the list of checks and their arguments, in the order of display. Does not belong here: the
checks themselves (`deployment/doctor/`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kfm_dagster.deployment.doctor.finding import Check, Diagnosis, Health, examine, fault, ok, refused
from kfm_dagster.errors import ExitCode
from kfm_dagster.plural import counted
from kfm_dagster.settings import Environment, Settings

if TYPE_CHECKING:
    from kfm_dagster.catalog.follower_sources import FollowerSource
    from kfm_dagster.ingest.configuration import Configuration

EXAMPLES = 2
"""Findings shown for each cause; `--json` has all."""


@click.command()
@click.option(
    "--timeout",
    "seconds",
    type=click.FloatRange(min=1, max=600),
    default=30,
    show_default=True,
    help="Seconds after which a check that has not ended is a fault.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object with every finding.")
def doctor(*, seconds: float, as_json: bool) -> int:
    """Check databases, backups, queues, clock, Dagster, stores, disks.

    Findings of the same cause are shown together, with the observed and the expected state and the next step. Nothing
    is changed, and every check is bounded in time. Exit code 0 without faults, even with warnings, 4 with faults, 2 for
    unreadable settings.

    Example: kfm doctor --json
    """
    from kfm_dagster.ingest.chain import read_configuration  # noqa: PLC0415, --help needs none of the checks

    settings = Settings.load()
    configuration = read_configuration(settings)
    findings = examine(_checks_of(settings, configuration), seconds=seconds)
    counts = Counter(finding.verdict for finding in findings)
    _show(findings, counts, settings.env, as_json=as_json)
    return ExitCode.FINISHED_WITH_FAILURES if counts[Health.FAULT] else ExitCode.DONE


def _show(findings: Sequence[Diagnosis], counts: Mapping[Health, int], env: Environment, *, as_json: bool) -> None:
    if as_json:
        totals = {f"{verdict.value}s" if verdict is not Health.OK else "ok": counts[verdict] for verdict in Health}
        click.echo(json.dumps({**totals, "findings": [asdict(diagnosis) for diagnosis in findings]}))
        return
    from kfm_dagster.cli.tables import show_folded  # noqa: PLC0415, --help needs no tables

    if counts[Health.FAULT] and env is Environment.DEV:
        show_folded("", "kfm demo and kfm ui start their own queue and buckets; here, those of production are checked")
    causes = _by_cause(findings)
    width = max(len(_checks(alike)) for alike in causes)
    for alike in causes:
        first = alike[0]
        examples = "; ".join(diagnosis.what for diagnosis in alike[:EXAMPLES])
        more = f"; and {len(alike) - EXAMPLES} more" if len(alike) > EXAMPLES else ""
        count = f"{counted(len(alike), first.verdict.value)}: " if len(alike) > 1 else ""
        show_folded(f"{first.verdict.value:8}{_checks(alike):{width}}  ", count + examples + more)
        for name, value in (("observed", first.observed), ("expected", first.expected), ("next", first.next_step)):
            if value is not None:
                show_folded(f"{'':{8 + width}}  {name + ':':10}", value)
    faults, warnings = counted(counts[Health.FAULT], "fault"), counted(counts[Health.WARNING], "warning")
    click.echo(f"{faults}, {warnings}, {counts[Health.OK]} ok")


def _by_cause(findings: Iterable[Diagnosis]) -> list[list[Diagnosis]]:
    """Group the findings that differ only in `check` and `what`; each ok finding is a group."""
    causes: dict[object, list[Diagnosis]] = {}
    for number, finding in enumerate(findings):
        alike = replace(finding, what="", check="")
        causes.setdefault(number if finding.verdict is Health.OK else alike, []).append(finding)
    return list(causes.values())


def _checks(alike: Sequence[Diagnosis]) -> str:
    """Return the first word of the checks' names if several share it, else the first names."""
    names = list(dict.fromkeys(diagnosis.check for diagnosis in alike))
    first_words = {name.partition(" ")[0] for name in names}
    return first_words.pop() if len(first_words) < len(names) else ", ".join(names[:EXAMPLES])


def _checks_of(settings: Settings, read: Configuration) -> Mapping[str, Check]:
    from kfm_dagster.deployment.doctor import instance, queues, stores  # noqa: PLC0415
    from kfm_dagster.ingest import preflight  # noqa: PLC0415
    from kfm_dagster.ingest.calibration import time_server  # noqa: PLC0415
    from kfm_dagster.ingest.pipeline import utc_now  # noqa: PLC0415
    from kfm_dagster.storage.objects import ObjectStores  # noqa: PLC0415

    registry, rule = read.registry, read.card.machine.clock
    objects = ObjectStores(object_root=settings.object_root, anonymous=settings.anonymous)
    locations, broker = preflight.stores(settings), settings.celery_broker
    recorded = partial(queues.recorded_readings, settings, utc_now() - rule.tau_calib)
    endpoint = partial(time_server, settings, registry)
    folders = [settings.home, settings.dagster_home, *(Path(place) for *_, place in locations if "://" not in place)]
    return {
        "configuration": lambda: [
            ok(f"settings, pipeline card and {len(list(registry))} contracts are in order"),
            *(ok(f"{contract.id}: {contract.metadata.notice}") for contract in registry if contract.metadata.notice),
        ],
        "database": partial(stores.check_database, settings),
        "backups": partial(stores.check_backups, settings, utc_now),
        "retention": partial(stores.check_retention, settings),
        "queue": partial(queues.check_queue, settings, registry, today=utc_now().date()),
        "dead letters": partial(queues.check_dead_letters, settings),
        "clock": partial(queues.check_clock, rule, endpoint, utc_now, recorded=recorded),
        "senders": partial(queues.check_senders, settings, registry),
        "instance": partial(instance.check_instance, settings),
        "daemons": partial(instance.check_daemons, settings),
        **{name: partial(stores.check_store, name, setting, place) for name, setting, place in locations},
        **{
            f"objects {bucket}": partial(stores.check_bucket, objects, contracts[0], bucket)
            for bucket, contracts in registry.buckets.items()
        },
        "room": partial(stores.check_room, folders),
        **({"Celery": partial(instance.check_broker, broker.get_secret_value())} if broker is not None else {}),
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
        "the follower cannot be loaded, so it misses every change of the catalog from now on",
        observed=error,
        expected="a package that can be loaded",
        next_step="install what the follower needs, or uninstall the follower",
    )
