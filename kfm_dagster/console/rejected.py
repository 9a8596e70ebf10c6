"""What came and could not be taken in: pages of rejections, and each message as it came. Only reads.

Belongs here: those pages. Does not belong here: finding rejections (`views/rejections.py`), what becomes of
their messages (`kfm dlq`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kfm_dagster.console.asking import given
from kfm_dagster.console.pages import PAGE, Pages, filter_of, parameters, with_query
from kfm_dagster.contracts.issues import ParseIssue
from kfm_dagster.ledger.rejections import RejectionFilter
from kfm_dagster.views.rejections import rejected_message, rejections

MOST_SHOWN = 65_536
"""Characters of a message on its page: one that SQS carries may have sixteen times as many."""
MOST_RECORDS = 100
"""Rejections of one message on its page; hostile ones have a row for each reason (`ledger/rejections.py`)."""


def routes(pages: Pages, depths: Callable[[], Mapping[str, int]]) -> list[Route]:
    """Return the routes of rejections; `depths` says how many messages are on each queue, and must not wait."""
    pipeline = pages.pipeline

    def rejected(request: Request) -> Response:
        wanted, after = filter_of(request, RejectionFilter)
        page = rejections(pipeline, wanted, after, PAGE)
        return pages.page(
            request,
            "rejected.html",
            wanted=wanted,
            rows=page.rows,
            reasons=[*ParseIssue],
            dead_letters=depths().get(pipeline.settings.sqs_dlq_queue),
            first_link=with_query(request, after=None) if after else None,
            next_link=with_query(request, after=page.after) if page.after else None,
        )

    def message(request: Request) -> Response:
        given(parameters(request), known=())
        message_id = str(request.path_params["message_id"])
        body = rejected_message(pipeline, message_id)
        rows = pipeline.deliveries.rejected(RejectionFilter(message=message_id), limit=MOST_RECORDS)
        return pages.page(
            request,
            "message.html",
            message_id=message_id,
            rows=[row for row in rows if row.message_id == message_id],
            state=pipeline.deliveries.states([message_id])[message_id],
            shown=_visible(body[:MOST_SHOWN]),
            left=max(0, len(body) - MOST_SHOWN),
        )

    return [
        Route("/rejected", rejected, methods=["GET"]),
        Route("/rejected/{message_id:path}", message, methods=["GET"]),
    ]


def _visible(text: str) -> str:
    """Return a text with what cannot be seen, or turns the order of signs, written as Python would."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else ascii(sign)[1:-1] for sign in text)
