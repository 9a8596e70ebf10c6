"""The rule of the card: locked, and calibrated within tau of the stage's start, or no writing (pure; PCS-10).

Belongs here: the rule. Does not belong here: where readings come from, or what an unlocked clock does to a stage
(E_SYNC: `stages/`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    """The reading that calibrates the clock or proves it wrong; None where none does."""

    @property
    def locked(self) -> bool:
        """Whether stages may write."""
        return self.state is ClockState.LOCKED

    @property
    def offset_seconds(self) -> float | None:
        """Offset of the deciding reading."""
        return None if self.deciding is None else self.deciding.offset_seconds

    @property
    def calibrated_at(self) -> datetime | None:
        """When the clock was last seen right; None unless it is locked."""
        return self.deciding.at if self.deciding is not None and self.locked else None


def decide(readings: Sequence[ClockReading], rules: ClockRules, *, ts_start: datetime) -> ClockDecision:
    """Judge the clock at a stage's start by the readings of this clock, in the order in which they were taken.

    A reading calibrates when all that its uncertainty allows is within `max_offset`, and proves the clock wrong when
    nothing is; one in between decides nothing, nor does a kernel that is not synchronised: another service may keep
    its clock. Of the kernel, and of all servers together, the latest reading that decides is heard, if it lies within
    `tau_calib` of the start. Either can prove the clock wrong, and one that calibrates is enough.

    The order of taking counts, not `at`: a clock that was ahead and is set right again has readings in its future.
    """
    fresh = [one for one in readings if abs(ts_start - one.at) <= rules.tau_calib]
    of_kernel = _latest_deciding((one for one in fresh if one.source == KERNEL), rules)
    of_servers = _latest_deciding((one for one in fresh if one.source != KERNEL), rules)
    deciding = [one for one in (of_servers, of_kernel) if one is not None]
    for one in deciding:
        if not _calibrates(one, rules):
            return ClockDecision(
                state=ClockState.UNLOCKED,
                reason=f"{_told(one)}; at most {_seconds(rules.max_offset)} s is allowed",
                deciding=one,
            )
    if deciding:
        sharpest = min(deciding, key=_uncertainty)
        return ClockDecision(
            state=ClockState.LOCKED,
            reason=f"{_told(sharpest)}, within {_seconds(rules.max_offset)} s",
            deciding=sharpest,
        )
    return _undecided(readings, fresh, rules, ts_start=ts_start)


def decides(one: ClockReading, rules: ClockRules) -> bool:
    """Whether a reading calibrates the clock or proves it wrong."""
    return _calibrates(one, rules) or _refutes(one, rules)


def _undecided(
    readings: Sequence[ClockReading], fresh: Sequence[ClockReading], rules: ClockRules, *, ts_start: datetime
) -> ClockDecision:
    stale = [one for one in readings if _calibrates(one, rules)]
    if stale:
        nearest = min(abs(ts_start - one.at) for one in stale)
        return ClockDecision(
            state=ClockState.UNLOCKED,
            reason=f"the nearest calibration is {_seconds(nearest)} s from the start; at most "
            f"{_seconds(rules.tau_calib)} s is allowed",
        )
    if any(one.state is ClockState.UNLOCKED for one in fresh):
        return ClockDecision(
            state=ClockState.UNLOCKED, reason="the kernel does not keep the clock, and no server's answer calibrates it"
        )
    blurred = [one for one in fresh if one.offset_seconds is not None]
    if blurred:
        return ClockDecision(
            state=ClockState.UNKNOWN,
            reason=f"{_told(min(blurred, key=_uncertainty))}, too blurred for {_seconds(rules.max_offset)} s",
        )
    return ClockDecision(
        state=ClockState.UNKNOWN, reason="neither the kernel nor a server has told anything of the clock"
    )


def _latest_deciding(readings: Iterable[ClockReading], rules: ClockRules) -> ClockReading | None:
    latest = None
    for one in readings:
        if decides(one, rules):
            latest = one
    return latest


def _calibrates(one: ClockReading, rules: ClockRules) -> bool:
    return one.delta_t_abs is not None and one.delta_t_abs + _uncertainty(one) <= rules.max_offset.total_seconds()


def _refutes(one: ClockReading, rules: ClockRules) -> bool:
    return one.delta_t_abs is not None and one.delta_t_abs - _uncertainty(one) > rules.max_offset.total_seconds()


def _uncertainty(one: ClockReading) -> float:
    return one.uncertainty_seconds or 0.0


def _told(one: ClockReading) -> str:
    return f"{one.source} tells an offset of {one.offset_seconds:.3f} +- {_uncertainty(one):.3f} s"


def _seconds(length: timedelta) -> str:
    return f"{length.total_seconds():g}"
