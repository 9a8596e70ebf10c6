"""Sending: events of one batch go to their receiver, and what became of each is kept.

What is taken is written down at once. What is refused for good is tried alone, and given up; so is what fails again and
again while the receiver takes others. What the receiver does not take because it is down is left to the next time.

Does not belong here: which events there are (`announcer.py`), the rows (`store.py`), requests (`aws.py`, `webhook.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum, unique
from functools import partial
from itertools import islice
from typing import Protocol

from kfm_dagster.catalog.changes import FollowError
from kfm_dagster.failpoints import Failpoint, hit, with_context
from kfm_dagster.followers.announcements.event import OutgoingEvent
from kfm_dagster.followers.announcements.store import AnnouncementStore
from kfm_dagster.notifications.receiving import in_parts

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


@unique
class Reception(StrEnum):
    """What became of an event that was sent."""

    TAKEN = "taken"
    FAILED = "failed"
    """Not this time."""
    REFUSED = "refused"
    """The receiver says that it never takes this one."""
    UNREACHED = "unreached"
    """Nobody takes anything there now."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceiverAnswer:
    """What a receiver said of one event; `error` is None when it took it."""

    reception: Reception
    error: str | None = None


TAKEN = ReceiverAnswer(reception=Reception.TAKEN)


class ReceiverUnavailableError(Exception):
    """A receiver takes nothing now, or not from us; the text says why, and holds no credential."""


class Receiver(Protocol):
    """Where the events of a subscription go. Thread-safe once a first request was made."""

    most: int
    """Events that one request holds."""

    def send(self, events: Sequence[OutgoingEvent]) -> Sequence[ReceiverAnswer]:
        """Send a request of events; return what was said of each, in order. Raises ReceiverUnavailableError."""
        ...


class Sending:
    """The events of one batch of a subscription on their way. `room`: bytes of a request."""

    def __init__(
        self,
        receiver: Receiver,
        store: AnnouncementStore,
        collection: str,
        *,
        room: int,
        begun_at: datetime,
        budget_seconds: float,
    ) -> None:
        self._receiver = receiver
        self._store = store
        self._collection = collection
        self._room = room
        self._begun_at = begun_at
        self._deadline = time.monotonic() + budget_seconds
        self._taken = 0
        self._refused: list[tuple[OutgoingEvent, str]] = []
        self._failed: list[tuple[OutgoingEvent, str]] = []
        self._stopped: str | None = None
        """Why no further request is made."""

    def send(self, events: Iterable[OutgoingEvent], *, count: int) -> None:
        """Send so many events. Raises FollowError unless each was taken or given up."""
        waiting = in_parts(events, lambda event: (1, event.size), (self._receiver.most, self._room))
        with ThreadPoolExecutor(THREADS, thread_name_prefix="announce") as pool:
            width = 1  # a receiver that is down costs one wait
            while wave := list(islice(waiting, width)):
                answers = pool.map(with_context(partial(request, self._receiver)), wave)
                self._keep(
                    [pair for sent, said in zip(wave, answers, strict=True) for pair in zip(sent, said, strict=True)]
                )
                width = THREADS
                if not self._goes_on():
                    break
        given_up = self._give_up()
        if left := count - self._taken - given_up:
            why = self._stopped or (self._failed or self._refused)[-1][1]
            raise FollowError(
                observed=f"{left} of {count} events were not taken: {why}",
                next_step="they are sent again by themselves; kfm announcements list",
            )

    def _keep(self, pairs: Sequence[tuple[OutgoingEvent, ReceiverAnswer]]) -> None:
        taken = []
        for event, answer in pairs:
            error = answer.error or answer.reception
            match answer.reception:
                case Reception.TAKEN:
                    taken.append(event)
                case Reception.REFUSED:
                    self._refused.append((event, error))
                case Reception.FAILED:
                    self._failed.append((event, error))
                case Reception.UNREACHED:
                    self._stopped = error
        self._taken += len(taken)
        self._store.taken(self._collection, taken)

    def _goes_on(self) -> bool:
        """Tell whether a further request may help."""
        if self._stopped is None and not self._taken and len(self._refused) >= MAX_REFUSALS:
            self._stopped = f"it refuses everything, at first with {self._refused[0][1]}"
        elif self._stopped is None and time.monotonic() >= self._deadline:
            self._stopped = "it is slow: the time for it is over"
        return self._stopped is None

    def _give_up(self) -> int:
        """Try what was refused once more, give up what the receiver never takes, and return how many these are.

        Nothing is given up of a receiver that takes nothing else, either: then it is not the event that is wrong.
        """
        refused, self._refused = self._refused, []
        for event, error in refused:
            reception = Reception.REFUSED if self._goes_on() else Reception.FAILED
            answer = ReceiverAnswer(reception=reception, error=error)
            for _ in range(TRIES - 1):
                if answer.reception is not Reception.REFUSED:
                    break
                [answer] = request(self._receiver, [event])
            self._keep([(event, answer)])
        failures = self._store.failed(self._collection, [*self._refused, *self._failed], begun_at=self._begun_at)
        given_up = [
            (event, error)
            for most, those in ((1, self._refused), (MAX_FAILURES, self._failed))
            for event, error in those
            if failures.get(event.event_id, 0) >= most
        ]
        self._store.refused(self._collection, given_up)
        return len(given_up)


def request(receiver: Receiver, events: Sequence[OutgoingEvent]) -> Sequence[ReceiverAnswer]:
    """Make one request."""
    try:
        hit(Failpoint.ANNOUNCEMENT_SEND_BEFORE)
        answers = receiver.send(events)
        hit(Failpoint.ANNOUNCEMENT_SEND_AFTER)
    except ReceiverUnavailableError as error:
        return [ReceiverAnswer(reception=Reception.UNREACHED, error=str(error))] * len(events)
    return answers
