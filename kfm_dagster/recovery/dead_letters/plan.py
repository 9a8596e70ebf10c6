"""Looking at the dead-letter queue: its state, its messages, and what a drain or a redrive of them would take.

Looking changes nothing but the receive counts on the queue: whatever is received is given back at once. Does not belong
here: what a message's class is (`letters.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.recovery.dead_letters.letters import (
    PRECEDENCE,
    DeadLetter,
    DeadLetterClass,
    LetterSelection,
    classify,
    workable,
)

LOOK_LIMIT = 10_000
"""Dead letters that one look takes at most; SQS keeps 120,000 of a queue in flight."""
OLDEST_SAMPLE = 100
"""Dead letters that a status looks at for the oldest; SQS's interface has no attribute for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetterPlan:
    """What was looked at, what of it is selected, and what that consists of."""

    queue: str
    selection: LetterSelection
    looked_at: int
    selected: int
    groups: Sequence[Mapping[str, Any]]
    """By class, dataset and error code, as they are published.

    `no_replay` counts failed units that the policy grants no further attempt, `recurred` those that ended as they had
    before an earlier drain.
    """

    def as_json(self) -> dict[str, Any]:
        """Return the published form of a plan."""
        parts = {part.name: getattr(self, part.name) for part in fields(self)}
        return parts | {"selection": self.selection.as_json()}


def status(pipeline: Pipeline) -> dict[str, Any]:
    """Return the dead-letter queue's state and the ledger's account of it, as `kfm dlq status --json` has them.

    `oldest_sent_at` is the earliest among the `looked_at` messages: exact when that is all of them. SQS drops a message
    when its retention is over, counted from then. Raises QueueUnavailableError or DatabaseUnavailableError.
    """
    queue = workable(pipeline.dead_letters, primary=pipeline.settings.sqs_primary_queue)
    rules, depth = queue.rules(), queue.depth()
    seen = queue.look(OLDEST_SAMPLE, budget_seconds=pipeline.settings.tick_budget_seconds) if depth.visible else []
    oldest = min((message.sent_at for message in seen if message.sent_at is not None), default=None)
    return {
        "queue": queue.name,
        "visible": depth.visible,
        "in_flight": depth.in_flight,
        "delayed": depth.delayed,
        "retention_seconds": int(rules.retention.total_seconds()),
        "primary_queue": pipeline.queue.name,
        "max_receive_count": pipeline.queue.rules().max_receive_count,
        "looked_at": len(seen),
        "oldest_sent_at": oldest and rfc3339(oldest),
        "drops_at": oldest and rfc3339(oldest + rules.retention),
        "ledger": dict(pipeline.deliveries.counts()),
    }


def look(pipeline: Pipeline, *, limit: int = LOOK_LIMIT) -> list[DeadLetter]:
    """Class up to `limit` dead letters and give them back; oldest first."""
    settings = pipeline.settings
    queue = workable(pipeline.dead_letters, primary=settings.sqs_primary_queue)
    messages = queue.look(limit, budget_seconds=settings.tick_budget_seconds)
    letters = classify(pipeline, messages)
    return sorted(letters, key=lambda letter: (str(letter.message.sent_at), letter.message.message_id))


def plan(pipeline: Pipeline, *, selection: LetterSelection, limit: int = LOOK_LIMIT) -> DeadLetterPlan:
    """Show the selected letters by class, dataset and error code. Changes only the queue's receive counts.

    Raises ContractError for a dataset without a contract.
    """
    for name in selection.datasets:
        _ = pipeline.registry[name]
    letters = look(pipeline, limit=limit)
    selected = [letter for letter in letters if selection.takes(letter)]
    return DeadLetterPlan(
        queue=pipeline.dead_letters.name,
        selection=selection,
        looked_at=len(letters),
        selected=len(selected),
        groups=_groups(selected),
    )


def _groups(letters: Iterable[DeadLetter]) -> list[dict[str, Any]]:
    by_kind: dict[tuple[DeadLetterClass, str | None, str | None], list[DeadLetter]] = {}
    for letter in letters:
        by_kind.setdefault((letter.kind, letter.dataset, letter.error_code), []).append(letter)
    in_order = sorted(by_kind, key=lambda key: (PRECEDENCE.index(key[0]), key[1] or "", key[2] or ""))
    return [_group(*key, by_kind[key]) for key in in_order]


def _group(
    kind: DeadLetterClass, dataset: str | None, error_code: str | None, letters: Sequence[DeadLetter]
) -> dict[str, Any]:
    units = {unit.wal_id: unit for letter in letters for unit in letter.units}.values()
    return {
        "class": kind,
        "dataset": dataset,
        "error_code": error_code,
        "messages": len(letters),
        "units": len(units),
        "no_replay": sum(unit.no_replay is not None for unit in units),
        "recurred": sum(unit.recurred for unit in units),
        "example_message_id": letters[0].message.message_id,
    }
