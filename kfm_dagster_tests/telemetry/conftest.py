"""A server on loopback whose answers tell a time that the test chooses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class DateServer:
    """Answers every request with the headers of `answer`; keeps what it was asked."""

    def __init__(self) -> None:
        self.status = 403
        self.headers: Callable[[], dict[str, str]] = lambda: {"Date": http_date(datetime.now(UTC))}
        self.body = b""
        self.asked: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                server.asked.append(f"{self.command} {self.path}")
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.send_response_only(server.status)
                for name, value in server.headers().items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(server.body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(server.body)

            do_HEAD = do_GET = do_POST = _answer  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def http_date(at: datetime) -> str:
    """The time as servers tell it: whole seconds, the rest left out."""
    return format_datetime(at.astimezone(UTC), usegmt=True)


@pytest.fixture
def date_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[DateServer]:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = DateServer()
    yield server
    server.close()
