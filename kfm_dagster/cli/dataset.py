"""`kfm dataset`: look at and check dataset contracts."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from kfm_dagster.contracts.loader import ContractRegistry, parse_contract, read_contract_text
from kfm_dagster.errors import ContractError
from kfm_dagster.readers.registry import refuse_orphans
from kfm_dagster.settings import Settings


@click.group()
def dataset() -> None:
    """Look at and check dataset contracts.

    Example: kfm dataset list
    """


@dataset.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_datasets(*, as_json: bool) -> None:
    """List the datasets in force.

    Example: kfm dataset list --json
    """
    registry = ContractRegistry.load(Settings.load().contracts_dir)
    rows = [
        {
            "id": contract.id,
            "title": contract.metadata.title,
            "reader": contract.metadata_extract.reader,
            "buckets": contract.storage.buckets,
            "topics": [topic.arn for topic in contract.notifications.topics],
        }
        for contract in registry
    ]
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
        return
    table = Table("dataset", "reader", "buckets", "title")
    for row in rows:
        table.add_row(str(row["id"]), str(row["reader"]), "\n".join(row["buckets"]), str(row["title"]))
    Console().print(table)


@dataset.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def check(*, file: Path) -> None:
    """Check a contract file, alone and against the contracts in force.

    Example: kfm dataset check my-dataset.yaml
    """
    if not file.is_file():
        raise ContractError("there is no such file", observed=str(file), expected="a YAML dataset contract")
    contract = parse_contract(read_contract_text(file), source=file.name)
    registry = ContractRegistry.load(Settings.load().contracts_dir)
    refuse_orphans(ContractRegistry.of([*(known for known in registry if known.id != contract.id), contract]))
    click.echo(f"{contract.id}: in order")
