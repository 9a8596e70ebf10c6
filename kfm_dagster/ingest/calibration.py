"""Calibration: whether this machine's clock is right enough to write by, measured once in a while and kept.

Belongs here: when to measure, and what a stage is told. Does not belong here: measuring and judging
(`telemetry/clock/`), or what follows for the stage (`stages/lifecycle.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.stages.card import ClockRule
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.objects import ObjectStores
from kfm_dagster.telemetry.clock.decision import ClockDecision, ClockRules, decide, decides
from kfm_dagster.telemetry.clock.log import ClockLog
from kfm_dagster.telemetry.clock.measuring import measure
from kfm_dagster.telemetry.clock.server_dates import AnswerDates

FRESH = timedelta(minutes=5)
"""A reading that decides is not taken again within this time: a clock drifts by far less than a second in it."""


@dataclass(kw_only=True)
class Calibration:
    """Measures and judges the clock by the card's rule."""

    rule: ClockRule
    database: Database
    clock: Callable[[], datetime]
    answers: AnswerDates = field(init=False)
    """Hears the queue's answers, which tell the time at no cost."""

    def __post_init__(self) -> None:
        self.answers = AnswerDates(clock=self.clock)
        self._log = ClockLog(self.database)
        self._rules = ClockRules(tau_calib=self.rule.tau_calib, max_offset=self.rule.max_offset)

    def keep_answers(self) -> None:
        """Record what the queue's answers told, unless that is known already."""
        heard = self.answers.take()
        if heard is not None and not self._known(self.clock()):
            self._log.record([heard])

    def decided(self, contract: DatasetContract, objects: ObjectStores) -> ClockDecision:
        """Judge the clock as of now; it is measured first where no fresh reading decides."""
        now = self.clock()
        if not self._known(now):
            endpoint = objects.endpoint(contract)
            self._log.record(measure(self._rules, clock=self.clock, endpoint=endpoint, answers=self.answers))
        since = now - self._rules.tau_calib
        return decide(self._log.recent(since=since), self._rules, ts_start=self.clock())

    def _known(self, now: datetime) -> bool:
        return any(decides(reading, self._rules) for reading in self._log.recent(since=now - FRESH))
