"""Sending: send a batch's events to their receiver, and record the result of each event.

Accepted events are recorded before further requests. A refused event is retried in a request of its own. While the
receiver accepts other events, an event is given up after TRIES refusals in a batch, or after MAX_FAILURES failures. If
the receiver is down, the next batch contains the events again.

Does not belong here: the choice of events (`announcer.py`), rows (`store.py`), requests (`aws.py`, `webhook.py`).
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
"""Maximum requests to a receiver at the same time."""
TRIES = 3
"""Tries of a refused event. A refusal's cause can be another event of the request, or a receiver that just started."""
MAX_FAILURES = 20
"""An event that failed this often is given up if the receiver accepts other events. With a follower's pauses, this
takes some two and a half hours."""
MAX_REFUSALS = 20
"""After this number of refusals, sending stops if the receiver has accepted no event: the subscription is wrong."""
BUDGET_SECONDS = 30.0
"""After this time no further request begins, because other followers wait."""


@unique
class Reception(StrEnum):
    """Outcome of a sent event."""

    TAKEN = "taken"
    FAILED = "failed"
    """Not accepted; a later try can succeed."""
    REFUSED = "refused"
    """The receiver refuses the event for good."""
    UNREACHED = "unreached"
    """The receiver accepts no events now."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceiverAnswer:
    """A receiver's answer for an event; `error` is None if the event was accepted."""

    reception: Reception
    error: str | None = None


TAKEN = ReceiverAnswer(reception=Reception.TAKEN)


class ReceiverUnavailableError(Exception):
    """A receiver accepts no events from this sender now; the text contains no credential."""


class Receiver(Protocol):
    """Target of a subscription's events. Thread-safe after its first request."""

    most: int
    """Maximum events of a request."""

    def send(self, events: Sequence[OutgoingEvent]) -> Sequence[ReceiverAnswer]:
        """Send a request; return an answer per event, in order. Raises ReceiverUnavailableError."""
        ...


class Sending:
    """Sends a batch of a subscription's events. `room`: most bytes of a request."""

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
        """Reason for making no further requests."""

    def send(self, events: Iterable[OutgoingEvent], *, count: int) -> None:
        """Send `count` events. Raises FollowError if any was neither accepted nor given up."""
        waiting = in_parts(events, lambda event: (1, event.size), (self._receiver.most, self._room))
        with ThreadPoolExecutor(THREADS, thread_name_prefix="announce") as pool:
            width = 1  # the first request is alone, so that an unreachable receiver costs only one timeout
            while wave := list(islice(waiting, width)):
                answers = pool.map(with_context(partial(request, self._receiver)), wave)
                self._keep(
                    [
                        pair
                        for batch, reply in zip(wave, answers, strict=True)
                        for pair in zip(batch, reply, strict=True)
                    ]
                )
                width = THREADS
                if not self._goes_on():
                    break
        given_up = self._give_up()
        if not_taken := count - self._taken - given_up:
            reason = self._stopped or (self._failed or self._refused)[-1][1]
            raise FollowError(
                observed=f"{not_taken} of {count} events were not accepted: {reason}",
                next_step="none: the events are sent again automatically (see kfm announcements list)",
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
        """Return whether a further request can help."""
        if self._stopped is None and not self._taken and len(self._refused) >= MAX_REFUSALS:
            self._stopped = f"the receiver refuses every event, the first with {self._refused[0][1]}"
        elif self._stopped is None and time.monotonic() >= self._deadline:
            self._stopped = "the receiver is too slow, and the time for sending is over"
        return self._stopped is None

    def _give_up(self) -> int:
        """Retry refused events, then give up hopeless events; return the number given up.

        If the receiver accepts no event at all, no event is given up, because then the receiver is at fault.
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
            for most, group in ((1, self._refused), (MAX_FAILURES, self._failed))
            for event, error in group
            if failures.get(event.event_id, 0) >= most
        ]
        self._store.refused(self._collection, given_up)
        return len(given_up)


def request(receiver: Receiver, events: Sequence[OutgoingEvent]) -> Sequence[ReceiverAnswer]:
    """Send a request; return UNREACHED for each event if the receiver is unavailable."""
    try:
        hit(Failpoint.ANNOUNCEMENT_SEND_BEFORE)
        answers = receiver.send(events)
        hit(Failpoint.ANNOUNCEMENT_SEND_AFTER)
    except ReceiverUnavailableError as error:
        return [ReceiverAnswer(reception=Reception.UNREACHED, error=str(error))] * len(events)
    return answers
