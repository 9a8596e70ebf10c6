"""`kfm queue`: create the queue of a dataset, or print its IAM policy or Terraform module."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import boto3
import click

from kfm_dagster.cli.completion import DATASET
from kfm_dagster.cli.tables import object_as_json
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.deployment.provisioning import Part, PartState, QueueMaker, QueuePlan, iam_policy, terraform_module
from kfm_dagster.errors import ExitCode
from kfm_dagster.notifications.sqs import DEFAULT_REGION, bounded
from kfm_dagster.settings import Settings


@click.group()
def queue() -> None:
    """Create a dataset's queue, dead-letter queue and subscriptions.

    Example: kfm queue create --dataset gfs --dry-run
    """


@queue.command()
@click.option("--dataset", type=DATASET, required=True, help="Dataset whose topics send to the queue.")
@click.option("--dry-run", is_flag=True, help="Show the changes to make, without making them.")
@click.option("--update", is_flag=True, help="Correct existing parts that differ; by default they are only reported.")
@click.option(
    "--print",
    "printed",
    type=click.Choice(["iam", "terraform"]),
    help="Only print the IAM policy of the deployment's role, or the Terraform that calls deploy/terraform/queue.",
)
@object_as_json
def create(*, dataset: str, dry_run: bool, update: bool, printed: str | None, as_json: bool) -> int:
    """Create a dataset's queues, with redrive, access policy and SNS subscriptions.

    KFM_SQS_PRIMARY_QUEUE and KFM_SQS_DLQ_QUEUE name the queues; several datasets can share them. A second run changes
    nothing. Exit code 4 if --update would correct a difference, else 0.

    Example: kfm queue create --dataset gfs --print iam
    """
    settings = Settings.load()
    registry = ContractRegistry.load(settings.contracts_dir).only(settings.followed)
    contract = registry[dataset]
    plan = QueuePlan.of(contract, registry, settings)
    session = boto3.session.Session()
    region = session.region_name or DEFAULT_REGION
    if printed == "iam":
        click.echo(json.dumps(iam_policy(plan, contract, settings, region=region), indent=2))
        return ExitCode.DONE
    if printed == "terraform":
        click.echo(terraform_module(plan), nl=False)
        return ExitCode.DONE
    maker = QueueMaker(
        plan=plan,
        sqs=session.client("sqs", region_name=region, config=bounded(1)),
        sns_of=lambda of_topic: session.client("sns", region_name=of_topic, config=bounded(1)),
        update=update,
        dry_run=dry_run,
    )
    parts = maker.make()
    _show(parts, dry_run=dry_run, as_json=as_json)
    drifted = any(part.change is PartState.DRIFT for part in parts)
    return ExitCode.FINISHED_WITH_FAILURES if drifted else ExitCode.DONE


def _show(parts: Sequence[Part], *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"dry_run": dry_run, "parts": [asdict(part) for part in parts]}))
        return
    for part in parts:
        difference = f"; observed {part.observed}, expected {part.expected}" if part.observed else ""
        click.echo(f"{part.change.value:10}{part.what}{difference}")
    if any(part.change is PartState.DRIFT for part in parts):
        click.echo("next: review the differences, then repeat the command with --update")
