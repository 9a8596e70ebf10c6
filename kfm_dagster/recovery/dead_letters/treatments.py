"""Treatments of dead letters: drain, redrive to the primary queue, or discard them.

A drain lands a batch. Then it writes in one transaction: (1) records of unknown units, (2) the status `pending` of each
failed unit if its policy allows another attempt, otherwise `quarantined`, (3) the receipt by which each message is
deleted once its units are terminal, (4) the decision. So a drain that crashes at any point loses nothing, and a second
drain repeats nothing. A redrive deletes a message after sending it, so the message can be on both queues, but is always
on at least one. Unreadable messages are not redriven, because they would be dead letters again. A discard deletes
messages by their ids. Does not belong here: running the units (the ledger's sensor requests the runs).
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kfm_dagster.contracts.envelope import Lane, WalId
from kfm_dagster.errors import ConfigurationError, RefusedError
from kfm_dagster.governance.log import Decision, GovernanceAction
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.recording import close, complete, created_of, ensure_units, record_messages
from kfm_dagster.ledger.deliveries import DeliveryState
from kfm_dagster.ledger.policy import ReplayReason
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.operators.message_parse import ParsedMessage
from kfm_dagster.recovery.dead_letters.letters import (
    DeadLetter,
    DeadLetterClass,
    LetterSelection,
    known_units,
)
from kfm_dagster.recovery.dead_letters.work import MAX_BATCH_SIZE, Bounds, DeadLetterWork, End, LetterOutcome, Report
from kfm_dagster.storage.database import Transaction
from kfm_dagster.telemetry.totals import Total, count

STOP_AFTER = 5
"""A drain stops when this number of units fail again with one error code, because they probably have one cause."""
_NOT_MOVED = {
    DeadLetterClass.UNREADABLE: "it would come back: correct the contract, or discard it",
    DeadLetterClass.WAITING: "units of it are pending or in progress",
    DeadLetterClass.DONE: "no work is left: a drain deletes it",
}


def drain(
    pipeline: Pipeline,
    *,
    decision: Decision,
    selection: LetterSelection = LetterSelection(),  # noqa: B008, it is frozen
    bounds: Bounds = Bounds(),  # noqa: B008, likewise
    stop_after: int | None = STOP_AFTER,
    pause_seconds: float = 0,
    report: Report = lambda _: None,
    wait: Callable[[float], None] = time.sleep,
) -> DeadLetterWork:
    """Drain the selected letters in batches; after each batch, call `report` and pause.

    Stops when a drained unit gives another result than an earlier success, when `stop_after` units with one error code
    have failed again with the code that they had when a drain last requeued them (None: no such stop), or when the
    limit of units in flight is reached. Raises RefusedError if the queue cannot be drained or the ledger's account does
    not balance, and UnattributedDecisionError in prod without a change reference. After a QueueUnavailableError or
    DatabaseUnavailableError, the next drain continues.
    """
    work = DeadLetterWork(
        pipeline=pipeline, decision=decision, selection=selection, bounds=bounds, name="dlq-drain", report=report
    )
    if (imbalance := work.imbalance()) is not None:
        raise RefusedError(
            "the ledger's account does not balance", observed=imbalance, next_step="repair the ledger first"
        )
    requeued: set[WalId] = set()

    def treat(letters: Sequence[DeadLetter]) -> None:
        if (stop := _reason_to_stop(work, letters, requeued, stop_after)) is not None:
            work.end, work.detail = stop
            for letter in letters:
                work.note(letter, LetterOutcome.LEFT, "the drain stopped before this message")
            return
        requeued.update(_drain(work, letters))
        wait(pause_seconds)

    work.run(treat)
    if work.end not in {End.RECURRENCE, End.MISMATCH} and (imbalance := work.imbalance()) is not None:
        work.end, work.detail = End.MISMATCH, imbalance
    return work


def redrive(
    pipeline: Pipeline,
    *,
    decision: Decision,
    selection: LetterSelection = LetterSelection(),  # noqa: B008, it is frozen
    bounds: Bounds = Bounds(),  # noqa: B008, likewise
    report: Report = lambda _: None,
) -> DeadLetterWork:
    """Move letters with unknown or replayable units to the primary queue.

    Raises as `drain`, but does not check the ledger's balance.
    """
    work = DeadLetterWork(
        pipeline=pipeline,
        decision=decision,
        selection=selection,
        bounds=bounds,
        name="dlq-redrive",
        reason_to_leave=_why_not_moved,
        report=report,
    )
    _ = pipeline.queue.url  # raises if the queue does not exist, before a message is received
    return work.run(partial(_move, work))


def discard(
    pipeline: Pipeline,
    *,
    decision: Decision,
    selection: LetterSelection,
    report: Report = lambda _: None,
) -> DeadLetterWork:
    """Delete the unreadable messages that the selection names. Raises as `redrive`."""
    if not selection.message_ids:
        raise ConfigurationError("no message is named", expected="ids of unreadable messages", next_step="kfm dlq list")
    work = DeadLetterWork(
        pipeline=pipeline,
        decision=decision,
        selection=selection,
        bounds=Bounds(batch_size=MAX_BATCH_SIZE, limit=len(selection.message_ids)),
        name="dlq-discard",
        reason_to_leave=_why_not_discarded,
        report=report,
    )
    return work.run(partial(_discard, work))


def _drain(work: DeadLetterWork, letters: Sequence[DeadLetter]) -> set[WalId]:
    """Record a batch and delete its finished messages; return the requeued units."""
    pipeline = work.pipeline
    landed = pipeline.landing.land([letter.message for letter in letters])
    with pipeline.database.transaction() as tx:
        unreadable, requeued = _make_known(work, letters, landed, tx)
    readable = [letter for letter in letters if letter.message.message_id not in unreadable]
    work.keep_hidden(readable)
    pipeline.acknowledger.acknowledge()
    states = pipeline.deliveries.states(letter.message.message_id for letter in readable)
    for letter in letters:
        is_gone = states.get(letter.message.message_id) is DeliveryState.DELETED
        outcome = LetterOutcome.DELETED if is_gone else LetterOutcome.WAITS
        work.note(letter, LetterOutcome.KEPT if letter.message.message_id in unreadable else outcome)
    return requeued


def _reason_to_stop(
    work: DeadLetterWork, letters: Sequence[DeadLetter], requeued: set[WalId], stop_after: int | None
) -> tuple[End, str] | None:
    pipeline = work.pipeline
    with pipeline.database.snapshot() as tx:
        earlier = known_units(pipeline.ledger, requeued, tx=tx)
    differing = [mismatch for mismatch in pipeline.ledger.mismatches() if mismatch.replay_run_id == work.run_id]
    if not all(mismatch.permitted for mismatch in differing):
        return End.MISMATCH, f"{len(differing)} drained units gave another result than an earlier success"
    known = [*earlier.values(), *(unit for letter in letters for unit in letter.units)]
    codes = {unit.wal_id: unit.error_code for unit in known if unit.recurred}
    for code, units in Counter(codes.values()).most_common(1):
        if stop_after is not None and units >= stop_after:
            return End.RECURRENCE, f"{units} drained units came back with {code}, the error that they had before"
    if pipeline.ledger.in_flight(today=pipeline.clock().date()) >= pipeline.settings.max_in_flight_units:
        return End.IN_FLIGHT, f"{pipeline.settings.max_in_flight_units} units are pending or in progress"
    return None


def _make_known(
    work: DeadLetterWork, letters: Sequence[DeadLetter], landed: str, tx: Transaction
) -> tuple[set[str], set[WalId]]:
    """Record a batch; return the ids of messages with a rejected entry, and requeued units."""
    pipeline = work.pipeline
    ensured, parsed = ensure_units(pipeline.ledger, [letter.parsed for letter in letters], lane=Lane.BULK, tx=tx)
    failed = {wal_id for wal_id, status in ensured.existing.items() if status is Status.FAILED}
    requeued = pipeline.ledger.requeue(
        failed, reason=ReplayReason.DLQ_DRAIN, actor=work.decision.actor, replay_run_id=work.run_id, tx=tx
    )
    quarantined = _quarantine(work, failed - requeued, tx)
    complete(pipeline.ledger, parsed, tx)
    close(pipeline.ledger, created_of(ensured, parsed), tx)
    unreadable = _record(work, letters, parsed, landed, tx)
    pipeline.deliveries.mark_dead_lettered(unreadable, queue=work.queue.name, tx=tx)
    accepted = ensured.created | requeued
    reprocessed = sum(any(unit.wal_id in accepted for unit in message.envelopes) for message in parsed)
    count(tx, Total.DEAD_LETTERS_REPROCESSED, amount=reprocessed)
    units = {"created": len(ensured.created), "requeued": len(requeued), "quarantined": quarantined}
    work.units.update(units)
    kinds = {letter.message.message_id: letter.kind.value for letter in letters}
    _log(work, GovernanceAction.DLQ_DRAIN, {"landing_sha256": landed, "messages": kinds, **units}, tx=tx)
    return unreadable, set(requeued)


def _quarantine(work: DeadLetterWork, failed: set[WalId], tx: Transaction) -> int:
    """Quarantine the failed units that get no further attempt (WSM-12); other units stay failed."""
    by_reason: dict[str, list[WalId]] = defaultdict(list)
    for unit in known_units(work.pipeline.ledger, failed, tx=tx).values():
        if unit.no_replay is not None:
            by_reason[unit.no_replay].append(unit.wal_id)
    return sum(
        len(work.pipeline.ledger.quarantine(wal_ids, reason_code=reason, decision=work.decision, tx=tx))
        for reason, wal_ids in sorted(by_reason.items())
    )


def _why_not_moved(letter: DeadLetter) -> str | None:
    if any(unit.no_replay for unit in letter.units):
        return "its policy allows no further attempt: drain it"
    return _NOT_MOVED.get(letter.kind)


def _why_not_discarded(letter: DeadLetter) -> str | None:
    if letter.kind is not DeadLetterClass.UNREADABLE:
        return "it can be read: drain it"
    if any(unit.status not in {Status.SUCCEEDED, Status.QUARANTINED} for unit in letter.units):
        return "a part of it can be read and has unfinished units: drain it first"
    return None


def _move(work: DeadLetterWork, letters: Sequence[DeadLetter]) -> None:
    pipeline = work.pipeline
    message_ids = [letter.message.message_id for letter in letters]
    with pipeline.database.transaction() as tx:
        pipeline.deliveries.mark_dead_lettered(message_ids, queue=work.queue.name, tx=tx)
        _log(work, GovernanceAction.DLQ_REDRIVE, {"to": pipeline.queue.name, "messages": message_ids}, tx=tx)
    sent = pipeline.queue.send([letter.message.body for letter in letters])
    answers = list(zip(letters, sent, strict=True))
    deleted = _delete(work, [letter for letter, answer in answers if answer.message_id is not None])
    for letter, answer in answers:
        if answer.message_id is None:
            work.note(letter, LetterOutcome.REFUSED, answer.refusal)
        else:
            is_deleted = letter.message.message_id in deleted
            outcome = LetterOutcome.MOVED if is_deleted else LetterOutcome.DOUBLED
            work.note(letter, outcome, f"message {answer.message_id}")


def _discard(work: DeadLetterWork, letters: Sequence[DeadLetter]) -> None:
    pipeline = work.pipeline
    landed = pipeline.landing.land([letter.message for letter in letters])
    message_ids = [letter.message.message_id for letter in letters]
    with pipeline.database.transaction() as tx:
        _record(work, letters, [letter.parsed for letter in letters], landed, tx)
        pipeline.deliveries.mark_dead_lettered(message_ids, queue=work.queue.name, tx=tx)
        _log(work, GovernanceAction.DLQ_DISCARD, {"landing_sha256": landed, "messages": message_ids}, tx=tx)
    deleted = _delete(work, letters)
    for letter in letters:
        is_deleted = letter.message.message_id in deleted
        work.note(letter, LetterOutcome.DISCARDED if is_deleted else LetterOutcome.KEPT)


def _record(
    work: DeadLetterWork, letters: Sequence[DeadLetter], parsed: Sequence[ParsedMessage], landed: str, tx: Transaction
) -> set[str]:
    """Count and record this queue's messages; return ids of messages with a rejected entry."""
    deliveries, messages = work.pipeline.deliveries, [letter.message for letter in letters]
    deliveries.count_dead_letters([message.message_id for message in messages], queue=work.queue.name, tx=tx)
    return record_messages(deliveries, messages, parsed, queue=work.queue.name, landing_sha256=landed, tx=tx)


def _delete(work: DeadLetterWork, letters: Sequence[DeadLetter]) -> frozenset[str]:
    """Delete messages from the dead-letter queue; return the ids of the deleted messages."""
    refused = set(work.queue.delete([letter.message.receipt_handle or "" for letter in letters]))
    removed = [letter for letter in letters if letter.message.receipt_handle not in refused]
    deleted = frozenset(letter.message.message_id for letter in removed)
    work.pipeline.deliveries.mark_deleted(deleted)
    work.keep_hidden(removed)
    return deleted


def _log(work: DeadLetterWork, action: GovernanceAction, details: dict[str, Any], *, tx: Transaction) -> None:
    context = {"run_id": work.run_id, "queue": work.queue.name, **details}
    work.pipeline.ledger.log.record(action, work.decision, details=context, tx=tx)
