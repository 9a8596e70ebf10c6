"""Delivery: events of published batches go to the OpenLineage backend, at least once, a batch at a time.

A try owns its batch by number and for a time (its lease), so two deliverers share the work and a dead one's batch comes
up again. How far a try is, is written down every second: what a killed process sent since is sent again, byte for byte
the same events under the same ids. Does not belong here: what is due for the lineage root (`outbox.py`).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from kfm_dagster.lineage.backend import Backend, BackendUnavailableError
from kfm_dagster.lineage.files import STORE_ERRORS, LineageFiles
from kfm_dagster.lineage.openlineage import Event
from kfm_dagster.lineage.outbox import BACKEND
from kfm_dagster.redaction import error_text
from kfm_dagster.storage.backoff import DELIVERY
from kfm_dagster.storage.database import Database

_LOG = logging.getLogger(__name__)

MAX_REFUSALS = 20
"""Events that a backend may refuse in one try; a backend that refuses everything is not asked thousands of times."""

LEASE = timedelta(seconds=120)
"""How long a try owns its batch without a sign of life; one event takes 5 s at most in the client's own setting."""

PROGRESS = timedelta(seconds=1)
"""How often a try writes down how far it is: what a killed process sent since then is sent again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Progress:
    """How far a batch's delivery is: events before `done` were sent, except those that were not taken (positions).

    An event that was not taken goes to the end of its batch, whether the backend refused it or was down: one event that
    a backend dies of must not keep the others.
    """

    done: int
    not_taken: tuple[int, ...]

    def next(self, events: int) -> int | None:
        """Return the position to send next; None when everything was taken."""
        if self.done < events:
            return self.done
        return self.not_taken[0] if self.not_taken else None

    def after(self, position: int, *, taken: bool) -> _Progress:
        """Return the progress once the event at the position was sent."""
        others = tuple(one for one in self.not_taken if one != position)
        return _Progress(done=max(self.done, position + 1), not_taken=others if taken else (*others, position))


@dataclass(kw_only=True)
class _Try:
    """One try of a batch under the number by which it may write down how far it is."""

    batch_id: str
    href: str
    sha256: str
    attempts: int
    progress: _Progress
    safe: _Progress
    """Progress at the last flush: a transport may still lose what it was given since."""
    taken: int = 0
    refusals: int = 0
    error: str | None = None


class OutboxDelivery:
    """Sends what is due. Any number of processes may deliver from one outbox."""

    def __init__(
        self, database: Database, files: LineageFiles, *, backend: Backend, clock: Callable[[], datetime]
    ) -> None:
        self._database = database
        self._files = files
        self._backend = backend
        self._clock = clock

    def deliver(self, *, most_batches: int, within: timedelta) -> int:
        """Send events until nothing is due, so many batches are tried, or the time is over; return how many were taken.

        Raises BackendUnavailableError when the backend does not answer; the batch is put off.
        """
        until = self._clock() + within
        taken = 0
        for _ in range(most_batches):
            found = self._claim()
            if found is None:
                break
            taken += self._deliver(found, until)
            if self._clock() >= until:
                break
        return taken

    def _claim(self) -> _Try | None:
        now = self._clock()
        with self._database.transaction() as tx:
            row = tx.run("lineage.claim_delivery", now=now, lease_until=now + LEASE).one_or_none()
        if row is None:
            return None
        progress = _Progress(done=row.events_done, not_taken=tuple(row.not_taken))
        return _Try(
            batch_id=row.batch_id,
            href=row.href,
            sha256=row.sha256,
            attempts=row.attempts,
            progress=progress,
            safe=progress,
        )

    def _deliver(self, found: _Try, until: datetime) -> int:
        try:
            finished = self._send(found, self._events(found.href, found.sha256), until)
        except (*STORE_ERRORS, BackendUnavailableError) as error:
            found.error = error_text(error)
            self._keep(found, DELIVERY.pause(found.attempts))
            if isinstance(error, BackendUnavailableError):
                raise
            return 0
        if finished:
            with self._database.transaction() as tx:
                tx.run("lineage.mark_delivered", batch_id=found.batch_id)
                tx.run("lineage.leave_outbox", batch_id=found.batch_id, destination=BACKEND)
        elif found.error is None:
            self._keep(found, timedelta())  # the time was over
        else:
            _LOG.warning("the OpenLineage backend refuses events of %s: %s", found.href, found.error)
            self._keep(found, DELIVERY.pause(found.attempts))
        return found.taken

    def _events(self, href: str, sha256: str) -> list[Event]:
        content = self._files.read(href)
        if hashlib.sha256(content).hexdigest() != sha256:
            raise OSError(f"{href} does not hold what was recorded")
        return [json.loads(line) for line in content.splitlines()]

    def _send(self, found: _Try, events: Sequence[Event], until: datetime) -> bool:
        """Send what is new, then once more what was not taken; tell whether everything was taken."""
        asked_last = len(events) + len(found.progress.not_taken) - found.progress.done
        saved = self._clock()
        for _ in range(asked_last):
            self._send_next(found, events)
            now = self._clock()
            if found.refusals >= MAX_REFUSALS or now >= until:
                break
            if now - saved >= PROGRESS:
                self._flush(found)
                saved = now
                if not self._keep(found, LEASE):
                    return False
        self._flush(found)
        return found.progress.next(len(events)) is None

    def _send_next(self, found: _Try, events: Sequence[Event]) -> None:
        position = found.progress.next(len(events))
        if position is None:
            return
        try:
            refusal = self._backend.send(events[position])
        except BackendUnavailableError:
            with suppress(BackendUnavailableError):
                self._flush(found)
            found.safe = found.safe.after(position, taken=False) if found.safe is found.progress else found.safe
            raise
        found.progress = found.progress.after(position, taken=refusal is None)
        if refusal is None:
            found.taken += 1
        else:
            found.refusals += 1
            found.error = refusal

    def _keep(self, found: _Try, pause: timedelta) -> bool:
        """Write down how far the try is and when the next one may begin; False when another try has taken over."""
        with self._database.transaction() as tx:
            kept = tx.run(
                "lineage.keep_delivery",
                batch_id=found.batch_id,
                attempts=found.attempts,
                events_done=found.safe.done,
                not_taken=found.safe.not_taken,
                next_attempt_at=self._clock() + pause,
                last_error=found.error,
            )
            return kept.first() is not None

    def _flush(self, found: _Try) -> None:
        self._backend.flush()
        found.safe = found.progress
