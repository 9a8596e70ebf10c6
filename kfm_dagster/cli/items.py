"""`kfm items`: search the Items of the catalog."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kfm_dagster.cli.completion import POSITIVE
from kfm_dagster.cli.files import NewFile
from kfm_dagster.cli.tables import ids_option, show_rows
from kfm_dagster.plural import counted

if TYPE_CHECKING:
    from kfm_dagster.followers.geoparquet.search import PropertyCondition

COLUMNS = ("id", "collection", "start", "end", "bbox")
_CONDITION = re.compile(r"([^=<>]+)([=<>])(.*)", re.DOTALL)


@click.group()
def items() -> None:
    """Search the Items of the catalog.

    Example: kfm items search --collection nexrad-l2 --time 2025-12-03 --bbox -102,37,-94.6,40
    """


@items.command()
@click.option(
    "--collection",
    "--dataset",
    "collections",
    multiple=True,
    help="Only this Collection, by its id or its dataset; may be repeated.",
)
@click.option("--time", metavar="TIME", help="Only Items of a day, a moment, or START/END (UTC; .. is open).")
@click.option(
    "--bbox", metavar="W,S,E,N", help="Only Items whose footprint meets this box; W > E crosses the antimeridian."
)
@click.option("--where", multiple=True, metavar="PROPERTY=VALUE", help="Only Items with this value; < and > work, too.")
@click.option("--limit", default=50, show_default=True, type=POSITIVE, help="Maximum number of Items.")
@click.option("--parquet", type=NewFile(), help="Write the Items as one GeoParquet file.")
@click.option(
    "--python", "as_python", is_flag=True, help="Print a line of Python that opens the Item (docs/python.md)."
)
@click.option("--json", "as_json", is_flag=True, is_eager=True, help="One Item per line.")
@ids_option
def search(
    *,
    collections: Sequence[str],
    time: str | None,
    bbox: str | None,
    where: Sequence[str],
    limit: int,
    parquet: Path | None,
    as_python: bool,
    as_json: bool,
    ids: bool,
) -> None:
    """Search the catalog's files by time, box and properties, without the database.

    Example: kfm items search --time 2025-12-03T06:00Z/.. --where "nexrad:vcp>200" --where platform=wsr-88d --json
    """
    # Imported here, because the clients of stores, pyarrow and DuckDB take a second to import.
    from kfm_dagster.reading.items import CatalogFiles, checked_bbox, time_range  # noqa: PLC0415
    from kfm_dagster.reading.names import opening  # noqa: PLC0415

    start, end = time_range(time)
    box = None if bbox is None else checked_bbox(bbox.split(","))
    conditions = tuple(map(_condition, where))
    catalog = CatalogFiles()
    entries = catalog.items(collections or None, start=start, end=end, bbox=box, conditions=conditions)
    matches = list(islice(entries, limit))
    for line in () if matches else catalog.unknown_properties(collections or None, conditions):
        click.echo(line, err=True)
    if parquet is not None:
        click.echo(f"{counted(_write(parquet, [item for _, item in matches]), 'Item')} in {parquet}")
    elif as_python:
        for address, item in matches:
            click.echo(opening(item, address))
    else:
        rows = [item if as_json else _row(item) for _, item in matches]
        show_rows(rows, COLUMNS, as_json=as_json, ids_of="id" if ids else None)


def _write(path: Path, items: Sequence[Mapping[str, Any]]) -> int:
    from kfm_dagster.followers.geoparquet.order import ordered  # noqa: PLC0415, see above
    from kfm_dagster.followers.geoparquet.parts import parquet  # noqa: PLC0415
    from kfm_dagster.followers.geoparquet.rows import to_table  # noqa: PLC0415

    table = to_table(items)
    path.write_bytes(parquet(ordered(table) if items else table))
    return len(items)


def _condition(text: str) -> PropertyCondition:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise click.BadParameter(f"{text!r} is not PROPERTY=VALUE, PROPERTY<VALUE or PROPERTY>VALUE")
    return match[1].strip(), match[2], match[3].strip()


def _row(item: dict[str, Any]) -> dict[str, Any]:
    properties = item["properties"]
    return {
        "collection": item["collection"],
        "id": item["id"],
        "start": properties.get("start_datetime") or properties["datetime"],
        "end": properties.get("end_datetime") or properties["datetime"],
        "bbox": json.dumps(item.get("bbox")),
    }
