"""OpenLineage backends: recorded events leave through openlineage-python's transports (HTTP, Kafka, ...).

Belongs here: the configured client. Does not belong here: which events are due (`store.py`). Nothing of a unit depends
on a backend: events are recorded first and sent from the record, so a dead backend costs time and no unit.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from kfm_dagster.errors import DependencyUnavailableError
from kfm_dagster.lineage.openlineage import Event
from kfm_dagster.seams import Seam, reach

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import RunEvent

FLUSH_SECONDS = 60.0
"""How long a transport that sends in the background may take for a batch's last events."""


class BackendUnavailableError(DependencyUnavailableError):
    """The OpenLineage backend does not take events."""


class Backend(Protocol):
    """Something that takes OpenLineage events. Raises BackendUnavailableError."""

    def send(self, events: Iterable[Event]) -> None:
        """Send events in order; return when all are taken."""
        ...


class ClientBackend:
    """The transport of an OpenLineage client, under that client's own configuration, filters and tags."""

    def __init__(self, client: OpenLineageClient) -> None:
        self._client = client

    @classmethod
    def from_environment(cls) -> ClientBackend | None:
        """Build the client that OPENLINEAGE_URL, OPENLINEAGE_CONFIG or OPENLINEAGE__TRANSPORT__* describe.

        None when they describe none, or OPENLINEAGE_DISABLED is set. A stray `openlineage.yml` in the working folder is
        not enough: data leaves this machine only by a variable's word.
        """
        if not any(name.startswith("OPENLINEAGE") for name in os.environ):
            return None
        from openlineage.client import OpenLineageClient  # noqa: PLC0415, slow, and most installations have no backend

        client = OpenLineageClient()
        return None if client.transport.kind in {"noop", "console"} else cls(client)

    def send(self, events: Iterable[Event]) -> None:
        """Send events in order, and wait for a transport that works in the background."""
        transport = self._client.transport
        try:
            reach(Seam.LINEAGE_SEND_BEFORE)
            for event in events:
                self._client.emit(_run_event(event))
            wait = getattr(transport, "wait_for_completion", None)
            taken = wait is None or wait(FLUSH_SECONDS)
            reach(Seam.LINEAGE_SEND_AFTER)
        except Exception as error:
            # Every transport raises what its own library raises.
            raise BackendUnavailableError(
                observed=f"{transport.kind} transport: {type(error).__name__}: {error}",
                next_step="nothing is lost; delivery goes on when the backend is back",
            ) from error
        if not taken:
            raise BackendUnavailableError(
                observed=f"{transport.kind} transport has unsent events after {FLUSH_SECONDS:.0f} s",
                next_step="nothing is lost; delivery goes on when the backend is back",
            )


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
