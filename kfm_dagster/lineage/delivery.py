"""Delivery of published batches to the OpenLineage backend, event by event, at least once.

A try claims its batch in the outbox and saves its progress every second. After a kill, events that were sent since the
last save are sent again, with the same bytes and ids. The client is openlineage-python, with its transports (HTTP,
Kafka, ...). Events are recorded first, and sent later from the records, so no unit fails because the backend is dead.
Does not belong here: delivery to the lineage root (`batches.py`), leases and retries (`outbox.py`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from kfm_dagster.contracts.issues import StacIssue
from kfm_dagster.errors import DependencyUnavailableError
from kfm_dagster.failpoints import Failpoint, hit
from kfm_dagster.lineage.batches import BACKEND, FILES, LineageFiles
from kfm_dagster.lineage.openlineage import Event
from kfm_dagster.outbox import Entry, Outbox
from kfm_dagster.redaction import error_text
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.publisher import PublishError

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import RunEvent


FLUSH_SECONDS = 20.0
"""Longest wait for a background transport to send the events since the last flush."""

REFUSED = frozenset({400, 409, 410, 413, 415, 422})
"""HTTP statuses that refuse the event. Other errors are about credentials, the address or an outage, and can end."""


class BackendUnavailableError(DependencyUnavailableError):
    """The OpenLineage backend does not accept events."""


class ClientBackend:
    """The transports of an OpenLineage client, with its configuration, filters and tags.

    An event is accepted when every transport has accepted it. The parts of a composite transport are used separately,
    because the whole would hide the failure of a part. Sending and flushing raise BackendUnavailableError.
    """

    def __init__(self, client: OpenLineageClient) -> None:
        self._clients = [_for_transport(transport) for transport in _parts(client.transport)]
        self._lost = {index: _lost_events(part.transport) for index, part in enumerate(self._clients)}

    @classmethod
    def from_environment(cls) -> ClientBackend | None:
        """Build the client that OPENLINEAGE_URL, _CONFIG or OPENLINEAGE__TRANSPORT__* describe.

        Returns None if these variables describe no client, or OPENLINEAGE_DISABLED is set. If no variable is set, a
        stray `openlineage.yml` in the working folder has no effect, so that no data leave this machine.
        """
        if not any(name.startswith("OPENLINEAGE") for name in os.environ):
            return None
        from openlineage.client import OpenLineageClient  # noqa: PLC0415, slow, and most installations have no backend

        client = OpenLineageClient()
        return None if client.transport.kind in {"noop", "console"} else cls(client)

    def send(self, event: Event) -> str | None:
        """Send an event to every transport; return the permanent refusals, or None without refusal."""
        refusals = []
        for client in self._clients:
            try:
                hit(Failpoint.LINEAGE_SEND_BEFORE)
                client.emit(_run_event(event))
                hit(Failpoint.LINEAGE_SEND_AFTER)
            except Exception as error:
                # Every transport raises the errors of its own library.
                status = getattr(getattr(error, "response", None), "status_code", None)
                if status not in REFUSED:
                    raise _unavailable(client, error_text(error)) from None
                refusals.append(f"{client.transport.kind} transport: {error_text(error)}")
        return "; ".join(refusals) or None

    def flush(self) -> None:
        """Wait until all transports, even background transports, have accepted every sent event."""
        for index, client in enumerate(self._clients):
            wait = getattr(client.transport, "wait_for_completion", None)
            if wait is not None and not wait(FLUSH_SECONDS):
                raise _unavailable(client, f"unsent events after {FLUSH_SECONDS:.0f} s")
            before, self._lost[index] = self._lost[index], _lost_events(client.transport)
            if self._lost[index] > before:
                raise _unavailable(client, f"{self._lost[index] - before} events were not accepted")


def _unavailable(client: OpenLineageClient, why: str) -> BackendUnavailableError:
    return BackendUnavailableError(
        observed=f"{client.transport.kind} transport: {why}",
        next_step="none: no event is lost, and delivery continues when the backend answers",
    )


def _parts(transport: Any) -> Sequence[Any]:
    """Return the transports that must each accept an event.

    A composite that stops at its first success (`continue_on_success` is false) counts as one transport.
    """
    if transport.kind == "composite" and transport.config.continue_on_success:
        return [part for child in transport.transports for part in _parts(child)]
    return [transport]


def _for_transport(transport: Any) -> OpenLineageClient:
    from openlineage.client import OpenLineageClient  # noqa: PLC0415, as above
    from openlineage.client.transport.http_common import DEFAULT_RETRY_CONFIG  # noqa: PLC0415, as above

    if transport.kind == "http" and transport.config.retry == DEFAULT_RETRY_CONFIG:
        # The outbox retries. The client's default, six attempts of 5 s in a call, would delay a tick for every event,
        # and its RetryError would hide the last answer.
        transport.config.retry = {"total": 0}
    if transport.kind == "http":
        transport.session.hooks["response"].append(_refuse_redirect)
    return OpenLineageClient(transport=transport)


def _refuse_redirect(response: Any, **_more: Any) -> None:
    # A redirect is followed as a GET (RFC 9110, 15.4). If a login page answers this with 200, the event is lost.
    if 300 <= response.status_code < 400 and response.status_code not in {307, 308}:
        response.close()
        raise ConnectionError(f"the backend redirects to {response.headers.get('Location')}")


def _lost_events(transport: Any) -> int:
    """Return the number of events that a transport has dropped in the background."""
    stats = getattr(transport, "get_stats", None)
    return int(stats().get("failed", 0)) if stats else 0


def _run_event(event: Event) -> RunEvent:
    from openlineage.client.event_v2 import (  # noqa: PLC0415, as above
        InputDataset,
        Job,
        OutputDataset,
        Run,
        RunEvent,
        RunState,
    )

    run = event["run"]
    return RunEvent(
        eventType=RunState(event["eventType"]),
        eventTime=event["eventTime"],
        run=Run(runId=run["runId"], facets=dict(run["facets"])),  # a copy, because the client adds its tags
        job=Job(**event["job"]),
        inputs=[InputDataset(**dataset) for dataset in event["inputs"]],
        outputs=[OutputDataset(**dataset) for dataset in event["outputs"]],
        producer=event["producer"],
    )


_LOG = logging.getLogger(__name__)

MAX_REFUSALS = 20
"""Number of refusals after which a try ends, so that a backend that refuses every event does not get thousands."""

PROGRESS = timedelta(seconds=1)
"""Time between two saves of a try's progress; after a kill, events sent since the last save are sent again."""


