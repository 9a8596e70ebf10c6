"""Item changes for followers, and an in-memory receiver with configurable answers."""

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
    """Write a configuration folder with the subscription `one`."""
    folder.mkdir(exist_ok=True)
    (folder / ANNOUNCEMENTS).write_text(_plan(target, more), encoding="utf-8")
    return folder


def _plan(target: str, more: str = "") -> str:
    return f'version: "1.0.0"\nsubscriptions:\n  - {{name: one, target: {{{target}}}{more}}}\n'


def announcer_to(
    target: str, database: Database, contracts: ContractRegistry, *, token: SecretStr | None = None
) -> Announcer:
    """Return the announcer of the subscription `one`, with the receiver of its target."""
    plan = AnnouncementPlan.parse(_plan(target))
    [subscription] = plan.subscriptions
    receiver = receiver_of(subscription, token)
    return Announcer(plan, subscription, receiver=receiver, **_parts(database, contracts, Clock()))


def _parts(database: Database, contracts: ContractRegistry, clock: Clock) -> dict[str, Any]:
    return {"database": database, "registry": contracts, "catalog_url": "catalog", "clock": clock}


def item_of(contracts: ContractRegistry, envelope: Envelope | None = None, **properties: Any) -> dict[str, Any]:
    """Return the catalog's Item of an envelope, with further properties."""
    [candidate] = candidates(contracts, [envelope or goes(0)])
    item = dict(candidate.item)
    return {**item, "properties": {**item["properties"], **properties}}


@dataclass
class Inbox:
    """A receiver that accepts each event unless it is down; `answers` sets other answers."""

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
            answers = [self.answers(event) for event in events]
            self.bodies += [event.body for event, answer in zip(events, answers, strict=True) if answer is TAKEN]
            return answers

    @property
    def taken(self) -> list[dict[str, Any]]:
        """The accepted events, in order."""
        return [json.loads(body) for body in self.bodies]

    def news(self) -> list[tuple[str, str]]:
        """Return (Item id, event type) of the events accepted since the last call, sorted by Item."""
        events, self.bodies = self.taken, []
        return sorted((event["subject"].rpartition("/")[2], event["type"].rpartition(".")[2]) for event in events)


@dataclass
class Subscribed:
    """An announcer over a database, with its receiver and clock."""

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
    """Return an announcer of the plan's first subscription, with the fields of `more` changed."""
    plan = AnnouncementPlan.parse(text)
    subscription = plan.subscriptions[0].model_copy(update=more)
    box, clock = inbox or Inbox(), Clock()
    parts = _parts(database, contracts, clock)
    announcer = Announcer(plan, subscription, receiver=box, budget_seconds=budget_seconds, **parts)
    return Subscribed(announcer=announcer, inbox=box, clock=clock, contracts=contracts)
