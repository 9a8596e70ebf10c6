"""The evaluator: one evaluation, from recorded events to sent messages.

Belongs here: the receivers of each alert, and that a dead channel delays no other. Does not belong here: the rules
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
"""After this time an evaluation begins no further message; the next one continues."""


@dataclass(frozen=True, kw_only=True)
class AlertEvaluator:
    """Evaluates and delivers. `on_divergence`: channels of a divergence besides its level's."""

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
        """Evaluate rules, then deliver due messages. Wrong URLs raise ConfigurationError first."""
        endpoints = endpoints_of(self.urls, self.plan.channels)
        now, receivers = self.clock(), self._rule_endpoints(endpoints)
        limits = {"max_offset": self.max_offset.total_seconds(), "calibrated_since": now - self.tau_calib}
        terms = [
            {
                "rule": rule,
                "level": (terms := self.plan.rules[rule]).level,
                "threshold": terms.threshold,
                "since": now - terms.window,
                "quiet_since": now - terms.suppress,
                "escalate_before": None if terms.escalate_after is None else now - terms.escalate_after,
                "audience": sorted(level for level in Level if receivers.get((rule, level))),
            }
            for rule in AlertRule
        ]
        evaluated = self.store.update(terms, limits, receivers)
        delivered, dead = self._deliver(endpoints)
        return replace(evaluated, delivered=delivered, dead=dead)

    def unheard(self) -> list[str]:
        """Return the channels without a URL. Raises ConfigurationError for wrong URLs."""
        used = {channel for endpoint in endpoints_of(self.urls, self.plan.channels) for channel in endpoint.channels}
        return [channel for channel in self.plan.channels if channel not in used]

    def _rule_endpoints(self, endpoints: Sequence[Endpoint]) -> RuleEndpoints:
        receivers: dict[tuple[str, str], dict[int, str]] = {}
        for rule, level in product(AlertRule, Level):
            extra = self.on_divergence if rule is AlertRule.REPLAY_DIVERGENCE else ()
            for channel, endpoint in product([*self.plan.levels[level], *extra], endpoints):
                if channel in endpoint.channels:
                    receivers.setdefault((rule, level), {}).setdefault(endpoint.number, channel)
        return receivers

    def _deliver(self, endpoints: Sequence[Endpoint]) -> tuple[int, list[str]]:
        consumers = {
            consumer_of(endpoint.number, channel): (endpoint, channel)
            for endpoint in endpoints
            for channel in endpoint.channels
        }
        alive = {endpoint.number for endpoint in endpoints}
        delivered, dead = 0, []
        deadline = time.monotonic() + BUDGET_SECONDS
        while alive and time.monotonic() < deadline:
            claimed = self.store.claim([name for name, (endpoint, _) in consumers.items() if endpoint.number in alive])
            if claimed is None:
                break
            alert, entry = claimed
            endpoint, channel = consumers[entry.consumer]
            message = message_of(alert, self.plan.rules[alert.rule], why=entry.payload["why"])
            answer = self.send(endpoint, message)
            self.store.close(entry, error=answer.error)
            if answer.error is None:
                delivered += 1
                continue
            # A dead endpoint would delay every further message as long; another evaluation retries it.
            alive.remove(endpoint.number)
            dead.append(f"channel {channel}, URL {endpoint.number} ({answer.service}): {answer.error}")
        return delivered, dead


def try_out(plan: AlertPlan, urls: SecretStr | None) -> list[tuple[str, Answer]]:
    """Send a test message to each URL of every channel; return their answers.

    Raises ConfigurationError for wrong URLs.
    """
    endpoints = endpoints_of(urls, plan.channels)
    no_url = Answer(service="none", error="the channel has no URL in KFM_ALERT_URLS")
    answers: list[tuple[str, Answer]] = []
    for channel in plan.channels:
        targets = [endpoint for endpoint in endpoints if channel in endpoint.channels]
        answers += [(channel, send(endpoint, trial(channel))) for endpoint in targets] or [(channel, no_url)]
    return answers
