"""`kfm gaps`: what is missing of the feeds, as a table or a picture, and how late their objects come. Only reads."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from kfm_dagster.cli.completion import DATASET
from kfm_dagster.cli.files import NewFile
from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.cli.tables import show_rows
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.exports.atomic_files import ExportFile, atomic_files
from kfm_dagster.exports.gap_picture import OPENING, draw, gap_picture
from kfm_dagster.ledger.arrivals import arrival_times
from kfm_dagster.ledger.gaps import Gap
from kfm_dagster.views.view import Parts

COLUMNS = ("dataset", "product", "hour", "kind", "expected", "seen", "first_seen", "closed_at", "repaired_by")
TIMES = ("objects", "p50_seconds", "p95_seconds", "p99_seconds")
ARRIVAL_DAYS = 90
MOST_DAYS = 366
GAP_DAYS = 3
UNFOLLOWED = "nothing is expected yet: no product with a `coverage` was announced here (docs/gaps.md)"


@click.command()
@click.option("--dataset", type=DATASET, help="Only this one; the picture then has a row for each of its products.")
@click.option(
    "--days", type=click.IntRange(1, MOST_DAYS), help="So many days back. Default: 3, and 90 with --arrivals."
)
@click.option("--closed", is_flag=True, help="Those that are closed, too.")
@click.option("--svg", type=NewFile(), help="Write the picture of these days, hour by hour.")
@click.option("--arrivals", is_flag=True, help="Show how long after scan or run objects were announced, instead.")
@click.option("--by-lead", is_flag=True, help="The same for each lead of a forecast.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def gaps(
    *,
    dataset: str | None,
    days: int | None,
    closed: bool,
    svg: Path | None,
    arrivals: bool,
    by_lead: bool,
    as_json: bool,
) -> None:
    """List the hours that lack objects, and the products that are silent or slow now.

    Times are UTC. A hole is an hour that has fewer objects than the contract expects; it closes by itself when they
    come. kfm reconcile --repair fetches what was never announced.

    Example: kfm gaps --dataset goes-abi --svg gaps.svg
    """
    with opened_pipeline(read_only=True) as pipeline:
        if dataset is not None:
            dataset = pipeline.registry[dataset].id
        if arrivals or by_lead:
            rows = _arrivals(pipeline, dataset, days or ARRIVAL_DAYS, by_lead=by_lead)
            show_rows(rows, ("dataset", "product", *(("lead",) if by_lead else ()), *TIMES), as_json=as_json)
            return
        since = pipeline.clock() - timedelta(days=days or GAP_DAYS)
        found = pipeline.gaps.list(since=since, dataset=dataset, closed=closed)
        if svg is not None:
            _write(pipeline, svg, dataset, days or GAP_DAYS)
        followed = {feed.dataset for feed in pipeline.gaps.feeds()}
    show_rows(map(_row, found), COLUMNS if closed else COLUMNS[:-2], as_json=as_json)
    if not found and not (followed if dataset is None else followed & {dataset}):
        click.echo(UNFOLLOWED, err=True)


def _write(parts: Parts, svg: Path, dataset: str | None, days: int) -> None:
    document = draw(gap_picture(parts, days=days, dataset=dataset))
    with atomic_files(svg.parent, [ExportFile(name=svg.name, opening=OPENING)], option="--svg") as [file]:
        file.write(document.removeprefix(OPENING.decode()).encode())


def _arrivals(parts: Parts, dataset: str | None, days: int, *, by_lead: bool) -> Sequence[dict[str, Any]]:
    today = parts.clock().date()
    found = arrival_times(
        parts.database, first=today - timedelta(days=days), last=today, dataset=dataset, by_lead=by_lead
    )
    return [
        {
            "dataset": one.dataset,
            "product": one.product,
            "lead": one.lead,
            "objects": one.objects,
            "p50_seconds": round(one.p50, 1),
            "p95_seconds": round(one.p95, 1),
            "p99_seconds": round(one.p99, 1),
        }
        for one in found
    ]


def _row(gap: Gap) -> dict[str, Any]:
    return {
        "dataset": gap.dataset,
        "product": gap.product,
        "hour": rfc3339(gap.hour, timespec="minutes"),
        "kind": gap.kind.value,
        "expected": gap.expected,
        "seen": gap.seen,
        "first_seen": rfc3339(gap.first_seen, timespec="seconds"),
        "closed_at": None if gap.closed_at is None else rfc3339(gap.closed_at, timespec="seconds"),
        "repaired_by": gap.repaired_by,
    }
