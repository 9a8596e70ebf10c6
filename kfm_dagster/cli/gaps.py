"""`kfm gaps`: gaps of the feeds as a table or a picture, and delays of objects. Only reads."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import click

from kfm_dagster.cli.files import NewFile
from kfm_dagster.cli.filter_options import filter_options
from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.cli.tables import rows_as_json, show_rows
from kfm_dagster.exports.atomic_files import write_document
from kfm_dagster.exports.gap_picture import NOTHING_EXPECTED, OPENING, draw, gap_picture
from kfm_dagster.ledger.gaps import arrival_times
from kfm_dagster.views.feeds import GAPS, GapFilter
from kfm_dagster.views.view import require_contract

CLOSING = ("closed_at", "repaired_by")
TIMES = ("objects", "p50_seconds", "p95_seconds", "p99_seconds")
ARRIVAL_DAYS = 90
MOST_GAPS = 100_000
"""Maximum number of rows, because the command has no pages; a line on stderr says if gaps were left out."""


@click.command()
@filter_options(GAPS)
@click.option("--svg", type=NewFile(), help="Write the picture of these days, hour by hour.")
@click.option("--arrivals", is_flag=True, help="Show delays from scan or run to announcement, by default of 90 days.")
@click.option("--by-lead", is_flag=True, help="Show the delays of --arrivals for each lead of a forecast.")
@rows_as_json
def gaps(*, row_filter: GapFilter, svg: Path | None, arrivals: bool, by_lead: bool, as_json: bool) -> None:
    """List hours that lack objects, and late or silent products.

    Times are UTC. A hole is an hour that has fewer objects than the contract expects; it closes by itself when the
    missing objects come. kfm reconcile --repair fetches objects that were never announced.

    Example: kfm gaps --dataset goes-abi --svg gaps.svg
    """
    dataset = row_filter.dataset
    with opened_pipeline(read_only=True) as pipeline:
        require_contract(pipeline, dataset)
        if arrivals or by_lead:
            days = row_filter.days if "days" in row_filter.model_fields_set else ARRIVAL_DAYS
            today = pipeline.clock().date()
            first = today - timedelta(days=days)
            rows = [
                {name: getattr(row, name) for name in ("dataset", "product", "lead", "objects")}
                | {f"{quantile}_seconds": round(getattr(row, quantile), 1) for quantile in ("p50", "p95", "p99")}
                for row in arrival_times(pipeline.database, first=first, last=today, dataset=dataset, by_lead=by_lead)
            ]
            show_rows(rows, ("dataset", "product", *(("lead",) if by_lead else ()), *TIMES), as_json=as_json)
            return
        page = GAPS.query(pipeline, row_filter, None, MOST_GAPS)
        if svg is not None:
            picture = draw(gap_picture(pipeline, days=row_filter.days, dataset=dataset))
            write_document(svg, picture, opening=OPENING, option="--svg")
        followed = {feed.dataset for feed in pipeline.gaps.feeds()}
        retired = [other for other in pipeline.registry if other.metadata.retired and other.id in {dataset, *followed}]
    show_rows(page.rows, (*GAPS.columns, *(CLOSING if row_filter.closed else ())), as_json=as_json)
    if page.after is not None:
        click.echo(f"only the first {MOST_GAPS:,} gaps are shown; give a dataset or fewer days", err=True)
    if not page.rows and not (followed if dataset is None else followed & {dataset}):
        click.echo(NOTHING_EXPECTED, err=True)
    for contract in retired:
        click.echo(f"no more objects of {contract.id} are expected. {contract.metadata.notice}", err=True)
