"""Events through openlineage-python's own HTTP transport, to a server on the loopback interface."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from kfm_dagster.lineage.backend import BackendUnavailableError, ClientBackend
from kfm_dagster.lineage.openlineage import openlineage_events
from kfm_dagster_tests.lineage.units import ingest_run, units


class _Server(HTTPServer):
    status = 201

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[Any] = []


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append(json.loads(body))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_args: Any) -> None:
        """Stay quiet."""


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server() as opened:
        thread = threading.Thread(target=opened.serve_forever)
        thread.start()
        yield opened
        opened.shutdown()
        thread.join()


@pytest.fixture
def backend(server: _Server, monkeypatch: pytest.MonkeyPatch) -> ClientBackend:
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "http")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__RETRY", '{"total": 0}')
    opened = ClientBackend.from_environment()
    assert opened is not None
    return opened


def test_a_backend_receives_what_was_recorded(backend: ClientBackend, server: _Server) -> None:
    events = [event for unit in units(0, 2) for event in openlineage_events(unit, ingest_run())]
    backend.send(events)
    for event in server.received:
        event["run"]["facets"].pop("tags")  # the client's own version, which it adds
    assert [without_empty(event) for event in server.received] == [without_empty(event) for event in events]


def test_a_refusal_is_not_swallowed(backend: ClientBackend, server: _Server) -> None:
    server.status = 500
    with pytest.raises(BackendUnavailableError, match="http transport") as refused:
        backend.send(openlineage_events(units(0, 1)[0], ingest_run()))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("environment", [{}, {"OPENLINEAGE_URL": "http://127.0.0.1:9", "OPENLINEAGE_DISABLED": "true"}])
def test_without_configuration_nothing_leaves_the_machine(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("OPENLINEAGE")]:
        monkeypatch.delenv(name)
    # The client writes aliases of OPENLINEAGE_URL into the environment; set first, they are taken back afterwards.
    for alias in ("TYPE", "URL"):
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__TRANSPORTS__DEFAULT_HTTP__{alias}", "x")
        monkeypatch.delenv(f"OPENLINEAGE__TRANSPORT__TRANSPORTS__DEFAULT_HTTP__{alias}")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert ClientBackend.from_environment() is None


def without_empty(value: Any) -> Any:
    """The client writes empty facets where we write none."""
    if isinstance(value, dict):
        return {name: without_empty(item) for name, item in value.items() if item not in ({}, [])}
    return [without_empty(item) for item in value] if isinstance(value, list) else value
