"""The rule of the card: locked, and calibrated within tau of the stage's start, or no writing (pure; PCS-10).

Belongs here: the rule. Does not belong here: where readings come from, or what an unlocked clock does to a stage
(E_SYNC: `stages/`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from kfm_dagster.telemetry.clock.reading import KERNEL, ClockReading, ClockState


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockRules:
    """What `configs/state_machine.yaml` asks of the clock.

    `tau_calib`: how far from a stage's start a calibration may lie. `max_offset`: how wrong the clock may be, the
    uncertainty included. An HTTP Date alone knows no better than half a second.
    """

    tau_calib: timedelta = timedelta(hours=24)
    max_offset: timedelta = timedelta(seconds=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockDecision:
    """Whether writing is allowed by the clock, by which reading, and why (not)."""

    state: ClockState
    reason: str
    deciding: ClockReading | None = None
    """The reading that calibrates the clock or proves it wrong, if any."""

    @property
    def locked(self) -> bool:
        """Whether stages may write."""
        return self.state is ClockState.LOCKED

    @property
    def calibrated_at(self) -> datetime | None:
        """When the clock was last seen right; None unless it is locked."""
        return self.deciding.at if self.deciding is not None and self.locked else None


def decide(readings: Sequence[ClockReading], rules: ClockRules, *, ts_start: datetime) -> ClockDecision:
    """Judge the clock at a stage's start by the readings of this clock, in the order in which they were taken.

    A reading calibrates when all that its uncertainty allows is within `max_offset`, and proves the clock wrong when
    nothing is; one in between decides nothing, nor does a kernel that is not synchronised: another service may keep
    its clock. Of the kernel, and of all servers together, the latest reading that decides counts, if it lies within
    `tau_calib` of the start. Either can prove the clock wrong, and one that calibrates is enough.

    The order of taking counts, not `at`: a clock that was ahead and is set right again has readings in its future.
    """
    fresh = [reading for reading in readings if abs(ts_start - reading.at) <= rules.tau_calib]
    latest = {reading.source == KERNEL: reading for reading in fresh if decides(reading, rules)}
    limit = _seconds(rules.max_offset)
    for _, reading in sorted(latest.items()):  # servers first
        if not _calibrates(reading, rules):
            reason = f"{_offset_of(reading)}; at most {limit} s is allowed"
            return ClockDecision(state=ClockState.UNLOCKED, reason=reason, deciding=reading)
    if latest:
        sharpest = min(latest.values(), key=_uncertainty)
        reason = f"{_offset_of(sharpest)}, within {limit} s"
        return ClockDecision(state=ClockState.LOCKED, reason=reason, deciding=sharpest)
    if stale := [abs(ts_start - reading.at) for reading in readings if _calibrates(reading, rules)]:
        reason = f"the nearest calibration is {_seconds(min(stale))} s from the start; at most "
        return ClockDecision(state=ClockState.UNLOCKED, reason=f"{reason}{_seconds(rules.tau_calib)} s is allowed")
    if any(reading.state is ClockState.UNLOCKED for reading in fresh):
        reason = "the kernel does not keep the clock, and no server's answer calibrates it"
        return ClockDecision(state=ClockState.UNLOCKED, reason=reason)
    reason = "neither the kernel nor a server gives an offset of the clock"
    if blurred := [reading for reading in fresh if reading.offset_seconds is not None]:
        reason = f"{_offset_of(min(blurred, key=_uncertainty))}, too blurred for {limit} s"
    return ClockDecision(state=ClockState.UNKNOWN, reason=reason)


def decides(reading: ClockReading, rules: ClockRules) -> bool:
    """Whether a reading calibrates the clock or proves it wrong."""
    most = rules.max_offset.total_seconds()
    refutes = reading.delta_t_abs is not None and reading.delta_t_abs - _uncertainty(reading) > most
    return refutes or _calibrates(reading, rules)


def _calibrates(reading: ClockReading, rules: ClockRules) -> bool:
    error = reading.delta_t_abs
    return error is not None and error + _uncertainty(reading) <= rules.max_offset.total_seconds()


def _uncertainty(reading: ClockReading) -> float:
    return reading.uncertainty_seconds or 0.0


def _offset_of(reading: ClockReading) -> str:
    return f"{reading.source} tells an offset of {reading.offset_seconds:.3f} +- {_uncertainty(reading):.3f} s"


def _seconds(length: timedelta) -> str:
    return f"{length.total_seconds():g}"
