"""`kfm items`: search the Items of the catalog."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kfm_dagster.catalog.publisher import PublishError, open_publisher
from kfm_dagster.cli.completion import POSITIVE
from kfm_dagster.cli.files import NewFile
from kfm_dagster.cli.tables import ids_option, show_rows
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import ConfigurationError, DependencyUnavailableError
from kfm_dagster.plural import counted
from kfm_dagster.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

    from kfm_dagster.followers.geoparquet.search import PropertyCondition, SearchCriteria

COLUMNS = ("id", "collection", "start", "end", "bbox")
_CONDITION = re.compile(r"([^=<>]+)([=<>])(.*)", re.DOTALL)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


class TimeRange(click.ParamType):  # type: ignore[type-arg]
    """A day, a moment, or START/END as in STAC APIs, where `..` means open."""

    name = "TIME"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[datetime | None, datetime | None]:
        """Return the bounds, both inclusive."""
        first, slash, last = str(value).partition("/")
        try:
            start, end = _bounds(first)[0], _bounds(last if slash else first)[1]
        except ValueError:
            self.fail(
                f"{value!r} is not a day (2025-12-03), a moment (2025-12-03T06:00Z) or START/END (.. is open)",
                param,
                ctx,
            )
        if start is not None and end is not None and start > end:
            self.fail(f"{value!r} ends before it begins", param, ctx)
        return start, end


class Box(click.ParamType):  # type: ignore[type-arg]
    """WEST,SOUTH,EAST,NORTH in degrees; west is greater than east over the antimeridian."""

    name = "W,S,E,N"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, float, float, float]:
        """Return the four bounds."""
        try:
            west, south, east, north = map(float, str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not four numbers W,S,E,N", param, ctx)
        if not (-180 <= west <= 180 and -180 <= east <= 180 and -90 <= south <= north <= 90):
            self.fail(f"{value!r} is not a box in degrees: west, east from -180 to 180, south below north", param, ctx)
        return west, south, east, north


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
    help="Only of this Collection, or of that of this dataset; may be repeated.",
)
@click.option(
    "--time", "times", type=TimeRange(), help="Only Items of a day, a moment, or START/END (UTC; .. is open)."
)
@click.option("--bbox", type=Box(), help="Only Items whose box meets this box; W > E crosses the antimeridian.")
@click.option("--where", multiple=True, metavar="PROPERTY=VALUE", help="Only with =, < or > of a property; repeatable.")
@click.option("--limit", default=50, show_default=True, type=POSITIVE, help="Maximum number of Items.")
@click.option("--parquet", type=NewFile(), help="Write them as one GeoParquet file.")
@click.option("--json", "as_json", is_flag=True, is_eager=True, help="One Item per line.")
@ids_option
def search(
    *,
    collections: Sequence[str],
    times: tuple[datetime | None, datetime | None] | None,
    bbox: tuple[float, float, float, float] | None,
    where: Sequence[str],
    limit: int,
    parquet: Path | None,
    as_json: bool,
    ids: bool,
) -> None:
    """Search by time, box and properties, over the GeoParquet beside the catalog, without the database.

    Example: kfm items search --time 2025-12-03T06:00Z/.. --where "nexrad:vcp>200" --where platform=wsr-88d --json
    """
    # Imported here, because pyarrow and DuckDB take 0.4 s to import.
    from kfm_dagster.followers.geoparquet.rows import to_items  # noqa: PLC0415
    from kfm_dagster.followers.geoparquet.search import SearchCriteria  # noqa: PLC0415

    settings = Settings.load()
    start, end = times or (None, None)
    wanted = SearchCriteria(start=start, end=end, bbox=bbox, conditions=tuple(map(_condition, where)))
    by_dataset = {contract.id: contract.stac.collection for contract in ContractRegistry.load(settings.contracts_dir)}
    existing = sorted(set(by_dataset.values()))
    collections = sorted({by_dataset.get(name, name) for name in collections} or existing)
    if unknown := set(collections) - set(existing):
        raise click.UsageError(f"no Collection {', '.join(sorted(unknown))}; there are {', '.join(existing)}")
    tables = list(_first(settings, collections, wanted, limit))
    if not tables:
        _refuse_no_catalog(settings)
    if not tables and where:
        _warn_unknown(settings, collections, wanted)
    if parquet is not None:
        click.echo(f"{counted(_write(parquet, tables), 'Item')} in {parquet}")
        return
    matches = [item for table in tables for item in to_items(table)]
    rows = matches if as_json else map(_row, matches)
    show_rows(rows, COLUMNS, as_json=as_json, ids_of="id" if ids else None)


def _first(settings: Settings, collections: Sequence[str], wanted: SearchCriteria, limit: int) -> Iterator[pa.Table]:
    """Yield the first `limit` rows, and read no further."""
    from kfm_dagster.followers.geoparquet.search import search as find  # noqa: PLC0415, see above

    remaining = limit
    try:
        for table in find(open_publisher(settings.catalog), collections, wanted):
            yield table.slice(0, remaining)
            remaining -= table.num_rows
            if remaining <= 0:
                return
    except PublishError as error:
        raise DependencyUnavailableError(
            "the catalog is not reachable", observed=error, next_step="check KFM_CATALOG_URL"
        ) from error


def _refuse_no_catalog(settings: Settings) -> None:
    """Raise ConfigurationError without a catalog: "none" would mean that no Item matches."""
    publisher = open_publisher(settings.catalog)
    if not publisher.folders("") and not publisher.names(""):
        raise ConfigurationError(
            "there is no catalog here",
            observed=settings.catalog,
            expected="a catalog written by an ingest",
            next_step="ingest something (kfm demo), or correct KFM_HOME or KFM_CATALOG_URL",
        )


def _warn_unknown(settings: Settings, collections: Sequence[str], wanted: SearchCriteria) -> None:
    """Report properties that no Item has, with the nearest or all names: they may be misspelt."""
    from kfm_dagster.followers.geoparquet.search import properties_of  # noqa: PLC0415, see above

    names = properties_of(open_publisher(settings.catalog), collections)
    for name in {name for name, *_ in wanted.conditions} - names if names else ():
        near = get_close_matches(name, names)
        hint = f"near it: {', '.join(near)}" if near else f"they have {', '.join(sorted(names))}"
        click.echo(f"no Item of the newest days has the property {name!r}; {hint}", err=True)


def _write(path: Path, tables: Sequence[pa.Table]) -> int:
    from kfm_dagster.followers.geoparquet.order import ordered  # noqa: PLC0415, see above
    from kfm_dagster.followers.geoparquet.parts import parquet  # noqa: PLC0415
    from kfm_dagster.followers.geoparquet.rows import merged, to_table  # noqa: PLC0415

    table = ordered(merged(tables)) if tables else to_table([])
    path.write_bytes(parquet(table))
    return int(table.num_rows)


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


def _bounds(text: str) -> tuple[datetime | None, datetime | None]:
    """Return a text's first and last moment; None twice for an open bound. Raises ValueError."""
    if text in {"..", ""}:
        return None, None
    moment = datetime.fromisoformat(text)
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return moment, moment + timedelta(days=1, microseconds=-1) if _DAY.fullmatch(text) else moment
