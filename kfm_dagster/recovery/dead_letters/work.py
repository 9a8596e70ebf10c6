"""Work on the dead-letter queue in bounded batches, with an account of each message.

Received messages stay hidden while the work lasts, because a visible message would be received again. When the work
ends, even by an error, it makes visible the messages that it neither recorded nor deleted. After a kill, they become
visible at the end of their visibility timeout. Does not belong here: treating a batch (`treatments.py`).
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, unique
from typing import Any

from kfm_dagster.errors import ExitCode
from kfm_dagster.governance.log import Decision
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.notifications.messages import Authenticity, SqsMessage
from kfm_dagster.notifications.receiving import PART_BYTES
from kfm_dagster.recovery.dead_letters.letters import (
    DeadLetter,
    LetterSelection,
    classify,
    workable,
)
from kfm_dagster.settings import Environment

MAX_BATCH_SIZE = 1_000
"""Messages per transaction; more would hold the ledger's locks for seconds."""

NOT_SELECTED = "not selected"
BEYOND_LIMIT = "beyond the limit"
OUTSIDE_SELECTION = {NOT_SELECTED, BEYOND_LIMIT}
"""Reasons why a message is outside the selection; a command's report omits such messages."""


@unique
class LetterOutcome(StrEnum):
    """The outcome of a dead letter."""

    DELETED = "deleted"
    """Deleted from the queue, because all units of the message are terminal."""
    WAITS = "waits"
    """On the dead-letter queue until the message's units are terminal; then the pipeline deletes the message."""
    KEPT = "kept"
    """Unreadable; the message stays for a person, and the ledger has the reason."""
    LEFT = "left"
    """Not treated: not selected, beyond the limit, of an unverified sender, of a dataset that is off, of a class that
    the command does not treat, or because the work stopped."""
    MOVED = "moved"
    """On the primary queue under a new id, and no longer on the dead-letter queue."""
    DOUBLED = "doubled"
    """On both queues, because the message was sent but not deleted. The ledger creates each of its units only once."""
    REFUSED = "refused"
    """Refused by the primary queue; the message stays on the dead-letter queue."""
    DISCARDED = "discarded"
    """Discarded by a person; its bytes are landed, and the reason is in the ledger."""


