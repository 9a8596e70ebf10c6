"""Clocks for tests that do not test the clock, and readings for tests of the clock."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta
from typing import cast

from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.ingest.calibration import Calibration
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.storage.objects import ObjectStores
from kfm_dagster.telemetry.clock.reading import ClockDecision, ClockReading, ClockRule, ClockState

RULE = ClockRule(tau_calib=timedelta(hours=24), max_offset=timedelta(seconds=1), unlocked="reject")


class LockedClock:
    """A replacement of the pipeline's calibration: always locked, without readings."""

    def decided(self, contract: DatasetContract, objects: ObjectStores) -> ClockDecision:
        return ClockDecision(state=ClockState.LOCKED, reason="a test says so")


def locked(pipeline: Pipeline) -> Pipeline:
    """Give a pipeline a locked clock."""
    pipeline.calibration = cast("Calibration", LockedClock())
    return pipeline


def server_reading(at: datetime, offset: float, bound: float = 0.5, *, host: str = "s3") -> ClockReading:
    """Return a reading of a server's Date header."""
    return _reading(at, f"date:{host}", ClockState.UNKNOWN, offset, bound)


def kernel_reading(
    at: datetime, state: ClockState, offset: float | None = None, bound: float | None = None
) -> ClockReading:
    return _reading(at, "kernel", state, offset, bound)


def _reading(at: datetime, source: str, state: ClockState, offset: float | None, bound: float | None) -> ClockReading:
    return ClockReading(at=at, source=source, offset_seconds=offset, uncertainty_seconds=bound, state=state)


def reopened(pipeline: Pipeline, *parts: str) -> None:
    """Make a pipeline reopen these parts with its current clock and card."""
    for part in parts:
        with suppress(AttributeError):
            delattr(pipeline, part)
