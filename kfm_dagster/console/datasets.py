"""A dataset's page: units by status, ends and latencies by hour, and failures. Only reads.

Belongs here: the page, from a bounded number of rows. Does not belong here: drawing (`charts.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta
from statistics import quantiles
from typing import Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kfm_dagster.console.charts import HOUR, bar_chart, line_chart
from kfm_dagster.console.pages import Pages, query_of
from kfm_dagster.contracts.cadence import floor_hour
from kfm_dagster.storage.database import Database
from kfm_dagster.views.units import FAILURES, FailureFilter, failure_groups

HOURS = 48
"""Two days, so that the hour of a change is beside the same hour of the day before."""
MOST_RUNS = 5_000
"""Stages read for these hours; with a run each minute there are 2,880."""
MOST_UNITS = 2_000
"""Newest units whose times are read: the last two hours of a feed with 1,000 units an hour."""
ENDS = ("succeeded", "retrying", "quarantined")
"""Counts of a settle stage, by outcome."""


def routes(pages: Pages) -> list[Route]:
    """Return the route of a dataset."""
    pipeline = pages.pipeline

    def dataset(request: Request) -> Response:
        query_of(request)
        contract = pipeline.registry[request.path_params["dataset"]]
        last = floor_hour(pipeline.clock())
        hours = [last - number * HOUR for number in reversed(range(HOURS))]
        settled, medians, most = _times(pipeline.database, contract.id, since=hours[0])
        with pipeline.database.snapshot() as view:
            counts = pipeline.ledger.status_counts(contract.id, tx=view)
            switch = pipeline.ledger.switches.engaged(tx=view).get(contract.id)
        lines = {"median": medians, "95th percentile": most}
        return pages.page(
            request,
            "dataset.html",
            contract=contract,
            counts=counts,
            switch=switch,
            hours=HOURS,
            throughput=Markup(bar_chart("Units that ended", hours, settled)),  # noqa: S704, its own numbers
            latency=Markup(line_chart("From discovery to success", hours, lines)),  # noqa: S704, its own numbers
            view=FAILURES,
            groups=failure_groups(pipeline, FailureFilter(dataset=contract.id)),
        )

    return [Route("/datasets/{dataset}", dataset, methods=["GET"])]


def _times(
    database: Database, dataset: str, *, since: datetime
) -> tuple[Mapping[datetime, tuple[int, int]], dict[datetime, float], dict[datetime, float]]:
    """Return succeeded and other units by hour, and the median and 95th percentile of seconds."""
    with database.snapshot() as view:
        stages = view.run(
            "console.settled", stage=f"{dataset}.settle", since=since - timedelta(hours=6), limit=MOST_RUNS
        ).all()
        units = view.run("console.newest_successes", dataset=dataset, limit=MOST_UNITS).all()
    ended: dict[datetime, Counter[str]] = defaultdict(Counter)
    for row in stages:
        if row.ended_at >= since:
            summary: Mapping[str, Any] = row.validation_summary
            ended[floor_hour(row.ended_at)].update({end: summary.get(end, 0) for end in ENDS})
    seconds: dict[datetime, list[float]] = defaultdict(list)
    for row in units:
        if row.updated_at >= since:
            seconds[floor_hour(row.updated_at)].append((row.updated_at - row.created_at).total_seconds())
    cuts = {hour: quantiles([*values, values[0]], n=20, method="inclusive") for hour, values in seconds.items()}
    return (
        {hour: (counts["succeeded"], counts["retrying"] + counts["quarantined"]) for hour, counts in ended.items()},
        {hour: cut[9] for hour, cut in cuts.items()},
        {hour: cut[18] for hour, cut in cuts.items()},
    )
