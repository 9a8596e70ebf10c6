"""Kill switches: a dataset that is off has no unit claimed, replayed or written (WAL-10).

If all datasets of a queue are off, its messages are not received. Switches are persistent. Engaging or releasing one
writes the governance log in the same transaction. Belongs here: the switches. Does not belong here: enforcing them
(`ledger/` at claim and effect, `ingest/` at receive, `recovery/`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.errors import RefusedError
from kfm_dagster.governance.log import Decision, GovernanceAction, GovernanceLog
from kfm_dagster.storage.database import Database, Transaction

EVERY_DATASET = "*"
"""All datasets, including datasets of later contracts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KillSwitch:
    """An engaged switch; without `expires_at` it is on until a person releases it."""

    dataset: str
    engaged_at: datetime
    engaged_by: str
    reason: str
    change_ref: str | None
    expires_at: datetime | None


class KillSwitches:
    """The switches of a deployment."""

    def __init__(self, database: Database, *, clock: Callable[[], datetime]) -> None:
        self.database = database
        self._clock = clock
        self._log = GovernanceLog(database, clock=clock)

    def engage(
        self,
        dataset: str,
        decision: Decision,
        *,
        expires_at: datetime | None = None,
    ) -> None:
        """Switch a dataset (or `*`) off. Raises RefusedError if it is off, or the expiry is past."""
        now = self._clock()
        if expires_at is not None and expires_at <= now:
            raise RefusedError(
                "the kill switch would expire before it begins",
                observed=rfc3339(expires_at),
                expected=f"later than {rfc3339(now)}",
                next_step="give a later expiry, or none",
            )
        with self.database.transaction() as tx:
            tx.run("governance.close_expired", dataset=dataset, at=now)
            if dataset in self.engaged(tx=tx):
                raise RefusedError(
                    "the kill switch is on already",
                    observed=dataset,
                    next_step=f"kfm resume {dataset}, or leave it on",
                )
            tx.run("governance.engage", decision.row, dataset=dataset, at=now, expires_at=expires_at)
            details = {"expires_at": expires_at}
            self._log.record(GovernanceAction.KILL_SWITCH_ON, decision, dataset=dataset, details=details, tx=tx)

    def release(self, dataset: str, decision: Decision) -> None:
        """Switch a dataset on again. Raises RefusedError if it was not off."""
        now = self._clock()
        with self.database.transaction() as tx:
            tx.run("governance.close_expired", dataset=dataset, at=now)
            released = tx.run(
                "governance.disengage", dataset=dataset, at=now, actor=decision.actor, reason=decision.reason
            ).one_or_none()
            if released is None:
                raise RefusedError(
                    "the kill switch is not on",
                    observed=dataset,
                    next_step="see kfm governance paused",
                )
            self._log.record(GovernanceAction.KILL_SWITCH_OFF, decision, dataset=dataset, tx=tx)

    def engaged(self, *, tx: Transaction) -> dict[str, KillSwitch]:
        """Return the switches that are on now, by dataset."""
        switches = tx.rows(KillSwitch, "governance.engaged", at=self._clock())
        return {switch.dataset: switch for switch in switches}

    def off(self, datasets: Iterable[str], *, tx: Transaction) -> frozenset[str]:
        """Return the datasets that are off, by their own switch or by the switch for all datasets."""
        engaged = self.engaged(tx=tx)
        return frozenset(name for name in datasets if name in engaged or EVERY_DATASET in engaged)
