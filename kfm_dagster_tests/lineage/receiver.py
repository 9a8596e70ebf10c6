"""A real HTTP receiver of OpenLineage events on the loopback interface, whose answers a test decides."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kfm_dagster.lineage.backend import ClientBackend

TAKEN = 201

Event = dict[str, Any]


class Receiver(ThreadingHTTPServer):
    """Answers every event with what `answer` says; None hangs until the receiver is closed."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[Event] = []
        self.taken: list[Event] = []
        self.answer: Callable[[Event], int | None] = lambda event: TAKEN
        self.closing = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def counts(self) -> Counter[tuple[str, str]]:
        """How often each event, by the id that OpenLineage gives it, was taken."""
        return Counter((event["eventType"], event["run"]["facets"]["kfmWal"]["wal_id"]) for event in self.taken)

    def bodies(self) -> set[str]:
        """Distinct events taken, byte for byte."""
        return {json.dumps(event, sort_keys=True) for event in self.taken}


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(event)
        status = self.server.answer(event)
        if status is None:
            self.server.closing.wait()
            return
        if status == TAKEN:
            self.server.taken.append(event)
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_args: Any) -> None:
        """Stay quiet."""


@contextmanager
def receiving() -> Iterator[Receiver]:
    with Receiver() as opened:
        thread = threading.Thread(target=opened.serve_forever)
        thread.start()
        yield opened
        for client in (client for backend in _opened for client in backend._clients):
            client.transport.close()
        _opened.clear()
        opened.closing.set()
        opened.shutdown()
        thread.join()


def transport(url: str, *, timeout: float = 5.0) -> dict[str, str]:
    """Environment of openlineage-python's own HTTP transport."""
    return {
        "OPENLINEAGE__TRANSPORT__TYPE": "http",
        "OPENLINEAGE__TRANSPORT__URL": url,
        "OPENLINEAGE__TRANSPORT__TIMEOUT": str(timeout),
    }


def backend_at(url: str, patch: pytest.MonkeyPatch, *, timeout: float = 5.0) -> ClientBackend:
    for name, value in transport(url, timeout=timeout).items():
        patch.setenv(name, value)
    return opened_backend()


_opened: list[ClientBackend] = []


def opened_backend() -> ClientBackend:
    """The backend that the environment describes; `receiving` closes its connections."""
    opened = ClientBackend.from_environment()
    assert opened is not None
    _opened.append(opened)
    return opened
