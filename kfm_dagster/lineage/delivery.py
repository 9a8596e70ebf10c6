"""Delivery of published batches to the OpenLineage backend, at least once, one at a time.

A try claims its batch in the outbox and saves its progress every second: events that a killed process sent since are
sent again, byte for byte under the same ids. Does not belong here: delivery to the lineage root (`batches.py`), leases
and retries (`outbox/`).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from kfm_dagster.lineage.backend import BackendUnavailableError, ClientBackend
from kfm_dagster.lineage.batches import BACKEND, FILES
from kfm_dagster.lineage.files import STORE_ERRORS, LineageFiles
from kfm_dagster.lineage.openlineage import Event
from kfm_dagster.outbox import Entry, Outbox
from kfm_dagster.redaction import error_text
from kfm_dagster.storage.database import Database

_LOG = logging.getLogger(__name__)

MAX_REFUSALS = 20
"""Refusals that end a try, so that a backend that refuses everything does not get thousands of events."""

PROGRESS = timedelta(seconds=1)
"""How often a try saves its progress: events that a killed process sent since then are sent again."""


@dataclass(kw_only=True)
class _Try:
    """One try of a batch.

    An entry's position counts the events sent; its payload has the positions of events that were not accepted. Such an
    event goes to the end of its batch, whether the backend refused it or was down: an event that crashes the backend
    must not block the others.
    """

    entry: Entry
    safe: Entry
    """The entry at the last flush, for the next try: a transport may lose events that it got since."""
    taken: int = 0
    refusals: int = 0
    error: str | None = None

    def next(self, events: int) -> int | None:
        """Return the position to send next; None when all events were accepted."""
        if self.entry.position < events:
            return self.entry.position
        return self.entry.payload[0] if self.entry.payload else None


def _after(entry: Entry, position: int, *, taken: bool) -> Entry:
    """Return the entry after sending the event at a position."""
    others = [other for other in entry.payload if other != position]
    payload = others if taken else [*others, position]
    return replace(entry, position=max(entry.position, position + 1), payload=payload)


class BackendDelivery:
    """Sends due batches. Any number of processes may deliver from one outbox."""

    def __init__(
        self,
        database: Database,
        outbox: Outbox,
        files: LineageFiles,
        *,
        backend: ClientBackend,
        clock: Callable[[], datetime],
    ) -> None:
        self._database = database
        self._outbox = outbox
        self._files = files
        self._backend = backend
        self._clock = clock

    def deliver(self, *, most_batches: int, within: timedelta) -> int:
        """Send due batches, up to `most_batches` and `within`; return the number of accepted events.

        Raises BackendUnavailableError when the backend does not answer; the batch is deferred.
        """
        until = self._clock() + within
        taken = 0
        for _ in range(most_batches):
            entry = self._outbox.claim([BACKEND], after=FILES)
            if entry is None:
                break
            taken += self._deliver(entry, until)
            if self._clock() >= until:
                break
        return taken

    def _deliver(self, entry: Entry, until: datetime) -> int:
        attempt = _Try(entry=entry, safe=entry)
        with self._database.snapshot() as view:
            batch = view.run("lineage.batch", batch_id=entry.subject).one()
        try:
            finished = self._send(attempt, self._events(batch.href, batch.sha256), until)
        except (*STORE_ERRORS, BackendUnavailableError) as error:
            self._outbox.defer(attempt.safe, error_text(error))
            if isinstance(error, BackendUnavailableError):
                raise
            return 0
        if finished:
            with self._database.transaction() as tx:
                tx.run("lineage.mark_delivered", batch_id=entry.subject)
                self._outbox.done(tx, entry)
        elif attempt.error is None:
            self._outbox.release(attempt.safe)  # out of time
        else:
            _LOG.warning("the OpenLineage backend refuses events of %s: %s", batch.href, attempt.error)
            self._outbox.defer(attempt.safe, attempt.error)
        return attempt.taken

    def _events(self, href: str, sha256: str) -> list[Event]:
        content = self._files.read(href)
        if hashlib.sha256(content).hexdigest() != sha256:
            raise OSError(f"{href} does not hold what was recorded")
        return [json.loads(line) for line in content.splitlines()]

    def _send(self, attempt: _Try, events: Sequence[Event], until: datetime) -> bool:
        """Send new events, then retry the others once; return whether all were accepted."""
        sends = len(events) + len(attempt.entry.payload) - attempt.entry.position
        saved = self._clock()
        for _ in range(sends):
            self._send_next(attempt, events)
            now = self._clock()
            if attempt.refusals >= MAX_REFUSALS or now >= until:
                break
            if now - saved >= PROGRESS:
                self._flush(attempt)
                saved = now
                if not self._outbox.renew(attempt.safe):
                    return False
        self._flush(attempt)
        return attempt.next(len(events)) is None

    def _send_next(self, attempt: _Try, events: Sequence[Event]) -> None:
        position = attempt.next(len(events))
        if position is None:
            return
        try:
            refusal = self._backend.send(events[position])
        except BackendUnavailableError:
            with suppress(BackendUnavailableError):
                self._flush(attempt)
            if attempt.safe is attempt.entry:
                attempt.safe = _after(attempt.safe, position, taken=False)
            raise
        attempt.entry = _after(attempt.entry, position, taken=refusal is None)
        if refusal is None:
            attempt.taken += 1
        else:
            attempt.refusals += 1
            attempt.error = refusal

    def _flush(self, attempt: _Try) -> None:
        self._backend.flush()
        attempt.safe = attempt.entry
