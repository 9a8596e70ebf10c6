"""The ledger's store: changes records, by one statement per batch and transition.

Belongs here: ensure, requeue, claim, settle, recover, quarantine, override. Each method works in the caller's
transaction, so that its changes commit together with those of other stores. Statements compare status, version, run or
attempt, so they skip a record that another process has changed; the database's triggers write the history. Does not
belong here: deciding (`policy.py`, `verdicts.py`), how a change is written (`changes.py`), reading (`queries.py`),
messages (`deliveries.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from kfm_dagster.contracts.envelope import Envelope, Lane, WalId
from kfm_dagster.governance.log import Decision, GovernanceAction
from kfm_dagster.ledger.changes import LedgerChanges
from kfm_dagster.ledger.events import LedgerEvent, announce
from kfm_dagster.ledger.policy import LedgerCode, ReplayReason
from kfm_dagster.ledger.reports import EnsureResult, RecoverReport, SettleReport
from kfm_dagster.ledger.rows import claim_order, claimed_envelopes, unit_row, wal_ids_of
from kfm_dagster.ledger.size_peers import SizePeers
from kfm_dagster.ledger.state_machine import Status, check_transition, explained
from kfm_dagster.ledger.verdicts import Verdicts, conflicting, decide, settled_totals, yields_to
from kfm_dagster.storage.database import Transaction
from kfm_dagster.storage.refusal import write_all_but_refused

ENSURED_AT_ONCE = 5_000
"""Units per statement: as many as a run claims by default, or as a message of 1 MiB can announce."""


class Ledger(LedgerChanges):
    """The NODD WAL."""

    @explained()
    def ensure(self, envelopes: Iterable[Envelope], *, lane: Lane = Lane.LIVE, tx: Transaction) -> EnsureResult:
        """Create missing records as pending; existing records stay unchanged (WSM-03, WAL-04).

        A new unit is stale, and is quarantined, if a newer version of its object is known. Earlier versions of a new
        unit's object are superseded and quarantined; a version in progress is quarantined only if it fails (BEY-01).
        If the database refuses a unit, the other units are recorded.
        """
        units = list({unit.wal_id: unit for unit in envelopes}.values())
        parts: list[EnsureResult] = []
        refused: list[tuple[Envelope, str]] = []
        tx.lock("kfm_dagster.admission")
        for start in range(0, len(units), ENSURED_AT_ONCE):
            written, refusals = write_all_but_refused(
                tx,
                units[start : start + ENSURED_AT_ONCE],
                lambda part: self._admit(part, lane=lane, tx=tx),
            )
            parts += written
            refused += refusals
        return EnsureResult.of_parts(parts, {unit.wal_id: reason for unit, reason in refused})

    @explained()
    def requeue(
        self,
        wal_ids: Iterable[str],
        *,
        reason: str = ReplayReason.RETRY,
        run_id: str | None = None,
        actor: str | None = None,
        replay_run_id: str | None = None,
        tx: Transaction,
    ) -> frozenset[WalId]:
        """Change failed units to pending if attempts and policy allow it (WSM-07, WSM-10).

        A retry keeps the unit's lane; any other reason puts the unit into the bulk lane. Superseded units, units whose
        last error the policy never retries, and units of switched-off datasets stay failed. Returns the changed units.
        """
        self.govern_reason(reason, tx=tx)
        rows = self._requeue(wal_ids, reason=reason, run_id=run_id, actor=actor, replay_run_id=replay_run_id, tx=tx)
        return frozenset(wal_ids_of(rows))

    @explained()
    def claim(
        self,
        *,
        dataset: str,
        partition: str,
        run_id: str,
        limit: int,
        lane: Lane | None = None,
        wal_ids: Iterable[str] | None = None,
        tx: Transaction,
    ) -> list[Envelope]:
        """Claim at most `limit` units (pending > in_progress) under a lease; return their envelopes.

        Units of dead runs come first, at most as many together as the limit that `release_lost` set. Then live units
        come before bulk units (with `lane`, only units of that lane), urgent units before others, and old units before
        new units. A unit that must run alone is the only unit of its run. The record's version is compared and swapped,
        so that only one of two concurrent runs gets a unit (WSM-04). Units of a switched-off dataset are not claimed.
        """
        if self.switches.off([dataset], tx=tx):
            return []
        place = {"dataset": dataset, "partition": partition, "lane": lane}
        batch_limit = None
        if wal_ids is None:
            bounds = tx.run("ledger.batch_bounds", place, run_id=run_id).one()
            batch_limit = bounds.batch_limit
            if bounds.claimed_limit == 1 or (batch_limit == 1 and bounds.claimed):
                return []
        claimed = claimed_envelopes(
            tx.run(
                "ledger.claim",
                place,
                run_id=run_id,
                limit=limit if batch_limit is None else min(limit, batch_limit),
                batch_limit=batch_limit,
                wal_ids=None if wal_ids is None else sorted(wal_ids),
                worker_id=self._worker_id,
                at=self._clock(),
            )
        )
        if claimed:
            self.leases.acquire(run_id=run_id, dataset=dataset, tx=tx)
        return sorted(claimed, key=claim_order)

    @explained()
    def settle(self, envelopes: Sequence[Envelope], *, run_id: str, tx: Transaction) -> SettleReport:
        """Give each claimed unit its final status (WSM-05, WSM-06).

        A unit succeeds if no operator failed and its sub-statuses allow it. Otherwise it fails, with the time of its
        next attempt; if no attempt remains, it is quarantined in the same transaction. If a newer unit's Item is
        current but may still be withdrawn, the older unit fails with `catalog_conflict` and is retried. Only units
        with a claim of this run and attempt are changed; the other units are returned as `lost`, unless their last
        change is a success in this run.
        """
        yielding = [unit for unit in envelopes if yields_to(unit)]
        verdicts = self._verdicts([unit for unit in envelopes if not yields_to(unit)])
        stamp = {"run_id": run_id, "at": self._clock(), "actor": self._worker_id}
        successes = [*_settled(tx, Status.SUCCEEDED, verdicts.succeeded, stamp)]
        if yielding:
            # Settled last: the newer unit may be in the same batch, and may just have succeeded.
            yielded = self._verdicts(self._with_conflicts(yielding, tx))
            successes += _settled(tx, Status.SUCCEEDED, yielded.succeeded, stamp)
            verdicts.extend(yielded)
        failures = _settled(tx, Status.FAILED, verdicts.failed, stamp)
        self._ended(LedgerEvent.SUCCEEDED, successes, tx, envelopes)
        self._ended(LedgerEvent.FAILED, failures, tx, envelopes)
        succeeded = {WalId(row.wal_id) for row in successes}
        failed = {WalId(row.wal_id) for row in failures}
        mismatched = self._record_outcomes([unit for unit in envelopes if unit.wal_id in succeeded], run_id, tx)
        lost = {unit.wal_id for unit in envelopes} - succeeded - failed
        # An earlier call in this run may have settled units as succeeded.
        lost -= self.succeeded_of_run(run_id, lost, tx=tx).keys() if lost else set()
        quarantined = self._give_up(self._beyond_retry(verdicts, failures, tx), tx)
        settled_totals(
            envelopes,
            findings=[*verdicts.succeeded, *verdicts.failed],
            ended={WalId(row.wal_id): row.last_error_code for row in (*successes, *failures)},
            at=self._clock(),
        ).write(tx)
        return SettleReport(
            succeeded=tuple(sorted(succeeded)),
            failed=tuple(sorted(failed - quarantined)),
            quarantined=tuple(sorted(quarantined)),
            lost=tuple(sorted(lost)),
            mismatched=mismatched,
        )

    @explained()
    def release_lost(self, *, run_ids: Iterable[str] = (), tx: Transaction) -> RecoverReport:
        """Revoke the claims of dead runs, and claims with an expired lease (WSM-11).

        Each unit fails with code worker_lost or lease_expired, and then becomes pending if attempts remain, otherwise
        quarantined. A claim with a valid lease is revoked only if `run_ids` has its run.

        If a run with several units dies, a single unit may be the cause. So all become pending, even without remaining
        attempts. Each death after the first halves the batch, until the unit runs alone (SEC-09).
        """
        lost = self._fail_lost(tx, LedgerCode.WORKER_LOST, run_ids=sorted(run_ids))
        lost += self._fail_lost(tx, LedgerCode.LEASE_EXPIRED, expired_at=self._clock())
        return self._requeue_or_quarantine(lost, tx, spared=_bisected(lost))

    @explained()
    def release_rolled_back(
        self,
        *,
        run_id: str,
        dataset: str,
        because: str,
        not_compensable: Collection[WalId] = (),
        bisect: bool = False,
        tx: Transaction,
    ) -> RecoverReport:
        """Revoke a rolled-back run's remaining claims of a dataset.

        Each unit fails with code run_rolled_back and the redacted reason. Then it becomes pending or is quarantined as
        in `release_lost`; `not_compensable` units are quarantined even if attempts remain. `bisect` is false if no
        single unit can be the cause: halving the batch would not help, so units without attempts are quarantined.
        """
        code = LedgerCode.ROLLED_BACK
        lost = self._fail_lost(tx, code, because=because, run_ids=[run_id], dataset=dataset)
        spared = _bisected(lost) if bisect else {}
        return self._requeue_or_quarantine(lost, tx, not_compensable=not_compensable, spared=spared)

    @explained()
    def retry_due(self, *, now: datetime, limit: int, tx: Transaction) -> dict[tuple[str, str], int]:
        """Change failed units to pending after the backoff; count them by (dataset, partition).

        A due unit that the policy refuses is quarantined; otherwise it would be refused again at every tick. The policy
        refuses a unit if its contract has become stricter, or if a newer version arrived during the failed attempt.
        """
        datasets = [rule["dataset"] for rule in self._rules(tx)]
        due = wal_ids_of(tx.run("ledger.due", at=now, limit=limit, datasets=datasets))
        rows = self._requeue(due, reason=ReplayReason.RETRY, tx=tx)
        refused = set(due) - set(wal_ids_of(rows))
        exhausted: dict[WalId, str] = dict.fromkeys(refused, LedgerCode.ATTEMPTS_EXHAUSTED)
        self._give_up(exhausted | self._superseded(refused, tx), tx)
        return dict(Counter((row.dataset, row.partition_key) for row in rows))

    @explained()
    def quarantine(
        self, wal_ids: Iterable[str], *, reason_code: str, decision: Decision, tx: Transaction
    ) -> tuple[WalId, ...]:
        """Quarantine pending or failed units by a person's decision (WSM-08).

        All units or none: raises IllegalTransitionError for the first unit that is neither pending nor failed.
        """
        selection = sorted(set(wal_ids))
        locked = {row.wal_id: row for row in tx.run("ledger.lock_statuses", wal_ids=selection)}
        for wal_id in selection:
            status = Status(locked[wal_id].status) if wal_id in locked else None
            check_transition(wal_id, status, Status.QUARANTINED)
        for status in (Status.PENDING, Status.FAILED):
            versions = {WalId(row.wal_id): row.version for row in locked.values() if row.status == status}
            self._decide(versions, status, Status.QUARANTINED, GovernanceAction.QUARANTINE, decision, {}, tx)
        quarantined = self._quarantine(selection, reason=reason_code, actor=decision.actor, tx=tx, by_person=True)
        return tuple(sorted(quarantined))

    def hold_quarantined(self, wal_ids: Iterable[str], *, tx: Transaction) -> frozenset[WalId]:
        """Lock units until the transaction ends; return the quarantined units."""
        locked = tx.run("ledger.lock_statuses", wal_ids=sorted(set(wal_ids)))
        return frozenset(WalId(row.wal_id) for row in locked if row.status == Status.QUARANTINED)

    @explained()
    def override(
        self,
        versions: Mapping[WalId, int],
        *,
        from_status: Status,
        action: GovernanceAction,
        decision: Decision,
        replay_reason: str = ReplayReason.INCIDENT,
        replay_run_id: str | None = None,
        tx: Transaction,
    ) -> frozenset[WalId]:
        """Change quarantined or succeeded units to pending by a governed override (WSM-16).

        Returns the changed units; a unit whose version or status has changed is skipped. The database refuses a
        transition without a row in the governance log; this transaction writes the row. Raises
        UnattributedDecisionError without a change reference, and UnknownReplayReasonError for a reason that is neither
        stored nor configured.
        """
        decision.require_change_ref()
        self.govern_reason(replay_reason, tx=tx)
        details = {"replay_run_id": replay_run_id} if replay_run_id else {}
        decided = self._decide(versions, from_status, Status.PENDING, action, decision, details, tx)
        rows = tx.run(
            "ledger.override",
            wal_ids=sorted(decided),
            from_status=from_status,
            reason=replay_reason,
            replay_run_id=replay_run_id,
            actor=decision.actor,
            at=self._clock(),
        ).all()
        if from_status is Status.QUARANTINED:
            announce(tx, LedgerEvent.RECOVERED, rows)
        return frozenset(wal_ids_of(rows))

    def _admit(self, units: Sequence[Envelope], *, lane: Lane, tx: Transaction) -> EnsureResult:
        peers = SizePeers.of(units, self.registry, tx)
        batch = [unit_row(peers.held_against(unit), self.registry[unit.dataset]) for unit in units]
        rows = tx.run("ledger.ensure", batch=batch, at=self._clock(), actor=self._worker_id, lane=lane)
        created = frozenset(WalId(row.wal_id) for row in rows)
        peers.keep(created, tx)
        existing = self.statuses({unit.wal_id for unit in units} - created, tx=tx)
        linked = tx.run("ledger.supersede", wal_ids=sorted(created), at=self._clock())
        older = frozenset(WalId(row.older_wal_id) for row in linked)
        stale, superseded = older & created, older - created
        self._quarantine(sorted(stale), reason=LedgerCode.STALE_EVENT, actor=self._worker_id, tx=tx)
        self._quarantine(sorted(superseded), reason=LedgerCode.SUPERSEDED, actor=self._worker_id, tx=tx)
        return EnsureResult(created=created, existing=existing, stale=stale, superseded=superseded)

    def _verdicts(self, units: Sequence[Envelope]) -> Verdicts:
        return decide(
            units,
            self.registry,
            now=self._clock(),
            base_seconds=self._retry_backoff_seconds,
            human_review=self.human_review,
        )

    def _with_conflicts(self, units: Sequence[Envelope], tx: Transaction) -> list[Envelope]:
        """Return older units, marked as conflicting if the newer unit's Item may be withdrawn.

        If the older unit succeeded without an Item, and the newer Item were withdrawn, no Item would be left.
        """
        newer = sorted({wal_id for unit in units if (wal_id := yields_to(unit))})
        lasting = set(wal_ids_of(tx.run("ledger.lasting_items", wal_ids=newer)))
        return [unit if yields_to(unit) in lasting else conflicting(unit) for unit in units]

    def _beyond_retry(self, verdicts: Verdicts, failures: Sequence[Any], tx: Transaction) -> dict[WalId, str]:
        """Return the failed units without a further attempt, with the reasons."""
        failed = {WalId(row.wal_id) for row in failures}
        exhausted = {wal_id: reason for wal_id, reason in verdicts.given_up.items() if wal_id in failed}
        overdue = verdicts.overdue(failures, self.registry)
        return overdue | exhausted | self._superseded(failed, tx)

    def _requeue_or_quarantine(
        self,
        lost: Sequence[Any],
        tx: Transaction,
        *,
        not_compensable: Collection[WalId] = (),
        spared: Mapping[WalId, int],
    ) -> RecoverReport:
        """Requeue or quarantine lost units.

        `spared` has the units to requeue even without remaining attempts, each with the limit of its next batch.
        """
        released = {WalId(row.wal_id) for row in lost}
        reviewed: dict[WalId, str] = dict.fromkeys(released.intersection(not_compensable), LedgerCode.NOT_COMPENSABLE)
        by_limit: dict[int | None, list[WalId]] = defaultdict(list)
        for wal_id in released - reviewed.keys():
            by_limit[spared.get(wal_id)].append(wal_id)
        requeued: set[WalId] = set()
        for limit, units in by_limit.items():
            requeued.update(wal_ids_of(self._requeue(units, reason=ReplayReason.RETRY, batch_limit=limit, tx=tx)))
        charged = [row for row in lost if row.wal_id not in spared]
        quarantined = self._give_up(self._exhausted(charged) | reviewed | self._superseded(released, tx), tx)
        self.leases.drop_idle(tx=tx)
        return RecoverReport(
            requeued=tuple(sorted(requeued)),
            quarantined=tuple(sorted(quarantined)),
            failed=tuple(sorted(released - requeued - quarantined)),
        )

    def _exhausted(self, rows: Iterable[Any]) -> dict[WalId, str]:
        limits = {contract.id: contract.retry.max_attempts for contract in self.registry}
        return {
            WalId(row.wal_id): LedgerCode.ATTEMPTS_EXHAUSTED
            for row in rows
            # A dataset without a contract has no limit, so its records stay failed.
            if row.dataset in limits and row.attempts >= limits[row.dataset]
        }


def _bisected(lost: Sequence[Any]) -> dict[WalId, int]:
    """Return the next batch limit of each unit whose run had claimed other units, too.

    The first death sets the limit to the batch's size, each further death halves it. A unit with limit 1 ran alone.
    """
    sizes = Counter(row.ingest_run_id for row in lost)
    limits: dict[WalId, int] = {}
    for row in lost:
        size = sizes[row.ingest_run_id]
        if size > 1 and row.batch_limit != 1:
            limits[WalId(row.wal_id)] = size if row.batch_limit is None else max(1, min(size, row.batch_limit) // 2)
    return limits


def _settled(
    tx: Transaction, status: Status, batch: Sequence[Mapping[str, Any]], stamp: Mapping[str, Any]
) -> Sequence[Any]:
    return tx.run("ledger.settle", stamp, status=status, batch=batch).all() if batch else ()
