"""`kfm stac`: show the lag of the STAC API, compare it with the catalog, and rebuild it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import click

from kfm_dagster.catalog.changes import Follower
from kfm_dagster.cli.completion import DATASET
from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.cli.tables import rows_as_json, show_rows, show_section
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.errors import ConfigurationError, ExitCode
from kfm_dagster.followers.stac_api.comparison import Comparison, DayComparison, compare
from kfm_dagster.followers.stac_api.follower import PgstacFollower
from kfm_dagster.ingest.preflight import hold_roots
from kfm_dagster.reading.stores import stores
from kfm_dagster.storage.publisher import open_publisher

REFILLED_COLUMNS = ("collection_id", "changes")
STATUS_COLUMNS = ("collection_id", "behind", "failures", "next_attempt_at", "last_error")
COLUMNS = ("collection_id", "days", "catalog", "api", "collection", "equal")
DAY_COLUMNS = ("collection_id", "day", "catalog", "api", "missing", "extra", "differing")


@click.group()
def stac() -> None:
    """Show, compare and rebuild the STAC API; write virtual stores to Icechunk.

    Example: kfm stac check
    """


_collections = click.option(
    "--collection", "collections", multiple=True, metavar="ID", help="Only this Collection; may be repeated."
)


@stac.command()
@rows_as_json
def status(*, as_json: bool) -> None:
    """Show how many changes of the catalog the API lacks, and the error that blocks them.

    Example: kfm stac status
    """
    with opened_pipeline(read_only=True) as pipeline:
        follower = _follower(pipeline.followers)
        states = [state for state in pipeline.following.states() if state.follower == follower.name]
    show_rows(states, STATUS_COLUMNS, as_json=as_json)


@stac.command()
@_collections
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line: a collection with each of its days.")
def check(*, collections: Sequence[str], as_json: bool) -> int:
    """Compare the API with the catalog: counts and content hashes of each day. Changes nothing.

    Exit code 4 if they differ; the days that differ are listed. During an ingest, changes that the API does not have
    yet count as differences.

    Example: kfm stac check --collection goes-abi
    """
    with opened_pipeline(read_only=True) as pipeline:
        follower = _follower(pipeline.followers)
        publisher = open_publisher(pipeline.settings.catalog)
        owners = _owners(pipeline.registry, collections)
        return _shown([compare(pipeline.database, publisher, follower, owner) for owner in owners], as_json=as_json)


@stac.command()
@_collections
@click.option(
    "--place",
    metavar="NAME",
    default=PgstacFollower.name,
    show_default=True,
    help="Output to fill again: the API, geoparquet, virtual-zarr, or another follower of the catalog.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per collection.")
def rebuild(*, collections: Sequence[str], place: str, as_json: bool) -> int:
    """Empty the API, load it from the catalog, and compare the two as `check` does.

    A collection is missing from the API until its Items are loaded. Exit code 4 if API and catalog differ afterwards.
    With --place, another follower is emptied and filled again, and the number of changes that it gets is shown.

    Example: kfm stac rebuild --collection goes-abi
    """
    with opened_pipeline() as pipeline:
        owners, places = _owners(pipeline.registry, collections), {entry.name: entry for entry in pipeline.followers}
        follower = _follower(places.values()) if place == PgstacFollower.name else places.get(place)
        if follower is None:
            raise ConfigurationError(
                f"this deployment has no follower {place}",
                expected=", ".join(places) or "a follower",
                next_step="set KFM_GEOPARQUET=true or KFM_VIRTUAL_URL, or install the follower",
            )
        hold_roots(pipeline.settings, pipeline.database)
        if not isinstance(follower, PgstacFollower):
            rows = [
                {"collection_id": owner.stac.collection, "changes": pipeline.following.rebuild(follower, owner)}
                for owner in owners
            ]
            show_rows(rows, REFILLED_COLUMNS, as_json=as_json)
            return ExitCode.DONE
        publisher, comparisons = open_publisher(pipeline.settings.catalog), []
        for contract in owners:
            pipeline.following.rebuild(follower, contract)
            comparisons.append(compare(pipeline.database, publisher, follower, contract))
        return _shown(comparisons, as_json=as_json)


@stac.command()
@click.argument("dataset", type=DATASET)
@click.argument("name")
@click.argument("target")
@click.option("--time", metavar="TIME", help="A day, or START/END: the days whose stores are written; default: all.")
def icechunk(*, dataset: str, name: str, target: str, time: str | None) -> None:
    """Write a dataset's virtual stores as one array to an Icechunk repository.

    NAME is the name of the stores, which have one for each day; TARGET is a folder or s3://bucket/prefix. Each
    reference has the ETag of the object that was indexed, so Icechunk refuses an object that was written again. Each
    call replaces the array by a commit on the branch main.

    Example: kfm stac icechunk goes-abi G19_ABI-L1b-RadM1_C13 s3://my-icechunk/june --time 2025-06-01/2025-06-30
    """
    # Imported here, because the import takes 0.3 s.
    from kfm_dagster.reading.icechunk_form import write_icechunk  # noqa: PLC0415

    click.echo(f"{write_icechunk(stores(dataset, name, time=time), target)} steps")


def _follower(followers: Iterable[Follower]) -> PgstacFollower:
    for follower in followers:
        if isinstance(follower, PgstacFollower):
            return follower
    raise ConfigurationError(
        "there is no STAC API", expected="its PostgreSQL database", next_step="set KFM_STAC_API_DSN"
    )


def _owners(registry: ContractRegistry, collections: Sequence[str]) -> list[DatasetContract]:
    owners = {contract.stac.collection: registry.owner(contract) for contract in registry}
    if unknown := sorted(set(collections) - set(owners)):
        raise click.UsageError(f"no such collection: {', '.join(unknown)} (there are {', '.join(sorted(owners))})")
    return [owners[collection] for collection in sorted(collections or owners)]


def _shown(comparisons: Iterable[Comparison], *, as_json: bool) -> int:
    # A collection that is empty on both sides is not shown.
    shown = [comparison for comparison in comparisons if comparison.days or not comparison.same_collection]
    if as_json:
        for comparison in shown:
            days = [_day(day) for day in comparison.days]
            click.echo(json.dumps({"collection_id": comparison.collection_id, "equal": comparison.equal, "days": days}))
    else:
        show_rows(map(_row, shown), COLUMNS)
        differing = [_day(day) for comparison in shown for day in comparison.days if not day.equal]
        if differing:
            show_section("days that differ", differing, DAY_COLUMNS)
    return ExitCode.DONE if all(comparison.equal for comparison in shown) else ExitCode.FINISHED_WITH_FAILURES


def _row(comparison: Comparison) -> dict[str, Any]:
    return {
        "collection_id": comparison.collection_id,
        "days": len(comparison.days),
        "catalog": sum(day.catalog for day in comparison.days),
        "api": sum(day.api for day in comparison.days),
        "collection": "same" if comparison.same_collection else "differs",
        "equal": "yes" if comparison.equal else "no",
    }


def _day(day: DayComparison) -> dict[str, Any]:
    catalog, api = day.digests
    facts = {name: getattr(day, name) for name in ("collection_id", "day", "catalog", "api")}
    names = {name: " ".join(getattr(day, name)) for name in ("missing", "extra", "differing")}
    return {**facts, "catalog_sha256": catalog, "api_sha256": api, **names}
