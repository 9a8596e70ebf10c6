"""A server on loopback whose answers tell a time that the test chooses."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

from kfm_dagster_tests.followers.announcements.web_server import WebAnswer, WebServer, open_web_server


def http_date(at: datetime) -> str:
    """The time as servers tell it: whole seconds, the rest left out."""
    return format_datetime(at.astimezone(UTC), usegmt=True)


def dated(at: datetime, status: int = 403, **headers: str) -> WebAnswer:
    return WebAnswer(status=status, headers={"Date": http_date(at), **headers})


@pytest.fixture
def date_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    """A server that refuses every request at its time, unless a test has it answer otherwise."""
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with open_web_server() as server:
        server.answers = lambda _: dated(datetime.now(UTC))
        yield server
