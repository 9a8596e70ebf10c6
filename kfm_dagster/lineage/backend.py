"""OpenLineage backends: send events by openlineage-python's transports (HTTP, Kafka, ...).

Belongs here: the configured client, and distinguishing a backend that is down from an event that it refuses. Does not
belong here: which events are due, and when they are retried (`delivery.py`). No unit depends on a backend: events are
recorded first and sent from the record, so a dead backend costs time and no unit.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kfm_dagster.errors import DependencyUnavailableError
from kfm_dagster.failpoints import Failpoint, hit
from kfm_dagster.lineage.openlineage import Event
from kfm_dagster.redaction import error_text

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import RunEvent

FLUSH_SECONDS = 20.0
"""Longest time that a background transport may take for the events since the last flush."""

REFUSED = frozenset({400, 409, 410, 413, 415, 422})
"""HTTP statuses that refuse the event. Others concern credentials, the address or an outage, and can be cured."""


class BackendUnavailableError(DependencyUnavailableError):
    """The OpenLineage backend does not take events."""


class ClientBackend:
    """The transports of an OpenLineage client, with its configuration, filters and tags.

    An event is accepted when every transport has it. A composite transport would swallow the failure of one of its
    parts, so its parts are used one by one. Sending and flushing raise BackendUnavailableError.
    """

    def __init__(self, client: OpenLineageClient) -> None:
        self._clients = [_for_transport(transport) for transport in _parts(client.transport)]
        self._lost = {index: _lost_events(each.transport) for index, each in enumerate(self._clients)}

    @classmethod
    def from_environment(cls) -> ClientBackend | None:
        """Build the client that OPENLINEAGE_URL, _CONFIG or OPENLINEAGE__TRANSPORT__* describe.

        None when they describe none, or OPENLINEAGE_DISABLED is set. A stray `openlineage.yml` in the working folder is
        not enough: data leaves this machine only if a variable is set.
        """
        if not any(name.startswith("OPENLINEAGE") for name in os.environ):
            return None
        from openlineage.client import OpenLineageClient  # noqa: PLC0415, slow, and most installations have no backend

        client = OpenLineageClient()
        return None if client.transport.kind in {"noop", "console"} else cls(client)

    def send(self, event: Event) -> str | None:
        """Send an event to every transport; return the permanent refusals, None when all accept it."""
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
        """Wait until all transports, background ones too, have accepted every event sent so far."""
        for index, client in enumerate(self._clients):
            wait = getattr(client.transport, "wait_for_completion", None)
            if wait is not None and not wait(FLUSH_SECONDS):
                raise _unavailable(client, f"unsent events after {FLUSH_SECONDS:.0f} s")
            before, self._lost[index] = self._lost[index], _lost_events(client.transport)
            if self._lost[index] > before:
                raise _unavailable(client, f"{self._lost[index] - before} events were not taken")


def _unavailable(client: OpenLineageClient, why: str) -> BackendUnavailableError:
    return BackendUnavailableError(
        observed=f"{client.transport.kind} transport: {why}",
        next_step="nothing is lost; delivery goes on when the backend is back",
    )


def _parts(transport: Any) -> Sequence[Any]:
    """Return the transports that must all have an event; a fallback stays in its composite."""
    if transport.kind == "composite" and transport.config.continue_on_success:
        return [part for child in transport.transports for part in _parts(child)]
    return [transport]


def _for_transport(transport: Any) -> OpenLineageClient:
    from openlineage.client import OpenLineageClient  # noqa: PLC0415, as above
    from openlineage.client.transport.http_common import DEFAULT_RETRY_CONFIG  # noqa: PLC0415, as above

    if transport.kind == "http" and transport.config.retry == DEFAULT_RETRY_CONFIG:
        # The outbox retries. Six attempts of 5 s inside one call would delay a tick for every event, and the last
        # answer would be lost in a RetryError.
        transport.config.retry = {"total": 0}
    if transport.kind == "http":
        transport.session.hooks["response"].append(_refuse_redirect)
    return OpenLineageClient(transport=transport)


def _refuse_redirect(response: Any, **_more: Any) -> None:
    # Followed as a GET (RFC 9110, 15.4), a redirect would end at a login page with status 200 and lose the event.
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
        run=Run(runId=run["runId"], facets=dict(run["facets"])),  # a copy, because the client adds its tags to it
        job=Job(**event["job"]),
        inputs=[InputDataset(**dataset) for dataset in event["inputs"]],
        outputs=[OutputDataset(**dataset) for dataset in event["outputs"]],
        producer=event["producer"],
    )
