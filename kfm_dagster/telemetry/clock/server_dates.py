"""The Date of servers' answers: a time source that comes free with every request to the cloud.

Belongs here: one HEAD request whose answer's Date is read, and a listener to the answers that a boto3 client gets
anyway. Does not belong here: what a Date means (`reading.py`). A server that does not answer, or answers from a cache,
tells nothing; nothing here raises for it.
"""

from __future__ import annotations

import http.client
import logging
import threading
import urllib.request
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from kfm_dagster.redaction import error_text
from kfm_dagster.telemetry.clock.reading import (
    ClockReading,
    ClockState,
    OffsetInterval,
    UnusableDateError,
    offset_from_date,
)

_LOG = logging.getLogger(__name__)

REQUEST_SECONDS = 3.0
"""A server that takes longer to connect or to answer is not asked further: its Date would be of little use."""
COMBINED_FOR = timedelta(minutes=1)
"""Answers that lie further apart are not combined: an undisciplined clock may drift by 500 ppm, 30 ms in a minute."""


def ask_date(url: str, *, clock: Callable[[], datetime], seconds: float = REQUEST_SECONDS) -> ClockReading | None:
    """Ask a server for its time by one HEAD request without credentials; None when it does not tell.

    Any answer will do, a refusal too. Proxies of the environment are used, redirects are not followed. `seconds` is for
    each of connecting and answering.
    """
    try:
        host = urlsplit(url).hostname or ""
        sent_at = clock()
        headers = _head(url, seconds=seconds)
        received_at = clock()
        interval = _interval(headers, sent_at=sent_at, received_at=received_at)
    except (OSError, http.client.HTTPException, ValueError, UnusableDateError) as error:
        _LOG.info("no server tells the time: %s", error_text(error))
        return None
    return _reading(interval, host=host, at=received_at)


class AnswerDates:
    """Listens to the answers of boto3 clients and combines what their Dates allow. Thread-safe; keeps one interval."""

    def __init__(self, *, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._sent = threading.local()
        self._lock = threading.Lock()
        self._standing: tuple[OffsetInterval, datetime, str] | None = None
        self._begun_at: datetime | None = None

    def listen(self, client: Any) -> None:
        """Hear every answer that a boto3 client gets from now on; its requests stay as they are."""
        service = client.meta.service_model.service_id.hyphenize()
        client.meta.events.register(f"before-send.{service}", self._before_send)
        client.meta.events.register(f"response-received.{service}", self._response_received)

    def take(self) -> ClockReading | None:
        """Return what the answers since the last call say together, and begin again; None when they say nothing."""
        with self._lock:
            standing, self._standing = self._standing, None
        if standing is None:
            return None
        interval, at, host = standing
        return _reading(interval, host=host, at=at)

    def _before_send(self, request: Any, **_: object) -> None:
        # In the thread that waits for the answer, and once more for every retry.
        self._sent.at, self._sent.host = self._clock(), urlsplit(request.url).hostname or ""

    def _response_received(self, response_dict: Any, **_: object) -> None:
        if response_dict is None:
            return
        received_at = self._clock()
        try:
            interval = _interval(response_dict["headers"], sent_at=self._sent.at, received_at=received_at)
        except UnusableDateError as error:
            _LOG.info("%s does not tell the time: %s", self._sent.host, error)
            return
        with self._lock:
            self._combine(interval, received_at, self._sent.host)

    def _combine(self, interval: OffsetInterval, at: datetime, host: str) -> None:
        standing = self._standing
        if standing is not None and standing[2] == host and abs(at - (self._begun_at or at)) <= COMBINED_FOR:
            both = standing[0].intersection(interval)
            # Contradictions mean that the clock was set in between: what it was before says nothing any more.
            if both is not None:
                self._standing = (both, at, host)
                return
        self._standing, self._begun_at = (interval, at, host), at


def _head(url: str, *, seconds: float) -> Any:
    # No handler for errors and redirects, so that every answer is one; none for files and FTP.
    opener = urllib.request.OpenerDirector()
    for handler in (urllib.request.ProxyHandler(), urllib.request.HTTPHandler(), urllib.request.HTTPSHandler()):
        opener.add_handler(handler)
    request = urllib.request.Request(url, method="HEAD", headers={"Cache-Control": "no-cache"})  # noqa: S310, as above
    answer = opener.open(request, timeout=seconds)
    if answer is None:
        raise UnusableDateError("the URL is neither http nor https", observed=urlsplit(url).scheme)
    with answer:
        return answer.headers


def _interval(headers: Any, *, sent_at: datetime, received_at: datetime) -> OffsetInterval:
    date = headers.get("Date")
    if date is None:
        raise UnusableDateError("the answer has no Date")
    if (headers.get("Age") or "0").strip() != "0":
        # RFC 9111, 5.1: a cache answers, with the Date at which the origin once did.
        raise UnusableDateError("the answer comes from a cache", observed=f"Age {headers['Age']}")
    return offset_from_date(date, sent_at=sent_at, received_at=received_at)


def _reading(interval: OffsetInterval, *, host: str, at: datetime) -> ClockReading:
    return ClockReading(
        at=at,
        source=f"date:{host}",
        offset_seconds=interval.midpoint,
        uncertainty_seconds=interval.half_width,
        state=ClockState.UNKNOWN,
    )
