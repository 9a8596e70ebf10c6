"""Looking at the dead-letter queue: its state, its messages, and what a drain or a redrive of them would take.

Looking changes nothing but the receive counts on the queue: whatever is received is given back at once. Does not belong
here: what a message's class is (`letters.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.deliveries import DeliveryState
from kfm_dagster.notifications.queue_values import QueueDepth
from kfm_dagster.recovery.dead_letters.letters import (
    PRECEDENCE,
    DeadLetter,
    DeadLetterClass,
    LetterClassifier,
    LetterSelection,
    workable,
)

LOOK_LIMIT = 10_000
"""Dead letters that one look takes at most; SQS keeps 120,000 of a queue in flight."""
OLDEST_SAMPLE = 100
"""Dead letters that a status looks at for the oldest; SQS's interface has no attribute for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetterStatus:
    """The dead-letter queue and the ledger's account of it.

    `oldest` is the earliest time of sending among the `looked_at` messages: exact when that is all of them. SQS drops a
    message when `retention` is over, counted from then.
    """

    queue: str
    depth: QueueDepth
    retention: timedelta
    primary_queue: str
    max_receive_count: int | None
    looked_at: int
    oldest: datetime | None
    ledger: Mapping[DeliveryState, int]

    def as_json(self) -> dict[str, Any]:
        """Return the published form of `kfm dlq status --json`."""
        return {
            "queue": self.queue,
            "visible": self.depth.visible,
            "in_flight": self.depth.in_flight,
            "delayed": self.depth.delayed,
            "retention_seconds": int(self.retention.total_seconds()),
            "primary_queue": self.primary_queue,
            "max_receive_count": self.max_receive_count,
            "looked_at": self.looked_at,
            "oldest_sent_at": None if self.oldest is None else rfc3339(self.oldest),
            "drops_at": None if self.oldest is None else rfc3339(self.oldest + self.retention),
            "ledger": {state.value: count for state, count in self.ledger.items()},
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanGroup:
    """Dead letters of one class, dataset and error code.

    `no_replay` counts failed units that the policy grants no further attempt, `recurred` those that ended as they had
    before an earlier drain.
    """

    kind: DeadLetterClass
    dataset: str | None
    error_code: str | None
    messages: int
    units: int
    no_replay: int
    recurred: int
    example: str

    def as_json(self) -> dict[str, Any]:
        """Return the published form."""
        return {
            "class": self.kind.value,
            "dataset": self.dataset,
            "error_code": self.error_code,
            "messages": self.messages,
            "units": self.units,
            "no_replay": self.no_replay,
            "recurred": self.recurred,
            "example_message_id": self.example,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetterPlan:
    """What was looked at, what of it is selected, and what that consists of."""

    queue: str
    selection: LetterSelection
    looked_at: int
    selected: int
    groups: tuple[PlanGroup, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the published form of a plan."""
        return {
            "queue": self.queue,
            "selection": self.selection.as_json(),
            "looked_at": self.looked_at,
            "selected": self.selected,
            "groups": [group.as_json() for group in self.groups],
        }


def status(pipeline: Pipeline) -> DeadLetterStatus:
    """Look at both queues and at the ledger. Raises QueueUnavailableError or DatabaseUnavailableError."""
    queue = workable(pipeline.dead_letters, primary=pipeline.settings.sqs_primary_queue)
    rules, depth = queue.rules(), queue.depth()
    seen = queue.look(OLDEST_SAMPLE, budget_seconds=pipeline.settings.tick_budget_seconds) if depth.visible else []
    return DeadLetterStatus(
        queue=queue.name,
        depth=depth,
        retention=rules.retention,
        primary_queue=pipeline.queue.name,
        max_receive_count=pipeline.queue.rules().max_receive_count,
        looked_at=len(seen),
        oldest=min((message.sent_at for message in seen if message.sent_at is not None), default=None),
        ledger=pipeline.deliveries.counts(),
    )


def look(pipeline: Pipeline, *, limit: int = LOOK_LIMIT) -> list[DeadLetter]:
    """Class up to `limit` dead letters and give them back; oldest first."""
    settings = pipeline.settings
    queue = workable(pipeline.dead_letters, primary=settings.sqs_primary_queue)
    messages = queue.look(limit, budget_seconds=settings.tick_budget_seconds)
    letters = LetterClassifier.of(pipeline).classify(messages)
    return sorted(letters, key=lambda letter: (str(letter.message.sent_at), letter.message.message_id))


def plan(pipeline: Pipeline, *, selection: LetterSelection, limit: int = LOOK_LIMIT) -> DeadLetterPlan:
    """Say what is selected, by class, dataset and error code. Changes nothing but receive counts on the queue."""
    letters = look(pipeline, limit=limit)
    selected = [letter for letter in letters if selection.takes(letter)]
    return DeadLetterPlan(
        queue=pipeline.dead_letters.name,
        selection=selection,
        looked_at=len(letters),
        selected=len(selected),
        groups=tuple(_groups(selected)),
    )


def _groups(letters: Iterable[DeadLetter]) -> list[PlanGroup]:
    by_kind: dict[tuple[DeadLetterClass, str | None, str | None], list[DeadLetter]] = {}
    for letter in letters:
        by_kind.setdefault((letter.kind, letter.dataset, letter.error_code), []).append(letter)
    groups = [
        PlanGroup(
            kind=kind,
            dataset=dataset,
            error_code=error_code,
            messages=len(members),
            units=len({unit.wal_id for letter in members for unit in letter.units}),
            no_replay=len({unit.wal_id for letter in members for unit in letter.units if unit.no_replay}),
            recurred=len({unit.wal_id for letter in members for unit in letter.units if unit.recurred}),
            example=members[0].message.message_id,
        )
        for (kind, dataset, error_code), members in by_kind.items()
    ]
    return sorted(groups, key=lambda group: (PRECEDENCE.index(group.kind), group.dataset or "", group.error_code or ""))
