"""Pages of records: lists, the history of a unit or run, a dataset. Only reads.

Belongs here: pages of views, with further content beside the rows, and a dataset's page. Each page reads a bounded
number of rows. Does not belong here: searching (`views/`), drawing (`charts.py`), decisions (`decisions.py`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from statistics import quantiles
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kfm_dagster.alerts.store import look_of
from kfm_dagster.catalog.assets import addresses
from kfm_dagster.console import operations
from kfm_dagster.console.charts import HOUR, bar_chart, line_chart
from kfm_dagster.console.overview import ended_by_hour, item_map
from kfm_dagster.console.pages import Pages, list_route, query_of
from kfm_dagster.console.requests import whole_number
from kfm_dagster.contracts.cadence import floor_hour
from kfm_dagster.contracts.issues import REPAIRS
from kfm_dagster.deployment.explained_runs import explanations
from kfm_dagster.errors import KfmError
from kfm_dagster.exports.explanations.unit_history import evidence_of, unit_history
from kfm_dagster.exports.gap_picture import draw, gap_picture
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.cases import QuarantineCases
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.rejections import RejectionFilter
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.reading.names import opening
from kfm_dagster.settings import FeedKind
from kfm_dagster.storage.database import Database
from kfm_dagster.views.decisions import ALERTS
from kfm_dagster.views.feeds import GAP_DAYS, GAPS, REJECTIONS, rejected_message
from kfm_dagster.views.units import FAILURES, UNITS, FailureFilter, count_units, failure_groups, record_of
from kfm_dagster.views.view import require_contract

MOST_DAYS = 14
"""Most days of the picture of gaps, whose hours share 720 pixels: with 14 days, an hour is 2.1 pixels wide."""
MOST_SHOWN = 65_536
"""Most characters of a message on its page; an SQS message can have sixteen times as many."""
MOST_RECORDS = 100
"""Rejections of a message on its page; a hostile message has a row for each reason (`ledger/rejections.py`)."""
SVG_HEADERS: Mapping[str, str] = {
    # The picture contains its own styles, with colours for light and dark pages.
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
}
HOURS = 48
"""Hours of a dataset's charts: two days, so that each hour can be compared with the same hour of the day before."""
MOST_UNITS = 2_000
"""Newest units whose times are read: the last two hours of a feed with 1,000 units an hour."""


def routes(pages: Pages, depths: Callable[[], Mapping[str, int]]) -> list[Route]:
    """Return the routes of records; `depths` returns message counts by queue without waiting."""
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
        *_history_routes(pages),
        Route("/datasets/{dataset}", partial(_dataset, pages), methods=["GET"]),
    ]


def _visible(text: str) -> str:
    """Return a text with invisible and reordering characters as Python's escapes."""
    return "".join(char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text)


def _history_routes(pages: Pages) -> list[Route]:
    pipeline = pages.pipeline

    def unit(request: Request) -> Response:
        query_of(request)
        with pipeline.database.snapshot() as view:
            record = record_of(pipeline.ledger, str(request.path_params["wal_id"]), tx=view)
        return pages.page(request, "unit.html", **history(pipeline, record))

    def item(request: Request) -> Response:
        item = operations.item(pipeline, {"wal_id": str(request.path_params["wal_id"])})
        return Response(json.dumps(item), media_type="application/geo+json")

    def run(request: Request) -> Response:
        query_of(request)
        report = explanations(pipeline.database, pipeline.settings).explain(request.path_params["run_id"])
        return pages.page(request, "run.html", report=report)

    return [
        Route("/units/{wal_id:uuid}", unit, methods=["GET"]),
        Route("/units/{wal_id:uuid}/item.json", item, methods=["GET"]),
        Route("/runs/{run_id}", run, methods=["GET"]),
    ]


def history(pipeline: Pipeline, record: NoddWalRecord) -> dict[str, Any]:
    """Return the content of a unit's page, from its message to its lineage."""
    details = unit_history(pipeline, record)
    with pipeline.database.snapshot() as view:
        lineage = view.run("lineage.links", wal_id=record.wal_id, lineage_id="").all()
        footprint = item_map(view, [record])
    alternate = addresses(record.object_uri, pipeline.registry[record.dataset], {}).get("alternate", {})
    cases = QuarantineCases(pipeline.database, clock=pipeline.clock)
    message_id = record.sqs_message_id
    return {
        "record": record,
        "key": record.object_uri.rpartition("/")[2],
        "message": cases.messages([message_id]).get(message_id) if message_id else None,
        "details": details,
        "repair": REPAIRS.get(record.last_error_code or ""),
        "lineage": lineage,
        "footprint": footprint,
        # A sample object is not at AWS.
        "object_link": pipeline.settings.feed is FeedKind.WHOLE and alternate.get("https", {}).get("href"),
        "versions": [version for version in details.versions if version.wal_id != record.wal_id],
        "cases": [(case, evidence_of(case, pipeline.store)) for case in details.cases],
        "opening": _opening(pipeline, record),
        "catalog": (pipeline.settings.catalog_public_url or pipeline.settings.catalog).rstrip("/"),
    }


def _opening(pipeline: Pipeline, record: NoddWalRecord) -> str | None:
    """Return the line of Python that opens a unit's Item; None without a readable Item."""
    if record.status != Status.SUCCEEDED:
        return None
    try:
        item = operations.item(pipeline, {"wal_id": record.wal_id})
    except KfmError:
        return None
    return opening(item, item["links"][-1]["href"])


def _dataset(pages: Pages, request: Request) -> Response:
    query_of(request)
    pipeline = pages.pipeline
    contract = pipeline.registry[request.path_params["dataset"]]
    last = floor_hour(pipeline.clock())
    hours = [last - number * HOUR for number in reversed(range(HOURS))]
    settled, lines = _times(pipeline.database, contract.id, since=hours[0])
    with pipeline.database.snapshot() as view:
        counts = pipeline.ledger.status_counts(contract.id, tx=view)
        switch = pipeline.ledger.switches.engaged(tx=view).get(contract.id)
    return pages.page(
        request,
        "dataset.html",
        contract=contract,
        counts=counts,
        switch=switch,
        hours=HOURS,
        throughput=bar_chart("Attempts that ended", hours, settled),
        latency=lines["median"] and line_chart("From discovery to success", hours, lines),
        view=FAILURES,
        groups=failure_groups(pipeline, FailureFilter(dataset=contract.id)),
    )


def _times(
    database: Database, dataset: str, *, since: datetime
) -> tuple[Mapping[datetime, tuple[int, int]], dict[str, dict[datetime, float]]]:
    """Return units that succeeded and that did not, by hour, and seconds to success by quantile."""
    with database.snapshot() as view:
        settled = ended_by_hour(view, dataset, since)
        units = view.run("console.newest_successes", dataset=dataset, limit=MOST_UNITS).all()
    seconds: dict[datetime, list[float]] = defaultdict(list)
    for row in units:
        if row.updated_at >= since:
            seconds[floor_hour(row.updated_at)].append((row.updated_at - row.created_at).total_seconds())
    cuts = {hour: quantiles([*values, values[0]], n=20, method="inclusive") for hour, values in seconds.items()}
    names = {"median": 9, "95th percentile": 18}
    return settled, {name: {hour: cut[number] for hour, cut in cuts.items()} for name, number in names.items()}
