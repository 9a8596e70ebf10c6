"""Intake: receive, land, parse and record the messages of a tick.

A tick lands the raw messages before it parses them, records rejections with their reasons, and creates a pending ledger
record for every unit in the same transaction as its delivery. So a crash loses no unit of a recorded message, and
back-pressure can count the units. Does not belong here: planning runs (`ingest/plan.py`).

While all datasets of the queue are switched off, the tick receives nothing. If only some are off, their units are
recorded and wait, and the messages of these units are hidden until the switch expires, at most as long as SQS allows.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from kfm_dagster.contracts.envelope import Lane, WalId
from kfm_dagster.errors import StoreAccessError
from kfm_dagster.governance.switches import KillSwitch
from kfm_dagster.ingest.kill_switch_policy import ALL_ON, KillSwitchPolicy, units_in_flight
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.process_state import ProcessState
from kfm_dagster.ingest.recording import close, complete, created_of, ensure_units, record_messages
from kfm_dagster.ledger.reports import EnsureResult
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.notifications.messages import Authenticity, SenderVerdict, SqsMessage
from kfm_dagster.notifications.receiving import PART_BYTES, PART_UNITS, in_parts, weight
from kfm_dagster.notifications.sqs import FIRST_WAIT_SECONDS, Queue
from kfm_dagster.operators.message_parse import ParsedMessage, parse_message
from kfm_dagster.telemetry.traces import is_tracing, record_receive

CERTIFICATE_WAIT_SECONDS = 60.0
"""First wait of a message for its sender's certificate; KFM_RETRY_BACKOFF_SECONDS overrides it."""
WAIT_FACTOR = 4
"""Each wait is this many times the previous wait; five receives, the usual limit, then take almost six hours."""


@dataclass(frozen=True, kw_only=True)
class IntakeReport:
    """The result of a tick.

    `completions` counts units that read an object again with a late sidecar, `closings` counts units that read a
    volume's newest chunk again as the last chunk. `work` has dataset and partition of units that wait for a run.
    `full`: nothing was received, because too many live units are in flight; `off`: the switches that forbid receiving;
    `policy`: all engaged kill switches. `unverified` counts unrecorded messages, which wait for their sender's
    certificate.
    """

    received: int = 0
    created: int = 0
    completions: int = 0
    closings: int = 0
    requeued: int = 0
    known: int = 0
    ignored: int = 0
    rejected: int = 0
    deleted: int = 0
    postponed: int = 0
    full: bool = False
    off: tuple[KillSwitch, ...] = ()
    policy: KillSwitchPolicy = ALL_ON
    unverified: int = 0
    work: frozenset[tuple[str, str]] = frozenset()

    def joined(self, other: IntakeReport) -> IntakeReport:
        """Return the report of both parts of a tick."""
        names = [field.name for field in dataclasses.fields(self) if type(getattr(self, field.name)) is int]
        counts = {name: getattr(self, name) + getattr(other, name) for name in names}
        return dataclasses.replace(self, **counts, work=self.work | other.work)


def take_in(
    pipeline: Pipeline,
    state: ProcessState,
    *,
    wait_seconds: int = FIRST_WAIT_SECONDS,
    budget_seconds: float | None = None,
    most: int | None = None,
) -> IntakeReport:
    """Receive and record messages, unless too many live units are in flight.

    The number of messages is at most KFM_MAX_UNITS_PER_RUN and at most the number of further units allowed in flight.
    Receiving also stops at KFM_MAX_UNITS_PER_TICK and KFM_MAX_BYTES_PER_TICK, after the current requests. Bulk units in
    flight do not count, because a backfill must not stop live data. `wait_seconds` is the wait at an empty queue;
    `budget_seconds` replaces KFM_TICK_BUDGET_SECONDS, and `most` limits messages and units further.

    Raises QueueUnavailableError and DatabaseUnavailableError; unrecorded messages are visible again after their
    visibility timeout. Raises StoreAccessError if the landing zone refuses a part of the messages; then all of this
    call's messages are visible again immediately.
    """
    settings = pipeline.settings
    deleted = pipeline.acknowledger.acknowledge()
    off = KillSwitchPolicy.now(pipeline.ledger.switches)
    if switches := off.of_queue(pipeline.registry, settings.sqs_primary_queue):
        return IntakeReport(deleted=deleted, off=tuple(switches), policy=off)
    room = settings.max_in_flight_units - units_in_flight(
        pipeline.ledger, Lane.LIVE, off, today=pipeline.clock().date()
    )
    if room <= 0:
        return IntakeReport(deleted=deleted, full=True, policy=off)
    further = () if most is None else (most,)
    messages = pipeline.queue.receive(
        min(room, settings.max_units_per_run, *further),
        budget_seconds=settings.tick_budget_seconds if budget_seconds is None else budget_seconds,
        wait_seconds=wait_seconds,
        max_bytes=settings.max_bytes_per_tick,
        max_units=min(room, settings.max_units_per_tick, *further),
        threads=settings.receive_threads,
    )
    if not messages:
        return IntakeReport(deleted=deleted, policy=off)
    try:
        # The switches are read again, because one may have been engaged while the request waited.
        report = record(pipeline, messages, KillSwitchPolicy.now(pipeline.ledger.switches))
    except StoreAccessError:
        # The messages stay on the queue, and the next tick receives only after a successful preflight.
        state.ready = False
        pipeline.queue.change_visibility([(message.receipt_handle or "", 0) for message in messages])
        raise
    return dataclasses.replace(report, deleted=deleted + pipeline.acknowledger.acknowledge())


