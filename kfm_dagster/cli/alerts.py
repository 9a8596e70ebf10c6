"""`kfm alerts`: list firing alerts, acknowledge them, and test the channels.

Does not belong here: the evaluation of the rules, which is part of the sensor `nodd_due`.
"""

from __future__ import annotations

import json

import click

from kfm_dagster.alerts.evaluator import try_out
from kfm_dagster.alerts.store import AlertStore
from kfm_dagster.cli.completion import POSITIVE
from kfm_dagster.cli.decision_options import actor_of, actor_option
from kfm_dagster.cli.filter_options import lists
from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.cli.tables import object_as_json, rows_as_json, show_rows
from kfm_dagster.errors import ExitCode
from kfm_dagster.governance.log import Decision
from kfm_dagster.settings import Settings
from kfm_dagster.stages.card import Card
from kfm_dagster.views.decisions import ALERTS
from kfm_dagster.views.view import json_row

TRIED = ("channel", "service", "answer")


@click.group()
def alerts() -> None:
    """List and acknowledge alerts, and test their channels.

    Example: kfm alerts list
    """


@alerts.command("list")
@lists(ALERTS)
def list_() -> None:
    """List the firing and acknowledged alerts of the last evaluation.

    Example: kfm alerts list --json
    """


@alerts.command()
@click.argument("alert_id", type=POSITIVE)
@click.option("--reason", required=True, help="Reason, recorded in the governance log.")
@actor_option
@object_as_json
def ack(*, alert_id: int, reason: str, actor: str | None, as_json: bool) -> None:
    """Acknowledge an alert: it is sent again only if it still fires after its escalation time.

    Exit code 3 if the alert does not fire, 2 if no alert has this id.

    Example: kfm alerts ack 12 --reason "a radar was moved, its contract follows today"
    """
    with opened_pipeline() as pipeline:
        # Not an override: an acknowledgement needs no change reference, not even in prod.
        decision = Decision(actor=actor_of(pipeline.settings, actor), reason=reason)
        alert = AlertStore(pipeline.database, clock=pipeline.clock).acknowledge(alert_id, decision)
    click.echo(
        json.dumps(json_row(alert))
        if as_json
        else f"{alert.alert_id}: {alert.key}, acknowledged by {alert.acknowledged_by}"
    )


@alerts.command()
@rows_as_json
def test(*, as_json: bool) -> int:
    """Send a test message to every URL of every channel, and print each answer.

    Exit code 0 if every message was accepted, 4 if a message was refused or a channel has no URL (KFM_ALERT_URLS).

    Example: KFM_ALERT_URLS="notify=slack://... page_ops=pagerduty://..." kfm alerts test
    """
    settings = Settings.load()
    answers = try_out(Card.load(settings.configs_dir).alerts, settings.alert_urls)
    rows = [
        {"channel": channel, "service": answer.service, "answer": answer.error or "taken"}
        for channel, answer in answers
    ]
    show_rows(rows, TRIED, as_json=as_json, whole=True)
    all_taken = all(answer.error is None for _, answer in answers)
    return ExitCode.DONE if all_taken else ExitCode.FINISHED_WITH_FAILURES
