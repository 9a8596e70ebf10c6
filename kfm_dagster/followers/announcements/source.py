"""The source of announcements: a follower for each subscription of `announcements.yaml`.

Does not belong here: the choice of events (`announcer.py`). Whether a receiver accepts events is known only after the
first event was sent (`kfm announcements list`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from typing_extensions import override

from kfm_dagster.catalog.changes import Follower
from kfm_dagster.catalog.follower_sources import FollowerContext, FollowerSource
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import ConfigurationError, DependencyUnavailableError, KfmError
from kfm_dagster.followers.announcements.announcer import Announcer, receiver_of
from kfm_dagster.followers.announcements.plan import ANNOUNCEMENTS, AnnouncementPlan
from kfm_dagster.followers.announcements.sending import ReceiverUnavailableError
from kfm_dagster.followers.announcements.webhook import tokens_of
from kfm_dagster.settings import Settings


class AnnouncementSource(FollowerSource):
    """Creates a follower for each subscription."""

    @override
    def __init__(self, settings: Settings, registry: ContractRegistry) -> None:
        super().__init__(settings, registry)
        self.plan = AnnouncementPlan.load(settings.configs_dir, registry)
        self._tokens = tokens_of(settings.webhook_tokens, [sub.name for sub in self.plan.subscriptions])
        _refuse_absent_places(self.plan, settings)

    @override
    def followers(self, context: FollowerContext) -> Sequence[Follower]:
        return [
            Announcer(
                self.plan,
                sub,
                receiver=receiver_of(sub, self._tokens.get(sub.name)),
                database=context.database,
                registry=self.registry,
                catalog_url=self.settings.catalog,
                clock=context.clock,
            )
            for sub in self.plan.subscriptions
        ]

    @override
    def ask(self) -> Iterator[str | KfmError]:
        for sub in self.plan.subscriptions:
            try:
                is_there = receiver_of(sub, self._tokens.get(sub.name)).ask()
            except ReceiverUnavailableError as error:
                yield DependencyUnavailableError(
                    f"events of the subscription {sub.name} wait, because its target does not answer",
                    observed=f"{sub.target}: {error}",
                    expected="an answer",
                    next_step="create the target, or correct it in announcements.yaml",
                )
            else:
                yield f"{sub.name}: {sub.target} {'exists' if is_there else 'answers, and permits no further check'}"


def _refuse_absent_places(plan: AnnouncementPlan, settings: Settings) -> None:
    """Refuse a subscription with a follower in `after` that is not configured."""
    setting = {
        "stac-api": ("KFM_STAC_API_DSN", settings.stac_api_dsn),
        "geoparquet": ("KFM_GEOPARQUET", settings.geoparquet),
        "virtual-zarr": ("KFM_VIRTUAL_URL", settings.virtual_url),
    }
    for subscription in plan.subscriptions:
        for place in subscription.after:
            variable, value = setting[place]
            if not value:
                raise ConfigurationError(
                    f"subscription {subscription.name} waits for a follower that is not configured",
                    observed=f"after: {place}",
                    next_step=f"set {variable}, or remove {place} from {ANNOUNCEMENTS}",
                )
