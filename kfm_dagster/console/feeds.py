"""What is missing of the feeds: a picture of hours by dataset, and the open gaps with what mends them. Only reads."""

from __future__ import annotations

from datetime import timedelta

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kfm_dagster.console.asking import given, whole_number
from kfm_dagster.console.overview import SVG_HEADERS
from kfm_dagster.console.pages import Pages, parameters
from kfm_dagster.exports import gap_svg
from kfm_dagster.exports.gap_picture import gap_picture

DAYS, MOST_DAYS = 3, 14
"""As kfm gaps looks back; more hours than two weeks have would each be less than two pixels wide."""
MOST_GAPS = 200


def routes(pages: Pages) -> list[Route]:
    """Return the routes of the gaps."""
    pipeline = pages.pipeline

    def asked(request: Request) -> tuple[str | None, int]:
        values = given(parameters(request), known=("dataset", "days"))
        dataset = values.get("dataset") or None
        if dataset is not None:
            _ = pipeline.registry[dataset]
        return dataset, whole_number("days", values.get("days") or str(DAYS), most=MOST_DAYS)

    def picture(request: Request) -> Response:
        dataset, days = asked(request)
        svg = gap_svg.draw(gap_picture(pipeline, days=days, dataset=dataset))
        return Response(svg, media_type="image/svg+xml", headers=SVG_HEADERS)

    def gaps(request: Request) -> Response:
        dataset, days = asked(request)
        since = pipeline.clock() - timedelta(days=days)
        found = pipeline.gaps.list(since=since, dataset=dataset, limit=MOST_GAPS + 1)
        return pages.page(
            request,
            "gaps.html",
            dataset=dataset,
            days=days,
            most_days=MOST_DAYS,
            datasets=sorted(pipeline.registry.contracts),
            gaps=found[:MOST_GAPS],
            more=len(found) > MOST_GAPS,
        )

    return [Route("/gaps", gaps, methods=["GET"]), Route("/gaps.svg", picture, methods=["GET"])]
