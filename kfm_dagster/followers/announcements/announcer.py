"""The announcer: follows the catalog for one subscription, and notifies its receiver of what happened to each Item.

A change is in the catalog's outbox (`catalog_changes`) from the transaction that made it. What is about to be sent is
written down before it is sent and once it is taken, so a process that dies, or a receiver that takes a part, has only
the rest sent again, under the same ids.

Belongs here: what is announced. Does not belong here: what an event says (`event.py`), what follows from an answer
(`sending.py`), when it is tried again (`catalog/following.py`).
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
from kfm_dagster.followers.announcements.plan import AnnouncementPlan, Subscription
from kfm_dagster.followers.announcements.selection import Matches, compiled, within
from kfm_dagster.followers.announcements.sending import BUDGET_SECONDS, Receiver, Reception, Sending, request
from kfm_dagster.followers.announcements.store import Announced, AnnouncementState, AnnouncementStore
from kfm_dagster.followers.announcements.webhook import Webhook
from kfm_dagster.storage.database import Database


class Announcer:
    """A follower of the catalog that notifies one receiver."""

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
        """Tell the receiver what these changes are for it. Raises FollowError unless each was taken or given up."""
        collection = contract.stac.collection
        announced = self.store.announced(collection, [change.item_id for change in changes])
        decided = [
            (change, found)
            for change in changes
            if (found := self._decide(collection, change, announced.get(change.item_id))) is not None
        ]
        again = {one.event_id for one in announced.values()}
        begun = self.store.begin(collection, [one for _, one in decided if one.event_id not in again])
        due = [
            (change, one)
            for change, one in decided
            if one.state is AnnouncementState.OPEN and one.event_id in begun | again
        ]
        if due:
            sending = Sending(
                self._receiver,
                self.store,
                collection,
                room=self.subscription.max_bytes,
                begun_at=self._clock(),
                budget_seconds=self._budget_seconds,
            )
            events = (self._writer.write(collection, change, one.kind) for change, one in due)
            sending.send(events, count=len(due))

    def forget(self, contract: DatasetContract) -> None:
        """Have all current Items announced again, under the same ids: a receiver keeps what it has got."""
        self.store.forget(contract.stac.collection)

    def resend(self) -> tuple[int, int]:
        """Send again what was given up; return how many events were taken and how many were not.

        Raises FollowError when the receiver takes nothing.
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
        """Return what a change is for this receiver; None when it has nothing to hear.

        A receiver that got an Item gets its later changes, whatever the filters say now: otherwise it would keep
        what is no more.
        """
        if announced is not None and announced.change_id >= change.change_id:
            if announced.change_id > change.change_id or announced.state is not AnnouncementState.OPEN:
                return None
            kind = announced.kind
        elif announced is None or announced.is_over:
            if change.item is None or not self._wants(change):
                return None
            kind = ChangeKind.CREATED
        elif change.item is None:
            kind = ChangeKind.WITHDRAWN
        else:
            kind = ChangeKind.UPDATED if announced.known else ChangeKind.CREATED
        wanted = kind in self.subscription.kinds
        return Announced(
            item_id=change.item_id,
            change_id=change.change_id,
            kind=kind,
            event_id=self._writer.event_id(collection, change, kind),
            state=AnnouncementState.OPEN if wanted else AnnouncementState.SILENT,
        )

    def _wants(self, change: ItemChange) -> bool:
        since = self.subscription.since
        if change.item is None or (since is not None and change.changed_at < since):
            return False
        return all(matches(change.item) for matches in self._selects)


def receiver_of(subscription: Subscription, token: SecretStr | None) -> AwsReceiver | Webhook:
    """Return what speaks to a subscription's target; connects to nothing."""
    target = subscription.target
    if target.kind == "webhook":
        return Webhook(target.address, token=token)
    return AwsReceiver(target.kind, target.address)


def follower_name(subscription: str) -> str:
    """Return the name of a subscription's cursors."""
    return f"announcements.{subscription}"


def _selects(subscription: Subscription, registry: ContractRegistry) -> Iterator[Matches]:
    if subscription.datasets is not None:
        # An Item says by its public name whose it is; several datasets may write into one Collection.
        names = {registry.public_id(dataset) for dataset in subscription.datasets}

        def of_datasets(item: Mapping[str, Any]) -> bool:
            return item["properties"].get("kfm:dataset") in names

        yield of_datasets
    if subscription.bbox is not None:
        yield within(subscription.bbox)
    if subscription.filter is not None:
        yield compiled(subscription.filter)
