"""The evaluator: one evaluation, from what is recorded to messages that were taken.

Belongs here: who hears what, and that a dead channel holds up no other. Does not belong here: the rules
(`sql/queries/alerts.sql`), the rows (`store.py`), or sending (`channels.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import product

from pydantic import SecretStr

from kfm_dagster.alerts.channels import Answer, Endpoint, Endpoints, send
from kfm_dagster.alerts.plan import AlertPlan, AlertRule, Level
from kfm_dagster.alerts.store import AlertMessage, AlertStore, Changes, RuleEndpoints, message_of, trial
from kfm_dagster.storage.database import Database

Send = Callable[[Endpoint, AlertMessage], Answer]
BUDGET_SECONDS = 30.0
"""After so long an evaluation begins no further message; the next one goes on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """What an evaluation did. `delivered`: messages taken; `dead`: endpoints that took none, with what they said."""

    changes: Changes
    delivered: int
    dead: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class AlertEvaluator:
    """Evaluates and delivers. `on_divergence`: channels on which a divergence is told besides those of its level."""

    plan: AlertPlan
    on_divergence: Collection[str]
    max_offset: timedelta
    tau_calib: timedelta
    database: Database
    clock: Callable[[], datetime]
    urls: SecretStr | None
    send: Send = send

    @property
    def store(self) -> AlertStore:
        """The alerts themselves."""
        return AlertStore(self.database, clock=self.clock)

    def evaluate(self) -> Evaluation:
        """Evaluate every rule, then deliver what is due. Raises ConfigurationError for wrong URLs, before anything."""
        endpoints = Endpoints.parse(self.urls, self.plan.channels)
        now, heard = self.clock(), self._rule_endpoints(endpoints)
        limits = {"max_offset": self.max_offset.total_seconds(), "calibrated_since": now - self.tau_calib}
        terms = [
            {
                "rule": rule,
                "level": (terms := self.plan.rules[rule]).level,
                "threshold": terms.threshold,
                "since": now - terms.window,
                "quiet_since": now - terms.suppress,
                "escalate_before": None if terms.escalate_after is None else now - terms.escalate_after,
                "audience": sorted(level for level in Level if heard.get((rule, level))),
            }
            for rule in AlertRule
        ]
        changes = self.store.update(terms, limits, heard)
        delivered, dead = self._deliver(endpoints)
        return Evaluation(changes=changes, delivered=delivered, dead=dead)

    def unheard(self) -> list[str]:
        """Return the channels that lead nowhere. Raises ConfigurationError for wrong URLs."""
        endpoints = Endpoints.parse(self.urls, self.plan.channels)
        return [channel for channel in self.plan.channels if not endpoints.of(channel)]

    def _channels(self, rule: AlertRule, level: Level) -> list[str]:
        more = self.on_divergence if rule is AlertRule.REPLAY_DIVERGENCE else ()
        return [*self.plan.levels[level], *more]

    def _rule_endpoints(self, endpoints: Endpoints) -> RuleEndpoints:
        found: dict[tuple[str, str], dict[int, str]] = {}
        for rule, level in product(AlertRule, Level):
            for channel in self._channels(rule, level):
                for endpoint in endpoints.of(channel):
                    found.setdefault((rule, level), {}).setdefault(endpoint.number, channel)
        return found

    def _deliver(self, endpoints: Endpoints) -> tuple[int, list[str]]:
        alive = {endpoint.number for endpoint in endpoints.known}
        delivered, dead = 0, []
        until = time.monotonic() + BUDGET_SECONDS
        while alive and time.monotonic() < until:
            notification = self.store.claim([lead for lead in endpoints.leads if lead[0] in alive])
            if notification is None:
                break
            message = message_of(notification, self.plan.rules[notification.alert.rule])
            answer = self.send(endpoints[notification.endpoint], message)
            self.store.close(notification, error=answer.error)
            if answer.error is None:
                delivered += 1
                continue
            # It would let every further message wait as long; another evaluation tries it again.
            alive.remove(notification.endpoint)
            where = f"channel {notification.channel}, URL {notification.endpoint} ({answer.service})"
            dead.append(f"{where}: {answer.error}")
        return delivered, dead


def try_out(plan: AlertPlan, urls: SecretStr | None) -> list[tuple[str, Answer]]:
    """Send one message over every channel to each of its URLs; return what each answered.

    Raises ConfigurationError for wrong URLs.
    """
    endpoints = Endpoints.parse(urls, plan.channels)
    nowhere = Answer(service="none", error="the channel has no URL in KFM_ALERT_URLS")
    answers: list[tuple[str, Answer]] = []
    for channel in plan.channels:
        leads = endpoints.of(channel)
        answers += [(channel, send(one, trial(channel))) for one in leads] or [(channel, nowhere)]
    return answers
