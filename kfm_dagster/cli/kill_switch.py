"""`kfm pause` and `kfm resume`, also `kfm kill-switch`: switch a dataset off and on again.

No unit of a dataset that is off is claimed, replayed or written; its messages stay in the queue.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import click

from kfm_dagster.cli.completion import DATASET_OR_ALL
from kfm_dagster.cli.decision_options import decision_of, decision_options
from kfm_dagster.cli.filter_options import lists
from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.governance.switches import EVERY_DATASET
from kfm_dagster.settings import Settings
from kfm_dagster.views.decisions import ALL, SWITCHES

_DURATION = re.compile(r"(\d{1,9})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@click.command()
@click.argument("dataset", type=DATASET_OR_ALL, metavar="DATASET|all")
@click.option("--expires", help="End: a duration (30m, 4h, 2d) or a time (2026-01-31T12:00:00Z). Default: no end.")
@decision_options
def pause(*, dataset: str, expires: str | None, **decided: Any) -> None:
    """Pause a dataset: none of its units is claimed, replayed or written.

    Its messages stay in the queue, and its units in the ledger.

    Example: kfm pause goes-abi --reason "INC-7: wrong projection upstream" --expires 4h
    """
    decision = decision_of(Settings.load(), **decided)
    with opened_pipeline() as pipeline:
        name = EVERY_DATASET if dataset == ALL else pipeline.registry[dataset].id
        expires_at = None if expires is None else _moment(expires, now=pipeline.clock())
        pipeline.ledger.switches.engage(name, decision, expires_at=expires_at)
    until = "until it is switched on again" if expires_at is None else f"until {rfc3339(expires_at)}"
    click.echo(f"{dataset} is off {until}")


@click.command()
@click.argument("dataset", type=DATASET_OR_ALL, metavar="DATASET|all")
@decision_options
def resume(*, dataset: str, **decided: Any) -> None:
    """Resume a paused dataset.

    Example: kfm resume goes-abi --reason "INC-7 is over"
    """
    decision = decision_of(Settings.load(), **decided)
    with opened_pipeline() as pipeline:
        pipeline.ledger.switches.release(EVERY_DATASET if dataset == ALL else dataset, decision)
        with pipeline.database.snapshot() as tx:
            still = EVERY_DATASET in pipeline.ledger.switches.engaged(tx=tx) and dataset != ALL
    click.echo(f"{dataset} is on again" + (", but the switch for all datasets is still on" if still else ""))


@click.group("kill-switch")
def kill_switch() -> None:
    """Switch datasets off and on, or list the datasets that are off.

    Example: kfm pause all --reason "INC-7: the catalog is being moved"
    """


kill_switch.add_command(pause, "on")
kill_switch.add_command(resume, "off")


@kill_switch.command("list")
@lists(SWITCHES)
def list_switches() -> None:
    """List the paused datasets. Earlier pauses are in kfm governance log.

    Example: kfm governance paused --json
    """


def _moment(text: str, *, now: datetime) -> datetime:
    moment = None
    with suppress(ValueError, OverflowError):
        match = _DURATION.fullmatch(text)
        moment = now + timedelta(**{_UNITS[match[2]]: int(match[1])}) if match else datetime.fromisoformat(text)
    if moment is None or moment.tzinfo is None:
        raise click.BadParameter(
            f"{text!r} is neither a duration (30m, 4h, 2d) nor a time with its zone (2026-01-31T12:00:00Z)",
            param_hint="--expires",
        )
    return moment
