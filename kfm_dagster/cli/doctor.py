"""`kfm doctor`: check a deployment, report faults with their next steps. Changes nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

import click

from kfm_dagster.deployment.doctor.checks import checks_of
from kfm_dagster.deployment.doctor.finding import Diagnosis, Health, examine
from kfm_dagster.errors import ExitCode
from kfm_dagster.ingest.chain import read_configuration
from kfm_dagster.ingest.pipeline import utc_now
from kfm_dagster.settings import Settings


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
    """Look at a deployment: databases, backups, queues, clock, Dagster instance, stores, senders, receivers, disks.

    Every finding that is not ok says what was observed, what was expected and what to do. Nothing is changed, and every
    check is bounded in time. Exit code 0 without faults (there may be warnings), 4 with one, 2 for settings that cannot
    be read.

    Example: kfm doctor --json
    """
    settings = Settings.load()
    configuration = read_configuration(settings)
    findings = examine(checks_of(settings, configuration, clock=utc_now), seconds=seconds)
    _show(findings, as_json=as_json)
    return ExitCode.FINISHED_WITH_FAILURES if _count(findings)[Health.FAULT] else ExitCode.DONE


def _show(found: Sequence[Diagnosis], *, as_json: bool) -> None:
    counts = _count(found)
    if as_json:
        counted = {f"{verdict.value}s" if verdict is not Health.OK else "ok": counts[verdict] for verdict in Health}
        click.echo(json.dumps({**counted, "findings": [asdict(entry) for entry in found]}))
        return
    width = max(len(entry.check) for entry in found)
    for entry in found:
        click.echo(f"{entry.verdict.value:8}{entry.check:{width}}  {entry.what}")
        for name, value in (("observed", entry.observed), ("expected", entry.expected), ("next", entry.next_step)):
            if value is not None:
                click.echo(f"{'':{8 + width}}  {name + ':':10}{value}")
    click.echo(f"{counts[Health.FAULT]} faults, {counts[Health.WARNING]} warnings, {counts[Health.OK]} ok")


def _count(found: Sequence[Diagnosis]) -> Counter[Health]:
    return Counter(finding.verdict for finding in found)
