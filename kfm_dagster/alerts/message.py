"""What an alert says to its receiver: what fires since when, where to look, how to take it on.

Does not belong here: carrying it (`channels.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from kfm_dagster.alerts.plan import Level, RuleTerms
from kfm_dagster.alerts.store import Alert, AlertState, NotificationReason, QueuedNotification
from kfm_dagster.contracts.identity import rfc3339


@dataclass(frozen=True, kw_only=True, slots=True)
class AlertMessage:
    """Title and body, plain text."""

    level: Level
    title: str
    body: str


def look_of(alert: Alert) -> str:
    """Return the commands that show an alert's evidence, of the run of its newest event."""
    return alert.rule.look.replace("RUN", alert.run_id or "latest")


def message_of(notification: QueuedNotification, terms: RuleTerms) -> AlertMessage:
    """Return the message about an alert as it is now."""
    alert = notification.alert
    count = f"{alert.observed} events within {spoken(terms.window)} (it fires from {terms.threshold} on)"
    run = f" in run {alert.run_id}" if alert.run_id else ""
    lines = [
        alert.rule.meaning,
        f"{count}, the newest at {rfc3339(alert.last_event_at)} by {alert.place}{run}.",
        _state(alert, notification.reason),
        f"Look: {look_of(alert)}",
        f'Take it on: kfm alerts ack {alert.alert_id} --reason "..."',
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
        body="Somebody ran kfm alerts test. Nothing is wrong, and this is where alerts come.",
    )


def spoken(length: timedelta) -> str:
    """Return a length as alerts.yaml writes it: the largest unit that goes into it."""
    seconds = length.total_seconds()
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


def _state(alert: Alert, reason: NotificationReason) -> str:
    since = f"since {rfc3339(alert.opened_at)}"
    if alert.state is AlertState.RESOLVED:
        return f"It fired {since} and has resolved by itself meanwhile."
    if alert.state is AlertState.ACKNOWLEDGED:
        return f"It fires {since}; {alert.acknowledged_by} has taken it on."
    why = {
        NotificationReason.OPENED: "",
        NotificationReason.REPEATED: ", and nobody has taken it on",
        NotificationReason.ESCALATED: f", has lasted too long and is {alert.level} now",
    }
    return f"It fires {since}{why[reason]}."
