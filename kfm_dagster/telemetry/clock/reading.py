"""Readings of this machine's clock, their append-only record, and the card's rule (PCS-10).

Belongs here: the record (`clock_readings`), and whether readings allow a stage to write. Does not belong here: the
sources of readings, or the effect of an unlocked clock on a stage (E_SYNC: `stages/`).

Offsets are seconds of true time minus this clock: positive for a slow clock, as in the kernel and NTP (RFC 5905).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from enum import StrEnum, unique
from pathlib import Path
from typing import Literal

from kfm_dagster.configs import Duration, Strict
from kfm_dagster.storage.database import Database

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
RECENT = 10_000
"""Most readings per query: five weeks of a reading every five minutes."""

KERNEL = "kernel"
"""Source of the kernel's own readings; any other source is a server."""


@unique
class ClockState(StrEnum):
    """Whether a clock is synchronised."""

    LOCKED = "locked"
    UNLOCKED = "unlocked"
    UNKNOWN = "unknown"
    """A server's Date gives an offset, but not the state of this clock's synchronisation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockReading:
    """The reading of a source at a time; `at` is by the clock under test.

    Offset and uncertainty are in seconds, both known or both None; the true offset is within offset +- uncertainty.
    `state` is the state that the source reports, before any rule.
    """

    at: datetime
    source: str
    offset_seconds: float | None = None
    uncertainty_seconds: float | None = None
    state: ClockState

    @property
    def delta_t_abs(self) -> float | None:
        """Absolute time error in seconds (the card's KPI); None if no offset is known."""
        return None if self.offset_seconds is None else abs(self.offset_seconds)


def clock_id() -> str:
    """Return the id of this kernel's clock since boot; `unknown` if the kernel has no such id.

    Containers of a machine share its clock and this id. A worker on another machine has another clock, and must not use
    this clock's readings. The id is random and reveals nothing about the machine.
    """
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip() or "unknown"
    except OSError:
        return "unknown"


class ClockLog:
    """Readings of a single clock; by default, of this machine's clock since boot."""

    def __init__(self, database: Database, *, clock: str | None = None) -> None:
        self._database = database
        self._clock = clock_id() if clock is None else clock

    def record(self, readings: Iterable[ClockReading]) -> None:
        """Record readings, in their order."""
        with self._database.transaction() as tx:
            tx.run_many("clock.record", [{"clock_id": self._clock, **asdict(reading)} for reading in readings])

    def recent(self, *, since: datetime, limit: int = RECENT) -> tuple[ClockReading, ...]:
        """Return the last `limit` readings from `since` on, in the order of measurement."""
        with self._database.snapshot() as tx:
            readings = tx.rows(ClockReading, "clock.recent", clock_id=self._clock, since=since, limit=limit)
        return tuple(reversed(readings))


class ClockRule(Strict):
    """The condition for writing: a calibration within tau_calib, an error within max_offset."""

    tau_calib: Duration
    max_offset: Duration
    """Largest error, including the uncertainty. Below half a second, no HTTP Date calibrates the clock."""
    unlocked: Literal["reject", "restrict"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockDecision:
    """Whether the clock allows writing, with the reading that decides this, and the reason."""

    state: ClockState
    reason: str
    deciding: ClockReading | None = None
    """The reading that calibrates the clock or proves it wrong, if any."""

    @property
    def locked(self) -> bool:
        """Whether stages are allowed to write."""
        return self.state is ClockState.LOCKED

    @property
    def calibrated_at(self) -> datetime | None:
        """The time of the deciding reading; None unless the clock is locked."""
        return self.deciding.at if self.deciding is not None and self.locked else None


def decide(readings: Sequence[ClockReading], rule: ClockRule, *, ts_start: datetime) -> ClockDecision:
    """Judge the clock at a stage's start by its readings, in the order of measurement.

    A reading calibrates the clock if its whole uncertainty interval is within `max_offset`, and refutes the clock if
    the whole interval is outside. Any other reading decides nothing. An unsynchronised kernel decides nothing, either,
    because another service can keep the clock. Two readings count, if they are within `tau_calib` of the start: the
    kernel's latest deciding reading, and the servers' latest. Each can refute the clock; one calibration is enough.

    The latest reading is the last in `readings`, not by `at`: when a clock that was ahead is corrected, its earlier
    readings are in the future.
    """
    fresh = [reading for reading in readings if abs(ts_start - reading.at) <= rule.tau_calib]
    latest = {reading.source == KERNEL: reading for reading in fresh if decides(reading, rule)}
    limit = _seconds(rule.max_offset)
    for _, reading in sorted(latest.items()):  # servers first
        if not _calibrates(reading, rule):
            reason = f"{_offset_of(reading)}; at most {limit} s is allowed"
            return ClockDecision(state=ClockState.UNLOCKED, reason=reason, deciding=reading)
    if latest:
        sharpest = min(latest.values(), key=_uncertainty)
        reason = f"{_offset_of(sharpest)}, within {limit} s"
        return ClockDecision(state=ClockState.LOCKED, reason=reason, deciding=sharpest)
    if stale := [abs(ts_start - reading.at) for reading in readings if _calibrates(reading, rule)]:
        reason = f"the nearest calibration is {_seconds(min(stale))} s from the start; at most "
        return ClockDecision(state=ClockState.UNLOCKED, reason=f"{reason}{_seconds(rule.tau_calib)} s is allowed")
    if any(reading.state is ClockState.UNLOCKED for reading in fresh):
        reason = "the kernel does not keep the clock, and no server's answer calibrates it"
        return ClockDecision(state=ClockState.UNLOCKED, reason=reason)
    reason = "neither the kernel nor a server gives an offset of the clock"
    if blurred := [reading for reading in fresh if reading.offset_seconds is not None]:
        reason = f"{_offset_of(min(blurred, key=_uncertainty))}, too uncertain for {limit} s"
    return ClockDecision(state=ClockState.UNKNOWN, reason=reason)


def decides(reading: ClockReading, rule: ClockRule) -> bool:
    """Whether a reading calibrates the clock or proves it wrong."""
    most = rule.max_offset.total_seconds()
    refutes = reading.delta_t_abs is not None and reading.delta_t_abs - _uncertainty(reading) > most
    return refutes or _calibrates(reading, rule)


def _calibrates(reading: ClockReading, rule: ClockRule) -> bool:
    error = reading.delta_t_abs
    return error is not None and error + _uncertainty(reading) <= rule.max_offset.total_seconds()


def _uncertainty(reading: ClockReading) -> float:
    return reading.uncertainty_seconds or 0.0


def _offset_of(reading: ClockReading) -> str:
    return f"{reading.source} gives an offset of {reading.offset_seconds:.3f} +- {_uncertainty(reading):.3f} s"


def _seconds(length: timedelta) -> str:
    return f"{length.total_seconds():g}"
