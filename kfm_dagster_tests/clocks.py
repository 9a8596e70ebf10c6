"""Clocks of tests that are not about clocks."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import cast

from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.ingest.calibration import Calibration
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.storage.objects import ObjectStores
from kfm_dagster.telemetry.clock.reading import ClockDecision, ClockRule, ClockState

RULE = ClockRule(tau_calib=timedelta(hours=24), max_offset=timedelta(seconds=1), unlocked="reject")


class LockedClock:
    """What the pipeline takes for its calibration: locked, whatever this machine's kernel says, and no reading kept."""

    def decided(self, contract: DatasetContract, objects: ObjectStores) -> ClockDecision:
        return ClockDecision(state=ClockState.LOCKED, reason="a test says so")


def locked(pipeline: Pipeline) -> Pipeline:
    """Give a pipeline a clock that is locked."""
    pipeline.calibration = cast("Calibration", LockedClock())
    return pipeline


def reopened(pipeline: Pipeline, *parts: str) -> None:
    """Let a pipeline open these parts again, under the clock and the card that it has by now."""
    for part in parts:
        with suppress(AttributeError):
            delattr(pipeline, part)
