"""A server on loopback whose answers have a Date set by the test."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

from kfm_dagster_tests.followers.announcements.web_server import WebAnswer, WebServer, open_web_server


def http_date(at: datetime) -> str:
    """Return the time as an HTTP date: whole seconds, rounded down."""
    return format_datetime(at.astimezone(UTC), usegmt=True)


def dated(at: datetime, status: int = 403, **headers: str) -> WebAnswer:
    return WebAnswer(status=status, headers={"Date": http_date(at), **headers})


@pytest.fixture
def date_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    """Open a server that by default refuses every request, with the current time as Date."""
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with open_web_server() as server:
        server.answers = lambda _: dated(datetime.now(UTC))
        yield server
