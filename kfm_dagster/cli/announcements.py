"""`kfm announcements`: list subscriptions to Items with their state, and send events again.

Does not belong here: the first sending of an event, by runs and by the sensor `nodd_ledger`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import click

from kfm_dagster.catalog.changes import Follower
from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.cli.tables import object_as_json, rows_as_json, show_rows
from kfm_dagster.errors import ConfigurationError, ExitCode
from kfm_dagster.followers.announcements.announcer import Announcer
from kfm_dagster.followers.announcements.plan import ANNOUNCEMENTS

COLUMNS = ("subscription", "target", "sent", "waiting", "failing", "refused", "next_attempt_at", "last_error")
TROUBLE = ("subscription", "collection_id", "item_id", "kind", "state", "attempts", "failing_since", "last_error")


@click.group()
def announcements() -> None:
    """List receivers of Item events, and resend failed events.

    Example: kfm announcements list
    """


@announcements.command("list")
@rows_as_json
def list_(*, as_json: bool) -> int:
    """List the subscriptions with their counts of sent events, waiting changes and failures.

    Exit code 4 if sending to a subscription waits after an error, an event fails, or an event was given up.

    Example: kfm announcements list --json
    """
    with opened_pipeline(read_only=True) as pipeline:
        rows: list[dict[str, Any]] = [
            {
                "subscription": announcer.subscription.name,
                "target": str(announcer.subscription.target),
                **asdict(announcer.store.status(announcer.name)),
            }
            for announcer in _announcers(pipeline.followers)
        ]
    if not rows and not as_json:
        click.echo("no subscriptions (announcements.yaml)")
        return ExitCode.DONE
    show_rows(rows, COLUMNS, as_json=as_json)
    well = not any(row["failing"] or row["refused"] or row["last_error"] for row in rows)
    return ExitCode.DONE if well else ExitCode.FINISHED_WITH_FAILURES


@announcements.command()
@click.argument("subscription", required=False)
@rows_as_json
def failing(*, subscription: str | None, as_json: bool) -> None:
    """List the Items whose newest event failed: refused (given up) or open (retried).

    Example: kfm announcements failing kansas-radar
    """
    with opened_pipeline(read_only=True) as pipeline:
        rows = [
            {"subscription": announcer.subscription.name, **row}
            for announcer in _announcers(pipeline.followers, subscription)
            for row in announcer.store.in_trouble()
        ]
    show_rows(rows, TROUBLE, as_json=as_json)


@announcements.command()
@click.argument("subscription")
@click.option(
    "--all", "everything", is_flag=True, help="Send all current Items instead, for a receiver that lost its data."
)
@object_as_json
def resend(*, subscription: str, everything: bool, as_json: bool) -> int:
    """Resend the events that were given up; each keeps its id.

    Exit code 4 if an event is refused again, 5 if the receiver accepts no event.

    Example: kfm announcements resend kansas-radar
    """
    with opened_pipeline() as pipeline:
        [announcer] = _announcers(pipeline.followers, subscription)
        if everything:
            # Datasets can share a Collection. Only the contract of its owner is used, so that each Item is sent once.
            owners = (contract for contract in pipeline.registry if contract.stac.collection_of is None)
            counts = {"changes": sum(pipeline.following.rebuild(announcer, owner) for owner in owners)}
            refused = announcer.store.status(announcer.name).refused
        else:
            accepted, refused = announcer.resend()
            counts = {"taken": accepted}
    result = {"subscription": subscription, **counts, "refused": refused}
    summary = ", ".join(f"{number} {name}" for name, number in {**counts, "refused": refused}.items())
    click.echo(json.dumps(result) if as_json else f"{subscription}: {summary}")
    return ExitCode.FINISHED_WITH_FAILURES if refused else ExitCode.DONE


def _announcers(followers: Iterable[Follower], name: str | None = None) -> list[Announcer]:
    """Return all announcers, or the named one; raise ConfigurationError for an unknown name."""
    announcers = {follower.subscription.name: follower for follower in followers if isinstance(follower, Announcer)}
    if name is None:
        return list(announcers.values())
    if name not in announcers:
        raise ConfigurationError(
            "there is no such subscription",
            observed=name,
            expected=", ".join(announcers) or f"one in {ANNOUNCEMENTS}",
            next_step="kfm announcements list",
        )
    return [announcers[name]]
