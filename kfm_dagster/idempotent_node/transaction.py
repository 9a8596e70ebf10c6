"""The idempotent upsert: content takes effect once, with its output, intent and checkpoint.

    begin:   intent PENDING > SKIPPED if the content is APPLIED                           (a transaction of its own)
    upsert:  lock content > end if APPLIED > effect > lock node > output > APPLIED > checkpoint   (one transaction)

Between begin and upsert, a node computes, and causes effects outside the database; `ReadsBack.verify` reads the effects
back. Belongs here: the order of these writes. Does not belong here: a node's work (`node.py`), and when unresolved
intents are revisited (`replay.py`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from kfm_dagster.idempotent_node.checkpoint import advance, last_applied, lock_node
from kfm_dagster.idempotent_node.compute_hash import CodeFingerprint, ManifestEntry, compute_content_hash
from kfm_dagster.idempotent_node.steps import StepEnd, StepMeter
from kfm_dagster.idempotent_node.wal import Intent, Intents, IntentStatus
from kfm_dagster.redaction import redacted_error
from kfm_dagster.storage.database import Database, Transaction
from kfm_dagster.storage.statements import value_of
from kfm_dagster.telemetry.measures import StepVolume

_LOG = logging.getLogger(__name__)
OWN_PARAMETERS = "kfm:"
"""Prefix of the parameters that the pattern adds to the node's own parameters."""
KIND, STEP = "kfm:node", "kfm:step"
FORCED = "kfm:forced"
"""Parameter that gives forced work a separate content hash; it names the run and the reason."""
RERUN = "kfm:again"
"""Parameter that gives work a separate hash if an output must not be reused; it names the run and earlier intent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """A row of `node_output`: a content's result, and when that was the node's newest."""

    content_hash: str
    record: Mapping[str, Any]
    lineage: Mapping[str, Any] | None
    valid_from: datetime | None
    valid_to: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """A node's intended work. `context` has further values that a rerun needs.

    `node` includes the partition, and is the key of the checkpoint; `kind` is the same in every partition.
    """

    node: str
    kind: str
    step: str
    inputs: Sequence[ManifestEntry]
    params: Mapping[str, Any]
    code: CodeFingerprint
    context: Mapping[str, Any]

    @property
    def content_hash(self) -> str:
        """64 hex digits by the published algorithm; kind and step are added to the parameters."""
        return compute_content_hash(
            [entry.canonical() for entry in self.inputs],
            # Two kinds of node over the same inputs are different content.
            {**self.params, KIND: self.kind, STEP: self.step},
            self.code.code_sha,
            self.code.lockfile_hash,
            image_digest=self.code.image_digest,
        )

    def payload(self) -> dict[str, Any]:
        """Return the payload of the intent."""
        return {
            "inputs": [entry.canonical() for entry in self.inputs],
            "params": dict(self.params),
            "code": self.code.canonical(),
            "context": dict(self.context),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """A node's result, about to become durable."""

    record: Mapping[str, Any]
    lineage: Mapping[str, Any] | None = None
    volume: StepVolume = field(default_factory=StepVolume)
    claimed: ManifestEntry | None = None
    """The units that the node claimed in the ledger, if any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeResult:
    """An intent's end: APPLIED with its output, or SKIPPED with the output applied before."""

    status: IntentStatus
    output: Output
    applied_by: Intent


