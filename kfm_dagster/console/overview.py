"""The front page: the deployment's health and next steps, with links from numbers to units.

Belongs here: the page and its pictures. Does not belong here: finding problems (`exports/deployment_status.py`).
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from statistics import median
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kfm_dagster.console.charts import HOUR, state_diagram, strip
from kfm_dagster.console.operations import JSON
from kfm_dagster.console.pages import Pages, duration, query_of
from kfm_dagster.console.requests import is_page
from kfm_dagster.contracts.cadence import floor_hour
from kfm_dagster.drawing.footprints import draw as draw_footprints
from kfm_dagster.drawing.map_ground import Size
from kfm_dagster.exports.deployment_status import deployment_status
from kfm_dagster.governance.masking import outline
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.search import datasets_of
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.storage.database import Transaction
from kfm_dagster.views.view import json_row

FRONT = "/"
MOST_MATTERS = 12
"""Rows that fit on a screen; `kfm status` shows all of them."""
ITEMS_OF_A_DATASET = 20
"""Newest Items of a dataset on the map: a scan of a satellite, or the last minutes of a radar network."""
MAP = Size(width=640, min_height=260, max_height=360, lines=10)
HUES = 6
"""Colours of datasets on the map (`static/console.css`)."""
PULSE_HOURS = 24
MOST_RUNS = 5_000
"""Most stages that `ended_by_hour` reads; a run each minute makes 1,440 a day."""
PULSE_UNITS = 20
"""Newest succeeded units of a dataset; their median time from discovery to success is the dataset's lag."""


def routes(pages: Pages, depths: Callable[[], Mapping[str, int]]) -> list[Route]:
    """Return the routes of the front page and of the states' page."""
    pipeline = pages.pipeline

    def front(request: Request) -> Response:
        values = query_of(request, "format")
        as_page = is_page(values, request.headers.get("accept", ""))
        status = deployment_status(pipeline)
        if not as_page:
            return Response(json.dumps(json_row(status)), media_type=JSON)
        with pipeline.database.snapshot() as tx:
            oldest = pipeline.ledger.oldest_waiting(tx=tx)
            pulses = {dataset: pulse(tx, dataset, status.at) for dataset in status.units}
            find = partial(pipeline.ledger.find, status=Status.SUCCEEDED, limit=ITEMS_OF_A_DATASET, tx=tx)
            newest = item_map(tx, [row for name in datasets_of(tx, Status.SUCCEEDED) for row in find(dataset=name)])
            undecided: Counter[Status] = Counter()
            for group in pipeline.ledger.failing(tx=tx):
                undecided[group.status] += group.units - group.retried
        return pages.page(
            request,
            "overview.html",
            deployment=status,
            most=MOST_MATTERS,
            undecided=+undecided,
            units=[{"dataset": dataset, **pulses[dataset], **counts} for dataset, counts in status.units.items()],
            units_columns=("dataset", "last_24_hours", "newest_arrival", "lag", *Status),
            units_links={name: partial(_units_path, name) for name in Status},
            matter_links={"what": lambda matter: matter.path},
            waits=None if oldest is None else max(status.at - oldest, timedelta(0)),
            on_queue=depths().get(pipeline.settings.sqs_primary_queue),
            dead_letters=depths().get(pipeline.settings.sqs_dlq_queue),
            map=newest,
        )

    def states(request: Request) -> Response:
        query_of(request)
        with pipeline.database.snapshot() as tx:
            of_datasets = pipeline.ledger.counts(tx=tx).values()
        counts = {state: sum(counts[state] for counts in of_datasets) for state in Status}
        return pages.page(request, "states.html", diagram=state_diagram(counts))

    return [Route(FRONT, front, methods=["GET"]), Route("/states", states, methods=["GET"])]


def ended_by_hour(view: Transaction, dataset: str, since: datetime) -> dict[datetime, tuple[int, int]]:
    """Return the numbers of units that succeeded, and that did not, by the hour of their settle."""
    begun = since - timedelta(hours=6)
    counts: dict[datetime, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for row in view.run("console.settled", stage=f"{dataset}.settle", since=begun, limit=MOST_RUNS):
        if row.ended_at >= since:
            good, bad = counts[floor_hour(row.ended_at)]
            ends: Mapping[str, Any] = row.validation_summary
            others = ends.get("retrying", 0) + ends.get("quarantined", 0)
            counts[floor_hour(row.ended_at)] = good + ends.get("succeeded", 0), bad + others
    return dict(counts)


def pulse(view: Transaction, dataset: str, at: datetime) -> dict[str, Any]:
    """Return a dataset's last hours as a strip, its newest arrival and its median lag."""
    hours = [floor_hour(at) - number * HOUR for number in reversed(range(PULSE_HOURS))]
    units = view.run("console.newest_successes", dataset=dataset, limit=PULSE_UNITS).all()
    return {
        "last_24_hours": strip(hours, ended_by_hour(view, dataset, hours[0])),
        "newest_arrival": max((row.created_at for row in units), default=None),
        "lag": duration(median((row.updated_at - row.created_at).total_seconds() for row in units)) if units else None,
    }


def item_map(view: Transaction, records: Sequence[NoddWalRecord]) -> Markup | None:
    """Return a map of the units' Items, each linked to its unit; None without Items."""
    boxes = {row.wal_id: row for row in view.run("catalog.boxes_of_units", wal_ids=[row.wal_id for row in records])}
    hues = {dataset: number % HUES for number, dataset in enumerate(sorted({row.dataset for row in records}))}
    # If units have the same outline, the picture has the link of the last unit. So the newest unit comes last.
    shown = [record for record in reversed(records) if record.wal_id in boxes]
    picture = draw_footprints(
        [outline((box.west, box.south, box.east, box.north)) for box in (boxes[record.wal_id] for record in shown)],
        MAP,
        links=[
            Markup('<a class="hue-{}" href="/units/{}"><title>{}: {}</title>').format(
                hues[record.dataset], record.wal_id, record.dataset, record.object_uri.rpartition("/")[2]
            )
            for record in shown
        ],
    )
    if picture is None:
        return None
    legend = Markup("").join(
        Markup('<li><a class="hue-{}" href="/datasets/{}">{}</a></li>').format(hue, dataset, dataset)
        for dataset, hue in hues.items()
    )
    size = re.sub(r'.*?width="(\d+)" height="(\d+)".*', r"0 0 \1 \2", picture[0], count=1)
    svg = picture[0].replace("<svg ", f'<svg class="map" viewBox="{size}" role="group" aria-label="Map of Items" ', 1)
    return Markup('{}<ul class="legend">{}</ul>').format(Markup(svg), legend)  # noqa: S704, links are escaped


def _units_path(status: Status, row: Mapping[str, Any]) -> str | None:
    return f"/units?{urlencode({'dataset': row['dataset'], 'status': status})}" if row[status] else None