def record(pipeline: Pipeline, messages: Sequence[SqsMessage], off: KillSwitchPolicy) -> IntakeReport:
    """Land, parse and record messages in parts of bounded weight.

    Senders are verified first; messages that wait for a certificate are neither landed nor recorded. Each part is then
    landed, and its deliveries, units and rejections are recorded in one transaction, before the next part is parsed.
    """
    report = IntakeReport(policy=off)
    for part in in_parts(messages, weight, (PART_BYTES, PART_UNITS)):
        verdicts = verdicts_on(pipeline, part)
        first_wait = pipeline.settings.retry_backoff_seconds
        known = _of_known_senders(zip(part, verdicts, strict=True), queue=pipeline.queue, first_wait=first_wait)
        report = report.joined(IntakeReport(unverified=len(part) - len(known)))
        if known:
            report = report.joined(_record(pipeline, known, off))
    return report


def _record(
    pipeline: Pipeline, known: Sequence[tuple[SqsMessage, SenderVerdict]], off: KillSwitchPolicy
) -> IntakeReport:
    began, messages = time.time_ns(), [message for message, _ in known]
    landed = pipeline.landing.land(messages)
    queue = pipeline.settings.sqs_primary_queue
    days = pipeline.window.current()
    parsed = [
        parse_message(message, registry=pipeline.registry, queue=queue, days=days, verdict=verdict)
        for message, verdict in known
    ]
    with pipeline.database.transaction() as tx:
        ensured, parsed = ensure_units(pipeline.ledger, parsed, tx=tx)
        failed = [wal_id for wal_id, status in ensured.existing.items() if status is Status.FAILED]
        requeued = pipeline.ledger.requeue(failed, reason="retry", tx=tx)
        completions = complete(pipeline.ledger, parsed, tx)
        closings = close(pipeline.ledger, created_of(ensured, parsed), tx)
        record_messages(pipeline.deliveries, messages, parsed, queue=queue, landing_sha256=landed, tx=tx)
    changes = _visibility(messages, parsed, off=off, ended=_ended(ensured), now=pipeline.clock())
    if changes:
        pipeline.queue.change_visibility(changes)
    work = (ensured.created - ensured.stale) | requeued
    if is_tracing():
        for unit in (unit for result in parsed for unit in result.envelopes if unit.wal_id in ensured.created & work):
            record_receive(unit, dataset=pipeline.registry.public_id(unit.dataset), began=began)
    return IntakeReport(
        received=len(messages),
        created=len(ensured.created),
        completions=completions,
        closings=closings,
        requeued=len(requeued),
        known=len(ensured.existing) - len(requeued),
        ignored=sum(len(result.ignored) for result in parsed),
        rejected=sum(rejection.records for result in parsed for rejection in result.rejections),
        postponed=sum(seconds > 0 for _, seconds in changes),
        work=frozenset(
            (unit.dataset, unit.partition)
            for result in parsed
            for unit in result.envelopes
            if unit.wal_id in work and off.of(unit.dataset) is None
        ),
    )


def _ended(ensured: EnsureResult) -> frozenset[WalId]:
    """Return the units that need no further run, so that their messages can be deleted."""
    return ensured.stale | {
        wal_id for wal_id, status in ensured.existing.items() if status in {Status.SUCCEEDED, Status.QUARANTINED}
    }


def _visibility(
    messages: Sequence[SqsMessage],
    parsed: Sequence[ParsedMessage],
    *,
    off: KillSwitchPolicy,
    ended: Collection[WalId],
    now: datetime,
) -> list[tuple[str, int]]:
    """Return the receipts of messages that need a new visibility timeout, and its seconds.

    A message that only has rejections is made visible, so that the redrive policy soon moves it to the DLQ. A
    message of a switched-off dataset stays hidden, so that repeated receives do not move it to the DLQ.
    """
    changes = []
    for message, result in zip(messages, parsed, strict=True):
        waiting = {unit.dataset for unit in result.envelopes if unit.wal_id not in ended}
        hidden = [seconds for name in waiting if (seconds := off.hidden_seconds(name, now=now)) is not None]
        if hidden:
            changes.append((message.receipt_handle or "", max(hidden)))
        elif result.rejections and not result.envelopes:
            changes.append((message.receipt_handle or "", 0))
    return changes


def verdicts_on(pipeline: Pipeline, messages: Sequence[SqsMessage]) -> list[SenderVerdict]:
    """Return a verdict on each message, in order; verified messages are not verified again."""
    verified = pipeline.deliveries.verified(message.message_id for message in messages)
    return pipeline.signatures.verdicts(messages, verified=verified)


def _of_known_senders(
    judged: Iterable[tuple[SqsMessage, SenderVerdict]], *, queue: Queue, first_wait: float | None
) -> list[tuple[SqsMessage, SenderVerdict]]:
    """Return the messages except for those whose certificate cannot be fetched now; hide these."""
    known: list[tuple[SqsMessage, SenderVerdict]] = []
    waits: list[tuple[str, int]] = []
    for message, verdict in judged:
        if verdict.authenticity is Authenticity.UNKNOWN:
            first = CERTIFICATE_WAIT_SECONDS if first_wait is None else first_wait
            # `change_visibility` limits the wait to SQS's maximum.
            wait = int(first * WAIT_FACTOR ** min(max(message.receive_count - 1, 0), 8))
            waits.append((message.receipt_handle or "", wait))
        else:
            known.append((message, verdict))
    if waits:
        queue.change_visibility(waits)
    return known
