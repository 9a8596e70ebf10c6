"""Alerts: what fires and since when, what is behind it, what helps, and taking it on.

Belongs here: that page, and the form by which somebody takes an alert on. Does not belong here: evaluating
(`alerts/`), what an alert means (`alerts/store.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kfm_dagster.alerts.store import AlertStore, look_of
from kfm_dagster.console.actions import decided, see
from kfm_dagster.console.pages import Pages, list_route, row_id
from kfm_dagster.views.alerts import ALERTS


def routes(pages: Pages) -> list[Route]:
    """Return the routes of alerts."""

    def acknowledge(request: Request, fields: Mapping[str, str]) -> Response:
        # No override: it needs no change reference, not even in prod.
        form = decided(pages, request, fields, is_override=False)
        store = AlertStore(pages.writing.database, clock=pages.writing.clock)
        store.acknowledge(row_id(request, "alert_id"), form.decision)
        return see("/alerts")

    return [
        list_route(pages, ALERTS, "/alerts", "alerts.html", look_of=lambda _: look_of),
        pages.form("/alerts/{alert_id}/acknowledge", acknowledge),
    ]
