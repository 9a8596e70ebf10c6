"""Delivery to the OpenLineage backend: at least once, despite outages, crashes, refusals."""

from __future__ import annotations

import json
import os
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from kfm_dagster.contracts.envelope import ProvenanceStatus
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.failpoints import Failpoint
from kfm_dagster.lineage.batches import LEASE
from kfm_dagster.lineage.delivery import MAX_REFUSALS, BackendUnavailableError, ClientBackend
from kfm_dagster.lineage.openlineage import openlineage_events
from kfm_dagster.lineage.store import Lineage
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.fence import open_fence
from kfm_dagster_tests.ledger.bench import Clock
from kfm_dagster_tests.lineage.receiver import TAKEN, Event, Receiver, backend_at, backend_of, receiving
from kfm_dagster_tests.lineage.units import ingest_run, units
from kfm_dagster_tests.moments import dying, meanwhile

pytestmark = [pytest.mark.clause("BEY-07"), pytest.mark.one_database]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as opened:
        yield opened


@pytest.fixture
def clock() -> Clock:
    return Clock()


Open = Callable[..., Lineage]


@pytest.fixture
def open_lineage(database: Database, root: Path, clock: Clock) -> Open:
    return lambda backend: Lineage(database, str(root), backend=backend, clock=clock)


