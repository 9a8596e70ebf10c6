"""What came and could not be taken in: pages of rejections, and each message as it came. Only reads.

Belongs here: those pages. Does not belong here: finding rejections (`views/rejections.py`), what becomes of
their messages (`kfm dlq`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kfm_dagster.console.pages import Pages, list_route, parameters
from kfm_dagster.console.request_parameters import given
from kfm_dagster.ledger.rejections import RejectionFilter
from kfm_dagster.views.rejections import REJECTIONS, rejected_message

MOST_SHOWN = 65_536
"""Characters of a message on its page: one that SQS carries may have sixteen times as many."""
MOST_RECORDS = 100
"""Rejections of one message on its page; hostile ones have a row for each reason (`ledger/rejections.py`)."""


def routes(pages: Pages, depths: Callable[[], Mapping[str, int]]) -> list[Route]:
    """Return the routes of rejections; `depths` says how many messages are on each queue, and must not wait."""
    pipeline = pages.pipeline

    def dead_letters(_: RejectionFilter) -> int | None:
        return depths().get(pipeline.settings.sqs_dlq_queue)

    def message(request: Request) -> Response:
        given(parameters(request), known=())
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

    return [
        list_route(pages, REJECTIONS, "/rejected", "rejected.html", dead_letters=dead_letters),
        Route("/rejected/{message_id:path}", message, methods=["GET"]),
    ]


def _visible(text: str) -> str:
    """Return a text with what cannot be seen, or turns the order of signs, written as Python would."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else ascii(sign)[1:-1] for sign in text)
