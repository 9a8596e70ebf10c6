"""An HTTP service on loopback whose answers a test sets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class WebRequest(NamedTuple):
    """A request; header names are in lower case."""

    command: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, kw_only=True)
class WebAnswer:
    """An answer; with `status` None the request hangs until the service closes."""

    status: int | None = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    endless: bool = False
    dripping: bool = False
    """Send an endless body, byte by byte."""


class WebServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str = "127.0.0.1") -> None:
        super().__init__((host, 0), _Handler)
        self.answers: Callable[[WebRequest], WebAnswer] = lambda _: WebAnswer()
        self.requests: list[WebRequest] = []
        self.closing = threading.Event()

    def url(self, path: str = "items") -> str:
        return f"http://{self.server_address[0]!s}:{self.server_port}/{path}".rstrip("/")


class _Handler(BaseHTTPRequestHandler):
    server: WebServer

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = WebRequest(self.command, self.path, headers, body)
        self.server.requests.append(request)
        answer = self.server.answers(request)
        if answer.status is None:
            self.server.closing.wait()
            return
        # This method does not send the Date header, which some tests set.
        self.send_response_only(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if (
            not (answer.endless or answer.dripping)
            and not {"Content-Length", "Transfer-Encoding"} & answer.headers.keys()
        ):
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        with suppress(OSError):
            if self.command != "HEAD":
                self.wfile.write(answer.body)
            while answer.endless and not self.server.closing.is_set():
                self.wfile.write(b"x" * 65_536)
            while answer.dripping and not self.server.closing.wait(0.05):
                self.wfile.write(b"x")

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815 - the protocol's names

    def log_message(self, *_args: Any) -> None:
        """Log nothing."""


@contextmanager
def open_web_server(host: str = "127.0.0.1") -> Iterator[WebServer]:
    with WebServer(host) as opened:
        thread = threading.Thread(target=opened.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield opened
        finally:
            opened.closing.set()
            opened.shutdown()
            thread.join()