@pytest.fixture
def lineage(open_lineage: Open, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Lineage:
    return open_lineage(backend_at(receiver.url, monkeypatch))


def emit(lineage: Lineage, contract: DatasetContract, first: int, stop: int) -> None:
    """Record a batch; check that every unit's lineage is complete whatever the backend does."""
    results = lineage.emit(units(first, stop), run=ingest_run(), contract=contract, fence=open_fence)
    assert {result.status for result in results.values()} == {ProvenanceStatus.OK}


def start_and_complete(first: int, stop: int) -> Counter[tuple[str, str]]:
    return Counter((kind, unit.wal_id) for unit in units(first, stop) for kind in ("START", "COMPLETE"))


def wal_id(event: Event) -> str:
    return str(event["run"]["facets"]["kfmWal"]["wal_id"])


def nothing_waits(lineage: Lineage) -> bool:
    waiting = lineage.undelivered()
    return waiting.backend.batches == 0 and list(waiting.failing) == []


@pytest.mark.parametrize("how", ["refused connection", "500", "hangs"])
def test_an_unavailable_backend_fails_no_unit_and_later_gets_each_event_once(
    open_lineage: Open, receiver: Receiver, contract: DatasetContract, clock: Clock, monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:  # fmt: skip
    url = "http://127.0.0.1:9" if how == "refused connection" else receiver.url
    receiver.answer = lambda _event: 500 if how == "500" else None
    lineage = open_lineage(backend_at(url, monkeypatch, timeout=0.1))
    for number in range(3):
        emit(lineage, contract, 2 * number, 2 * number + 2)
        with pytest.raises(BackendUnavailableError):
            lineage.deliver()
        clock.advance(1)
    waiting = lineage.undelivered()
    assert (waiting.backend.batches, waiting.backend.units) == (3, 6)
    assert waiting.backend.oldest == Clock().now
    assert {failing.destination for failing in waiting.failing} == {"backend"}
    # One request per tick, not one per pending event.
    assert len(receiver.requests) == (0 if how == "refused connection" else 3)
    receiver.answer = lambda _event: TAKEN
    clock.advance(600)
    back = open_lineage(backend_at(receiver.url, monkeypatch))
    assert back.deliver() == 12
    assert receiver.counts() == start_and_complete(0, 6)
    assert back.deliver() == 0
    assert nothing_waits(back)


@pytest.mark.parametrize("dies_at", [1, 5, 8])
def test_a_deliverer_that_dies_between_sending_and_marking_loses_no_event(
    lineage: Lineage, receiver: Receiver, contract: DatasetContract, clock: Clock, dies_at: int
) -> None:
    emit(lineage, contract, 0, 2)
    emit(lineage, contract, 2, 4)
    with dying(at=dies_at, only=Failpoint.LINEAGE_SEND_AFTER) as death:
        lineage.deliver()
    # The backend has the event, but its sender died before recording that.
    assert death.died
    assert receiver.counts().total() == dies_at
    # The dead sender's batch is leased until its lease expires.
    lineage.deliver()
    clock.advance(LEASE.total_seconds())
    lineage.deliver()
    assert receiver.counts().keys() == start_and_complete(0, 4).keys()
    assert max(receiver.counts().values()) <= 2
    # Repeated events are equal, byte for byte.
    assert len(receiver.bodies()) == 8
    assert nothing_waits(lineage)


@pytest.mark.parametrize("status", [400, 422, 500])
def test_an_event_that_the_backend_refuses_blocks_no_other_event_and_stays_reported(
    lineage: Lineage, receiver: Receiver, contract: DatasetContract, clock: Clock, status: int
) -> None:
    """An event that is always refused, or that always crashes the backend."""
    bad = units(1, 2)[0].wal_id
    receiver.answer = lambda event: status if wal_id(event) == bad else TAKEN
    emit(lineage, contract, 0, 4)
    emit(lineage, contract, 4, 6)
    for _ in range(4):
        try:
            lineage.deliver()
        except BackendUnavailableError:
            assert status == 500
        clock.advance(120)
    assert receiver.counts() == start_and_complete(0, 1) + start_and_complete(2, 6)
    [failing] = lineage.undelivered().failing
    assert (failing.destination, failing.not_taken) == ("backend", 2)
    assert str(status) in failing.last_error
    assert failing.attempts >= 2
    assert failing.next_attempt_at > clock.now - timedelta(seconds=120)
    requests_before = len(receiver.requests)
    # Before the next attempt is due a tick sends nothing; then only undelivered events are sent.
    clock.now = failing.next_attempt_at - timedelta(seconds=1)
    assert lineage.deliver() == 0
    assert len(receiver.requests) == requests_before
    receiver.answer = lambda _event: TAKEN
    clock.advance(1)
    assert lineage.deliver() == 2
    assert receiver.counts() == start_and_complete(0, 6)
    assert nothing_waits(lineage)


def test_a_backend_that_refuses_everything_gets_a_bounded_number_of_requests(
    lineage: Lineage, receiver: Receiver, contract: DatasetContract, clock: Clock
) -> None:
    receiver.answer = lambda _event: 422
    emit(lineage, contract, 0, 40)
    assert lineage.deliver() == 0
    assert len(receiver.requests) == MAX_REFUSALS
    receiver.answer = lambda _event: TAKEN
    clock.advance(600)
    assert lineage.deliver() == 80
    assert receiver.counts() == start_and_complete(0, 40)


def test_a_tick_keeps_its_time_limit_and_the_next_tick_continues(
    database: Database, receiver: Receiver, contract: DatasetContract, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Clock()

    def look() -> datetime:
        slow.advance(0.4)
        return slow()

    lineage = Lineage(database, str(root), backend=backend_at(receiver.url, monkeypatch), clock=look)
    emit(lineage, contract, 0, 20)
    sent = []
    while delivered := lineage.deliver(within=timedelta(seconds=4)):
        sent.append(delivered)
    assert max(sent) <= 10
    assert sum(sent) == 40
    assert receiver.counts() == start_and_complete(0, 20)
    assert nothing_waits(lineage)
    # The number of batches per tick is bounded.
    for number in range(20, 25):
        emit(lineage, contract, number, number + 1)
    assert lineage.deliver(most_batches=2) == 4
    assert lineage.deliver(most_batches=9) == 6
    # Without a backend no event is pending.
    alone = Lineage(database, str(root), clock=look)
    emit(alone, contract, 25, 26)
    assert alone.deliver() == 0
    assert alone.undelivered().backend.batches == 0


def test_a_deliverer_that_was_overtaken_neither_marks_nor_rewinds_the_batch(
    open_lineage: Open, receiver: Receiver, contract: DatasetContract, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deliverer stalled for longer than its lease, and another deliverer finished its batch."""
    quick = open_lineage(backend_at(receiver.url, monkeypatch))
    emit(quick, contract, 0, 3)
    overtaken: list[int] = []

    def overtake() -> None:
        clock.advance(LEASE.total_seconds() + 1)
        overtaken.append(quick.deliver())

    slow = open_lineage(backend_at(receiver.url, monkeypatch))
    with meanwhile(Failpoint.LINEAGE_SEND_AFTER, overtake):
        slow.deliver(within=timedelta(hours=1))
    assert overtaken == [6]
    # The overtaken deliverer sends its current event and stops.
    assert set(receiver.counts()) == set(start_and_complete(0, 3))
    assert sum(receiver.counts().values()) == 7
    assert nothing_waits(quick)
    emit(quick, contract, 3, 4)
    assert quick.deliver() == 2


def test_events_wait_for_the_file_that_readers_see_and_a_damaged_file_is_not_sent(
    lineage: Lineage, receiver: Receiver, contract: DatasetContract, clock: Clock, root: Path
) -> None:
    root.write_text("a file where the root has to be")
    emit(lineage, contract, 0, 1)
    assert lineage.deliver() == 0
    # Only the file counts as failing: its events are not due at the backend before the file is published.
    assert {failing.destination for failing in lineage.undelivered().failing} == {"files"}
    root.unlink()
    clock.advance(600)
    assert lineage.publish_staged() == 2
    [file] = root.glob("openlineage/**/*.ndjson")
    content = file.read_bytes()
    file.write_bytes(content.replace(b"START", b"ABORT"))
    emit(lineage, contract, 1, 2)
    assert lineage.deliver() == 2
    assert receiver.counts() == start_and_complete(1, 2)
    [failing] = lineage.undelivered().failing
    assert "does not have the recorded content" in failing.last_error
    file.write_bytes(content)
    clock.advance(600)
    assert lineage.deliver() == 2
    assert receiver.counts() == start_and_complete(0, 2)


def test_events_lost_by_a_transport_are_sent_again(open_lineage: Open, contract: DatasetContract, clock: Clock) -> None:
    """A background transport accepts all events immediately and reports failed events at the flush."""
    background = Mock(**{"send.return_value": None, "flush.side_effect": [BackendUnavailableError, None]})
    lineage = open_lineage(background)
    emit(lineage, contract, 0, 3)
    with pytest.raises(BackendUnavailableError):
        lineage.deliver()
    clock.advance(600)
    assert lineage.deliver() == 6
    sent = [json.dumps(sending.args[0]) for sending in background.send.call_args_list]
    assert sent[:6] == sent[6:]
    assert len(set(sent)) == 6
    assert nothing_waits(lineage)


ABOUT_THE_EVENT = (400, 409, 410, 413, 415, 422)
EVENT = openlineage_events(units(0, 1)[0], ingest_run())[0]


@pytest.fixture
def backend(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> ClientBackend:
    return backend_at(receiver.url, monkeypatch)


def test_a_backend_receives_the_recorded_events(backend: ClientBackend, receiver: Receiver) -> None:
    events = [event for unit in units(0, 2) for event in openlineage_events(unit, ingest_run())]
    assert [backend.send(event) for event in events] == [None] * 4
    backend.flush()
    for event in receiver.taken:
        event["run"]["facets"].pop("tags")  # the client adds its own version
    assert [without_empty(event) for event in receiver.taken] == [without_empty(event) for event in events]


def test_refusals_of_an_event_differ_from_failures_of_the_backend(backend: ClientBackend, receiver: Receiver) -> None:
    for expected_requests, status in enumerate((301, 401, 403, 404, 408, 429, 500, 503, *ABOUT_THE_EVENT), 1):
        receiver.answer = lambda _event, status=status: status  # type: ignore[misc]
        if status in ABOUT_THE_EVENT:
            assert str(status) in str(backend.send(EVENT))
        else:
            with pytest.raises(BackendUnavailableError, match="http transport") as down:
                backend.send(EVENT)
            assert "\n" not in str(down.value)
        assert len(receiver.requests) == expected_requests, "the outbox retries, not the client"


def test_an_event_is_delivered_only_when_every_part_of_a_composite_transport_accepted_it(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's composite reports success if one of its parts accepted the event."""
    parts = {
        "first": {"type": "http", "url": receiver.url},
        "second": {"type": "http", "url": "http://127.0.0.1:9"},
    }
    with pytest.raises(BackendUnavailableError):
        backend_of(monkeypatch, type="composite", transports=json.dumps(parts)).send(EVENT)
    assert len(receiver.taken) == 1


def test_background_failures_of_a_transport_are_reported(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = backend_of(monkeypatch, type="async_http", url=receiver.url, retry='{"total": 0}')
    receiver.answer = lambda _event: 500
    assert opened.send(EVENT) is None
    with pytest.raises(BackendUnavailableError, match="1 events were not accepted"):
        opened.flush()
    receiver.answer = lambda _event: 201
    opened.send(EVENT)
    opened.flush()
    assert len(receiver.taken) == 1


@pytest.mark.clause("SEC-14")
@pytest.mark.parametrize("status", [401, 422, None], ids=["unauthorized", "refused", "no connection"])
def test_a_backend_s_error_has_no_credentials_of_the_backend_s_address(
    status: int | None, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = "127.0.0.1:9" if status is None else receiver.url.removeprefix("http://")
    opened = backend_at(f"http://kfm:tr0ub4dor@{host}/?code=c0rrecthorse", monkeypatch)
    receiver.answer = lambda _event: status
    try:
        text = opened.send(EVENT)
    except BackendUnavailableError as error:
        text = "".join(traceback.format_exception(error))
    assert "HTTPError" in text or "ConnectionError" in text
    assert [secret for secret in ("tr0ub4dor", "c0rrecthorse") if secret in text] == []


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OPENLINEAGE_URL": "http://127.0.0.1:9", "OPENLINEAGE_DISABLED": "true"},
        {"OPENLINEAGE__TRANSPORT__TYPE": "console"},
    ],
)
def test_without_configuration_no_event_leaves_the_machine(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("OPENLINEAGE")]:
        monkeypatch.delenv(name)
    # The client sets aliases of OPENLINEAGE_URL; monkeypatch removes them at the end only if it has set them before.
    for alias in ("TYPE", "URL"):
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__TRANSPORTS__DEFAULT_HTTP__{alias}", "x")
        monkeypatch.delenv(f"OPENLINEAGE__TRANSPORT__TRANSPORTS__DEFAULT_HTTP__{alias}")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert ClientBackend.from_environment() is None


def without_empty(value: Any) -> Any:
    """Remove empty values: the client writes empty facets where the product writes none."""
    if isinstance(value, dict):
        return {name: without_empty(item) for name, item in value.items() if item not in ({}, [])}
    return [without_empty(item) for item in value] if isinstance(value, list) else value
