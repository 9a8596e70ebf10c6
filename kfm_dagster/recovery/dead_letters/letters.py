"""Dead letters: the messages of the dead-letter queue, classed for a drain or a redrive.

A dead letter is parsed as intake parses messages, and its units are looked up in the ledger. The queue's reason for
moving the message does not matter. Listing letters changes only the messages' receive counts. Does not belong here:
treating letters (`treatments.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum, unique
from typing import Any

from sqlalchemy import RowMapping

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.errors import RefusedError
from kfm_dagster.ingest.intake import verdicts_on
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.policy import LedgerCode, ReplayReason, quarantine_reason
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.notifications.messages import Authenticity, SqsMessage
from kfm_dagster.notifications.sqs import Queue
from kfm_dagster.operators.message_parse import ParsedMessage, parse_message
from kfm_dagster.storage.database import Transaction
from kfm_dagster.storage.statements import value_of

LOOK_LIMIT = 10_000
"""Maximum dead letters of one listing; SQS allows 120,000 messages in flight per queue."""
OLDEST_SAMPLE = 100
"""Dead letters that `status` receives to find the oldest, because SQS does not report the oldest message's age."""


@unique
class DeadLetterClass(StrEnum):
    """The class of a dead letter: the first of these cases that applies to it or a unit of it."""

    UNREADABLE = "unreadable"
    """The message, or an entry of it, is rejected; a person decides, and the reason is stored."""
    UNKNOWN = "unknown"
    """The ledger has no record of a unit, so a record is created."""
    FAILED = "failed"
    """A unit failed. It is requeued, or quarantined if its retry policy allows no further attempt."""
    WAITING = "waiting"
    """The message stays: a unit is pending or in progress, or the sender's certificate cannot be fetched now."""
    DONE = "done"
    """No work is left: every unit succeeded or is quarantined, or the message announces no unit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownUnit:
    """A unit and its status in the ledger.

    `requeued_with` is the error code that the unit had when a drain last requeued it. `no_replay` is the reason why a
    failed unit has no further attempt, or None.
    """

    wal_id: WalId
    dataset: str
    status: Status | None
    error_code: str | None = None
    requeued_with: str | None = None
    no_replay: str | None = None

    @property
    def recurred(self) -> bool:
        """Return whether the unit failed again with the error that it had before the drain."""
        ended = self.status in {Status.FAILED, Status.QUARANTINED}
        return ended and self.error_code is not None and self.error_code == self.requeued_with


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetter:
    """A classed dead letter; `error_code` is of the unit or rejection that decides the class."""

    message: SqsMessage = field(repr=False)
    parsed: ParsedMessage = field(repr=False)
    kind: DeadLetterClass
    dataset: str | None
    error_code: str | None
    detail: str | None = None
    units: tuple[KnownUnit, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the published form of `kfm dlq list --json`, without the body."""
        sent_at = self.message.sent_at
        return {
            "message_id": self.message.message_id,
            "class": self.kind.value,
            "dataset": self.dataset,
            "error_code": self.error_code,
            "detail": self.detail,
            "wal_ids": [unit.wal_id for unit in self.units],
            "objects": [envelope.object_uri for envelope in self.parsed.envelopes],
            "sent_at": None if sent_at is None else rfc3339(sent_at),
            "receive_count": self.message.receive_count,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class LetterSelection:
    """A filter of dead letters; an empty field matches every letter."""

    classes: frozenset[DeadLetterClass] = frozenset()
    datasets: frozenset[str] = frozenset()
    error_codes: frozenset[str] = frozenset()
    message_ids: frozenset[str] = frozenset()

    def takes(self, letter: DeadLetter) -> bool:
        """Return whether a dead letter matches."""
        return (
            (not self.classes or letter.kind in self.classes)
            and (not self.datasets or letter.dataset in self.datasets)
            and (not self.error_codes or letter.error_code in self.error_codes)
            and (not self.message_ids or letter.message.message_id in self.message_ids)
        )

    def as_json(self) -> dict[str, Any]:
        """Return the published form."""
        return {name: sorted(values) for name, values in asdict(self).items()}


def workable(queue: Queue, *, primary: str) -> Queue:
    """Return the queue. Raises RefusedError if it is the primary queue or has a redrive policy."""
    if queue.name == primary:
        raise RefusedError(
            "the dead-letter queue is the primary queue", observed=queue.name, next_step="correct KFM_SQS_DLQ_QUEUE"
        )
    if (further := queue.rules().dead_letter_arn) is not None:
        raise RefusedError(
            f"{queue.name} has a redrive policy of its own, so receiving messages would move them to another queue",
            observed=further,
            expected="no RedrivePolicy on the dead-letter queue",
            next_step="remove the policy, or set KFM_SQS_DLQ_QUEUE to that other queue",
        )
    return queue


def classify(pipeline: Pipeline, messages: Sequence[SqsMessage]) -> list[DeadLetter]:
    """Parse messages as intake does and class them by the statuses of their units."""
    verdicts = verdicts_on(pipeline, messages)
    options: dict[str, Any] = {
        "registry": pipeline.ledger.registry,
        "queue": pipeline.settings.sqs_primary_queue,
        "days": pipeline.window.current(),
    }
    parsed = [
        parse_message(message, verdict=verdict, **options) for message, verdict in zip(messages, verdicts, strict=True)
    ]
    with pipeline.database.snapshot() as tx:
        known = known_units(pipeline.ledger, {unit.wal_id for content in parsed for unit in content.envelopes}, tx=tx)
    return [_classed(message, content, known) for message, content in zip(messages, parsed, strict=True)]


def known_units(ledger: Ledger, wal_ids: Iterable[WalId], *, tx: Transaction) -> dict[WalId, KnownUnit]:
    """Return the units that have a record in the ledger, by id."""
    rows = tx.run("dead_letters.known_units", wal_ids=sorted(wal_ids), reason=ReplayReason.DLQ_DRAIN).mappings()
    units = (value_of(KnownUnit, {**row, "no_replay": _no_replay(ledger, row)}) for row in rows)
    return {unit.wal_id: unit for unit in units}


def _no_replay(ledger: Ledger, row: RowMapping) -> str | None:
    if row["status"] != Status.FAILED:
        return None
    if row["is_superseded"]:
        return LedgerCode.SUPERSEDED
    policy = ledger.registry[row["dataset"]].retry
    return quarantine_reason(
        policy, attempt=row["attempts"], error_code=row["error_code"], human_review=ledger.human_review
    )


_CLASS_OF: Mapping[Status | None, DeadLetterClass] = {
    None: DeadLetterClass.UNKNOWN,
    Status.FAILED: DeadLetterClass.FAILED,
    Status.PENDING: DeadLetterClass.WAITING,
    Status.IN_PROGRESS: DeadLetterClass.WAITING,
    Status.SUCCEEDED: DeadLetterClass.DONE,
    Status.QUARANTINED: DeadLetterClass.DONE,
}
PRECEDENCE = list(DeadLetterClass)
"""Order of classes; a message gets the first of its units' classes."""


def _classed(message: SqsMessage, parsed: ParsedMessage, known: Mapping[WalId, KnownUnit]) -> DeadLetter:
    units = tuple(
        known.get(unit.wal_id, KnownUnit(wal_id=unit.wal_id, dataset=unit.dataset, status=None))
        for unit in parsed.envelopes
    )
    deciding = min(units, key=lambda unit: PRECEDENCE.index(_CLASS_OF[unit.status]), default=None)
    kind = DeadLetterClass.DONE if deciding is None else _CLASS_OF[deciding.status]
    dataset, code, detail = None, None, None
    if deciding is not None:
        dataset, code = deciding.dataset, deciding.error_code
    elif parsed.ignored:
        detail = parsed.ignored[0].reason
    if parsed.verdict.authenticity is Authenticity.UNKNOWN:
        kind, dataset, code, detail, units = DeadLetterClass.WAITING, None, None, parsed.verdict.detail, ()
    elif parsed.rejections:
        first = parsed.rejections[0]
        kind, dataset = DeadLetterClass.UNREADABLE, units[0].dataset if units else None
        code, detail = first.reason_code, first.detail
    return DeadLetter(
        message=message, parsed=parsed, kind=kind, dataset=dataset, error_code=code, detail=detail, units=units
    )


def status(pipeline: Pipeline) -> dict[str, Any]:
    """Return the document of `kfm dlq status --json`: queue, and message counts of the ledger.

    `oldest_sent_at` is the earliest time of sending among `looked_at` messages; the queue can hold more. SQS counts
    a message's retention from the time of sending. Raises QueueUnavailableError or DatabaseUnavailableError.
    """
    queue = workable(pipeline.dead_letters, primary=pipeline.settings.sqs_primary_queue)
    rules, depth = queue.rules(), queue.depth()
    sample = queue.look(OLDEST_SAMPLE, budget_seconds=pipeline.settings.tick_budget_seconds) if depth.visible else []
    oldest = min((message.sent_at for message in sample if message.sent_at is not None), default=None)
    return {
        "queue": queue.name,
        "visible": depth.visible,
        "in_flight": depth.in_flight,
        "delayed": depth.delayed,
        "retention_seconds": int(rules.retention.total_seconds()),
        "primary_queue": pipeline.queue.name,
        "max_receive_count": pipeline.queue.rules().max_receive_count,
        "looked_at": len(sample),
        "oldest_sent_at": oldest and rfc3339(oldest),
        "drops_at": oldest and rfc3339(oldest + rules.retention),
        "ledger": dict(pipeline.deliveries.counts()),
    }


def look(pipeline: Pipeline, *, limit: int = LOOK_LIMIT) -> list[DeadLetter]:
    """Return at most `limit` dead letters, oldest first; all become visible on the queue again."""
    settings = pipeline.settings
    queue = workable(pipeline.dead_letters, primary=settings.sqs_primary_queue)
    messages = queue.look(limit, budget_seconds=settings.tick_budget_seconds)
    letters = classify(pipeline, messages)
    return sorted(letters, key=lambda letter: (str(letter.message.sent_at), letter.message.message_id))


def plan(pipeline: Pipeline, *, selection: LetterSelection, limit: int = LOOK_LIMIT) -> dict[str, Any]:
    """Return the document of `kfm dlq plan --json`: letters by class, dataset and error code.

    `no_replay` counts failed units whose policy grants no further attempt. `recurred` counts units that failed again
    with the error that they had before an earlier drain. Raises ContractError for a dataset without a contract.
    """
    for name in selection.datasets:
        _ = pipeline.registry[name]
    letters = look(pipeline, limit=limit)
    groups: dict[tuple[int, str, str], list[DeadLetter]] = {}
    for letter in filter(selection.takes, letters):
        key = PRECEDENCE.index(letter.kind), letter.dataset or "", letter.error_code or ""
        groups.setdefault(key, []).append(letter)
    return {
        "queue": pipeline.dead_letters.name,
        "selection": selection.as_json(),
        "looked_at": len(letters),
        "selected": sum(map(len, groups.values())),
        "groups": [_group(groups[key]) for key in sorted(groups)],
    }


def _group(letters: Sequence[DeadLetter]) -> dict[str, Any]:
    units = {unit.wal_id: unit for letter in letters for unit in letter.units}.values()
    return {
        "class": letters[0].kind,
        "dataset": letters[0].dataset,
        "error_code": letters[0].error_code,
        "messages": len(letters),
        "units": len(units),
        "no_replay": sum(unit.no_replay is not None for unit in units),
        "recurred": sum(unit.recurred for unit in units),
        "example_message_id": letters[0].message.message_id,
    }