@unique
class End(StrEnum):
    """The reason for the end of the work."""

    EMPTY = "empty"
    """The queue returned no further message."""
    LIMIT = "limit"
    """The requested number of messages is reached."""
    MAX_BATCHES = "max_batches"
    """The requested number of batches is reached; perhaps more messages exist."""
    IN_FLIGHT = "in_flight"
    """The number of units pending or in progress has reached KFM_MAX_IN_FLIGHT_UNITS."""
    RECURRENCE = "recurrence"
    """Drained units failed again with their earlier error."""
    MISMATCH = "mismatch"
    """The ledger's account does not balance, or a drained unit gave another result than an earlier success."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """Upper bounds of the work. `limit` is the maximum number of messages to treat (None: any)."""

    batch_size: int = 100
    max_batches: int = 20
    limit: int | None = None


@dataclass(kw_only=True)
class DeadLetterWork:
    """A drain, redrive or discard, and its results so far.

    `reason_to_leave` returns the reason for not treating a selected letter, `report` is called after every batch;
    `units` counts created, requeued and quarantined units.
    """

    pipeline: Pipeline
    decision: Decision
    selection: LetterSelection
    bounds: Bounds
    name: str
    report: Report
    reason_to_leave: Callable[[DeadLetter], str | None] = lambda _: None
    batches: int = 0
    units: Counter[str] = field(default_factory=lambda: Counter(created=0, requeued=0, quarantined=0))
    end: End | None = None
    detail: str | None = None
    _acted_on: int = 0
    _outcomes: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _held: dict[str, SqsMessage] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.pipeline.settings.env is Environment.PROD:
            self.decision.require_change_ref()
        self.run_id = f"{self.name}-{uuid.uuid4()}"
        self.queue = workable(self.pipeline.dead_letters, primary=self.pipeline.settings.sqs_primary_queue)

    def run(self, treat: Callable[[list[DeadLetter]], None]) -> DeadLetterWork:
        """Treat the selected letters batch by batch; at the end, make held messages visible again."""
        try:
            for _ in range(self.bounds.max_batches):
                messages = self._receive()
                if not messages:
                    return self
                is_repeat = self._outcomes.keys() >= {message.message_id for message in messages}
                chosen = self._chosen(classify(self.pipeline, messages))
                if chosen:
                    self._acted_on += len(chosen)
                    treat(chosen)
                self.batches += 1
                self.report(self)
                if self.end is None and is_repeat:
                    self.end = End.EMPTY  # only messages that came back after their visibility timeout
                if self.end is not None:
                    return self
            self.end = End.MAX_BATCHES
            return self
        finally:
            self.queue.give_back(list(self._held.values()))

    def keep_hidden(self, letters: Iterable[DeadLetter]) -> None:
        """Leave messages hidden when the work ends, because the ledger has their units."""
        for letter in letters:
            self._held.pop(letter.message.message_id, None)

    def note(self, letter: DeadLetter, outcome: LetterOutcome, detail: str | None = None) -> None:
        """Set the outcome of a message, in its published form; a later call replaces it."""
        self._outcomes[letter.message.message_id] = {
            "message_id": letter.message.message_id,
            "class": letter.kind,
            "dataset": letter.dataset,
            "error_code": letter.error_code,
            "outcome": outcome,
            "detail": detail or letter.detail,
        }

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """The outcome of each message; `detail` is the reason, or the new message's id."""
        return tuple(self._outcomes.values())

    @property
    def outcomes(self) -> Counter[LetterOutcome]:
        """Messages by outcome."""
        return Counter(message["outcome"] for message in self.messages)

    @property
    def unmet(self) -> frozenset[str]:
        """Requested ids of messages that were not received, or not treated."""
        done = {message["message_id"] for message in self.messages if message["outcome"] is not LetterOutcome.LEFT}
        return self.selection.message_ids - done

    @property
    def exit_code(self) -> ExitCode:
        """FINISHED_WITH_FAILURES after RECURRENCE, MISMATCH, or a refused, doubled or unmet message."""
        stopped = self.end in {End.RECURRENCE, End.MISMATCH}
        stuck = self.outcomes.keys() & {LetterOutcome.REFUSED, LetterOutcome.DOUBLED}
        return ExitCode.FINISHED_WITH_FAILURES if stopped or stuck or self.unmet else ExitCode.DONE

    def as_json(self) -> dict[str, Any]:
        """Return the published form."""
        return {
            "run_id": self.run_id,
            "queue": self.queue.name,
            "batches": self.batches,
            "outcomes": dict(self.outcomes),
            "units": dict(self.units),
            "end": self.end,
            "detail": self.detail,
            "unmet": sorted(self.unmet),
            "messages": self.messages,
        }

    def imbalance(self) -> str | None:
        """Return the imbalance of the ledger's account as text, or None when it balances."""
        balance = self.pipeline.deliveries.conservation()
        if balance.residual_units or balance.residual_messages:
            return f"{balance.residual_units} units and {balance.residual_messages} messages without an account"
        return None

    def _receive(self) -> Sequence[SqsMessage]:
        if self._room() <= 0:
            self.end = End.LIMIT
            return ()
        settings = self.pipeline.settings
        messages = self.queue.receive(
            self.bounds.batch_size,
            budget_seconds=settings.tick_budget_seconds,
            # A lease's duration, so that the ledger's receipt is valid until the units' run extends the timeout.
            visibility_seconds=settings.lease_seconds,
            max_bytes=PART_BYTES,
        )
        self._held |= {message.message_id: message for message in messages}
        if not messages:
            self.end = End.EMPTY
        return messages

    def _room(self) -> int:
        return MAX_BATCH_SIZE if self.bounds.limit is None else self.bounds.limit - self._acted_on

    def _chosen(self, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        datasets = {unit.dataset for letter in letters for unit in letter.units}
        with self.pipeline.database.snapshot() as tx:
            off = self.pipeline.ledger.switches.off(datasets, tx=tx)
        chosen: list[DeadLetter] = []
        left: list[DeadLetter] = []
        for letter in letters:
            why = self._why_left(letter, off) or (BEYOND_LIMIT if len(chosen) >= self._room() else None)
            (left if why else chosen).append(letter)
            if why:
                self.note(letter, LetterOutcome.LEFT, why)
        if left:
            ids = [letter.message.message_id for letter in left]
            with self.pipeline.database.transaction() as tx:
                self.pipeline.deliveries.mark_dead_lettered(ids, queue=self.queue.name, tx=tx)
        return chosen

    def _why_left(self, letter: DeadLetter, off: frozenset[str]) -> str | None:
        if not self.selection.takes(letter):
            return NOT_SELECTED
        if letter.parsed.verdict.authenticity is Authenticity.UNKNOWN:
            return letter.parsed.verdict.detail
        if switched_off := sorted({unit.dataset for unit in letter.units} & off):
            return f"{switched_off[0]} is switched off"
        return self.reason_to_leave(letter)


Report = Callable[[DeadLetterWork], None]
