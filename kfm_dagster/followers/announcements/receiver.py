"""Receivers: what takes events, and what it says of each.

Belongs here: the protocol. Does not belong here: how a receiver is spoken to
(`aws.py`, `webhook.py`), or what follows from its answer (`announcer.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum, unique
from typing import Protocol

from kfm_dagster.followers.announcements.event import OutgoingEvent


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
