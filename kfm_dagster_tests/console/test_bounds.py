"""The console's bounds over real sockets: on incomplete requests, and on numbers of connections and requests."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPResponse

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from kfm_dagster.console import bounds
from kfm_dagster.console.bounds import MOST_BODY_BYTES, MOST_REQUESTS, BoundedRequests
from kfm_dagster_tests.console.serving import served

HALF_OPEN = 200
PIPELINING = 40
HALF_A_HEADER = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half"
HALF_A_BODY = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nhalf"


class Server:
    """A server whose answers to `/slow` wait until `go_on` is set."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.begun = threading.Semaphore(0)
        self.busy = threading.Semaphore(0)

    def slow(self, _: Request) -> PlainTextResponse:
        self.begun.release()
        self.go_on.wait(60)
        return PlainTextResponse("slow")

    def short(self, _: Request) -> PlainTextResponse:
        self.busy.release()
        time.sleep(0.02)
        return PlainTextResponse("short")

    @contextmanager
    def serving(self) -> Iterator[int]:
        application = Starlette(
            routes=[
                Route("/", lambda _: PlainTextResponse("ok"), methods=["GET", "POST"]),
                Route("/slow", self.slow),
                Route("/short", self.short),
                Route("/healthz", lambda _: PlainTextResponse("ok")),
            ],
            middleware=[Middleware(BoundedRequests, exempt=("/healthz",))],
        )
        with served(application) as port:
            try:
                yield port
            finally:
                self.go_on.set()


def begin(port: int, path: str, *, method: str = "GET", body: bytes | None = None) -> HTTPConnection:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, body=body)
    return connection


def ask(port: int, path: str = "/", **request: object) -> HTTPResponse:
    connection = begin(port, path, **request)  # type: ignore[arg-type]
    response = connection.getresponse()
    response.read()
    connection.close()
    return response


def half_open(port: int, sent: bytes, opened: ExitStack) -> socket.socket:
    connection = opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
    connection.sendall(sent)
    return connection


def is_closed(connection: socket.socket) -> bool:
    """Wait until the server has closed the connection; a timeout is an error."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_requests_are_answered_while_200_connections_are_half_open() -> None:
    with Server().serving() as port, ExitStack() as opened:
        for number in range(HALF_OPEN):
            half_open(port, HALF_A_HEADER if number % 2 else HALF_A_BODY, opened)
        assert ask(port).status == 200
        assert ask(port, method="POST", body=b"x" * 100).status == 200


@pytest.mark.parametrize(
    "sent", [b"", HALF_A_HEADER, HALF_A_BODY, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" + HALF_A_HEADER]
)
def test_a_connection_with_an_incomplete_request_is_closed(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "REQUEST_SECONDS", 0.2)
    with Server().serving() as port, ExitStack() as opened:
        connection = half_open(port, sent, opened)
        if sent.startswith(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"):
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        assert is_closed(connection)


def test_an_answer_is_sent_even_after_the_deadline_of_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "REQUEST_SECONDS", 0.2)
    server = Server()
    with server.serving() as port, ExitStack() as opened:
        slow = begin(port, "/slow")
        server.begun.acquire()
        # When the deadline of a later connection has passed, that of the slow request has passed, too.
        assert is_closed(half_open(port, HALF_A_HEADER, opened))
        server.go_on.set()
        assert slow.getresponse().read() == b"slow"
        slow.close()


def test_at_the_limit_the_connection_that_has_waited_longest_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "MOST_CONNECTIONS", 3)
    # The deadline is so late that it closes no connection.
    monkeypatch.setattr(bounds, "REQUEST_SECONDS", 600)
    with Server().serving() as port, ExitStack() as opened:
        first, second, third = [half_open(port, HALF_A_HEADER, opened) for _ in range(3)]
        # All three are open: the first and the last are answered.
        for connection in (third, first):
            connection.sendall(b": x\r\n\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        half_open(port, HALF_A_HEADER, opened)
        # The second has waited longest, because the others were answered.
        assert is_closed(second)
        assert ask(port).status == 200


def test_beyond_the_limit_of_requests_only_health_checks_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "WAIT_SECONDS", 0.2)
    server = Server()
    with server.serving() as port, ExitStack() as opened:
        for _ in range(MOST_REQUESTS):
            opened.callback(begin(port, "/slow").close)
        for _ in range(MOST_REQUESTS):
            server.begun.acquire()
        refused = ask(port)
        assert (refused.status, refused.headers["retry-after"]) == (503, "5")
        assert ask(port, "/healthz").status == 200


def test_pipelining_connections_do_not_block_other_clients() -> None:
    server = Server()
    with server.serving() as port, ExitStack() as opened:
        for _ in range(PIPELINING):
            half_open(port, b"GET /short HTTP/1.1\r\nHost: a\r\n\r\n" * 500, opened)
        for _ in range(2 * PIPELINING):
            server.busy.acquire()
        assert [ask(port).status for _ in range(10)] == [200] * 10


def test_a_chunked_body_is_refused_at_the_limit_and_its_rest_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    # The deadline is so late that it does not close the connection.
    monkeypatch.setattr(bounds, "REQUEST_SECONDS", 600)
    chunk = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
    with Server().serving() as port, ExitStack() as opened:
        head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection = half_open(port, head + chunk * (1 + MOST_BODY_BYTES // 0x4000), opened)
        assert connection.recv(4096).startswith(b"HTTP/1.1 413")
        with pytest.raises(OSError, match=r"(?i)reset|broken pipe"):
            connection.sendall(chunk * 10_000)


def test_the_limit_of_a_body_applies_to_the_sum_of_its_parts() -> None:
    bodies: list[bytes] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        bodies.append((await receive())["body"])
        await PlainTextResponse("ok")(scope, receive, send)

    def status(*parts: int) -> int:
        messages = [{"type": "http.request", "body": b"x" * size, "more_body": True} for size in parts]
        waiting, sent = iter([*messages, {"type": "http.request", "more_body": False}]), []

        async def receive() -> Message:
            return next(waiting)

        async def send(message: Message) -> None:
            sent.append(message)

        asyncio.run(BoundedRequests(application)({"type": "http", "path": "/"}, receive, send))
        return int(sent[0]["status"])

    half = MOST_BODY_BYTES // 2
    assert [status(*parts) for parts in ((), (2 * half,), (half, half))] == [200] * 3
    assert bodies == [b"", b"x" * 2 * half, b"x" * 2 * half]
    assert [status(*parts) for parts in ((2 * half + 1,), (half, half, 1))] == [413] * 2
    assert len(bodies) == 3
