"""Events through openlineage-python's own HTTP transport, to a server on the loopback interface."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from kfm_dagster.lineage.delivery import BackendUnavailableError, ClientBackend
from kfm_dagster.lineage.openlineage import openlineage_events
from kfm_dagster_tests.lineage.receiver import Receiver, backend_at, opened_backend, receiving
from kfm_dagster_tests.lineage.units import ingest_run, units

ABOUT_THE_EVENT = (400, 409, 410, 413, 415, 422)
EVENT = openlineage_events(units(0, 1)[0], ingest_run())[0]


@pytest.fixture
def server() -> Iterator[Receiver]:
    with receiving() as opened:
        yield opened


@pytest.fixture
def backend(server: Receiver, monkeypatch: pytest.MonkeyPatch) -> ClientBackend:
    return backend_at(server.url, monkeypatch)


def test_a_backend_receives_what_was_recorded(backend: ClientBackend, server: Receiver) -> None:
    events = [event for unit in units(0, 2) for event in openlineage_events(unit, ingest_run())]
    assert [backend.send(event) for event in events] == [None] * 4
    backend.flush()
    for event in server.taken:
        event["run"]["facets"].pop("tags")  # the client's own version, which it adds
    assert [without_empty(event) for event in server.taken] == [without_empty(event) for event in events]


@pytest.mark.clause("BEY-07")
def test_what_is_about_the_event_is_told_from_what_is_about_the_backend(
    backend: ClientBackend, server: Receiver
) -> None:
    for asked, status in enumerate((301, 401, 403, 404, 408, 429, 500, 503, *ABOUT_THE_EVENT), 1):
        server.answer = lambda _event, status=status: status  # type: ignore[misc]
        if status in ABOUT_THE_EVENT:
            assert str(status) in str(backend.send(EVENT))
        else:
            with pytest.raises(BackendUnavailableError, match="http transport") as down:
                backend.send(EVENT)
            assert "\n" not in str(down.value)
        assert len(server.asked) == asked, "the outbox tries again, not the client"


@pytest.mark.clause("BEY-07")
def test_an_event_is_taken_only_when_every_part_of_a_composite_has_it(
    server: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's composite reports success when one of its parts took the event."""
    parts = {
        "first": {"type": "http", "url": server.url},
        "second": {"type": "http", "url": "http://127.0.0.1:9"},
    }
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "composite")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TRANSPORTS", json.dumps(parts))
    opened = opened_backend()
    with pytest.raises(BackendUnavailableError):
        opened.send(EVENT)
    assert len(server.taken) == 1


@pytest.mark.clause("BEY-07")
def test_what_a_transport_gives_up_in_the_background_is_not_swallowed(
    server: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "async_http")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__URL", server.url)
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__RETRY", '{"total": 0}')
    opened = opened_backend()
    server.answer = lambda _event: 500
    assert opened.send(EVENT) is None
    with pytest.raises(BackendUnavailableError, match="1 events were not accepted"):
        opened.flush()
    server.answer = lambda _event: 201
    opened.send(EVENT)
    opened.flush()
    assert len(server.taken) == 1


@pytest.mark.clause("SEC-14", "BEY-07")
@pytest.mark.parametrize("status", [401, 422, None], ids=["unauthorized", "refused", "no connection"])
def test_what_a_backend_says_has_no_credentials_of_its_address(
    status: int | None, server: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = "127.0.0.1:9" if status is None else server.url.removeprefix("http://")
    opened = backend_at(f"http://kfm:tr0ub4dor@{host}/?code=c0rrecthorse", monkeypatch)
    server.answer = lambda _event: status
    try:
        said = opened.send(EVENT)
    except BackendUnavailableError as error:
        said = "".join(traceback.format_exception(error))
    assert said is not None
    assert "HTTPError" in said or "ConnectionError" in said
    assert [secret for secret in ("tr0ub4dor", "c0rrecthorse") if secret in said] == []


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OPENLINEAGE_URL": "http://127.0.0.1:9", "OPENLINEAGE_DISABLED": "true"},
        {"OPENLINEAGE__TRANSPORT__TYPE": "console"},
    ],
)
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
