"""Draining the dead-letter queue: every readable message is worked on through the ledger, where it lies.

A batch is received, its bytes are landed, and one transaction makes it known: records for units without one, failed >
pending for those whose policy allows it, quarantine for the others, the receipt by which the pipeline deletes each
message once its units are terminal, and who decided it. So a drain that dies at any point has lost nothing, and a
second drain does nothing twice: a message leaves the queue only when nothing is left to do for it. Does not belong
here: running the units (the ledger's sensor asks for that).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kfm_dagster.contracts.envelope import Lane, WalId
from kfm_dagster.governance.log import Decision, GovernanceAction
from kfm_dagster.ingest.late_sidecar import complete
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.recording import created_of, ensure_units, record_messages
from kfm_dagster.ingest.volume_end import close
from kfm_dagster.ledger.deliveries import DeliveryState
from kfm_dagster.ledger.policy import ReplayReason
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.recovery.dead_letters.batches import Bounds, DeadLetterWork, End, LetterOutcome, Report
from kfm_dagster.recovery.dead_letters.letters import DeadLetter, LetterSelection, known_units, recurrences
from kfm_dagster.storage.database import Transaction
from kfm_dagster.telemetry.totals import Total, count

STOP_AFTER = 5
"""Units of one error code that may come back with it before a drain stops: one is chance, five are a cause."""


def drain(
    pipeline: Pipeline,
    *,
    decision: Decision,
    selection: LetterSelection | None = None,
    bounds: Bounds | None = None,
    stop_after: int | None = STOP_AFTER,
    pause_seconds: float = 0,
    report: Report = lambda _: None,
    wait: Callable[[float], None] = time.sleep,
) -> DeadLetterWork:
    """Drain what is selected, batch by batch, with a pause after each; `report` is called after every batch.

    Stops when `stop_after` units have come back with the error that they had before they were drained, here or earlier
    (None: never), or when a drained unit gives another result than an earlier success. Raises DeadLetterError when the
    queue or the ledger is not fit for it, UnattributedDecisionError in prod without a change reference, and
    QueueUnavailableError or DatabaseUnavailableError; the next drain goes on.
    """
    work = DeadLetterWork(
        pipeline=pipeline,
        decision=decision,
        selection=selection or LetterSelection(),
        bounds=bounds or Bounds(),
        name="dlq-drain",
        report=report,
    )
    work.refuse_unbalanced()
    drained = _Drain(work=work, stop_after=stop_after)

    def take(letters: Sequence[DeadLetter]) -> None:
        drained.take(letters)
        if work.end is None:
            wait(pause_seconds)

    work.run(take)
    if work.end not in {End.RECURRENCE, End.MISMATCH} and (imbalance := work.imbalance()) is not None:
        work.end, work.detail = End.MISMATCH, imbalance
    return work


@dataclass(kw_only=True)
class _Drain:
    work: DeadLetterWork
    stop_after: int | None
    let_in: set[WalId] = field(default_factory=set)

    def take(self, letters: Sequence[DeadLetter]) -> None:
        """Drain one batch, unless there is a reason to stop."""
        work, pipeline = self.work, self.work.pipeline
        if (stop := self._reason_to_stop(letters)) is not None:
            work.end, work.detail = stop
            for letter in letters:
                work.note(letter, LetterOutcome.LEFT, "the drain stopped before it")
            return
        landed = pipeline.landing.land([letter.message for letter in letters]).digest
        with pipeline.database.transaction() as tx:
            kept = self._make_known(letters, landed, tx)
        unreadable = [letter for letter in letters if letter.message.message_id in kept]
        readable = [letter for letter in letters if letter.message.message_id not in kept]
        work.let_go(readable)
        pipeline.acknowledger.acknowledge()
        states = pipeline.deliveries.states(letter.message.message_id for letter in readable)
        for letter in readable:
            gone = states.get(letter.message.message_id) is DeliveryState.DELETED
            work.note(letter, LetterOutcome.DELETED if gone else LetterOutcome.WAITS)
        for letter in unreadable:
            work.note(letter, LetterOutcome.KEPT)

    def _reason_to_stop(self, letters: Sequence[DeadLetter]) -> tuple[End, str] | None:
        pipeline = self.work.pipeline
        earlier = known_units(pipeline.ledger, self.let_in)
        differing = [found for found in pipeline.ledger.mismatches() if found.replay_run_id == self.work.run_id]
        if any(not found.permitted for found in differing):
            return End.MISMATCH, f"{len(differing)} drained units gave another result than an earlier success"
        again = recurrences([*earlier.values(), *(unit for letter in letters for unit in letter.units)])
        for code, units in again.most_common(1):
            if self.stop_after is not None and units >= self.stop_after:
                return End.RECURRENCE, f"{units} drained units came back with {code}, the error that they had before"
        if pipeline.ledger.in_flight(today=pipeline.clock().date()) >= pipeline.settings.max_in_flight_units:
            return End.IN_FLIGHT, f"{pipeline.settings.max_in_flight_units} units are pending or in progress"
        return None

    def _make_known(self, letters: Sequence[DeadLetter], landed: str, tx: Transaction) -> set[str]:
        """Record a batch; return the ids of the messages of which a record was rejected."""
        work, pipeline = self.work, self.work.pipeline
        ensured, parsed = ensure_units(pipeline.ledger, [letter.parsed for letter in letters], lane=Lane.BULK, tx=tx)
        failed = {wal_id for wal_id, status in ensured.existing.items() if status is Status.FAILED}
        requeued = pipeline.ledger.requeue(
            failed, reason=ReplayReason.DLQ_DRAIN, actor=work.decision.actor, replay_run_id=work.run_id, tx=tx
        )
        quarantined = self._quarantine(failed - requeued, tx)
        complete(pipeline.ledger, parsed, tx)
        close(pipeline.ledger, created_of(ensured, parsed), tx)
        messages = [letter.message for letter in letters]
        # Before they are recorded as received from here.
        ids = [message.message_id for message in messages]
        pipeline.deliveries.count_dead_letters(ids, queue=work.queue.name, tx=tx)
        unreadable = record_messages(
            pipeline.deliveries, messages, parsed, queue=work.queue.name, landing_sha256=landed, tx=tx
        )
        pipeline.deliveries.mark_dead_lettered(unreadable, queue=work.queue.name, tx=tx)
        taken = ensured.created | requeued
        taken_up = sum(any(unit.wal_id in taken for unit in one.envelopes) for one in parsed)
        count(tx, Total.DEAD_LETTERS_REPROCESSED, amount=taken_up)
        pipeline.ledger.log.record(
            GovernanceAction.DLQ_DRAIN,
            work.decision,
            details={
                "run_id": work.run_id,
                "queue": work.queue.name,
                "landing_sha256": landed,
                "messages": {letter.message.message_id: letter.kind.value for letter in letters},
                "created": len(ensured.created),
                "requeued": len(requeued),
                "quarantined": quarantined,
            },
            tx=tx,
        )
        self.let_in |= requeued
        work.created += len(ensured.created)
        work.requeued += len(requeued)
        work.quarantined += quarantined
        return unreadable

    def _quarantine(self, failed: set[WalId], tx: Transaction) -> int:
        """Quarantine the failed units whose policy allows no further attempt (WSM-12); others keep their message."""
        by_reason: dict[str, list[WalId]] = defaultdict(list)
        for unit in known_units(self.work.pipeline.ledger, failed, tx=tx).values():
            if unit.no_replay is not None:
                by_reason[unit.no_replay].append(unit.wal_id)
        return sum(
            len(self.work.pipeline.ledger.quarantine(wal_ids, reason_code=reason, decision=self.work.decision, tx=tx))
            for reason, wal_ids in sorted(by_reason.items())
        )
