"""The Date of a server's answer: one HEAD request tells how far this clock is off.

Belongs here: the request, and the arithmetic of an HTTP Date. A server that does not answer, or answers from a cache,
tells nothing; nothing here raises for it.
"""

from __future__ import annotations

import http.client
import logging
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from kfm_dagster.redaction import error_text
from kfm_dagster.telemetry.clock.reading import ClockReading, ClockState

_LOG = logging.getLogger(__name__)

REQUEST_SECONDS = 3.0
"""A server that takes longer to connect or to answer is given up: its Date would be of little use."""
DATE_RESOLUTION_SECONDS = 1.0
"""An HTTP Date has whole seconds (RFC 9110, 5.6.7), and servers leave the rest of the second out."""


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
        return reading_of(headers.get("Date"), host=host, sent_at=sent_at, received_at=received_at)
    except (OSError, http.client.HTTPException, ValueError) as error:
        _LOG.info("no server tells the time: %s", error_text(error))
        return None


def reading_of(date: str | None, *, host: str, sent_at: datetime, received_at: datetime) -> ClockReading:
    """Return what a Date says that a server set between sending and receiving by this clock.

    The server's time was within [date, date + 1 s), this clock's within [sent_at, received_at]. Raises ValueError for
    a text that is not a date, and for an answer that came before its question: the clock was set meanwhile.
    """
    if received_at < sent_at:
        raise ValueError("the clock was set back while an answer was on its way")
    try:
        time = parsedate_to_datetime(date or "")
        # HTTP means UTC; two of its three forms say so in a way that the parser takes for no zone at all.
        time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, TypeError, IndexError, OverflowError):
        raise ValueError("the answer has no HTTP date (RFC 9110, 5.6.7)") from None
    low = (time - received_at).total_seconds()
    high = (time - sent_at).total_seconds() + DATE_RESOLUTION_SECONDS
    return ClockReading(
        at=received_at,
        source=f"date:{host}",
        offset_seconds=(low + high) / 2,
        uncertainty_seconds=(high - low) / 2,
        state=ClockState.UNKNOWN,
    )


def _head(url: str, *, seconds: float) -> Any:
    # No handler for errors and redirects, so that every answer is one; none for files and FTP.
    opener = urllib.request.OpenerDirector()
    for handler in (urllib.request.ProxyHandler(), urllib.request.HTTPHandler(), urllib.request.HTTPSHandler()):
        opener.add_handler(handler)
    request = urllib.request.Request(url, method="HEAD", headers={"Cache-Control": "no-cache"})  # noqa: S310, as above
    answer = opener.open(request, timeout=seconds)
    if answer is None:
        raise ValueError("the URL is neither http nor https")
    with answer:
        if (answer.headers.get("Age") or "0").strip() != "0":
            raise ValueError("a cache answers, with the Date of the origin (RFC 9111, 5.1)")
        return answer.headers
