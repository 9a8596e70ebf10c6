"""Progress: the remaining work of a queue and the ledger until the queue is drained."""

from __future__ import annotations

from dataclasses import dataclass

from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.notifications.sqs import Queue


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """A snapshot of queue and ledger. `waiting` counts failed units that will be retried."""

    queued: int
    units: int
    terminal: int
    in_flight: int
    waiting: int

    @property
    def drained(self) -> bool:
        """Tell whether nothing is left to do."""
        return self.queued == 0 and self.in_flight == 0 and self.waiting == 0


def progress(queue: Queue, ledger: Ledger) -> Progress:
    """Return the present progress. Raises QueueUnavailableError or DatabaseUnavailableError."""
    depth = queue.depth()
    totals = dict.fromkeys(Status, 0)
    with ledger.database.snapshot() as tx:
        counts = ledger.counts(tx=tx)
    for by_status in counts.values():
        for status, units in by_status.items():
            totals[status] += units
    return Progress(
        queued=depth.visible + depth.in_flight + depth.delayed,
        units=sum(totals.values()),
        terminal=totals[Status.SUCCEEDED] + totals[Status.QUARANTINED],
        in_flight=totals[Status.PENDING] + totals[Status.IN_PROGRESS],
        waiting=totals[Status.FAILED],
    )
