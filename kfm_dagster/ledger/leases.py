"""Leases and fences: who holds a claim, until when, and who may still write for it (BEY-02).

A lease is a run's and a dataset's: one row, so that a heartbeat is one update whatever the run holds. It only decides
when others may take the claims; whether its holder may write is decided by the claim itself, in the transaction that
writes: the attempt number must be the one it was claimed with. So a clock that is wrong costs an attempt, never a
double write. Does not belong here: taking expired claims back (`store.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.contracts.issues import FenceIssue
from kfm_dagster.governance.switches import KillSwitches
from kfm_dagster.ledger.reports import Lease
from kfm_dagster.storage.database import Database, Transaction
from kfm_dagster.storage.fence import Fence


class Leases:
    """The leases of a ledger. `lease` is how long one lasts after a claim or a renewal."""

    def __init__(
        self,
        database: Database,
        *,
        switches: KillSwitches,
        worker_id: str,
        clock: Callable[[], datetime],
        lease: timedelta,
    ) -> None:
        self._database = database
        self._switches = switches
        self._worker_id = worker_id
        self._clock = clock
        self._lease = lease

    def acquire(self, *, run_id: str, dataset: str, tx: Transaction) -> None:
        """Begin or prolong the lease of a run over its claims of a dataset."""
        now = self._clock()
        tx.run(
            "ledger.acquire_lease",
            run_id=run_id,
            dataset=dataset,
            worker_id=self._worker_id,
            at=now,
            expires_at=now + self._lease,
        )

    def renew(self, run_id: str, attempts: Mapping[WalId, int]) -> int:
        """Prolong the leases of a run over units that it holds; return their number, 0 when it holds none any more.

        `attempts` are units with the attempt that each was claimed with. Otherwise a worker that lost them, to
        another run or to a later attempt of the same one, would keep a dead worker's claims from being taken back.
        """
        if not attempts:
            return 0
        now = self._clock()
        with self._database.transaction() as tx:
            renewed = tx.run(
                "ledger.renew_leases",
                run_id=run_id,
                worker_id=self._worker_id,
                batch=_units(attempts),
                at=now,
                expires_at=now + self._lease,
            )
            return renewed.rowcount

    def drop_idle(self, *, tx: Transaction) -> None:
        """Forget expired leases that no claim stands under."""
        tx.run("ledger.drop_leases", at=self._clock())

    def all(self, *, tx: Transaction) -> list[Lease]:
        """Return every lease, the one that expires first at the front."""
        return tx.rows(Lease, "ledger.leases")

    def held(self) -> frozenset[str]:
        """Return the runs that have a lease which is not over."""
        now = self._clock()
        with self._database.snapshot() as tx:
            return frozenset(lease.run_id for lease in self.all(tx=tx) if lease.expires_at >= now)

    def fence(self, run_id: str) -> Fence:
        """Return the fence of a run: it refuses units whose claim is not this run's and attempt's, or switched off."""

        def refused(tx: Transaction, attempts: Mapping[WalId, int]) -> Mapping[WalId, FenceIssue]:
            if not attempts:
                return {}
            held = {row.wal_id: row.dataset for row in tx.run("ledger.hold", batch=_units(attempts), run_id=run_id)}
            off = self._switches.off(set(held.values()), tx=tx)
            found = {wal_id: FenceIssue.CLAIM_LOST for wal_id in attempts if wal_id not in held}
            return found | {WalId(wal_id): FenceIssue.KILL_SWITCH for wal_id in held if held[wal_id] in off}

        return refused


def _units(attempts: Mapping[WalId, int]) -> list[dict[str, Any]]:
    return [{"wal_id": wal_id, "attempt": attempt} for wal_id, attempt in attempts.items()]
