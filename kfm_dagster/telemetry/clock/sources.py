"""Sources of clock readings: the kernel, and the Date of the answer to a HEAD request.

A time service (chrony, ntpd, systemd-timesyncd) sets the kernel's state. adjtimex(2) with `modes = 0` reads this state,
changes nothing and needs no privilege. If the call is missing, or a sandbox refuses it, the state is unknown. A server
that does not answer, or answers from a cache, gives no reading. Belongs here: requests, the meaning of answers.
"""

from __future__ import annotations

import ctypes
import http.client
import logging
import sys
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from kfm_dagster.redaction import error_text
from kfm_dagster.telemetry.clock.reading import KERNEL, ClockReading, ClockRule, ClockState, decides

TIME_ERROR = 5
"""Answer of adjtimex: the clock is not synchronised to a reliable server."""
STA_UNSYNC = 0x0040
"""Status bit: not synchronised. The kernel sets it by itself once the maximum error reaches 16 s."""
STA_NANO = 0x2000
"""Status bit: the offset is in nanoseconds; without it, in microseconds. Errors are always in microseconds."""


class NtpState(ctypes.Structure):
    """The fields of `struct timex` (<sys/timex.h>) that are read, and room for the others."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),  # 208 bytes in all on 64-bit Linux
    )


def adjtimex() -> tuple[int, NtpState] | None:
    """Return the kernel's answer and state; None if the call is missing or refused."""
    if not sys.platform.startswith("linux"):
        return None
    state = NtpState()
    try:
        answer: int = ctypes.CDLL(None).adjtimex(ctypes.byref(state))
    except (AttributeError, OSError):
        return None
    return None if answer < 0 else (answer, state)


def kernel_clock(at: datetime, *, ask: Callable[[], tuple[int, NtpState] | None] = adjtimex) -> ClockReading:
    """Return the kernel's reading of its clock.

    The uncertainty is the kernel's maximum error, which grows by 500 ppm between two updates of the time service. The
    kernel's estimated error is not a bound, and some services leave it 0. The offset of an unsynchronised clock is
    meaningless.
    """
    if (result := ask()) is None:
        return ClockReading(at=at, source=KERNEL, state=ClockState.UNKNOWN)
    answer, state = result
    if answer == TIME_ERROR or state.status & STA_UNSYNC:
        return ClockReading(at=at, source=KERNEL, state=ClockState.UNLOCKED)
    return ClockReading(
        at=at,
        source=KERNEL,
        offset_seconds=state.offset / (1e9 if state.status & STA_NANO else 1e6),
        uncertainty_seconds=state.maxerror / 1e6,
        state=ClockState.LOCKED,
    )


_LOG = logging.getLogger(__name__)

REQUEST_SECONDS = 3.0
"""Timeout of connecting, and of answering. After a longer wait, the Date would be too uncertain."""
DATE_RESOLUTION_SECONDS = 1.0
"""An HTTP Date has whole seconds (RFC 9110, 5.6.7), because servers truncate the fraction."""


def ask_date(url: str, *, clock: Callable[[], datetime], seconds: float = REQUEST_SECONDS) -> ClockReading | None:
    """Request a server's time by a HEAD without credentials; None without a usable answer.

    An error status is an answer, too. Proxies of the environment are used, redirects are not followed. `seconds` is the
    timeout of connecting and of answering.
    """
    try:
        host = urlsplit(url).hostname or ""
        sent_at = clock()
        headers = _head(url, seconds=seconds)
        received_at = clock()
        return reading_of(headers.get("Date"), host=host, sent_at=sent_at, received_at=received_at)
    except (OSError, http.client.HTTPException, ValueError) as error:
        _LOG.info("no server gives the time: %s", error_text(error))
        return None


def reading_of(date: str | None, *, host: str, sent_at: datetime, received_at: datetime) -> ClockReading:
    """Return the reading of a Date that a server set between `sent_at` and `received_at`.

    The server's time was within [date, date + 1 s), this clock's within [sent_at, received_at]. Raises ValueError for
    a text that is not a date, and for an answer that precedes its request: the clock was set back meanwhile.
    """
    if received_at < sent_at:
        raise ValueError("the clock was set back while an answer was on its way")
    try:
        time = parsedate_to_datetime(date or "")
        # HTTP dates are in UTC; in two of the three forms of a date, the parser does not recognise the zone.
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
    # No handler for errors and redirects, so that every status is an answer, and no handler for files and FTP.
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


MOST_REQUESTS = 5
"""Most requests of a measurement. If the server's second changes during an answer, the answer decides nothing. If
answers take 0.3 s, this happens to three in ten answers, and in 0.2 % of measurements to all five answers."""


def measure(rule: ClockRule, *, clock: Callable[[], datetime], endpoint: str | None = None) -> list[ClockReading]:
    """Return current readings in the order of measurement, the kernel's first.

    `endpoint` gets up to MOST_REQUESTS requests, until an answer decides by the rule. Without network, the
    kernel's reading remains, and nothing is raised.
    """
    readings = [kernel_clock(clock())]
    for _ in range(0 if endpoint is None else MOST_REQUESTS):
        if (answer := ask_date(endpoint or "", clock=clock)) is None:
            break
        readings.append(answer)
        if decides(answer, rule):
            break
    return readings