@dataclass(kw_only=True)
class _Try:
    """A try of a batch.

    An entry's position counts the events sent; its payload has the positions of events that were not accepted. These
    events are retried after the other events of the batch, and so is an event during which the backend failed, because
    this event may have crashed the backend.
    """

    entry: Entry
    safe: Entry
    """The entry as of the last flush. The next try begins there, because a transport can lose events sent later."""
    taken: int = 0
    refusals: int = 0
    error: str | None = None

    def next(self, events: int) -> int:
        """Return the position to send next; new events come before events that were not accepted."""
        return self.entry.position if self.entry.position < events else self.entry.payload[0]

    def finished(self, events: int) -> bool:
        """Return whether all events were accepted."""
        return self.entry.position >= events and not self.entry.payload


def _after(entry: Entry, position: int, *, taken: bool) -> Entry:
    others = [other for other in entry.payload if other != position]
    payload = others if taken else [*others, position]
    return replace(entry, position=max(entry.position, position + 1), payload=payload)


class BackendDelivery:
    """Sends due batches. Any number of processes can share an outbox."""

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
        """Send due batches within both limits; return the number of accepted events.

        If the backend does not answer, the batch is deferred, and BackendUnavailableError is raised.
        """
        until = self._clock() + within
        accepted = 0
        for _ in range(most_batches):
            entry = self._outbox.claim([BACKEND], after=FILES)
            if entry is None:
                break
            accepted += self._deliver(entry, until)
            if self._clock() >= until:
                break
        return accepted

    def _deliver(self, entry: Entry, until: datetime) -> int:
        attempt = _Try(entry=entry, safe=entry)
        with self._database.snapshot() as view:
            batch = view.run("lineage.batch", batch_id=entry.subject).one()
        try:
            finished = self._send(attempt, self._events(batch.href, batch.sha256), until)
        except (PublishError, OSError, BackendUnavailableError) as error:
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
            raise PublishError(StacIssue.IO_ERROR, f"{href} does not have the recorded content")
        return [json.loads(line) for line in content.splitlines()]

    def _send(self, attempt: _Try, events: Sequence[Event], until: datetime) -> bool:
        """Send new events, then retry once those not accepted; return whether all are accepted."""
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
        return attempt.finished(len(events))

    def _send_next(self, attempt: _Try, events: Sequence[Event]) -> None:
        position = attempt.next(len(events))
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
