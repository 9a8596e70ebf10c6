"""The injector: called at every failpoint, it applies the plan.

Belongs here: matching, deciding, and the four faults. Does not belong here: the model of a plan (`plan.py`), and
activation in a deployment (`definitions.py`).
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from fault_injection.counters import FaultCounters
from fault_injection.failures import failure
from fault_injection.plan import Delay, Error, Kill, Plan, Rule, Skew, load_plan
from kfm_dagster import failpoints
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.failpoints import Failpoint, Labels
from kfm_dagster.settings import Environment, Settings

PLAN_VARIABLE = "KFM_CHAOS_PLAN"
"""Variable that names the plan's file. It is not a setting, because the product never reads it."""

_LOG = logging.getLogger(__name__)


class Injector:
    """A plan that is active in this process, with a state folder that all processes share. Thread-safe."""

    def __init__(self, plan: Plan, state: Path) -> None:
        self.counters = FaultCounters(state)
        self._seed = plan.seed
        self._skews = [rule for rule in plan.rules if isinstance(rule, Skew)]
        at_seams = [rule for rule in plan.rules if not isinstance(rule, Skew)]
        self._rules = {
            failpoint: [rule for rule in at_seams if failpoint in rule.failpoints()] for failpoint in Failpoint
        }

    def __call__(self, failpoint: Failpoint, labels: Labels) -> None:
        """Apply a failpoint's rules, in the plan's order. Raises the failure of the failpoint's dependency."""
        for rule in self._rules[failpoint]:
            if all(fnmatchcase(labels.get(name, ""), glob) for name, glob in rule.where.items()):
                self._at_occasion(rule, failpoint, labels)

    def clock_skew(self) -> timedelta:
        """Return the error of this process's clock; each call counts as an occasion of every skew rule."""
        skew = timedelta()
        for rule in self._skews:
            if (number := self._hit(rule)) is not None:
                self.counters.note(
                    {"rule": rule.name, "fault": rule.fault, "occasion": number, "seconds": rule.seconds}
                )
                skew += timedelta(seconds=rule.seconds)
        return skew

    def _at_occasion(self, rule: Kill | Error | Delay, failpoint: Failpoint, labels: Labels) -> None:
        number = self._hit(rule)
        if number is None:
            return
        fact = {
            "rule": rule.name,
            "fault": rule.fault,
            "occasion": number,
            "failpoint": failpoint,
            "labels": dict(labels),
        }
        self.counters.note(fact)
        _LOG.warning("chaos rule %s: %s at %s %s", rule.name, rule.fault, failpoint, dict(labels))
        match rule:
            case Kill():
                os.kill(os.getpid(), signal.SIGKILL)
            case Error():
                raise failure(failpoint, rule=rule.name)
            case Delay():
                time.sleep(rule.milliseconds / 1000)

    def _hit(self, rule: Rule) -> int | None:
        """Count an occasion; return its number if the rule fires."""
        return self.counters.occasion(rule.name, partial(fires, rule, self._seed))


def fires(rule: Rule, seed: int, occasion: int, fired: int) -> bool:
    """Return whether a rule with `fired` firings fires at an occasion; no other state counts, so plans repeat."""
    if rule.nth is not None:
        return occasion == rule.nth
    if rule.at_most is not None and fired >= rule.at_most:
        return False
    if rule.probability is None:
        return True
    digest = hashlib.sha256(f"{seed}/{rule.name}/{occasion}".encode()).digest()
    return int.from_bytes(digest[:8]) / 2**64 < rule.probability


def activate(settings: Settings) -> Injector:
    """Activate the plan of KFM_CHAOS_PLAN in this process.

    The plan's state folder is `$KFM_HOME/chaos/<digest of the plan>`. Raises ConfigurationError in prod, without a
    plan, and for an invalid plan; then no plan is active.
    """
    if settings.env is Environment.PROD:
        raise ConfigurationError(
            "faults are never injected in prod",
            observed="KFM_ENV=prod",
            expected="dev or stage",
            next_step="load kfm_dagster.definitions instead of fault_injection.definitions",
        )
    if not (file := os.environ.get(PLAN_VARIABLE)):
        raise ConfigurationError(
            "there is no chaos plan", observed=f"{PLAN_VARIABLE} is not set", next_step="let it name a plan's file"
        )
    plan = load_plan(Path(file))
    injector = Injector(plan, state_folder(settings.home, plan))
    failpoints.install(injector, clock_skew=injector.clock_skew())
    return injector


def state_folder(home: Path, plan: Plan) -> Path:
    """Return the folder of a plan's counts and log; a plan with other content has another folder."""
    return home.absolute() / "chaos" / hashlib.sha256(plan.model_dump_json().encode()).hexdigest()[:16]


@contextmanager
def injecting(plan: Plan, state: Path) -> Iterator[Injector]:
    """Activate a plan in this process during the block."""
    injector = Injector(plan, state)
    failpoints.install(injector, clock_skew=injector.clock_skew())
    try:
        yield injector
    finally:
        failpoints.install(None)
