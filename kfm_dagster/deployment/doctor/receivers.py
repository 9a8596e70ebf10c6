"""Receivers of announcements: whether each target of announcements.yaml is there. Nothing is sent to it.

Does not belong here: whether it takes an event, which only sending one shows (`kfm announcements list`).
"""

from __future__ import annotations

from collections.abc import Iterator

from kfm_dagster.deployment.doctor.finding import Diagnosis, fault, ok
from kfm_dagster.followers.announcements.announcer import receiver_of
from kfm_dagster.followers.announcements.plan import AnnouncementPlan
from kfm_dagster.followers.announcements.receiver import ReceiverUnavailableError
from kfm_dagster.followers.announcements.webhook import tokens_of
from kfm_dagster.settings import Settings


def check_receivers(settings: Settings, plan: AnnouncementPlan) -> Iterator[Diagnosis]:
    """Ask for each target. Raises ConfigurationError for a wrong KFM_WEBHOOK_TOKENS."""
    tokens = tokens_of(settings.webhook_tokens, [one.name for one in plan.subscriptions])
    for one in plan.subscriptions:
        try:
            there = receiver_of(one, tokens.get(one.name)).ask()
        except ReceiverUnavailableError as error:
            yield fault(
                f"events of the subscription {one.name} wait: its target is not there",
                observed=f"{one.target}: {error}",
                expected="an answer",
                next_step="make it, or correct the target in announcements.yaml",
            )
            continue
        yield ok(f"{one.name}: {one.target} {'is there' if there else 'answers, and may not be asked for more'}")
