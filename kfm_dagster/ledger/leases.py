"""Leases and fences: which run holds a claim, until when, and which may write (BEY-02).

A lease is a row per run and dataset, so that a heartbeat is a single update however many claims the run holds. The
lease only decides when other runs may claim the units. Whether a run may write is checked in the writing transaction:
the record's attempt number must still be the claim's. So a wrong clock can cost an attempt, but never causes a double
write. Does not belong here: revoking expired claims (`store.py`).
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
    """The leases of a ledger. `lease` is a lease's duration after a claim or a renewal."""

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
        """Begin or extend the lease of a run over its claims of a dataset."""
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
        """Extend a run's leases over units that it still holds; return the number of leases.

        `attempts` maps each unit to the attempt of its claim. A dataset's lease is renewed only while one of the units
        is still claimed by this attempt. If a later attempt of the run has claimed them, the lease belongs to that
        attempt's worker, and must expire if that worker is dead.
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
        """Delete expired leases of runs without a claim."""
        tx.run("ledger.drop_leases", at=self._clock())

    def all(self, *, tx: Transaction) -> list[Lease]:
        """Return every lease, in the order of expiry."""
        return tx.rows(Lease, "ledger.leases")

    def held(self) -> frozenset[str]:
        """Return the runs with an unexpired lease."""
        now = self._clock()
        with self._database.snapshot() as tx:
            return frozenset(lease.run_id for lease in self.all(tx=tx) if lease.expires_at >= now)

    def fence(self, run_id: str) -> Fence:
        """Return a run's fence: it refuses lost claims and units of switched-off datasets."""

        def refused(tx: Transaction, attempts: Mapping[WalId, int]) -> Mapping[WalId, FenceIssue]:
            if not attempts:
                return {}
            held = {row.wal_id: row.dataset for row in tx.run("ledger.hold", batch=_units(attempts), run_id=run_id)}
            off = self._switches.off(set(held.values()), tx=tx)
            lost = {wal_id: FenceIssue.CLAIM_LOST for wal_id in attempts if wal_id not in held}
            return lost | {WalId(wal_id): FenceIssue.KILL_SWITCH for wal_id in held if held[wal_id] in off}

        return refused


def _units(attempts: Mapping[WalId, int]) -> list[dict[str, Any]]:
    return [{"wal_id": wal_id, "attempt": attempt} for wal_id, attempt in attempts.items()]
