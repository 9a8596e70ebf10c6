"""The ledger's store: every change of a record, one statement per batch and transition.

Belongs here: ensure, readmit, claim, settle, recover, quarantine. Each method joins the caller's transaction when one
is given, so that several rooms commit together. Statements are guarded (status, version, run, attempt), so a record
that somebody else moved is left alone; the database's triggers write the history. Does not belong here: deciding
(`policy.py`), questions (`queries.py`), messages (`deliveries.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from kfm_dagster.contracts.envelope import Envelope, WalId
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import UnknownReplayReasonError
from kfm_dagster.ledger.joining import writing
from kfm_dagster.ledger.policy import LedgerCode, ReplayReason, backoff_seconds, quarantine_reason, replay_rules
from kfm_dagster.ledger.queries import LedgerQueries
from kfm_dagster.ledger.redaction import redact
from kfm_dagster.ledger.refusals import explained
from kfm_dagster.ledger.reports import EnsureResult, RecoverReport, SettleReport
from kfm_dagster.ledger.rows import as_json, claim_order, claimed_envelope, findings_row, unit_row, wal_ids_of
from kfm_dagster.ledger.state_machine import Status, check_transition, success_hindrance
from kfm_dagster.storage.database import Database, Transaction

__all__ = ["EnsureResult", "Ledger", "RecoverReport", "SettleReport"]

_LOST_MESSAGES = {
    LedgerCode.WORKER_LOST: "the run that held the claim ended without settling it",
    LedgerCode.LEASE_EXPIRED: "the claim is older than its lease",
}


class Ledger(LedgerQueries):
    """The NODD WAL. `worker_id` is a logical name; `clock` returns aware times."""

    def __init__(
        self,
        database: Database,
        *,
        registry: ContractRegistry,
        worker_id: str,
        clock: Callable[[], datetime],
        retry_backoff_seconds: float | None = None,
    ) -> None:
        super().__init__(database)
        self._registry = registry
        self._worker_id = worker_id
        self._clock = clock
        self._retry_backoff_seconds = retry_backoff_seconds
        self._replay_rules = as_json(replay_rules(registry))

    def ensure(self, envelopes: Iterable[Envelope], *, tx: Transaction | None = None) -> EnsureResult:
        """Give every unit a record: null > pending where it has none, nothing where it has one (WSM-03, WAL-04)."""
        units = {unit.wal_id: unit for unit in envelopes}
        batch = [unit_row(unit, self._registry[unit.dataset]) for unit in units.values()]
        with self._changing(tx) as changing:
            rows = changing.run("ledger.ensure", batch=as_json(batch), at=self._now(), actor=self._worker_id)
            created = frozenset(WalId(row.wal_id) for row in rows)
            existing = self.statuses(units.keys() - created, tx=changing)
        return EnsureResult(created=created, existing=existing)

    def readmit(
        self,
        wal_ids: Iterable[str],
        *,
        reason: str = ReplayReason.RETRY,
        run_id: str | None = None,
        actor: str | None = None,
        tx: Transaction | None = None,
    ) -> frozenset[WalId]:
        """Make failed > pending of those units whose attempts and policy allow it; return them (WSM-07, WSM-10).

        Raises UnknownReplayReasonError when the reason is neither built in nor governed.
        """
        with self._changing(tx) as changing:
            self._check_reason(reason, changing)
            rows = self._readmit(wal_ids, reason=reason, run_id=run_id, actor=actor, tx=changing)
            return frozenset(wal_ids_of(rows))

    def claim(
        self,
        *,
        dataset: str,
        partition: str,
        run_id: str,
        limit: int,
        wal_ids: Iterable[str] | None = None,
        tx: Transaction | None = None,
    ) -> list[Envelope]:
        """Make pending > in_progress of at most `limit` units, urgent and old ones first; return their envelopes.

        A unit that another run claims at the same time is that run's: the version is compared and swapped (WSM-04).
        """
        with self._changing(tx) as changing:
            rows = changing.run(
                "ledger.claim",
                dataset=dataset,
                partition=partition,
                run_id=run_id,
                limit=limit,
                wal_ids=None if wal_ids is None else as_json(sorted(wal_ids)),
                worker_id=self._worker_id,
                at=self._now(),
            ).all()
        return sorted(map(claimed_envelope, rows), key=claim_order)

    def settle(self, envelopes: Sequence[Envelope], *, run_id: str, tx: Transaction | None = None) -> SettleReport:
        """Give each claimed unit its final status (WSM-05, WSM-06).

        in_progress > succeeded where no operator failed and the sub-statuses allow it, else in_progress > failed with
        the time of the next attempt, and > quarantined in the same transaction where none remains. Only claims of this
        run and attempt are touched; the others come back as `lost`.
        """
        moment = self._clock()
        succeeded, failed, given_up = self._judge(envelopes, moment)
        with self._changing(tx) as changing:
            stamp = {"run_id": run_id, "at": rfc3339(moment), "actor": self._worker_id}
            done = _settled(changing, "ledger.settle_succeeded", succeeded, stamp)
            not_done = _settled(changing, "ledger.settle_failed", failed, stamp)
            quarantined = self._give_up({wal_id: given_up[wal_id] for wal_id in not_done & given_up.keys()}, changing)
        return SettleReport(
            succeeded=tuple(sorted(done)),
            failed=tuple(sorted(not_done - quarantined)),
            quarantined=tuple(sorted(quarantined)),
            lost=tuple(sorted({unit.wal_id for unit in envelopes} - done - not_done)),
        )

    def release_lost(
        self,
        *,
        run_ids: Iterable[str] = (),
        older_than: timedelta | None = None,
        tx: Transaction | None = None,
    ) -> RecoverReport:
        """Take back the claims of dead runs, and those older than the lease (WSM-11).

        in_progress > failed with code worker_lost or lease_expired, then > pending at once where attempts remain, else
        > quarantined. A claim inside its lease is taken only when its run is named.
        """
        with self._changing(tx) as changing:
            lost = self._fail_lost(changing, LedgerCode.WORKER_LOST, run_ids=run_ids, before=None)
            if older_than is not None:
                before = rfc3339(self._clock() - older_than)
                lost += self._fail_lost(changing, LedgerCode.LEASE_EXPIRED, run_ids=(), before=before)
            taken = {WalId(row.wal_id) for row in lost}
            rows = self._readmit(taken, reason=ReplayReason.RETRY, run_id=None, actor=None, tx=changing)
            readmitted = set(wal_ids_of(rows))
            quarantined = self._give_up(self._exhausted(lost), changing)
        return RecoverReport(
            readmitted=tuple(sorted(readmitted)),
            quarantined=tuple(sorted(quarantined)),
            failed=tuple(sorted(taken - readmitted - quarantined)),
        )

    def retry_due(self, *, now: datetime, limit: int, tx: Transaction | None = None) -> dict[tuple[str, str], int]:
        """Make failed > pending of the units whose backoff is over; return their number by (dataset, partition)."""
        with self._changing(tx) as changing:
            due = changing.run("ledger.due", at=rfc3339(now), limit=limit, policy=self._replay_rules)
            rows = self._readmit(wal_ids_of(due), reason=ReplayReason.RETRY, run_id=None, actor=None, tx=changing)
            return dict(Counter((row.dataset, row.partition_key) for row in rows))

    def quarantine(
        self, wal_ids: Iterable[str], *, reason_code: str, actor: str, tx: Transaction | None = None
    ) -> tuple[WalId, ...]:
        """Take units out of automatic flows: pending or failed > quarantined (WSM-08).

        All or none: raises IllegalTransitionError for the first unit that is in another state or unknown.
        """
        wanted = sorted(set(wal_ids))
        with self._changing(tx) as changing:
            rows = changing.run("ledger.lock_statuses", wal_ids=as_json(wanted))
            status = {row.wal_id: Status(row.status) for row in rows}
            for wal_id in wanted:
                check_transition(wal_id=wal_id, from_status=status.get(wal_id), to_status=Status.QUARANTINED)
            return tuple(sorted(self._quarantine(wanted, reason=reason_code, actor=actor, tx=changing)))

    def govern_replay_reason(self, code: str, *, meaning: str, tx: Transaction | None = None) -> None:
        """Add a reason to the vocabulary; one that is there stays as it is."""
        with self._changing(tx) as changing:
            changing.run("ledger.govern_replay_reason", code=code, meaning=meaning)

    def _readmit(
        self, wal_ids: Iterable[str], *, reason: str, run_id: str | None, actor: str | None, tx: Transaction
    ) -> Sequence[Any]:
        return tx.run(
            "ledger.readmit",
            wal_ids=as_json(sorted(wal_ids)),
            policy=self._replay_rules,
            reason=reason,
            run_id=run_id,
            actor=actor or self._worker_id,
            at=self._now(),
        ).all()

    def _judge(
        self, envelopes: Sequence[Envelope], moment: datetime
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[WalId, str]]:
        """Rows of the successes, rows of the failures, and the reason of those failures that end in quarantine."""
        succeeded: list[dict[str, Any]] = []
        failed: list[dict[str, Any]] = []
        given_up: dict[WalId, str] = {}
        for unit in envelopes:
            row = findings_row(unit)
            trouble = _trouble(unit, row)
            if trouble is None:
                succeeded.append(row)
                continue
            code, message = trouble
            retry = self._registry[unit.dataset].retry
            reason = quarantine_reason(retry, attempt=unit.attempt, error_code=code)
            due = None
            if reason is None:
                wait = backoff_seconds(retry, attempt=unit.attempt, base_seconds=self._retry_backoff_seconds)
                due = rfc3339(moment + timedelta(seconds=wait))
            else:
                given_up[unit.wal_id] = reason
            failed.append(row | {"error_code": code, "error_message": redact(message), "next_attempt_at": due})
        return succeeded, failed, given_up

    def _fail_lost(self, tx: Transaction, code: LedgerCode, *, run_ids: Iterable[str], before: str | None) -> list[Any]:
        rows = tx.run(
            "ledger.fail_lost",
            run_ids=as_json(sorted(run_ids)),
            before=before,
            error_code=code,
            error_message=_LOST_MESSAGES[code],
            at=self._now(),
            actor=self._worker_id,
        )
        return list(rows)

    def _exhausted(self, rows: Iterable[Any]) -> dict[WalId, str]:
        limits = {contract.id: contract.retry.max_attempts for contract in self._registry}
        return {
            WalId(row.wal_id): LedgerCode.ATTEMPTS_EXHAUSTED
            for row in rows
            # A dataset whose contract is gone has no limit to exceed: its records stay failed.
            if row.dataset in limits and row.attempts >= limits[row.dataset]
        }

    def _give_up(self, reasons: Mapping[WalId, str], tx: Transaction) -> set[WalId]:
        found: set[WalId] = set()
        for reason in sorted(set(reasons.values())):
            units = sorted(wal_id for wal_id in reasons if reasons[wal_id] == reason)
            found |= self._quarantine(units, reason=reason, actor=self._worker_id, tx=tx)
        return found

    def _quarantine(self, wal_ids: Sequence[str], *, reason: str, actor: str, tx: Transaction) -> set[WalId]:
        rows = tx.run("ledger.quarantine", wal_ids=as_json(wal_ids), reason=reason, actor=actor, at=self._now())
        return {WalId(row.wal_id) for row in rows}

    def _check_reason(self, reason: str, tx: Transaction) -> None:
        if tx.run("ledger.replay_reason", code=reason).one_or_none() is None:
            raise UnknownReplayReasonError(observed=reason, expected=" or ".join(self.replay_reasons(tx=tx)))

    def _now(self) -> str:
        return rfc3339(self._clock())

    @contextmanager
    def _changing(self, tx: Transaction | None) -> Iterator[Transaction]:
        with explained(), writing(self.database, tx) as changing:
            yield changing


def _trouble(unit: Envelope, findings: Mapping[str, str]) -> tuple[str, str] | None:
    if unit.failure is not None:
        return unit.failure.code, unit.failure.message
    hindrance = success_hindrance(findings)
    return None if hindrance is None else (LedgerCode.INCOMPLETE_CHAIN, hindrance)


def _settled(tx: Transaction, name: str, batch: list[dict[str, Any]], stamp: Mapping[str, str]) -> set[WalId]:
    if not batch:
        return set()
    return {WalId(row.wal_id) for row in tx.run(name, stamp, batch=as_json(batch))}
