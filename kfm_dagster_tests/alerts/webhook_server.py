"""A real HTTP service on the loopback interface that takes apprise's json:// messages, as a test decides."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class WebhookServer(ThreadingHTTPServer):
    """Answers every message with `status` after a pause of so many seconds; None hangs until the box is closed."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status: int | None = 200
        self.pause = 0.0
        self.taken: list[dict[str, Any]] = []
        self.asked: list[tuple[str, str | None]] = []
        self.closing = threading.Event()

    def url(self, path: str = "", *, user: str = "") -> str:
        return f"json://{user}127.0.0.1:{self.server_port}/{path}"


class _Handler(BaseHTTPRequestHandler):
    server: WebhookServer

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, self.headers["Authorization"]))
        if self.server.status is None:
            self.server.closing.wait()
            return
        self.server.closing.wait(self.server.pause)
        if self.server.status == 200:
            self.server.taken.append(message)
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_args: Any) -> None:
        """Stay quiet."""


@contextmanager
def open_letterbox() -> Iterator[WebhookServer]:
    with WebhookServer() as opened:
        thread = threading.Thread(target=opened.serve_forever)
        thread.start()
        yield opened
        opened.closing.set()
        opened.shutdown()
        thread.join()
