"""Changes: the writes that the operations of `store.py` share.

Belongs here: the replay policy in force, requeueing, quarantining, logging decisions and results. Does not belong here:
when these changes happen (`store.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from kfm_dagster import __version__
from kfm_dagster.contracts.envelope import Envelope, Lane, WalId
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import UnknownReplayReasonError
from kfm_dagster.governance.log import Decision, GovernanceAction, GovernanceLog
from kfm_dagster.governance.review import OverrideReview
from kfm_dagster.governance.switches import KillSwitches
from kfm_dagster.ledger.events import LedgerEvent, announce
from kfm_dagster.ledger.leases import Leases
from kfm_dagster.ledger.policy import LedgerCode, ReplayReason, replay_rules
from kfm_dagster.ledger.queries import LedgerQueries
from kfm_dagster.ledger.rows import outcome_row
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.redaction import redact
from kfm_dagster.storage.database import Database, Transaction
from kfm_dagster.telemetry.traces import is_tracing, record_attempt

DEFAULT_LEASE = timedelta(seconds=960)
"""The visibility timeout in the built-in contracts (900 s) plus a margin."""

_LOST_MESSAGES = {
    LedgerCode.WORKER_LOST: "the run that held the claim ended without settling it",
    LedgerCode.LEASE_EXPIRED: "the claim's lease ran out",
    LedgerCode.ROLLED_BACK: "the run was rolled back",
}


class LedgerChanges(LedgerQueries):
    """A ledger that can be changed. `worker_id` is a logical name; `clock` returns aware times.

    `human_review` has the error codes that quarantine a unit at its first attempt.
    `reasons` are the configured replay reasons with their meanings; a reason enters the vocabulary at its first use.
    """

    def __init__(
        self,
        database: Database,
        *,
        registry: ContractRegistry,
        worker_id: str,
        clock: Callable[[], datetime],
        lease: timedelta = DEFAULT_LEASE,
        retry_backoff_seconds: float | None = None,
        human_review: Collection[str] = (),
        reasons: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(database)
        self.registry = registry
        self._worker_id = worker_id
        self._clock = clock
        self._retry_backoff_seconds = retry_backoff_seconds
        self.human_review = frozenset(human_review)
        self._reasons = dict(reasons or {})
        self.log = GovernanceLog(database, clock=clock)
        self.review = OverrideReview(database, clock=clock)
        self.switches = KillSwitches(database, clock=clock)
        self.leases = Leases(database, switches=self.switches, worker_id=worker_id, clock=clock, lease=lease)

    def _requeue(
        self,
        wal_ids: Iterable[str],
        *,
        reason: str,
        tx: Transaction,
        run_id: str | None = None,
        actor: str | None = None,
        replay_run_id: str | None = None,
        batch_limit: int | None = None,
    ) -> Sequence[Any]:
        """Make failed units pending if attempts remain, or if `batch_limit` is set."""
        rows = tx.run(
            "ledger.requeue",
            wal_ids=sorted(wal_ids),
            policy=self._rules(tx),
            reason=reason,
            run_id=run_id,
            replay_run_id=replay_run_id,
            batch_limit=batch_limit,
            lane=None if reason == ReplayReason.RETRY else Lane.BULK,
            actor=actor or self._worker_id,
            at=self._clock(),
        )
        return announce(tx, LedgerEvent.RECOVERED, rows)

    def _rules(self, tx: Transaction) -> list[dict[str, Any]]:
        """Return the replay policy of the datasets that have a contract and are not switched off."""
        return replay_rules(self.registry, without=self.switches.off((c.id for c in self.registry), tx=tx))

    def _decide(
        self,
        versions: Mapping[WalId, int],
        from_status: Status,
        to_status: Status,
        action: GovernanceAction,
        decision: Decision,
        details: Mapping[str, Any],
        tx: Transaction,
    ) -> list[WalId]:
        """Log a decision on records that still have these versions; return their units."""
        if not versions:
            return []
        batch = [{"wal_id": wal_id, "version": version} for wal_id, version in sorted(versions.items())]
        rows = tx.run(
            "ledger.decide",
            batch=batch,
            from_status=from_status,
            to_status=to_status,
            action=action,
            actor=decision.actor,
            why=decision.reason,
            change_ref=decision.change_ref,
            details={**details, **decision.details},
            at=self._clock(),
        )
        return [WalId(row.wal_id) for row in rows]

    def _fail_lost(
        self,
        tx: Transaction,
        code: LedgerCode,
        *,
        because: str | None = None,
        run_ids: Sequence[str] = (),
        dataset: str | None = None,
        expired_at: datetime | None = None,
    ) -> tuple[Any, ...]:
        rows = tx.run(
            "ledger.fail_claims",
            run_ids=run_ids,
            dataset=dataset,
            expired_at=expired_at,
            error_code=code,
            error_message=_LOST_MESSAGES[code] if because is None else redact(f"{_LOST_MESSAGES[code]}: {because}"),
            at=self._clock(),
            actor=self._worker_id,
        )
        return self._ended(LedgerEvent.FAILED, rows, tx)

    def _ended(
        self, event: LedgerEvent, rows: Iterable[Any], tx: Transaction, units: Iterable[Envelope] = ()
    ) -> tuple[Any, ...]:
        """Announce the ends of attempts, and write their traces after the commit; return the rows."""
        ended = announce(tx, event, rows)
        if ended and is_tracing():
            error = {row.wal_id: row.last_error_code for row in ended}
            unit_of, at = {unit.wal_id: unit for unit in units}, self._clock()

            def trace(attempts: Sequence[Any]) -> None:
                for row in attempts:
                    record_attempt(
                        row,
                        dataset=self.registry.public_id(row.dataset),
                        error=error[row.wal_id],
                        ended_at=at,
                        unit=unit_of.get(row.wal_id),
                    )

            tx.after_commit(partial(trace, tx.run("ledger.attempts", wal_ids=sorted(error)).all()))
        return ended

    def _record_outcomes(self, units: Sequence[Envelope], run_id: str, tx: Transaction) -> tuple[WalId, ...]:
        """Record results; return the units whose result changed without permission (WAL-11)."""
        if not units:
            return ()
        stamp = {"run_id": run_id, "at": self._clock(), "code_version": __version__}
        outcomes = tx.run("ledger.record_outcomes", stamp, batch=[outcome_row(unit) for unit in units])
        unpermitted = [row for row in outcomes if row.differs_from is not None and not row.permitted]
        dataset_of = {unit.wal_id: unit.dataset for unit in units}
        entries = [
            {
                "actor": self._worker_id,
                "action": GovernanceAction.REPLAY_MISMATCH,
                "dataset": dataset_of[row.wal_id],
                "wal_id": row.wal_id,
                "reason": f"attempt {row.attempt} gave another result than attempt {row.differs_from}",
                "details": {"run_id": run_id},
            }
            for row in unpermitted
        ]
        self.log.record_many(entries, tx=tx)
        return tuple(sorted(WalId(row.wal_id) for row in unpermitted))

    def _superseded(self, wal_ids: Iterable[WalId], tx: Transaction) -> dict[WalId, str]:
        batch = sorted(wal_ids)
        rows = tx.run("ledger.superseded_of", wal_ids=batch) if batch else ()
        return {WalId(row.older_wal_id): LedgerCode.SUPERSEDED for row in rows}

    def _give_up(self, reasons: Mapping[WalId, str], tx: Transaction) -> set[WalId]:
        quarantined: set[WalId] = set()
        for reason in sorted(set(reasons.values())):
            units = sorted(wal_id for wal_id in reasons if reasons[wal_id] == reason)
            quarantined |= self._quarantine(units, reason=reason, actor=self._worker_id, tx=tx)
        return quarantined

    def _quarantine(
        self,
        wal_ids: Sequence[str],
        *,
        reason: str,
        actor: str,
        tx: Transaction,
        by_person: bool = False,
    ) -> set[WalId]:
        if not wal_ids:
            return set()
        rows = tx.run("ledger.quarantine", wal_ids=wal_ids, reason=reason, actor=actor, at=self._clock())
        return {WalId(row.wal_id) for row in announce(tx, LedgerEvent.QUARANTINED, rows, by_person=by_person)}

    def check_reason(self, reason: str, *, tx: Transaction) -> None:
        """Raise UnknownReplayReasonError for a reason that is neither stored nor configured."""
        known = {**self.replay_reasons(tx=tx), **self._reasons}
        if reason not in known:
            raise UnknownReplayReasonError(
                observed=reason,
                expected=" or ".join(sorted(set(known) - {ReplayReason.RETRY})),
                next_step="correct --replay-reason, or add it to `reasons` in replay_plan.yaml",
            )

    def govern_reason(self, reason: str, *, tx: Transaction) -> None:
        """Add a configured replay reason to the vocabulary. Raises as `check_reason` does."""
        self.check_reason(reason, tx=tx)
        if (meaning := self._reasons.get(reason)) is not None:
            tx.run("ledger.govern_replay_reason", code=reason, meaning=meaning)