class IdempotentNodes:
    """Intents, outputs and checkpoints of a database, and the order of their writes."""

    def __init__(self, database: Database, *, clock: Callable[[], datetime], meter: StepMeter | None = None) -> None:
        self.database = database
        self._clock = clock
        self.meter = meter or StepMeter()
        self.intents = Intents(database, clock=clock)

    def begin(self, content: Content, *, run_id: str, tx: Transaction) -> tuple[Intent, NodeResult | None]:
        """Write the intent; return it, and its SKIPPED result if the content was applied before.

        The caller prepares the meter before this call, and commits the transaction before the effect begins.
        """
        digest = content.content_hash
        intent = self.intents.append(
            run_id=run_id,
            node=content.node,
            step=content.step,
            payload=content.payload(),
            content_hash=digest,
            tx=tx,
        )
        applied = self.intents.applied(digest, tx=tx)
        if applied is None:
            self.meter.begin(intent.wal_id)
            return intent, None
        return intent, self._skip(intent, applied, tx)

    def upsert(self, intent: Intent, effect: Callable[[Transaction], Effect], *, tx: Transaction) -> NodeResult:
        """Apply an effect once; write output, status and checkpoint in the same transaction.

        `effect` gets that transaction, and is not called if the content has been applied meanwhile. Exceptions of
        `effect` propagate and leave the intent unchanged.
        """
        if (applied := self._applied_or_locked(intent.content_hash, tx)) is not None:
            return self._skip(intent, applied, tx)
        result = effect(tx)
        at = self._close_previous(intent, tx)
        [output] = tx.rows(
            Output,
            "idempotent_node.put_output",
            content_hash=intent.content_hash,
            record=json.dumps(result.record, sort_keys=True, allow_nan=False),
            lineage=None if result.lineage is None else json.dumps(result.lineage, sort_keys=True, allow_nan=False),
            at=at,
        )
        end = StepEnd(volume=result.volume.with_declared(intent.payload), spent=self.meter.end(intent.wal_id))
        if not self.intents.resolve(intent, IntentStatus.APPLIED, end=end, claimed=result.claimed, tx=tx):
            self._write_second_intent(intent, end, result.claimed, tx=tx)
        advance(intent.node, intent.content_hash, at=self._clock(), tx=tx)
        return NodeResult(status=IntentStatus.APPLIED, output=output, applied_by=intent)

    def lock(self, content_hash: str, *, tx: Transaction) -> None:
        """Lock a content until the transaction ends, so that no other transaction applies it."""
        tx.lock(f"etl_wal/{content_hash}")

    def fail(self, intent: Intent, error: BaseException) -> None:
        """Mark an intent FAILED with its error, so that a replay repeats it."""
        end = StepEnd(spent=self.meter.end(intent.wal_id), error=type(error).__name__)
        with self.database.transaction() as tx:
            self.intents.resolve(intent, IntentStatus.FAILED, end=end, tx=tx)

    @contextmanager
    def failing(self, intent: Intent) -> Iterator[None]:
        """Mark an intent FAILED if the block raises; the exception propagates."""
        try:
            yield
        except Exception as error:
            with noted(intent.node):
                self.fail(intent, error)
            raise

    def take_up(self, intent: Intent) -> bool:
        """Restart an abandoned intent; False if it is SKIPPED instead.

        It is skipped if its content has been applied, or if its node has applied other content since the intent.
        """
        self.meter.prepare()
        with self.database.transaction() as tx:
            if tx.run("idempotent_node.overtaken", wal_id=intent.wal_id).first() is not None:
                self.intents.resolve(intent, IntentStatus.SKIPPED, tx=tx)
                return False
            if (applied := self.intents.applied(intent.content_hash, tx=tx)) is not None:
                self._skip(intent, applied, tx)
                return False
        self.meter.begin(intent.wal_id)
        return True

    def output(self, content_hash: str, *, tx: Transaction) -> Output | None:
        """Return the output of a content, or None when it was never applied."""
        return tx.row(Output, "idempotent_node.output", content_hash=content_hash)

    def newest(self, node: str) -> Output | None:
        """Return a node's last applied output, or None before the node's first effect."""
        with self.database.snapshot() as tx:
            content_hash = last_applied(node, tx=tx)
            return None if content_hash is None else self.output(content_hash, tx=tx)

    def newest_of_stage(self, stage: str, *, since: datetime) -> list[Output]:
        """Return a stage's last output of each partition, newest first; omit outputs before `since`."""
        with self.database.snapshot() as tx:
            return tx.rows(Output, "idempotent_node.newest_outputs_of_stage", prefix=f"{stage}@", since=since)

    def outputs_ahead(self, stage: str, *, later: str, since: datetime, before: datetime) -> dict[str, Output]:
        """Map partitions to a stage's last output there, if it is not older than `since`.

        A partition is omitted if the stage `later` has run there after that output, or at the time `before` or later.
        """
        bounds = {"prefix": f"{stage}@", "later_prefix": f"{later}@", "since": since, "before": before}
        with self.database.snapshot() as tx:
            rows = tx.run("idempotent_node.outputs_ahead", bounds).mappings()
            return {row["partition_key"]: value_of(Output, row) for row in rows}

    def outputs_of(self, node: str) -> list[Output]:
        """Return all outputs that a node has applied, in the order of its intents."""
        with self.database.snapshot() as tx:
            return tx.rows(Output, "idempotent_node.outputs_of", node=node)

    def _applied_or_locked(self, content_hash: str, tx: Transaction) -> Intent | None:
        """Return the intent that applied a content, or lock the unapplied content and return None.

        Applied content is not locked, because APPLIED is final and the lock could cause a deadlock: a transaction that
        skips may hold the node's lock already, and the holder of the content's lock could be waiting for the node.
        """
        if (applied := self.intents.applied(content_hash, tx=tx)) is not None:
            return applied
        self.lock(content_hash, tx=tx)
        return self.intents.applied(content_hash, tx=tx)

    def _skip(self, intent: Intent, applied: Intent, tx: Transaction) -> NodeResult:
        """Mark an intent of applied content SKIPPED; its output becomes the node's newest again."""
        self.intents.resolve(intent, IntentStatus.SKIPPED, end=StepEnd(spent=self.meter.end(intent.wal_id)), tx=tx)
        if last_applied(intent.node, tx=tx) not in {None, intent.content_hash}:
            self._close_previous(intent, tx)
            tx.run("idempotent_node.end_output", content_hash=intent.content_hash, at=None)
            advance(intent.node, intent.content_hash, at=self._clock(), tx=tx)
        [output] = tx.rows(Output, "idempotent_node.output", content_hash=intent.content_hash)
        return NodeResult(status=IntentStatus.SKIPPED, output=output, applied_by=applied)

    def _write_second_intent(
        self, intent: Intent, end: StepEnd, claimed: ManifestEntry | None, *, tx: Transaction
    ) -> None:
        """Write a second, APPLIED intent, because the first was resolved while its worker still ran."""
        second = self.intents.append(
            run_id=intent.run_id,
            node=intent.node,
            step=intent.step,
            payload=intent.payload,
            content_hash=intent.content_hash,
            tx=tx,
        )
        self.intents.resolve(second, IntentStatus.APPLIED, end=end, claimed=claimed, tx=tx)

    def _close_previous(self, intent: Intent, tx: Transaction) -> datetime:
        """End the validity of the node's last output now; return that time, for the next output.

        The node stays locked until the transaction ends. Otherwise two transactions with different contents could both
        close the same output and leave two newest outputs. The node's lock is taken after those of the content and of
        the effect, so that two transactions cannot wait for each other.
        """
        lock_node(intent.node, tx=tx)
        at = self._clock()
        previous = last_applied(intent.node, tx=tx)
        if previous is not None:
            tx.run("idempotent_node.end_output", content_hash=previous, at=at)
        return at


@contextmanager
def noted(what: str) -> Iterator[None]:
    """Log errors of recording a failure, so that the failure itself is raised and retried."""
    try:
        yield
    except Exception as error:
        _LOG.exception("the failure of %s could not be recorded", what, exc_info=redacted_error(error))


def rerun_of(content: Content, *, run_id: str, applied: Intent) -> Content:
    """Return the content with a new hash, because the output of `applied` is not reusable."""
    return replace(content, params={**content.params, RERUN: {"run_id": run_id, "after": applied.wal_id}})


def forced(params: Mapping[str, Any], *, run_id: str, reason: str) -> dict[str, Any]:
    """Return parameters that no earlier content had, so that an unchanged node runs."""
    return {**params, FORCED: {"run_id": run_id, "reason": reason}}
