"""Alerts: what fires or is acknowledged, in the order of opening. Only reads."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field

from kfm_dagster.alerts.plan import AlertRule
from kfm_dagster.alerts.store import Alert, AlertStore
from kfm_dagster.contracts.filters import BadFilterError, Days, Filter
from kfm_dagster.views.view import Page, Parts, View


class AlertFilter(Filter):
    """Open alerts, and with `days` resolved ones."""

    rule: AlertRule | None = Field(None, description="Only of this rule.")
    days: Days | None = Field(None, description="Those that resolved within so many days, too.")


def alerts(parts: Parts, wanted: AlertFilter, after: str | None, limit: int) -> Page:
    """Return a page of alerts; `after` is an alert's number. Raises BadFilterError."""
    if after is not None and not (after.isascii() and after.isdecimal() and len(after) < 10):
        raise BadFilterError(observed=f"after={after[:80]!r}", expected="what the page before gave")
    rows = AlertStore(parts.database, clock=parts.clock).listed(
        resolved_since=None if wanted.days is None else parts.clock() - timedelta(days=wanted.days),
        rule=wanted.rule,
        after=int(after or 0),
        limit=limit + 1,
    )
    return Page(rows=rows[:limit], after=str(rows[limit - 1].alert_id) if len(rows) > limit else None)


ALERTS = View(
    name="alerts",
    operation="listAlerts",
    tool="alerts",
    summary="Alerts that fire or are acknowledged, in the order of opening.",
    filter=AlertFilter,
    row=Alert,
    query=alerts,
    columns=("alert_id", "level", "state", "rule", "subject", "opened_at", "observed", "last_event_at", "undelivered"),
    end="next",
)
