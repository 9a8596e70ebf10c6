"""What is missing of the feeds: a picture of hours by dataset, and the gaps with what mends them. Only reads."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kfm_dagster.console.overview import SVG_HEADERS
from kfm_dagster.console.pages import Pages, list_route, parameters
from kfm_dagster.console.request_parameters import given, whole_number
from kfm_dagster.exports.gap_picture import draw, gap_picture
from kfm_dagster.views.feeds import GAP_DAYS, GAPS
from kfm_dagster.views.view import require_contract

MOST_DAYS = 14
"""Of the picture; more hours than two weeks have would each be less than two pixels wide."""


def routes(pages: Pages) -> list[Route]:
    """Return the routes of the gaps."""

    def picture(request: Request) -> Response:
        values = given(parameters(request), known=("dataset", "days"))
        dataset = values.get("dataset") or None
        require_contract(pages.pipeline, dataset)
        days = whole_number("days", values.get("days") or str(GAP_DAYS), most=MOST_DAYS)
        svg = draw(gap_picture(pages.pipeline, days=days, dataset=dataset))
        return Response(svg, media_type="image/svg+xml", headers=SVG_HEADERS)

    return [
        list_route(pages, GAPS, "/gaps", "gaps.html", most_days=lambda _: MOST_DAYS),
        Route("/gaps.svg", picture, methods=["GET"]),
    ]
