"""Lists: units, failures, rejections with messages, gaps with a picture, alerts. Only reads.

Belongs here: pages of views, and the content beside their rows. Does not belong here: searching (`views/`), one unit or
run (`histories.py`), decisions (`actions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kfm_dagster.alerts.store import look_of
from kfm_dagster.console.overview import SVG_HEADERS
from kfm_dagster.console.pages import Pages, list_route, query_of
from kfm_dagster.console.requests import whole_number
from kfm_dagster.exports.gap_picture import draw, gap_picture
from kfm_dagster.ledger.rejections import RejectionFilter
from kfm_dagster.views.decisions import ALERTS
from kfm_dagster.views.feeds import GAP_DAYS, GAPS
from kfm_dagster.views.rejections import REJECTIONS, rejected_message
from kfm_dagster.views.units import FAILURES, UNITS, count_units
from kfm_dagster.views.view import require_contract

MOST_DAYS = 14
"""Days of the picture; with more than two weeks, an hour would be less than two pixels wide."""
MOST_SHOWN = 65_536
"""Characters of a message on its page; an SQS message may have sixteen times as many."""
MOST_RECORDS = 100
"""Rejections of one message on its page; a hostile message has a row for each reason (`ledger/rejections.py`)."""


def routes(pages: Pages, depths: Callable[[], Mapping[str, int]]) -> list[Route]:
    """Return the routes of lists; `depths` returns the messages by queue, and must not wait."""
    pipeline = pages.pipeline

    def dead_letters(_: RejectionFilter) -> int | None:
        return depths().get(pipeline.settings.sqs_dlq_queue)

    def message(request: Request) -> Response:
        query_of(request)
        message_id = str(request.path_params["message_id"])
        body = rejected_message(pipeline.deliveries, pipeline.landing, message_id)
        rows = pipeline.deliveries.rejected(RejectionFilter(message=message_id), limit=MOST_RECORDS)
        return pages.page(
            request,
            "message.html",
            message_id=message_id,
            rows=[row for row in rows if row.message_id == message_id],
            links={"reason_code": lambda row: f"/rejected?reason={row.reason_code}"},
            state=pipeline.deliveries.states([message_id])[message_id],
            shown=_visible(body[:MOST_SHOWN]),
            left=max(0, len(body) - MOST_SHOWN),
        )

    def picture(request: Request) -> Response:
        values = query_of(request, "dataset", "days")
        dataset = values.get("dataset") or None
        require_contract(pipeline, dataset)
        days = whole_number("days", values.get("days") or str(GAP_DAYS), most=MOST_DAYS)
        svg = draw(gap_picture(pipeline, days=days, dataset=dataset))
        return Response(svg, media_type="image/svg+xml", headers=SVG_HEADERS)

    return [
        list_route(pages, UNITS, "/units", "units.html", count=partial(count_units, pipeline)),
        list_route(pages, FAILURES, "/failures"),
        list_route(pages, REJECTIONS, "/rejected", "rejected.html", dead_letters=dead_letters),
        Route("/rejected/{message_id:path}", message, methods=["GET"]),
        list_route(pages, GAPS, "/gaps", "gaps.html", most_days=lambda _: MOST_DAYS),
        Route("/gaps.svg", picture, methods=["GET"]),
        list_route(pages, ALERTS, "/alerts", "alerts.html", look_of=lambda _: look_of),
    ]


def _visible(text: str) -> str:
    """Return a text with invisible and reordering characters as Python's escapes."""
    return "".join(char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text)
