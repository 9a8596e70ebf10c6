"""The front page: the deployment's health and next steps, with links from numbers to units.

Belongs here: the page and its pictures. Does not belong here: finding problems (`exports/deployment_status.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kfm_dagster.console.charts import state_diagram
from kfm_dagster.console.operations import JSON
from kfm_dagster.console.pages import Pages, duration, query_of
from kfm_dagster.console.requests import is_page
from kfm_dagster.drawing.footprints import draw as draw_footprints
from kfm_dagster.drawing.map_ground import Size
from kfm_dagster.exports.deployment_status import DeploymentStatus, deployment_status
from kfm_dagster.governance.masking import outline
from kfm_dagster.ledger.queries import LedgerQueries
from kfm_dagster.ledger.search import datasets_of
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.settings import Settings
from kfm_dagster.views.view import json_row

FRONT = "/"
SVG_HEADERS: Mapping[str, str] = {
    # Pictures carry their colours, light and dark.
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
}
MOST_MATTERS = 12
"""Rows that fit on a screen; `kfm status` has all."""
ITEMS_OF_A_DATASET = 20
"""Newest Items of a dataset on the map: a scan of a satellite, or the last minutes of a radar network."""
_MAP = Size(width=640, min_height=260, max_height=360, lines=10)


def routes(pages: Pages, depths: Callable[[], Mapping[str, int]]) -> list[Route]:
    """Return the routes of the front page and its map."""
    pipeline = pages.pipeline

    def front(request: Request) -> Response:
        values = query_of(request, "format")
        as_page = is_page(values, request.headers.get("accept", ""))
        status = deployment_status(pipeline)
        if not as_page:
            return Response(json.dumps(json_row(status)), media_type=JSON)
        counts = {state: sum(of_dataset[state] for of_dataset in status.units.values()) for state in Status}
        with pipeline.database.snapshot() as tx:
            oldest = pipeline.ledger.oldest_waiting(tx=tx)
        return pages.page(
            request,
            "overview.html",
            deployment=status,
            most=MOST_MATTERS,
            units=[{"dataset": dataset, **counts} for dataset, counts in status.units.items()],
            units_columns=("dataset", *Status),
            units_links={name: partial(_units_path, name) for name in Status},
            matter_links={"what": lambda matter: matter.path},
            tiles=list(_tiles(status, counts, depths(), oldest, pipeline.settings)),
            states=Markup(state_diagram(counts)),  # noqa: S704, its own numbers
        )

    def footprints(_: Request) -> Response:
        picture = draw_footprints(list(newest_boxes(pipeline.ledger)), _MAP)
        svg = picture[0] if picture else '<svg xmlns="http://www.w3.org/2000/svg" width="640" height="260"/>'
        return Response(svg, media_type="image/svg+xml", headers=SVG_HEADERS)

    return [Route(FRONT, front, methods=["GET"]), Route("/footprints.svg", footprints, methods=["GET"])]


def newest_boxes(ledger: LedgerQueries) -> Iterator[dict[str, Any]]:
    """Yield the boxes of each dataset's newest Items as GeoJSON, split at the antimeridian."""
    with ledger.database.snapshot() as view:
        wal_ids = [
            record.wal_id
            for dataset in datasets_of(view, Status.SUCCEEDED)
            for record in ledger.find(dataset=dataset, status=Status.SUCCEEDED, limit=ITEMS_OF_A_DATASET, tx=view)
        ]
        rows = view.run("catalog.boxes_of_units", wal_ids=wal_ids).all()
    for row in rows:
        yield outline((row.west, row.south, row.east, row.north))


def _units_path(status: Status, row: Mapping[str, Any]) -> str | None:
    return f"/units?{urlencode({'dataset': row['dataset'], 'status': status})}" if row[status] else None


def _tiles(
    status: DeploymentStatus,
    counts: Mapping[Status, int],
    depths: Mapping[str, int],
    oldest: datetime | None,
    settings: Settings,
) -> Iterator[dict[str, str | None]]:
    """Yield the numbers of the front page, each with a link to its units."""
    for state in (Status.QUARANTINED, Status.FAILED):
        units = counts[state]
        kind = "bad" if units else "good"
        yield {"name": state.value, "value": f"{units:,}", "kind": kind, "path": f"/units?status={state}"}
    age = "none" if oldest is None else duration(max(status.at - oldest, timedelta(0)))
    yield {"name": "oldest waiting", "value": age, "kind": "", "path": "/units?status=pending"}
    for name, queue, path in (
        ("queue", settings.sqs_primary_queue, None),
        ("dead letters", settings.sqs_dlq_queue, "/rejected#dead"),
    ):
        depth = depths.get(queue)
        kind = "bad" if depth and queue == settings.sqs_dlq_queue else ""
        yield {"name": name, "value": "not known" if depth is None else f"{depth:,}", "kind": kind, "path": path}
    kind = "good" if status.well else "bad"
    yield {"name": "to be done", "value": str(status.urgent), "kind": kind, "path": "#matters"}
