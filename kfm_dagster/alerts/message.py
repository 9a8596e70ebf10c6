"""What an alert says to its receiver: what fires since when, where to look, how to take it on.

Does not belong here: carrying it (`channels.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from kfm_dagster.alerts.plan import AlertRule, Level, RuleTerms
from kfm_dagster.alerts.store import Alert, AlertState, NotificationReason, QueuedNotification
from kfm_dagster.contracts.identity import rfc3339

MEANINGS = {
    AlertRule.STATE_FLAPPING: "The stage runs again after it failed, again and again.",
    AlertRule.RETRY_STORM: "Stages are retried in numbers: what they depend on may be down, and is asked all the more.",
    AlertRule.COVARIANCE: "A covariance is not positive definite (G7): its uncertainties mean nothing.",
    AlertRule.PATH_DESYNC: "The arrays of a path do not belong together (G3).",
    AlertRule.UNLOCK: "The clock is not locked (E_SYNC): outputs are [Restricted] or stages do not run.",
    AlertRule.GATE_BREACH: "A gate does not pass: it stops the stage, takes units out, or restricts what is made.",
    AlertRule.REPLAY_DIVERGENCE: "A replay gave something else than the original, and was rolled back.",
    AlertRule.WORSE_OBJECT: "A version of an object was quarantined; the Item of an earlier one stays in the catalog.",
}
LOOK = {
    AlertRule.STATE_FLAPPING: "kfm validate --days 1; kfm explain RUN",
    AlertRule.RETRY_STORM: "kfm validate --days 1; kfm explain RUN",
    AlertRule.COVARIANCE: "kfm validate --days 1; kfm explain RUN",
    AlertRule.PATH_DESYNC: "kfm validate --days 1; kfm explain RUN",
    AlertRule.UNLOCK: "kfm clock --ask",
    AlertRule.GATE_BREACH: "kfm validate --days 1; kfm explain RUN",
    AlertRule.REPLAY_DIVERGENCE: "kfm validate --days 1; kfm explain RUN",
    AlertRule.WORSE_OBJECT: "kfm quarantine list; kfm explain RUN",
}
"""Where a rule's evidence is seen; RUN is the run of its newest event."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AlertMessage:
    """Title and body, plain text."""

    level: Level
    title: str
    body: str


def look_of(alert: Alert) -> str:
    """Return the commands that show an alert's evidence, of the run of its newest event."""
    return LOOK[alert.rule].replace("RUN", alert.run_id or "latest")


def message_of(notification: QueuedNotification, terms: RuleTerms) -> AlertMessage:
    """Return the message about an alert as it is now."""
    alert = notification.alert
    count = f"{alert.observed} events within {spoken(terms.window)} (it fires from {terms.threshold} on)"
    run = f" in run {alert.run_id}" if alert.run_id else ""
    lines = [
        MEANINGS[alert.rule],
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
