"""Changes of Items as a follower of the catalog gets them, and a receiver in memory that does as a test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from kfm_dagster.catalog.changes import ChangeKind, ItemChange
from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.followers.announcements.announcer import Announcer, receiver_of
from kfm_dagster.followers.announcements.event import OutgoingEvent
from kfm_dagster.followers.announcements.plan import ANNOUNCEMENTS, AnnouncementPlan
from kfm_dagster.followers.announcements.sending import (
    BUDGET_SECONDS,
    TAKEN,
    ReceiverAnswer,
    ReceiverUnavailableError,
    Reception,
)
from kfm_dagster.followers.announcements.store import SubscriptionStatus
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.catalog.envelopes import candidates, goes
from kfm_dagster_tests.ledger.bench import Clock

WITHDRAWN = ChangeKind.WITHDRAWN
FAILED = ReceiverAnswer(reception=Reception.FAILED, error="HTTP 500")
REFUSED = ReceiverAnswer(reception=Reception.REFUSED, error="HTTP 422")

TEXT = """
version: "1.0.0"
catalog: https://data.example.org/stac
subscriptions:
  - {name: one, target: {webhook: "https://hooks.example.org/items"}}
"""


def subscribed(folder: Path, target: str, more: str = "") -> Path:
    """A folder of configuration with the subscription `one`."""
    folder.mkdir(exist_ok=True)
    text = f'version: "1.0.0"\nsubscriptions:\n  - {{name: one, target: {{{target}}}{more}}}\n'
    (folder / ANNOUNCEMENTS).write_text(text, encoding="utf-8")
    return folder


def announcers_of(
    plan: AnnouncementPlan, database: Database, contracts: ContractRegistry, *, token: SecretStr | None = None
) -> list[Announcer]:
    """The followers of a plan's subscriptions, which speak to its targets."""
    parts = _parts(database, contracts, Clock())
    return [
        Announcer(plan, subscription, receiver=receiver_of(subscription, token), **parts)
        for subscription in plan.subscriptions
    ]


def _parts(database: Database, contracts: ContractRegistry, clock: Clock) -> dict[str, Any]:
    return {"database": database, "registry": contracts, "catalog_url": "catalog", "clock": clock}


def item_of(contracts: ContractRegistry, envelope: Envelope | None = None, **properties: Any) -> dict[str, Any]:
    """An Item as the catalog has it, with further properties."""
    [found] = candidates(contracts, [envelope or goes(0)])
    item = dict(found.item)
    return {**item, "properties": {**item["properties"], **properties}}


@dataclass
class Inbox:
    """A receiver that takes everything, unless `answers` says otherwise or it is down."""

    most: int = 10
    down: bool = False
    answers: Callable[[OutgoingEvent], ReceiverAnswer] = lambda _: TAKEN
    requests: list[list[str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def send(self, events: Sequence[OutgoingEvent]) -> list[ReceiverAnswer]:
        with self.lock:
            self.requests.append([event.item_id for event in events])
            if self.down:
                raise ReceiverUnavailableError("it is away")
            said = [self.answers(event) for event in events]
            self.bodies += [event.body for event, answer in zip(events, said, strict=True) if answer is TAKEN]
            return said

    @property
    def taken(self) -> list[dict[str, Any]]:
        """What was taken, in order."""
        return [json.loads(body) for body in self.bodies]

    def news(self) -> list[tuple[str, str]]:
        """Type and Item of what was taken since the last look, in the order of Items."""
        found, self.bodies = self.taken, []
        return sorted((event["subject"].rpartition("/")[2], event["type"].rpartition(".")[2]) for event in found)


@dataclass
class Subscribed:
    """An announcer over a database, and what its receiver hears."""

    announcer: Announcer
    inbox: Inbox
    clock: Clock
    contracts: ContractRegistry

    def follow(self, *changes: ItemChange) -> None:
        self.announcer.follow(self.contracts["goes-abi"], changes)

    def status(self) -> SubscriptionStatus:
        return self.announcer.store.status(self.announcer.name)


def subscribe(
    database: Database,
    contracts: ContractRegistry,
    text: str = TEXT,
    *,
    inbox: Inbox | None = None,
    budget_seconds: float = BUDGET_SECONDS,
    **more: Any,
) -> Subscribed:
    """An announcer of the first subscription of a plan, with a receiver in memory; `more` is of the subscription."""
    plan = AnnouncementPlan.parse(text)
    subscription = plan.subscriptions[0].model_copy(update=more)
    box, clock = inbox or Inbox(), Clock()
    parts = _parts(database, contracts, clock)
    found = Announcer(plan, subscription, receiver=box, budget_seconds=budget_seconds, **parts)
    return Subscribed(announcer=found, inbox=box, clock=clock, contracts=contracts)
