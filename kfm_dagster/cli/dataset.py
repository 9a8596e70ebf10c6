"""`kfm dataset` and `kfm registry`: contracts, and their comparison with AWS's registry."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kfm_dagster.cli.completion import DATASET
from kfm_dagster.cli.files import NewFile
from kfm_dagster.cli.tables import list_command, object_as_json, rows_as_json, show_rows
from kfm_dagster.configs import read_text
from kfm_dagster.contracts.drift import RegistryExceptions, drifts
from kfm_dagster.contracts.loader import ContractRegistry, draft, parse_contract
from kfm_dagster.contracts.open_data import CLONE, OpenDataRegistry
from kfm_dagster.errors import ContractError, ExitCode
from kfm_dagster.plural import counted
from kfm_dagster.settings import Settings

if TYPE_CHECKING:
    from kfm_dagster.ingest.rehearsal import Rehearsal

SHOWN_CHARACTERS = 160
"""Characters shown of a property; an Item may have three reference systems as WKT, of a thousand characters each."""
FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


@click.group()
def dataset() -> None:
    """List, draft and check dataset contracts.

    Example: kfm dataset list
    """


@dataset.command("list")
@list_command("id", "status", "reader", "title", "buckets")
def list_datasets() -> list[dict[str, Any]]:
    """List the datasets that have a contract.

    Example: kfm dataset list --json
    """
    return [
        {
            "id": contract.id,
            "status": contract.metadata.status,
            "notice": contract.metadata.notice,
            "title": contract.metadata.title,
            "reader": contract.metadata_extract.reader,
            "buckets": contract.storage.buckets,
            "topics": [topic.arn for topic in contract.notifications.topics],
        }
        for contract in ContractRegistry.load(Settings.load().contracts_dir)
    ]


@dataset.command()
@click.argument("dataset_id", type=DATASET, metavar="DATASET")
@click.option("--like", required=True, help="Dataset that ships with the package and has the same format.")
@click.option("--bucket", help="Bucket of the dataset's objects. Default: the only bucket of the registry entry.")
@click.option(
    "--topic",
    help="ARN of the SNS topic that announces the dataset's objects; not needed if the dataset of --like has no topic.",
)
@click.option("--from-registry", "entry_name", help="Entry of the AWS open-data registry: its file without .yaml.")
@click.option("--registry", "folder", type=FOLDER, help=f"Folder of the registry's files. Default: {CLONE}.")
@click.option("--out", type=NewFile(edited=True), help="New file to write. Default: standard output.")
def new(
    *,
    dataset_id: str,
    like: str,
    bucket: str | None,
    topic: str | None,
    entry_name: str | None,
    folder: Path | None,
    out: Path | None,
) -> None:
    """Write a contract for another dataset, derived from the contract of --like.

    Citations and units of measurement are kept. The first lines list the parts to review. After the review, check the
    contract on a sample.
    --from-registry takes title, description, bucket, topic, region and license from the entry.

    Example: kfm dataset new graphcastgfs --like gefs --bucket noaa-nws-graphcastgfs-pds --topic ARN
    """
    entry = OpenDataRegistry.read(folder or CLONE)[entry_name] if entry_name else None
    if entry is not None:
        bucket = bucket or _only_one(entry.buckets, "--bucket")
        topic = topic or _only_one(entry.topics, "--topic")
    if bucket is None:
        raise click.UsageError("Missing option '--bucket'")
    text = draft(dataset=dataset_id, like=like, bucket=bucket, topic=topic, entry=entry)
    if out is None:
        click.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")
        click.echo(f"{out} is written; next: kfm dataset check {shlex.quote(str(out))} --sample OBJECT")


def _only_one(names: Collection[str], option: str) -> str | None:
    if len(names) > 1:
        raise ContractError(
            "the registry entry names several", observed=", ".join(names), next_step=f"choose one by {option}"
        )
    return next(iter(names), None)


@dataset.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--sample",
    type=click.Path(path_type=Path),
    help="Object to pass through an ingest: DIR/BUCKET/KEY, with its sidecars beside it.",
)
@object_as_json
def check(*, file: Path, sample: Path | None, as_json: bool) -> ExitCode:
    """Check a contract file by itself, against the other contracts, and on a sample object.

    With --sample, the object passes the whole chain of an ingest: reader, gates, validation of the Item. Only contracts
    and pipeline card of the deployment are read, and nothing of it is written. Exit code 4: an ingest would not give a
    valid Item, or a gate had findings.

    Example: kfm dataset check my-dataset.yaml --sample nodd/noaa-hrrr-bdp-pds/hrrr.20250402/conus/f.grib2
    """
    if not file.is_file():
        raise ContractError("there is no such file", observed=str(file), expected="a YAML dataset contract")
    contract = parse_contract(read_text(file, error=ContractError), source=file.name)
    current = ContractRegistry.load(Settings.load().contracts_dir)
    registry = ContractRegistry.of([*(other for other in current if other.id != contract.id), contract])
    # Imported here, because it imports most modules of an ingest.
    from kfm_dagster.ingest.rehearsal import rehearse  # noqa: PLC0415

    rehearsal = None if sample is None else rehearse(registry, contract.id, sample)
    if as_json:
        sample_json = rehearsal and {**dataclasses.asdict(rehearsal), "is_sound": rehearsal.is_sound}
        click.echo(json.dumps({"id": contract.id, "in_order": True, "sample": sample_json}))
    else:
        unread = "; no object was read: add --sample OBJECT" if rehearsal is None else ""
        click.echo(f"{contract.id}: the contract is in order{unread}")
        if rehearsal is not None:
            _show(rehearsal)
    return ExitCode.DONE if rehearsal is None or rehearsal.is_sound else ExitCode.FINISHED_WITH_FAILURES


def _show(rehearsal: Rehearsal) -> None:
    click.echo(f"{rehearsal.uri}: {rehearsal.status or 'not ingested'}")
    for severity, texts in (("at fault", rehearsal.findings), ("suspect", rehearsal.suspect)):
        for text in texts:
            click.echo(f"  {severity}: {text}")
    if rehearsal.item is not None:
        click.echo(f"  Item {rehearsal.item['id']}, bbox {rehearsal.item.get('bbox')}")
        for name, value in rehearsal.item["properties"].items():
            text = value if isinstance(value, str) else json.dumps(value)
            click.echo(f"    {name}: {text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + '...'}")


@click.group()
def registry() -> None:
    """Compare dataset contracts with the AWS open-data registry.

    Example: kfm registry check open-data-registry/datasets
    """


@registry.command("check")
@click.argument("folder", metavar="DIR", type=FOLDER)
@rows_as_json
def check_registry(*, folder: Path, as_json: bool) -> ExitCode:
    """Print the differences between the deployment's contracts and the registry's files.

    It compares topics, buckets, regions and licences. It also reports sentences of the registry that announce the end
    of data, and NOAA's topics without a contract, unless registry-exceptions.yaml lists them. DIR has the registry's
    YAML files; nothing is fetched. Exit code 0 without differences, 4 with differences, 2 for unreadable files.

    Example: kfm registry check open-data-registry/datasets --json
    """
    settings = Settings.load()
    entries = OpenDataRegistry.read(folder)
    contracts = ContractRegistry.load(settings.contracts_dir)
    differences = list(drifts(contracts, entries, RegistryExceptions.load(settings.configs_dir)))
    if as_json:
        show_rows(differences, (), as_json=True)
    else:
        for difference in differences:
            click.echo(str(difference))
        compared = (
            f"{counted(len(contracts.contracts), 'contract')} and {counted(len(entries.entries), 'registry file')}"
        )
        click.echo(f"{compared}: {counted(len(differences), 'difference')}")
    return ExitCode.FINISHED_WITH_FAILURES if differences else ExitCode.DONE
