"""Alerts: what fires and since when, what is behind it, what helps, and taking it on.

Belongs here: that page, and the form by which somebody takes an alert on. Does not belong here: evaluating
(`alerts/`), what an alert means (`alerts/message.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kfm_dagster.alerts.message import look_of
from kfm_dagster.alerts.plan import AlertRule
from kfm_dagster.alerts.store import AlertStore
from kfm_dagster.console.actions import decided, see
from kfm_dagster.console.pages import PAGE, Pages, filter_of, row_id, with_query
from kfm_dagster.contracts.filters import MOST_DAYS
from kfm_dagster.views.alerts import ALERTS, AlertFilter


def routes(pages: Pages) -> list[Route]:
    """Return the routes of alerts."""
    pipeline = pages.pipeline

    def alerts(request: Request) -> Response:
        wanted, after = filter_of(request, AlertFilter)
        page = ALERTS.query(pipeline, wanted, after, PAGE)
        return pages.page(
            request,
            "alerts.html",
            alerts=[(alert, alert.rule.meaning, look_of(alert)) for alert in page.rows],
            rules=[*AlertRule],
            rule=wanted.rule,
            days=wanted.days or "",
            most_days=MOST_DAYS,
            first_link=with_query(request, after=None) if after else None,
            next_link=with_query(request, after=page.after) if page.after else None,
        )

    def acknowledge(request: Request, fields: Mapping[str, str]) -> Response:
        # No override: it needs no change reference, not even in prod.
        form = decided(pages, request, fields, is_override=False)
        store = AlertStore(pages.writing.database, clock=pages.writing.clock)
        store.acknowledge(row_id(request, "alert_id"), form.decision)
        return see("/alerts")

    return [
        Route("/alerts", alerts, methods=["GET"]),
        pages.form("/alerts/{alert_id}/acknowledge", acknowledge),
    ]
