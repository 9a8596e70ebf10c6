"""The card's rule: writing needs a clock locked, calibrated near the start (pure; PCS-10).

Belongs here: the rule. Does not belong here: the sources of readings, or the effect of an unlocked clock on a stage
(E_SYNC: `stages/`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from kfm_dagster.telemetry.clock.reading import KERNEL, ClockReading, ClockState


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockRules:
    """The rules for the clock in `configs/state_machine.yaml`.

    `tau_calib`: longest time between a calibration and a stage's start. `max_offset`: largest error of the clock, the
    uncertainty included. An HTTP Date alone has an uncertainty of at least half a second.
    """

    tau_calib: timedelta = timedelta(hours=24)
    max_offset: timedelta = timedelta(seconds=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockDecision:
    """Whether the clock allows writing, by which reading, and why."""

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
    """Judge the clock at a stage's start by its readings, in the order of measurement.

    A reading calibrates the clock when its whole uncertainty interval is within `max_offset`, and refutes it when the
    whole interval is outside. A reading in between decides nothing, nor does an unsynchronised kernel, whose clock
    another service may keep. The latest deciding reading of the kernel, and of all servers together, counts, if it
    lies within `tau_calib` of the start. Either can refute the clock, and one calibration suffices.

    The order of measurement counts, not `at`: a clock that was ahead and then corrected has readings in its future.
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
