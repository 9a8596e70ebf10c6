"""A server on loopback whose answers tell a time that the test chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

from kfm_dagster_tests.followers.announcements.web_server import WebAnswer, WebServer, open_web_server


class DateServer:
    """Answers every request with these headers; keeps what it was asked."""

    def __init__(self, server: WebServer) -> None:
        self.status = 403
        self.headers: Callable[[], dict[str, str]] = lambda: {"Date": http_date(datetime.now(UTC))}
        self.url = server.url("")
        self._server = server
        server.answers = lambda _: WebAnswer(status=self.status, headers=self.headers())

    @property
    def asked(self) -> list[str]:
        return [f"{request.command} {request.path}" for request in self._server.asked]


def http_date(at: datetime) -> str:
    """The time as servers tell it: whole seconds, the rest left out."""
    return format_datetime(at.astimezone(UTC), usegmt=True)


@pytest.fixture
def date_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[DateServer]:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with open_web_server() as server:
        yield DateServer(server)
