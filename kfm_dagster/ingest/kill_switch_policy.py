"""Kill switches: receiving, planning and reporting while a switch is on (WAL-10).

Belongs here: the switches of a queue or a dataset, how long messages are hidden, the units in flight, and the
sentences about switches. Does not belong here: turning switches on and off (`governance/switches.py`), and the check of
the switches in each claim (`ledger/store.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from math import ceil

from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import RefusedError
from kfm_dagster.governance.switches import EVERY_DATASET, KillSwitch, KillSwitches
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.notifications.sqs import MAX_VISIBILITY_SECONDS


@dataclass(frozen=True, kw_only=True, slots=True)
class KillSwitchPolicy:
    """The switches that are on, by dataset; read once, so that a tick applies a single state."""

    engaged: Mapping[str, KillSwitch]

    @classmethod
    def now(cls, switches: KillSwitches) -> KillSwitchPolicy:
        """Read the switches that are on."""
        with switches.database.snapshot() as tx:
            return cls(engaged=switches.engaged(tx=tx))

    def of(self, dataset: str) -> KillSwitch | None:
        """Return the switch that stops a dataset, or None; a switch of all datasets comes first."""
        return self.engaged.get(EVERY_DATASET) or self.engaged.get(dataset)

    def of_queue(self, registry: ContractRegistry, queue: str) -> list[KillSwitch]:
        """Return the switches if all datasets of a queue are off, otherwise none.

        A queue that no contract names may have messages of any dataset with a topic.
        """
        announced = [contract for contract in registry if contract.notifications.topics]
        datasets = [contract.id for contract in announced if contract.queue.name == queue] or [c.id for c in announced]
        switches = [switch for dataset in datasets if (switch := self.of(dataset)) is not None]
        if len(switches) < len(datasets):
            return []
        return list({switch.dataset: switch for switch in switches}.values())

    def hidden_seconds(self, dataset: str, *, now: datetime) -> int | None:
        """Return the seconds that a message should be hidden; None if the dataset is on.

        The message is hidden until the switch expires, but at most for SQS's limit. Otherwise it would be received
        again and again, and the redrive policy, which counts receives, would move it to the DLQ.
        """
        switch = self.of(dataset)
        if switch is None:
            return None
        if switch.expires_at is None:
            return MAX_VISIBILITY_SECONDS
        return min(MAX_VISIBILITY_SECONDS, max(0, ceil((switch.expires_at - now).total_seconds())))

    def sentences(self) -> str:
        """Return the sentences of all switches that are on."""
        return "; ".join(sentence(switch) for switch in self.engaged.values())


ALL_ON = KillSwitchPolicy(engaged={})


def sentence(switch: KillSwitch) -> str:
    """Return a sentence on a switch that is on: who engaged it, when, why, and until when."""
    what = "every dataset is" if switch.dataset == EVERY_DATASET else f"{switch.dataset} is"
    change = f" ({switch.change_ref})" if switch.change_ref else ""
    until = f"until {switch.expires_at:%Y-%m-%d %H:%M} UTC" if switch.expires_at else "until it is released"
    return (
        f"{what} switched off since {switch.engaged_at:%Y-%m-%d %H:%M} UTC by {switch.engaged_by}, "
        f"{until}: {switch.reason}{change}"
    )


def units_in_flight(ledger: Ledger, lane: Lane, off: KillSwitchPolicy, *, today: date) -> int:
    """Count the units in flight of a lane.

    Units that wait for the end of a switch or the beginning of their day do not count: they would block other units.
    """
    units = ledger.in_flight(lane, today=today)
    if not off.engaged:
        return units
    pending = ledger.pending_by_partition()
    return units - sum(
        entry.units
        for entry in pending
        if entry.lane is lane and entry.partition <= today.isoformat() and off.of(entry.dataset)
    )


def refuse_switched_off(switches: KillSwitches, dataset: str) -> None:
    """Raise RefusedError if the dataset is switched off."""
    switch = KillSwitchPolicy.now(switches).of(dataset)
    if switch is not None:
        name = "all" if switch.dataset == EVERY_DATASET else dataset
        raise RefusedError(sentence(switch), next_step=f'kfm resume {name} --reason "..."')
