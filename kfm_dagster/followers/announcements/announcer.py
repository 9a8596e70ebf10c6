"""The announcer of a subscription notifies the subscription's receiver of changes of Items.

The transaction of a change also writes the change to the catalog's outbox (`catalog_changes`). Each event is recorded
before it is sent, and its acceptance is recorded after the receiver's answer. If the process dies, or the receiver
accepts only some events, the events without recorded acceptance are sent again, under the same ids.

Does not belong here: content of events (`event.py`), answers (`sending.py`), retries (`catalog/following.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import SecretStr

from kfm_dagster.catalog.changes import ChangeKind, FollowError, ItemChange
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.followers.announcements.aws import AwsReceiver
from kfm_dagster.followers.announcements.event import EventWriter
from kfm_dagster.followers.announcements.plan import AnnouncementPlan, Subscription, follower_name
from kfm_dagster.followers.announcements.selection import Matches, compiled, within
from kfm_dagster.followers.announcements.sending import BUDGET_SECONDS, Receiver, Reception, Sending, request
from kfm_dagster.followers.announcements.store import Announced, AnnouncementState, AnnouncementStore
from kfm_dagster.followers.announcements.webhook import Webhook
from kfm_dagster.storage.database import Database


class Announcer:
    """A follower of the catalog that notifies a receiver."""

    def __init__(
        self,
        plan: AnnouncementPlan,
        subscription: Subscription,
        *,
        receiver: Receiver,
        database: Database,
        registry: ContractRegistry,
        catalog_url: str,
        clock: Callable[[], datetime],
        budget_seconds: float = BUDGET_SECONDS,
    ) -> None:
        self.name = follower_name(subscription.name)
        self.after: Sequence[str] = subscription.after
        self.subscription = subscription
        self.store = AnnouncementStore(database, subscription.name, clock=clock)
        self._receiver = receiver
        self._clock = clock
        self._budget_seconds = budget_seconds
        self._writer = EventWriter(plan, subscription, catalog_url=catalog_url)
        self._selects = list(_selects(subscription, registry))

    def follow(self, contract: DatasetContract, changes: Sequence[ItemChange]) -> None:
        """Notify the receiver of changes.

        Raises FollowError if any event was neither accepted nor given up.
        """
        collection = contract.stac.collection
        announced = self.store.announced(collection, [change.item_id for change in changes])
        decided = [
            (change, event)
            for change in changes
            if (event := self._decide(collection, change, announced.get(change.item_id))) is not None
        ]
        known_ids = {entry.event_id for entry in announced.values()}
        recorded_ids = self.store.begin(collection, [entry for _, entry in decided if entry.event_id not in known_ids])
        to_send = [
            (change, entry)
            for change, entry in decided
            if entry.state is AnnouncementState.OPEN and entry.event_id in recorded_ids | known_ids
        ]
        if to_send:
            sending = Sending(
                self._receiver,
                self.store,
                collection,
                room=self.subscription.max_bytes,
                begun_at=self._clock(),
                budget_seconds=self._budget_seconds,
            )
            events = (self._writer.write(collection, change, entry.kind) for change, entry in to_send)
            sending.send(events, count=len(to_send))

    def forget(self, contract: DatasetContract) -> None:
        """Let a rebuild send the newest event of each current Item again, under the same event id."""
        self.store.forget(contract.stac.collection)

    def resend(self) -> tuple[int, int]:
        """Resend the events that were given up; return how many were accepted, and how many not.

        Raises FollowError if the receiver is unreachable.
        """
        given_up = self.store.to_resend(self._writer.content_type)
        taken = 0
        for event in given_up:
            [answer] = request(self._receiver, [event])
            if answer.reception is Reception.UNREACHED:
                raise FollowError(observed=f"{self.subscription.name}: {answer.error}", next_step="try again later")
            if answer.reception is Reception.TAKEN:
                self.store.taken(event.collection, [event])
                taken += 1
            else:
                self.store.refused(event.collection, [(event, answer.error or "")])
        return taken, len(given_up) - taken

    def _decide(self, collection: str, change: ItemChange, announced: Announced | None) -> Announced | None:
        """Return the event of a change for this receiver; None if the receiver needs no event.

        A receiver that has an Item gets the Item's later changes, even if the Item no longer matches the filters.
        Otherwise, the receiver would keep an outdated Item.
        """
        if announced is not None and announced.change_id >= change.change_id:
            if announced.change_id > change.change_id or announced.state is not AnnouncementState.OPEN:
                return None
            kind = announced.kind
        elif announced is None or announced.is_over:
            if change.content is None or not self._wants(change):
                return None
            kind = ChangeKind.CREATED
        elif change.content is None:
            kind = ChangeKind.WITHDRAWN
        else:
            kind = ChangeKind.UPDATED if announced.known else ChangeKind.CREATED
        is_subscribed = kind in self.subscription.kinds
        return Announced(
            item_id=change.item_id,
            change_id=change.change_id,
            kind=kind,
            event_id=self._writer.event_id(collection, change, kind),
            state=AnnouncementState.OPEN if is_subscribed else AnnouncementState.SILENT,
        )

    def _wants(self, change: ItemChange) -> bool:
        since = self.subscription.since
        if (since is not None and change.changed_at < since) or (item := change.item) is None:
            return False
        return all(matches(item) for matches in self._selects)


def receiver_of(subscription: Subscription, token: SecretStr | None) -> AwsReceiver | Webhook:
    """Return the receiver for a subscription's target, without connecting to it."""
    target = subscription.target
    if target.kind == "webhook":
        return Webhook(target.address, token=token)
    return AwsReceiver(target.kind, target.address)


def _selects(subscription: Subscription, registry: ContractRegistry) -> Iterator[Matches]:
    if subscription.datasets is not None:
        # An Item has its dataset's public name, because several datasets can write into one Collection.
        names = {registry.public_id(dataset) for dataset in subscription.datasets}

        def of_datasets(item: Mapping[str, Any]) -> bool:
            return item["properties"].get("kfm:dataset") in names

        yield of_datasets
    if subscription.bbox is not None:
        yield within(subscription.bbox)
    if subscription.filter is not None:
        yield compiled(subscription.filter)
