"""The kernel's NTP state, by adjtimex(2) with `modes = 0`, which reads and changes nothing and needs no privilege.

The kernel knows what a time service has set (chrony, ntpd, systemd-timesyncd). Belongs here: the call and what
its answer means. Where there is no such call, or a sandbox refuses it, the state is unknown.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from kfm_dagster.telemetry.clock.reading import KERNEL, ClockReading, ClockState

TIME_ERROR = 5
"""Answer of adjtimex: the clock is not synchronised to a reliable server."""
STA_UNSYNC = 0x0040
"""Status bit: not synchronised. The kernel sets it by itself once the maximum error reaches 16 s."""
STA_NANO = 0x2000
"""Status bit: the offset is in nanoseconds, else in microseconds. Errors are in microseconds always."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class _Timex(ctypes.Structure):
    """`struct timex` of <sys/timex.h> as far as it is read; the rest is room for what the kernel writes behind it."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),  # 208 bytes in all on 64-bit Linux
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class NtpState:
    """Answer of adjtimex: `offset` as `status` says, `maxerror` in microseconds."""

    answer: int
    status: int
    offset: int
    maxerror: int


def adjtimex() -> NtpState | None:
    """Ask the kernel; None where it has no such call or refuses it."""
    if not sys.platform.startswith("linux"):
        return None
    timex = _Timex()
    try:
        answer = ctypes.CDLL(None).adjtimex(ctypes.byref(timex))
    except (AttributeError, OSError):
        return None
    if answer < 0:
        return None
    return NtpState(answer=answer, status=timex.status, offset=timex.offset, maxerror=timex.maxerror)


def kernel_clock(at: datetime, *, ask: Callable[[], NtpState | None] = adjtimex) -> ClockReading:
    """Return what the kernel says of its clock.

    The uncertainty is its maximum error, which grows by 500 ppm between two updates of the time service; the estimated
    error is no bound, and some services leave it 0. The offset of a clock that is not synchronised is meaningless.
    """
    state = ask()
    if state is None:
        return ClockReading(at=at, source=KERNEL, state=ClockState.UNKNOWN)
    if state.answer == TIME_ERROR or state.status & STA_UNSYNC:
        return ClockReading(at=at, source=KERNEL, state=ClockState.UNLOCKED)
    return ClockReading(
        at=at,
        source=KERNEL,
        offset_seconds=state.offset / (1e9 if state.status & STA_NANO else 1e6),
        uncertainty_seconds=state.maxerror / 1e6,
        state=ClockState.LOCKED,
    )


def clock_id() -> str:
    """Return the identity of this kernel's clock since it was booted; `unknown` where the kernel gives it none.

    Containers of one machine share its clock and this id; workers of one database do not share a clock, and none may
    trust another's readings. It is random and says nothing of the machine.
    """
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip() or "unknown"
    except OSError:
        return "unknown"
