"""A real HTTP service on the loopback interface that answers POST requests as a test decides."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, kw_only=True)
class WebAnswer:
    """What is answered; `status` None is no answer at all, until the service closes."""

    status: int | None = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    endless: bool = False


class WebServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: Callable[[bytes], WebAnswer] = lambda _: WebAnswer()
        self.asked: list[tuple[str, str, Mapping[str, str], bytes]] = []
        self.closing = threading.Event()

    def url(self, path: str = "items") -> str:
        return f"http://127.0.0.1:{self.server_port}/{path}"


class _Handler(BaseHTTPRequestHandler):
    server: WebServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append(
            (self.command, self.path, {name.lower(): value for name, value in self.headers.items()}, body)
        )
        answer = self.server.answers(body)
        if answer.status is None:
            self.server.closing.wait()
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if not answer.endless:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(answer.body)
            while answer.endless and not self.server.closing.is_set():
                self.wfile.write(b"x" * 65_536)

    def do_GET(self) -> None:
        """What a redirect would become."""
        self.do_POST()

    def log_message(self, *_args: Any) -> None:
        """Stay quiet."""


@contextmanager
def open_web_server() -> Iterator[WebServer]:
    with WebServer() as opened:
        thread = threading.Thread(target=opened.serve_forever)
        thread.start()
        try:
            yield opened
        finally:
            opened.closing.set()
            opened.shutdown()
            thread.join()
