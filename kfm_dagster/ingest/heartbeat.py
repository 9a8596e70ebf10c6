"""Heartbeat: renew a run's leases and hide its messages while a node works (BEY-02).

A run loses its claims when its lease expires, and messages come again after their visibility timeout; both are shorter
than the longest work. So a thread beside the work renews them, and ends with it. Belongs here: when to renew. Does not
belong here: permission to write (fences, `ledger/leases.py`), which a renewal does not replace.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.deliveries import DueBackoff
from kfm_dagster.redaction import error_text

PART = 3
"""A lease is renewed three times in its life, so that one renewal may fail."""

BATCH = 1_000
"""Messages read and hidden at a time."""

_log = logging.getLogger(__name__)


class Heartbeat:
    """Renews a run's leases at every tick, and hides its messages at half of their timeout.

    `attempts` has the units of the work with the attempt of their claims; units without one have no lease.
    """

    def __init__(self, pipeline: Pipeline, *, run_id: str, attempts: Mapping[WalId, int]) -> None:
        self._pipeline = pipeline
        self._run_id = run_id
        self._attempts = attempts
        self._timeouts = {contract.id: contract.queue.visibility_timeout for contract in pipeline.registry}

    @property
    def interval_seconds(self) -> float:
        """Seconds between two ticks; a message that is not prolonged at one tick is seen again before it comes back."""
        return min(self._pipeline.settings.lease_seconds, *self._timeouts.values()) / PART

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Tick now, and every interval until the block ends."""
        self.tick()
        name = f"heartbeat-{self._run_id}"
        with self._pipeline.threads.repeating(self.tick, seconds=self.interval_seconds, name=name):
            yield

    def tick(self) -> None:
        """Renew once. Failures are only logged: they must not end work whose claims are still held."""
        for name, renew in (("leases", self._renew_leases), ("messages", self._prolong_messages)):
            try:
                renew()
            except Exception as error:
                _log.warning("run %s could not renew its %s: %s", self._run_id, name, error_text(error))

    def _renew_leases(self) -> None:
        self._pipeline.ledger.leases.renew(self._run_id, self._attempts)

    def _prolong_messages(self) -> None:
        now = self._pipeline.clock()
        after = ""
        while True:
            held = self._pipeline.deliveries.held_by(self._run_id, after=after, limit=BATCH)
            due = [
                DueBackoff(
                    message_id=message.message_id,
                    queue=message.queue,
                    receipt_handle=message.receipt_handle,
                    seconds=self._timeouts[message.dataset],
                )
                for message in held
                if message.dataset in self._timeouts
                and now - message.received_at >= timedelta(seconds=self._timeouts[message.dataset]) / 2
            ]
            if due:
                self._pipeline.acknowledger.postpone(due)
            if len(held) < BATCH:
                return
            after = held[-1].message_id
