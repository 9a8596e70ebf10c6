"""Calibration: whether this machine's clock is accurate enough for stages to write.

Belongs here: when to take a reading, and which readings a stage's decision uses. Does not belong here: how readings are
taken and judged (`telemetry/clock/`), or the consequence for the stage (`stages/lifecycle.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.objects import ObjectStores
from kfm_dagster.telemetry.clock.reading import ClockDecision, ClockLog, ClockReading, ClockRule, decide, decides
from kfm_dagster.telemetry.clock.sources import measure

FRESH = timedelta(minutes=5)
"""A decisive reading is valid for this time, in which a clock drifts by far less than a second."""
KEPT = timedelta(minutes=1)
"""Readings are kept in memory for this time. Otherwise, if the time server does not answer, each stage would ask it."""


@dataclass(kw_only=True)
class Calibration:
    """Measures the clock, and decides by the card's rule whether stages may write."""

    rule: ClockRule
    database: Database
    clock: Callable[[], datetime]
    _kept: dict[str, tuple[datetime, tuple[ClockReading, ...]]] = field(default_factory=dict, init=False)
    """By contract, because each has its own time server: the time when the log was read, and the log's readings."""

    def __post_init__(self) -> None:
        self._log = ClockLog(self.database)

    def decided(self, contract: DatasetContract, objects: ObjectStores) -> ClockDecision:
        """Return the present decision on the clock; measure first if no fresh reading is decisive."""
        now = self.clock()
        read_at, readings = self._kept.get(contract.id, (None, ()))
        # The log is read again, too, if the clock was set back meanwhile.
        if read_at is None or not read_at <= now < read_at + KEPT:
            since = now - self.rule.tau_calib
            if not any(decides(reading, self.rule) for reading in self._log.recent(since=now - FRESH)):
                self._log.record(measure(self.rule, clock=self.clock, endpoint=_server(objects, contract)))
            readings = self._log.recent(since=since)
            self._kept[contract.id] = now, readings
        return decide(readings, self.rule, ts_start=self.clock())


def time_server(settings: Settings, registry: ContractRegistry) -> str | None:
    """Return the URL of the time server: the store of the first contract by name."""
    return _server(ObjectStores(object_root=settings.object_root), next(iter(registry)))


def _server(objects: ObjectStores, contract: DatasetContract) -> str | None:
    """Return the URL of the contract's store; for a folder, the configured AWS endpoint, if any."""
    configured = os.environ.get("AWS_ENDPOINT_URL_SQS") or os.environ.get("AWS_ENDPOINT_URL")
    return objects.endpoint(contract) or configured
