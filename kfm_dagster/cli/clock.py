"""`kfm clock`: the readings of this machine's clock, and whether they allow stages to write."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta

import click

from kfm_dagster.cli.session import opened_database
from kfm_dagster.cli.tables import object_as_json, show_fields, show_section
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import ExitCode
from kfm_dagster.ingest.calibration import time_server
from kfm_dagster.ingest.pipeline import utc_now
from kfm_dagster.settings import Settings
from kfm_dagster.stages.card import Card
from kfm_dagster.telemetry.clock.quality import ClockQuality, clock_quality
from kfm_dagster.telemetry.clock.reading import ClockDecision, ClockLog, ClockReading, decide
from kfm_dagster.telemetry.clock.sources import measure
from kfm_dagster.views.view import json_row

SHOWN = timedelta(days=30)
"""Maximum age of the readings in the summary; the database keeps readings at least as long."""

SOURCE_COLUMNS = ("source", "readings", "at", "offset_seconds", "uncertainty_seconds", "delta_t_abs")
STABILITY_COLUMNS = ("source", "tau_seconds", "sigma_y", "terms")


@click.command()
@click.option("--ask", is_flag=True, help="Measure now, also by a request to the object store; record the readings.")
@object_as_json
def clock(*, ask: bool, as_json: bool) -> int:
    """Show the error of this machine's clock, and whether it allows stages to write.

    Offsets are true time minus this clock, in seconds. Exit code 0 if stages may write, 4 if not. If the object store
    does not answer, a warning names it, and the kernel and earlier readings decide.

    Example: kfm clock --ask --json
    """
    settings = Settings.load()
    rule = Card.load(settings.configs_dir).machine.clock
    endpoint = time_server(settings, ContractRegistry.load(settings.contracts_dir)) if ask else None
    with opened_database(settings, recording=ask) as database:
        log = ClockLog(database)
        now = measure(rule, clock=utc_now, endpoint=endpoint)
        if endpoint is not None and len(now) == 1:
            click.echo(f"kfm: {endpoint} did not answer; the state is from the kernel and earlier readings", err=True)
        if ask:
            log.record(now)
        started = utc_now()
        recorded = log.recent(since=started - SHOWN)
    # Without --ask, the kernel's reading is not recorded, but it counts in the decision.
    decision = decide(recorded if ask else [*recorded, *now], rule, ts_start=started)
    _show(now[0], decision, clock_quality(recorded), as_json=as_json)
    return ExitCode.DONE if decision.locked else ExitCode.FINISHED_WITH_FAILURES


def _show(kernel: ClockReading, decision: ClockDecision, qualities: Sequence[ClockQuality], *, as_json: bool) -> None:
    fields = {
        "state": decision.state.value,
        "reason": decision.reason,
        "calibrated_at": decision.calibrated_at,
        "kernel": kernel.state.value,
        "kernel_offset_seconds": kernel.offset_seconds,
        "kernel_uncertainty_seconds": kernel.uncertainty_seconds,
    }
    sources = [
        {"source": quality.source, "readings": quality.readings}
        | {name: getattr(quality.last, name) for name in SOURCE_COLUMNS[2:]}
        for quality in qualities
    ]
    stability = [{"source": quality.source, **asdict(point)} for quality in qualities for point in quality.stability]
    document = json_row({**fields, "sources": sources, "stability": stability})
    if as_json:
        click.echo(json.dumps(document))
        return
    show_fields({name: document[name] for name in fields})
    show_section("offsets", document["sources"], SOURCE_COLUMNS)
    show_section("stability", document["stability"], STABILITY_COLUMNS)
