"""The producer: announces objects as a standard queue may in the worst case: twice, late, out of order; by a seed.

Amazon SQS promises at-least-once delivery and best-effort ordering ("Amazon SQS standard queues", Developer Guide);
S3's event notifications and SNS promise no more. Belongs here: the disorder of deliveries. Does not belong
here: the announced objects (`pathologies.py`, `demo/sample_day.py`), and announcing (`demo/feed.py`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kfm_dagster.demo.feed import Feed, ObjectEvent
from kfm_dagster.errors import ConfigurationError

Event = TypeVar("Event")


@dataclass(frozen=True, kw_only=True, slots=True)
class Disorder:
    """The disorder of deliveries. The same seed gives the same deliveries."""

    seed: int = 0
    duplicate: float = 0.1
    """Share of the events that are delivered twice, 0 to 1."""
    late: float = 0.1
    """Share of the deliveries that come after all others, 0 to 1."""
    displaced: int = 10
    """Maximum number of places by which any other delivery may move."""

    def __post_init__(self) -> None:
        if not (0 <= self.duplicate <= 1 and 0 <= self.late <= 1 and self.displaced >= 0):
            raise ConfigurationError("a disorder is wrong", observed=self, expected="shares in 0..1, displaced >= 0")


def disordered(events: Sequence[Event], disorder: Disorder) -> tuple[list[Event], list[Event]]:
    """Return the timely deliveries and the late ones, each in order; every event is delivered once or twice."""
    chance = random.Random(disorder.seed)  # noqa: S311, a test must be repeatable, not secret
    timely: list[tuple[float, int, Event]] = []
    late: list[Event] = []
    for place, event in enumerate(events):
        for _ in range(2 if chance.random() < disorder.duplicate else 1):
            if chance.random() < disorder.late:
                late.append(event)
            else:
                # The number breaks ties, so that events need not be comparable.
                timely.append((place + chance.uniform(0, disorder.displaced), len(timely), event))
    chance.shuffle(late)
    return [event for _, _, event in sorted(timely, key=lambda entry: entry[:2])], late


class Producer:
    """A feed in disorder."""

    def __init__(self, feed: Feed, disorder: Disorder, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._feed = feed
        self._disorder = disorder
        self._sleep = sleep

    def announce(self, events: Iterable[ObjectEvent], *, late_by_seconds: float = 0) -> int:
        """Announce events in disorder, the late ones after a pause; return the number of messages.

        Raises what `Feed.announce` raises.
        """
        timely, late = disordered(list(events), self._disorder)
        messages = self._feed.announce(timely)
        if late:
            self._sleep(late_by_seconds)
            messages += self._feed.announce(late)
        return messages
