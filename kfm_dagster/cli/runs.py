"""`kfm runs show`: the actions of a run's steps, and the reasons of skips. Changes nothing."""

from __future__ import annotations

import json
from typing import Any

import click

from kfm_dagster.cli.completion import RUN
from kfm_dagster.cli.session import opened_database
from kfm_dagster.cli.tables import object_as_json, show_section
from kfm_dagster.contracts.identity import SHORTEST_PREFIX
from kfm_dagster.deployment.explained_runs import explanations
from kfm_dagster.exports.explanations.run_report import NodeAccount, RunReport
from kfm_dagster.settings import Settings
from kfm_dagster.views.view import json_row

GATES = ("stage", "gate", "outcome", "units", "observed", "expected")
OVERVIEW = ("node", "did", "outcome")
SKIPPED = (*OVERVIEW, "why")
"""Columns if a step was skipped, because only a skip has a reason."""


@click.group()
def runs() -> None:
    """Explain what the steps of a run did, and why.

    Example: kfm runs show latest
    """


@runs.command()
@click.argument("run", type=RUN, metavar="RUN")
@click.option("--full", is_flag=True, help="Also show inputs, hashes, times and measurements of each node.")
@object_as_json
def show(*, run: str, full: bool, as_json: bool) -> None:
    """Explain a run: what each step did, or why it was skipped.

    Gates that did not pass come first.

    RUN is the id of a Dagster run or re-execution, at least the first 8 characters of an id, or `latest` for the newest
    ingest. A wal_id selects the run that last changed the unit; an Item's id selects the run that wrote the Item.
    Re-executions are looked up in DAGSTER_HOME (default: KFM_HOME/dagster).

    Example: kfm runs show latest
    """
    settings = Settings.load()
    with opened_database(settings) as database:
        account = explanations(database, settings).explain(run)
    if as_json:
        click.echo(json.dumps(json_row(account)))
    else:
        _show(account, storage=settings.storage, full=full)


def _show(account: RunReport, *, storage: str, full: bool) -> None:
    click.echo(f"run {account.run_id}")
    if account.run_id != account.root_run_id:
        click.echo(f"re-execution of {account.root_run_id}")
    elif account.reexecutions:
        click.echo(f"with its re-executions {', '.join(account.reexecutions)}")
    click.echo(f"outputs below {storage}\n")
    if account.failing_gates:
        show_section("gates that did not pass", account.failing_gates, GATES)
    partitions = {node.node.partition("@")[2] for node in account.nodes}
    common = partitions.pop() if len(partitions) == 1 else ""
    title = f"nodes of {common}" if common else "nodes"
    rows = [_overview(node, common) for node in account.nodes]
    show_section(title, rows, SKIPPED if any(row["why"] for row in rows) else OVERVIEW)
    for dataset, counts in account.units.items():
        ends = ", ".join(f"{count} {end}" for end, count in counts.items() if end != "claimed")
        click.echo(f"units of {dataset}: {counts['claimed']} claimed{': ' if ends else ''}{ends}")
    for node in account.nodes if full else ():
        click.echo()
        show_section(node.node, _details(node), ("field", "value"))


def _overview(node: NodeAccount, partition: str) -> dict[str, Any]:
    """Return a short row, without the partition that all nodes share; a run id is shortened."""
    why, by = node.why or "", node.applied_by
    return {
        "node": node.node.removesuffix(f"@{partition}"),
        "did": node.did,
        "outcome": node.outcome,
        "why": why.replace(by, by[:SHORTEST_PREFIX]) if by else why,
    }


def _details(node: NodeAccount) -> list[dict[str, Any]]:
    """Return the non-empty fields that the overview leaves out; each input is a row of its own."""
    overview = {"node", "fate", "did", "why", "outcome", "inputs", "took"}
    fields = [
        {"field": name, "value": value} for name, value in json_row(node).items() if value and name not in overview
    ]
    inputs = [
        {"field": "input", "value": " ".join([entry["uri"], *(f"{k}={v}" for k, v in entry.items() if k != "uri")])}
        for entry in node.inputs
    ]
    # None of these measurements is exact to more than four digits.
    rounded = {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in node.took.items()}
    took = [{"field": name, "value": value} for name, value in rounded.items()]
    return [*inputs, *fields, *took]
