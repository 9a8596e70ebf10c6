"""Sending: events of one batch go to their receiver, and what became of each is kept.

What is taken is written down at once. What is refused for good is tried alone, and given up; so is what fails again and
again while the receiver takes others. What the receiver does not take because it is down is left to the next time.

Does not belong here: which events there are (`announcer.py`), the rows (`store.py`), requests (`aws.py`, `webhook.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice

from kfm_dagster.catalog.changes import FollowError
from kfm_dagster.failpoints import Failpoint, hit, with_context
from kfm_dagster.followers.announcements.event import OutgoingEvent
from kfm_dagster.followers.announcements.receiver import (
    Receiver,
    ReceiverAnswer,
    ReceiverUnavailableError,
    Reception,
)
from kfm_dagster.followers.announcements.store import AnnouncementStore
from kfm_dagster.notifications.sqs import requests

THREADS = 8
"""Requests to one receiver at the same time."""
TRIES = 3
"""Of an event that is refused for good: what shared its request may be at fault, or a receiver that has just begun."""
MAX_FAILURES = 20
"""Of an event that fails while the receiver takes others; with a follower's pauses, about three hours."""
MAX_REFUSALS = 20
"""A receiver that has refused so many and taken none is asked no further: it is the subscription that is wrong."""
BUDGET_SECONDS = 30.0
"""After so long no further request is begun: who brings followers up to date has other things to do."""


@dataclass(kw_only=True)
class _Batch:
    """Events on their way: what became of those that were sent."""

    collection: str
    begun_at: datetime
    deadline: float
    taken: int = 0
    refused: list[tuple[OutgoingEvent, str]] = field(default_factory=list)
    failed: list[tuple[OutgoingEvent, str]] = field(default_factory=list)
    stopped: str | None = None
    """Why no further request is made."""

    def add(self, event: OutgoingEvent, answer: ReceiverAnswer) -> None:
        """Count an answer."""
        error = answer.error or answer.reception
        match answer.reception:
            case Reception.TAKEN:
                self.taken += 1
            case Reception.REFUSED:
                self.refused.append((event, error))
            case Reception.FAILED:
                self.failed.append((event, error))
            case Reception.UNREACHED:
                self.stopped = error

    @property
    def goes_on(self) -> bool:
        """Whether a further request may help."""
        if self.stopped is None and not self.taken and len(self.refused) >= MAX_REFUSALS:
            self.stopped = f"it refuses everything, at first with {self.refused[0][1]}"
        elif self.stopped is None and time.monotonic() >= self.deadline:
            self.stopped = "it is slow: the time for it is over"
        return self.stopped is None


class EventSender:
    """Sends the events of one subscription. `room`: bytes of a request."""

    def __init__(
        self,
        receiver: Receiver,
        store: AnnouncementStore,
        *,
        room: int,
        clock: Callable[[], datetime],
        budget_seconds: float,
    ) -> None:
        self._receiver = receiver
        self._store = store
        self._room = room
        self._clock = clock
        self._budget = budget_seconds

    def send(self, collection: str, events: Iterable[OutgoingEvent], *, count: int) -> None:
        """Send so many events of a collection. Raises FollowError unless each was taken or given up."""
        if not count:
            return
        batch = _Batch(collection=collection, begun_at=self._clock(), deadline=time.monotonic() + self._budget)
        waiting = requests(events, lambda event: event.size, most=self._receiver.most, room=self._room)
        with ThreadPoolExecutor(THREADS, thread_name_prefix="announce") as pool:
            width = 1  # a receiver that is down costs one wait
            while wave := list(islice(waiting, width)):
                self._keep(batch, wave, list(pool.map(with_context(self.request), wave)))
                width = THREADS
                if not batch.goes_on:
                    break
        given_up = self._give_up(batch)
        if left := count - batch.taken - given_up:
            why = batch.stopped or (batch.failed or batch.refused)[-1][1]
            raise FollowError(
                observed=f"{left} of {count} events were not taken: {why}",
                next_step="they are sent again by themselves; kfm announcements list",
            )

    def request(self, events: Sequence[OutgoingEvent]) -> Sequence[ReceiverAnswer]:
        """Make one request."""
        try:
            hit(Failpoint.ANNOUNCEMENT_SEND_BEFORE)
            answers = self._receiver.send(events)
            hit(Failpoint.ANNOUNCEMENT_SEND_AFTER)
        except ReceiverUnavailableError as error:
            return [ReceiverAnswer(reception=Reception.UNREACHED, error=str(error))] * len(events)
        return answers

    def _keep(
        self, batch: _Batch, wave: Sequence[Sequence[OutgoingEvent]], answers: Sequence[Sequence[ReceiverAnswer]]
    ) -> None:
        pairs = [pair for sent, said in zip(wave, answers, strict=True) for pair in zip(sent, said, strict=True)]
        for event, answer in pairs:
            batch.add(event, answer)
        self._store.taken(batch.collection, [event for event, answer in pairs if answer.reception is Reception.TAKEN])

    def _give_up(self, batch: _Batch) -> int:
        """Try what was refused once more, give up what the receiver never takes, and return how many these are.

        Nothing is given up of a receiver that takes nothing else, either: then it is not the event that is wrong.
        """
        refused, batch.refused = batch.refused, []
        for event, error in refused:
            answer = (
                self._alone(event, error) if batch.goes_on else ReceiverAnswer(reception=Reception.FAILED, error=error)
            )
            batch.add(event, answer)
            if answer.reception is Reception.TAKEN:
                self._store.taken(batch.collection, [event])
        failures = self._store.failed(batch.collection, [*batch.refused, *batch.failed], begun_at=batch.begun_at)
        given_up = [
            (event, error)
            for most, those in ((1, batch.refused), (MAX_FAILURES, batch.failed))
            for event, error in those
            if failures.get(event.event_id, 0) >= most
        ]
        self._store.refused(batch.collection, given_up)
        return len(given_up)

    def _alone(self, event: OutgoingEvent, error: str) -> ReceiverAnswer:
        answer = ReceiverAnswer(reception=Reception.REFUSED, error=error)
        for _ in range(TRIES - 1):
            [answer] = self.request([event])
            if answer.reception is not Reception.REFUSED:
                break
        return answer
