"""Calibration: whether this machine's clock is right enough to write by, measured once in a while and kept.

Belongs here: when to measure, and what a stage is told. Does not belong here: measuring and judging
(`telemetry/clock/`), or what follows for the stage (`stages/lifecycle.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.settings import Settings
from kfm_dagster.stages.card import ClockRule
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.objects import ObjectStores
from kfm_dagster.telemetry.clock.decision import ClockDecision, ClockRules, decide, decides
from kfm_dagster.telemetry.clock.reading import ClockLog
from kfm_dagster.telemetry.clock.sources import measure

FRESH = timedelta(minutes=5)
"""A reading that decides is not taken again within this time: a clock drifts by far less than a second in it."""


@dataclass(kw_only=True)
class Calibration:
    """Measures and judges the clock by the card's rule."""

    rule: ClockRule
    database: Database
    clock: Callable[[], datetime]

    def __post_init__(self) -> None:
        self._log = ClockLog(self.database)
        self._rules = ClockRules(tau_calib=self.rule.tau_calib, max_offset=self.rule.max_offset)

    def decided(self, contract: DatasetContract, objects: ObjectStores) -> ClockDecision:
        """Judge the clock as of now; it is measured first where no fresh reading decides."""
        now = self.clock()
        if not self._known(now):
            self._log.record(measure(self._rules, clock=self.clock, endpoint=_server(objects, contract)))
        since = now - self._rules.tau_calib
        return decide(self._log.recent(since=since), self._rules, ts_start=self.clock())

    def _known(self, now: datetime) -> bool:
        return any(decides(reading, self._rules) for reading in self._log.recent(since=now - FRESH))


def time_server(settings: Settings, registry: ContractRegistry) -> str | None:
    """Return the URL that is asked for the time: that of the first contract's store, in the order of names."""
    return _server(ObjectStores(object_root=settings.object_root), next(iter(registry)))


def _server(objects: ObjectStores, contract: DatasetContract) -> str | None:
    """Return the URL of the contract's object store; of a folder, the AWS endpoint of the environment, or None."""
    named = os.environ.get("AWS_ENDPOINT_URL_SQS") or os.environ.get("AWS_ENDPOINT_URL")
    return objects.endpoint(contract) or named
