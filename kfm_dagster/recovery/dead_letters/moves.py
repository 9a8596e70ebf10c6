"""Moving dead letters without working on them: back to the primary queue, or off the queue by a person's decision.

A redrive sends first and deletes then, so a message may stand on both queues and never on none; the ledger makes one
unit of both. Only what intake can work on is moved: an unreadable message would only come back. A discard takes the
unreadable ones that a person names, after their bytes are landed and their reason is in the ledger. Does not belong
here: deciding about units (`drain.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from kfm_dagster.errors import ConfigurationError
from kfm_dagster.governance.log import Decision, GovernanceAction
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.recording import record_messages
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.recovery.dead_letters.batches import (
    MAX_BATCH_SIZE,
    Bounds,
    DeadLetterWork,
    LetterOutcome,
    Report,
)
from kfm_dagster.recovery.dead_letters.letters import DeadLetter, DeadLetterClass, LetterSelection
from kfm_dagster.storage.database import Transaction

_NOT_MOVED = {
    DeadLetterClass.UNREADABLE: "it would come back: correct the contract, or discard it",
    DeadLetterClass.WAITING: "its units are being worked on",
    DeadLetterClass.DONE: "nothing is left to do for it: drain it",
}


def redrive(
    pipeline: Pipeline,
    *,
    decision: Decision,
    selection: LetterSelection | None = None,
    bounds: Bounds | None = None,
    report: Report = lambda _: None,
) -> DeadLetterWork:
    """Move what is selected, unknown or replayable back to the primary queue, batch by batch.

    Raises as `drain` does.
    """
    work = DeadLetterWork(
        pipeline=pipeline,
        decision=decision,
        selection=selection or LetterSelection(),
        bounds=bounds or Bounds(),
        name="dlq-redrive",
        reason_to_leave=_why_not_moved,
        report=report,
    )
    _ = pipeline.queue.url  # refuse before anything is received
    return work.run(partial(_move, work))


def discard(
    pipeline: Pipeline,
    *,
    decision: Decision,
    message_ids: frozenset[str],
    report: Report = lambda _: None,
) -> DeadLetterWork:
    """Take named unreadable messages off the queue for good. Raises as `drain` does."""
    if not message_ids:
        raise ConfigurationError("no message is named", expected="ids of unreadable messages", next_step="kfm dlq list")
    work = DeadLetterWork(
        pipeline=pipeline,
        decision=decision,
        selection=LetterSelection(message_ids=message_ids),
        bounds=Bounds(batch_size=MAX_BATCH_SIZE, limit=len(message_ids)),
        name="dlq-discard",
        reason_to_leave=_why_not_discarded,
        report=report,
    )
    return work.run(partial(_discard, work))


def _why_not_moved(letter: DeadLetter) -> str | None:
    if any(unit.no_replay for unit in letter.units):
        return "its policy allows no further attempt: drain it"
    return _NOT_MOVED.get(letter.kind)


def _why_not_discarded(letter: DeadLetter) -> str | None:
    if letter.kind is not DeadLetterClass.UNREADABLE:
        return "it can be read: drain it"
    if any(unit.status not in {Status.SUCCEEDED, Status.QUARANTINED} for unit in letter.units):
        return "a part of it can be read and is not done: drain it first"
    return None


def _move(work: DeadLetterWork, letters: Sequence[DeadLetter]) -> None:
    pipeline = work.pipeline
    message_ids = [letter.message.message_id for letter in letters]
    with pipeline.database.transaction() as tx:
        pipeline.deliveries.mark_dead_lettered(message_ids, queue=work.queue.name, tx=tx)
        _log(work, GovernanceAction.DLQ_REDRIVE, {"to": pipeline.queue.name, "messages": message_ids}, tx=tx)
    sent = pipeline.queue.send([letter.message.body for letter in letters])
    moved = {
        letter.message.message_id: outcome.message_id
        for letter, outcome in zip(letters, sent, strict=True)
        if outcome.message_id is not None
    }
    deleted = _delete(work, [letter for letter in letters if letter.message.message_id in moved])
    for letter, outcome in zip(letters, sent, strict=True):
        message_id = letter.message.message_id
        if outcome.message_id is None:
            work.note(letter, LetterOutcome.REFUSED, outcome.refusal)
        else:
            verdict = LetterOutcome.MOVED if message_id in deleted else LetterOutcome.DOUBLED
            work.note(letter, verdict, f"message {outcome.message_id}")


def _discard(work: DeadLetterWork, letters: Sequence[DeadLetter]) -> None:
    pipeline = work.pipeline
    messages = [letter.message for letter in letters]
    landed = pipeline.landing.land(messages).digest
    message_ids = [letter.message.message_id for letter in letters]
    with pipeline.database.transaction() as tx:
        # Before they are recorded as received from here.
        pipeline.deliveries.count_dead_letters(message_ids, queue=work.queue.name, tx=tx)
        parsed = [letter.parsed for letter in letters]
        record_messages(pipeline.deliveries, messages, parsed, queue=work.queue.name, landing_sha256=landed, tx=tx)
        pipeline.deliveries.mark_dead_lettered(message_ids, queue=work.queue.name, tx=tx)
        _log(work, GovernanceAction.DLQ_DISCARD, {"landing_sha256": landed, "messages": message_ids}, tx=tx)
    deleted = _delete(work, letters)
    for letter in letters:
        gone = letter.message.message_id in deleted
        work.note(letter, LetterOutcome.DISCARDED if gone else LetterOutcome.KEPT)


def _delete(work: DeadLetterWork, letters: Sequence[DeadLetter]) -> frozenset[str]:
    """Delete messages from the dead-letter queue; return the ids of those that SQS took."""
    refused = set(work.queue.delete([letter.message.receipt_handle or "" for letter in letters]))
    gone = [letter for letter in letters if letter.message.receipt_handle not in refused]
    deleted = frozenset(letter.message.message_id for letter in gone)
    work.pipeline.deliveries.mark_deleted(deleted)
    work.let_go(gone)
    return deleted


def _log(work: DeadLetterWork, action: GovernanceAction, details: dict[str, Any], *, tx: Transaction) -> None:
    what = {"run_id": work.run_id, "queue": work.queue.name, **details}
    work.pipeline.ledger.log.record(action, work.decision, details=what, tx=tx)
