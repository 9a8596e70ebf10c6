"""Alerts in the database: their states, pending notifications (`outbox`), acknowledgements.

Belongs here: an evaluation's rows, claims of notifications, acknowledging, reading, messages. Does not belong here: the
rules and their consequences (`sql/queries/alerts.sql`), sending (`evaluator.py`), or database guards (`sql/schema`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum, unique
from typing import Any, TypeAlias

from kfm_dagster.alerts.plan import AlertRule, Level, RuleTerms
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.errors import RefusedError, UnknownNameError
from kfm_dagster.governance.log import Decision, GovernanceAction, GovernanceLog
from kfm_dagster.outbox import Entry, Outbox
from kfm_dagster.storage.database import Database

LEASE = timedelta(minutes=5)
"""An evaluator's lease of a notification, longer than any answer takes."""
MOST_LISTED = 10_000
"""Default limit of a list: more than the open alerts, because a rule has at most one open alert for a subject."""
RuleEndpoints: TypeAlias = Mapping[tuple[str, str], Mapping[int, str]]
"""By rule and level: the numbers of the receiving endpoints, each with the first channel that names it."""


@unique
class AlertState(StrEnum):
    """The state of an alert."""

    FIRING = "firing"
    """It is open, and not acknowledged."""
    ACKNOWLEDGED = "acknowledged"
    """A person has acknowledged it; it is sent again only if its level rises."""
    RESOLVED = "resolved"
    """The rule's window has fewer events than the threshold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    """An alert. `observed` counts the window's events; `place` is a stage, product or code.

    `place` belongs to the newest event. At most one alert is open under a `key`; by this key, receivers can drop
    repetitions.
    """

    alert_id: int
    rule: AlertRule
    subject: str
    state: AlertState
    level: Level
    opened_at: datetime
    level_since: datetime
    last_seen_at: datetime
    observed: int
    last_event_at: datetime
    run_id: str | None
    place: str
    last_notified_at: datetime | None
    notifications: int
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    acknowledged_why: str | None
    resolved_at: datetime | None
    undelivered: int
    key: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """An evaluation's number of sent messages; `dead` has a text for each failed endpoint."""

    delivered: int
    dead: Sequence[str]


