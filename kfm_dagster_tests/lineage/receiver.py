"""An HTTP receiver of OpenLineage events on loopback, whose answers a test sets."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kfm_dagster.lineage.delivery import ClientBackend
from kfm_dagster_tests.followers.announcements.web_server import WebAnswer, WebRequest, WebServer, open_web_server

TAKEN = 201

Event = dict[str, Any]


class Receiver:
    """Answers every event by `answer`; None hangs until the receiver is closed."""

    def __init__(self, server: WebServer) -> None:
        self.url = server.url("")
        self.requests: list[Event] = []
        self.taken: list[Event] = []
        self.answer: Callable[[Event], int | None] = lambda event: TAKEN
        server.answers = self._answered

    def counts(self) -> Counter[tuple[str, str]]:
        """Count how often each event was accepted, by OpenLineage's id."""
        return Counter((event["eventType"], event["run"]["facets"]["kfmWal"]["wal_id"]) for event in self.taken)

    def bodies(self) -> set[str]:
        """Return the distinct accepted events as text."""
        return {json.dumps(event, sort_keys=True) for event in self.taken}

    def _answered(self, request: WebRequest) -> WebAnswer:
        event = json.loads(request.body)
        self.requests.append(event)
        status = self.answer(event)
        if status == TAKEN:
            self.taken.append(event)
        return WebAnswer(status=status)


@contextmanager
def receiving() -> Iterator[Receiver]:
    with open_web_server() as server:
        yield Receiver(server)
        for client in (client for backend in _opened for client in backend._clients):
            client.transport.close()
        _opened.clear()


def backend_at(url: str, patch: pytest.MonkeyPatch, *, timeout: float = 5.0) -> ClientBackend:
    return backend_of(patch, type="http", url=url, timeout=str(timeout))


_opened: list[ClientBackend] = []


def backend_of(patch: pytest.MonkeyPatch, **options: str) -> ClientBackend:
    """Return the backend of a transport with these options; `receiving` closes its connections."""
    for name, value in options.items():
        patch.setenv(f"OPENLINEAGE__TRANSPORT__{name.upper()}", value)
    opened = ClientBackend.from_environment()
    _opened.append(opened)
    return opened
