"""Who may write by the clock: each refusal of the rule, and what it lets pass."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.telemetry.clock.reading import ClockReading, ClockState, decide
from kfm_dagster_tests.clocks import RULE, kernel_reading, server_reading

START = datetime(2025, 12, 3, 12, 0, 0, tzinfo=UTC)
LOCKED, UNLOCKED, UNKNOWN = ClockState


def kernel(
    state: ClockState, offset: float | None = None, bound: float | None = None, *, hours: float = 0
) -> ClockReading:
    return kernel_reading(START + timedelta(hours=hours), state, offset, bound)


def server(offset: float, bound: float = 0.55, *, hours: float = 0, host: str = "s3") -> ClockReading:
    return server_reading(START + timedelta(hours=hours), offset, bound, host=host)


KEPT, LOOSE, NONE = kernel(LOCKED, 0.001, 0.02), kernel(UNLOCKED), kernel(UNKNOWN)

CASES: dict[str, tuple[list[ClockReading], ClockState, str]] = {
    # name: readings in the order of taking, state, part of the reason
    "a kept clock": ([KEPT], LOCKED, "kernel gives an offset of 0.001"),
    "a server alone": ([NONE, server(0.2)], LOCKED, "date:s3 gives an offset of 0.200"),
    "a kernel that nobody keeps, and a server": ([LOOSE, server(-0.3)], LOCKED, "date:s3"),
    "both: the sharper one tells": ([KEPT, server(0.2)], LOCKED, "kernel"),
    "exactly the limit": ([server(0.5, 0.5)], LOCKED, "within 1 s"),
    "the last calibration is tau old": ([server(0.2, hours=-24), LOOSE], LOCKED, "date:s3"),
    "a calibration after the start": ([server(0.2, hours=24)], LOCKED, "date:s3"),
    "too blurred to prove it wrong, by the least": ([server(1.5, 0.5)], UNKNOWN, "too blurred for 1 s"),
    "nothing measured": ([], UNKNOWN, "neither the kernel nor a server"),
    "nobody tells": ([NONE], UNKNOWN, "neither the kernel nor a server"),
    "a kernel that nobody keeps": ([LOOSE], UNLOCKED, "the kernel does not keep the clock"),
    "a calibration older than tau": ([server(0.2, hours=-24.001), LOOSE], UNLOCKED, "86403.6 s from the start"),
    "the nearest of two": ([server(0.2, hours=-30), server(0.2, hours=26), LOOSE], UNLOCKED, "93600 s from the start"),
    "a calibration too far ahead": ([server(0.2, hours=25)], UNLOCKED, "90000 s from the start"),
    "a clock that is behind": ([NONE, server(5)], UNLOCKED, "offset of 5.000 +- 0.550 s; at most 1 s"),
    "a clock that is ahead": ([NONE, server(-5)], UNLOCKED, "offset of -5.000"),
    "a kernel that knows itself wrong": ([kernel(LOCKED, 3.0, 0.1)], UNLOCKED, "offset of 3.000"),
    "a kernel that a server refutes": ([KEPT, server(5)], UNLOCKED, "date:s3 gives an offset of 5.000"),
    "a kernel that a server refuted before": ([server(5, hours=-1), KEPT], UNLOCKED, "date:s3"),
    "a kernel slewing, and a server": ([kernel(LOCKED, 3.0, 0.1), server(0.2)], UNLOCKED, "kernel gives"),
    "not sharp enough": ([NONE, server(0.6)], UNKNOWN, "offset of 0.600 +- 0.550 s, too blurred"),
    "beyond the limit, and perhaps not": ([NONE, server(1.2)], UNKNOWN, "offset of 1.200 +- 0.550 s, too blurred"),
    "the least blurred of two": ([server(0.9), server(0.8, 0.4)], UNKNOWN, "offset of 0.800"),
    "a kernel with a wide bound": ([kernel(LOCKED, 0.0, 1.1)], UNKNOWN, "too blurred for 1 s"),
    "set wrong since": ([server(0.2, hours=-2), server(5)], UNLOCKED, "offset of 5.000"),
    "set right since": ([server(5, hours=-2), server(0.2)], LOCKED, "offset of 0.200"),
    "set right by another server's word": ([server(5, hours=-2, host="sqs"), server(0.2)], LOCKED, "date:s3"),
    "set back from the future": ([server(-7200, hours=2), server(0.2)], LOCKED, "offset of 0.200"),
    "a blurred answer decides nothing": ([server(0.2, hours=-2), server(0.6)], LOCKED, "offset of 0.200"),
    "nor does it hide a proof": ([server(5, hours=-2), server(0.6)], UNLOCKED, "offset of 5.000"),
    "a proof older than tau": ([server(5, hours=-25), KEPT], LOCKED, "kernel"),
}


@pytest.mark.clause("PCS-10")
def test_the_rule_of_the_clock() -> None:
    for readings, state, reason in CASES.values():
        found = decide(readings, RULE, ts_start=START)
        assert (found.state, found.locked) == (state, state is LOCKED)
        assert reason in found.reason
        assert (found.calibrated_at is not None) == found.locked


@pytest.mark.clause("PCS-10")
def test_tau_and_the_offset_that_is_allowed_come_from_the_rules() -> None:
    readings = [server(0.2, hours=-2)]
    assert decide(readings, RULE, ts_start=START).locked
    assert not decide(readings, RULE.model_copy(update={"tau_calib": timedelta(hours=1)}), ts_start=START).locked
    assert not decide(readings, RULE.model_copy(update={"max_offset": timedelta(seconds=0.7)}), ts_start=START).locked


any_reading = st.builds(
    lambda at, source, offset, bound: ClockReading(
        at=START + timedelta(hours=at),
        source=source,
        offset_seconds=offset,
        uncertainty_seconds=None if offset is None else bound,
        state=UNKNOWN,
    ),
    st.floats(-48, 48),
    st.sampled_from(["kernel", "date:s3", "date:sqs"]),
    st.none() | st.floats(-10, 10),
    st.floats(0, 10),
)


@pytest.mark.clause("PCS-10")
@given(st.lists(any_reading, max_size=8))
def test_locked_always_has_a_calibration_that_keeps_both_limits(readings: list[ClockReading]) -> None:
    found = decide(readings, RULE, ts_start=START)
    if found.locked:
        assert found.deciding in readings
        assert found.calibrated_at is not None
        assert abs(START - found.calibrated_at) <= RULE.tau_calib
        assert found.deciding is not None
        assert found.deciding.offset_seconds is not None
        assert found.deciding.uncertainty_seconds is not None
        assert abs(found.deciding.offset_seconds) + found.deciding.uncertainty_seconds <= 1
