"""The evaluator: one evaluation, from what is recorded to messages that were taken.

Belongs here: who hears what, and that a dead channel holds up no other. Does not belong here: the rules
(`sql/queries/alerts.sql`), the rows (`store.py`), or sending (`channels.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import product

from pydantic import SecretStr

from kfm_dagster.alerts.channels import Answer, Endpoint, endpoints_of, send
from kfm_dagster.alerts.plan import AlertPlan, AlertRule, Level
from kfm_dagster.alerts.store import AlertMessage, AlertStore, Evaluation, RuleEndpoints, consumer_of, message_of, trial
from kfm_dagster.storage.database import Database

Send = Callable[[Endpoint, AlertMessage], Answer]
BUDGET_SECONDS = 30.0
"""After so long an evaluation begins no further message; the next one goes on."""


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
        endpoints = endpoints_of(self.urls, self.plan.channels)
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
        evaluated = self.store.update(terms, limits, heard)
        delivered, dead = self._deliver(endpoints)
        return replace(evaluated, delivered=delivered, dead=dead)

    def unheard(self) -> list[str]:
        """Return the channels that lead nowhere. Raises ConfigurationError for wrong URLs."""
        led = {channel for endpoint in endpoints_of(self.urls, self.plan.channels) for channel in endpoint.channels}
        return [channel for channel in self.plan.channels if channel not in led]

    def _rule_endpoints(self, endpoints: Sequence[Endpoint]) -> RuleEndpoints:
        leads: dict[tuple[str, str], dict[int, str]] = {}
        for rule, level in product(AlertRule, Level):
            more = self.on_divergence if rule is AlertRule.REPLAY_DIVERGENCE else ()
            for channel, endpoint in product([*self.plan.levels[level], *more], endpoints):
                if channel in endpoint.channels:
                    leads.setdefault((rule, level), {}).setdefault(endpoint.number, channel)
        return leads

    def _deliver(self, endpoints: Sequence[Endpoint]) -> tuple[int, list[str]]:
        leads = {
            consumer_of(endpoint.number, channel): (endpoint, channel)
            for endpoint in endpoints
            for channel in endpoint.channels
        }
        alive = {endpoint.number for endpoint in endpoints}
        delivered, dead = 0, []
        until = time.monotonic() + BUDGET_SECONDS
        while alive and time.monotonic() < until:
            claimed = self.store.claim([name for name, (endpoint, _) in leads.items() if endpoint.number in alive])
            if claimed is None:
                break
            alert, entry = claimed
            endpoint, channel = leads[entry.consumer]
            message = message_of(alert, self.plan.rules[alert.rule], why=entry.payload["why"])
            answer = self.send(endpoint, message)
            self.store.close(entry, error=answer.error)
            if answer.error is None:
                delivered += 1
                continue
            # It would let every further message wait as long; another evaluation tries it again.
            alive.remove(endpoint.number)
            dead.append(f"channel {channel}, URL {endpoint.number} ({answer.service}): {answer.error}")
        return delivered, dead


def try_out(plan: AlertPlan, urls: SecretStr | None) -> list[tuple[str, Answer]]:
    """Send one message over every channel to each of its URLs; return what each answered.

    Raises ConfigurationError for wrong URLs.
    """
    endpoints = endpoints_of(urls, plan.channels)
    nowhere = Answer(service="none", error="the channel has no URL in KFM_ALERT_URLS")
    answers: list[tuple[str, Answer]] = []
    for channel in plan.channels:
        leads = [endpoint for endpoint in endpoints if channel in endpoint.channels]
        answers += [(channel, send(endpoint, trial(channel))) for endpoint in leads] or [(channel, nowhere)]
    return answers