class AlertStore:
    """Reads and writes alerts."""

    def __init__(self, database: Database, *, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._clock = clock
        self._outbox = Outbox(database, "alerts", lease=LEASE, clock=clock)

    def update(self, terms: Sequence[Mapping[str, Any]], limits: Mapping[str, Any], endpoints: RuleEndpoints) -> None:
        """Evaluate every rule as of now and queue its messages, under a lock for all evaluators.

        `terms` are rows of parameters for `alerts.findings`, one for each rule, and `limits` the limits of the clock.
        If there is no finding, and no alert is open, nothing is written.
        """
        now = self._clock()
        params = {"terms": terms, "now": now, **limits}
        with self._database.snapshot() as view:
            quiet = view.run("alerts.any_open").one_or_none() is None
            if quiet and not view.run("alerts.findings", params).all():
                return
        levels = {term["rule"]: term["level"] for term in terms}
        with self._database.transaction() as tx:
            tx.lock("kfm_dagster.alerts")
            findings = [dict(row, level=levels[row["rule"]]) for row in tx.run("alerts.findings", params).mappings()]
            tx.run("alerts.resolve", now=now, findings=findings)
            tx.run("alerts.see", now=now, findings=findings)
            tx.run("alerts.open", now=now, findings=findings)
            escalated = set(tx.run("alerts.escalate", now=now, terms=terms).scalars())
            for row in tx.run("alerts.tell", now=now, terms=terms).all():
                # Once for each endpoint, unless the alert's last notification to this endpoint is still pending.
                for endpoint, channel in endpoints[row.rule, row.level].items():
                    payload = {"why": _why(row, escalated)}
                    self._outbox.put(tx, consumer_of(endpoint, channel), str(row.alert_id), payload=payload)

    def claim(self, consumers: Sequence[str]) -> tuple[Alert, Entry] | None:
        """Claim the oldest due notification of these consumers (`consumer_of`)."""
        if (entry := self._outbox.claim(consumers)) is None:
            return None
        with self._database.snapshot() as view:
            [alert] = view.rows(Alert, "alerts.get", alert_id=int(entry.subject))
        return alert, entry

    def close(self, entry: Entry, *, error: str | None) -> None:
        """Remove a sent notification. If sending has failed with `error`, defer the notification."""
        if error is not None:
            self._outbox.defer(entry, error)
            return
        with self._database.transaction() as tx:
            self._outbox.done(tx, entry)

    def listed(
        self,
        *,
        resolved_since: datetime | None = None,
        rule: AlertRule | None = None,
        after: int = 0,
        limit: int = MOST_LISTED,
    ) -> list[Alert]:
        """Return alerts, open or resolved since `resolved_since`, in the order of their ids.

        For the next page, pass the last id of this page as `after`.
        """
        parameters = {"resolved_since": resolved_since, "rule": rule, "after": after, "limit": limit}
        with self._database.snapshot() as view:
            return view.rows(Alert, "alerts.listed", parameters)

    def acknowledge(self, alert_id: int, decision: Decision) -> Alert:
        """Acknowledge an alert, and log the decision. Raises UnknownNameError, RefusedError."""
        log = GovernanceLog(self._database, clock=self._clock)
        with self._database.transaction() as tx:
            before = tx.row(Alert, "alerts.get", alert_id=alert_id)
            if before is None:
                raise UnknownNameError(
                    "there is no such alert", observed=alert_id, next_step="kfm alerts list --days 30"
                )
            updated = tx.run(
                "alerts.acknowledge",
                alert_id=alert_id,
                at=self._clock(),
                actor=decision.actor,
                reason=decision.reason,
            )
            if updated.rowcount != 1:
                by = f" by {before.acknowledged_by}" if before.state is AlertState.ACKNOWLEDGED else ""
                raise RefusedError(
                    "the alert does not fire",
                    observed=f"alert {alert_id}: {before.state}{by}",
                    expected="firing",
                    next_step="kfm alerts list",
                )
            details = {"alert_id": alert_id, "rule": before.rule, "subject": before.subject, "level": before.level}
            log.record(GovernanceAction.ALERT_ACKNOWLEDGED, decision, details=details, tx=tx)
            [acknowledged] = tx.rows(Alert, "alerts.get", alert_id=alert_id)
            return acknowledged


def consumer_of(endpoint: int, channel: str) -> str:
    """Return a notification's consumer: its channel, and the present number of its endpoint."""
    return f"{channel} {endpoint}"


def _why(row: Any, escalated: Collection[int]) -> str:
    """Return why a firing alert is sent, as the end of a sentence."""
    if row.alert_id in escalated:
        return f", has lasted too long and is {row.level} now"
    return "" if row.notifications == 1 else ", and is not acknowledged"


@dataclass(frozen=True, kw_only=True, slots=True)
class AlertMessage:
    """Title and body, plain text."""

    level: Level
    title: str
    body: str


def look_of(alert: Alert) -> str:
    """Return the commands that show an alert's evidence, for the run of its newest event."""
    return alert.rule.look.replace("RUN", alert.run_id or "latest")


def message_of(alert: Alert, terms: RuleTerms, *, why: str) -> AlertMessage:
    """Return the message about an alert's state; `why` completes the sentence of a firing alert."""
    count = f"{alert.observed} events within {spoken(terms.window)} (it fires from {terms.threshold} on)"
    run = f" in run {alert.run_id}" if alert.run_id else ""
    lines = [
        alert.rule.meaning,
        f"{count}, the newest at {rfc3339(alert.last_event_at)} by {alert.place}{run}.",
        _state(alert, why),
        f"Look: {look_of(alert)}",
        f'Acknowledge it: kfm alerts ack {alert.alert_id} --reason "..."',
        f"What to do: docs/alerts.md#{alert.rule}. Key: {alert.key}",
    ]
    return AlertMessage(
        level=alert.level, title=f"[{alert.level}] {alert.rule}: {alert.subject}", body="\n".join(lines)
    )


def trial(channel: str) -> AlertMessage:
    """Return the message of `kfm alerts test`."""
    return AlertMessage(
        level=Level.INFO,
        title=f"[test] kfm_dagster: channel {channel}",
        body="A test by kfm alerts test: nothing is wrong, and alerts arrive here.",
    )


def spoken(length: timedelta) -> str:
    """Return a length as alerts.yaml writes it, in the largest unit that divides it."""
    seconds = length.total_seconds()
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


def _state(alert: Alert, why: str) -> str:
    since = f"since {rfc3339(alert.opened_at)}"
    if alert.state is AlertState.RESOLVED:
        return f"It opened at {rfc3339(alert.opened_at)} and has resolved by itself."
    if alert.state is AlertState.ACKNOWLEDGED:
        return f"It fires {since}; {alert.acknowledged_by} has acknowledged it."
    return f"It fires {since}{why}."
