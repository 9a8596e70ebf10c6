"""Bounds of the console: a request's time to arrive, connections, and concurrent answers.

If a client sends half a header, uvicorn keeps the connection open for ever. uvicorn's own limit on concurrent requests
counts such connections, too: once they reach the limit, all other clients are blocked. Does not belong here: answers
(`app.py`).
"""

from __future__ import annotations

import asyncio
import itertools

import h11
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 10.0
"""Longest wait for a whole request: a request takes milliseconds locally or behind a proxy, seconds on a bad line."""
MOST_CONNECTIONS = 512
"""Half of a process's default file descriptors (1,024); a browser keeps up to six connections."""
MOST_REQUESTS = 32
"""Concurrent answers; fewer than the 40 threads that anyio answers with by default, so that /healthz has a thread."""
WAIT_SECONDS = 5.0
"""Longest wait of a request for its turn; an answer takes some tens of milliseconds."""
MOST_BODY_BYTES = 64 * 1024
"""Largest body of a request; a body has the few fields of a form."""


_TURNS = itertools.count(1)


class BoundedConnection(H11Protocol):
    """HTTP/1.1 with a deadline per request, and at most MOST_CONNECTIONS connections."""

    deadline: asyncio.TimerHandle | None = None
    """Timer that closes the connection; set while the server waits for a request."""
    turn: int = 0
    """Place among the waiting connections. A time would not do, because several connections can have the same time."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection."""
        super().connection_made(transport)
        self._watch()
        if len(self.connections) > MOST_CONNECTIONS:
            ours = (peer for peer in self.connections if isinstance(peer, BoundedConnection))
            oldest = min((peer for peer in ours if peer.deadline is not None), key=lambda peer: peer.turn)
            # The connection remains in `connections` until it is closed. Without a deadline it is not selected again.
            oldest.deadline = None
            oldest.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._unwatch()

    def _watch(self) -> None:
        if self.conn.their_state not in {h11.IDLE, h11.SEND_BODY}:
            self._unwatch()
        elif self.deadline is None:
            self.deadline = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)
            self.turn = next(_TURNS)

    def _unwatch(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None


class BoundedRequests:
    """Answers MOST_REQUESTS at a time, in order of arrival; a body that is too long gets 413.

    A request counts once it has arrived whole. It waits behind earlier requests, for WAIT_SECONDS at most, so that a
    client that sends requests in a row on many connections cannot block other clients. `exempt` paths are always
    answered, because a monitor would restart a busy console that refuses its request.
    """

    def __init__(self, app: ASGIApp, *, exempt: tuple[str, ...] = ()) -> None:
        self._app = app
        self._exempt = exempt
        self._free = asyncio.Semaphore(MOST_REQUESTS)
        self._waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = await _body(receive)
        if body is None:
            # The rest of the body is not read.
            too_long = PlainTextResponse("the request is too long\n", status_code=413, headers={"connection": "close"})
            await too_long(scope, receive, send)
            return
        if scope["path"] in self._exempt:
            await self._answer(body, scope, receive, send)
        elif await self._turn():
            try:
                await self._answer(body, scope, receive, send)
            finally:
                self._free.release()
        else:
            text = "too many requests are being answered; next: ask again in some seconds\n"
            await PlainTextResponse(text, status_code=503, headers={"retry-after": "5"})(scope, receive, send)

    async def _turn(self) -> bool:
        """Wait for a turn, in order of arrival; return whether the turn came in time."""
        if self._waiting >= MOST_CONNECTIONS:
            return False
        self._waiting += 1
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                return await self._free.acquire()
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1

    async def _answer(self, body: Message, scope: Scope, receive: Receive, send: Send) -> None:
        messages = [body]

        async def received() -> Message:
            return messages.pop() if messages else await receive()

        await self._app(scope, received, send)


async def _body(receive: Receive) -> Message | None:
    parts: list[bytes] = []
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return message
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
        if sum(map(len, parts)) > MOST_BODY_BYTES:
            return None
    return {"type": "http.request", "body": b"".join(parts), "more_body": False}
