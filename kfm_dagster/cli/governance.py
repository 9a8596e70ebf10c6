"""`kfm governance`: the log of decisions, and the overrides that wait for a second person."""

from __future__ import annotations

import json
from typing import Any

import click

from kfm_dagster.cli.completion import POSITIVE
from kfm_dagster.cli.decision_options import decision_of, decision_options
from kfm_dagster.cli.filter_options import lists
from kfm_dagster.cli.kill_switch import list_switches
from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.cli.tables import list_command, object_as_json
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.governance.review import Command, Proposal
from kfm_dagster.plural import counted
from kfm_dagster.recovery import work_orders
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.settings import Settings
from kfm_dagster.views.decisions import LOG
from kfm_dagster.views.view import json_row


@click.group()
def governance() -> None:
    """List the governance log, and approve or withdraw proposed overrides.

    Example: kfm governance log
    """


@governance.command()
@lists(LOG)
def log() -> None:
    """List decisions, the newest first.

    Example: kfm governance log --action release --dataset goes-abi
    """


governance.add_command(list_switches, "paused")


@governance.command()
@list_command("proposal_id", "at", "proposed_by", "command", "units", "reason", "expires_at", "change_ref")
def pending() -> list[dict[str, Any]]:
    """List overrides that wait for a second person, newest first; --json adds their units.

    Example: kfm governance pending
    """
    with opened_pipeline(read_only=True) as pipeline:
        review = pipeline.ledger.review
        with pipeline.database.snapshot() as tx:
            return [
                proposal_row(proposal) | {"overrides": review.units(proposal.proposal_id, tx=tx)}
                for proposal in review.waiting(tx=tx)
            ]


@governance.command()
@click.argument("proposal_id", type=POSITIVE)
@decision_options
@object_as_json
def approve(*, proposal_id: int, as_json: bool, **decided: Any) -> None:
    """Approve another person's proposed override and carry it out.

    Both happen, or neither. A proposed replay of a run is only approved; start it again afterwards.

    Example: kfm governance approve 17 --actor bob --reason "seen the evidence" --change-ref CHG-42
    """
    decision = decision_of(Settings.load(), **decided)
    with opened_pipeline() as pipeline:
        proposal, replay_run_id = work_orders.approve(ReplayEngine(pipeline=pipeline), proposal_id, decision)
    row = proposal_row(proposal) | {"approved_by": decision.actor, "replay_run_id": replay_run_id}
    click.echo(json.dumps(row) if as_json else _carried_out(proposal, replay_run_id))


@governance.command()
@click.argument("proposal_id", type=POSITIVE)
@decision_options
@object_as_json
def withdraw(*, proposal_id: int, as_json: bool, **decided: Any) -> None:
    """Close a proposal without carrying it out: your own, or another person's.

    Example: kfm governance withdraw 17 --reason "the wrong units" --change-ref CHG-42
    """
    decision = decision_of(Settings.load(), **decided)
    with opened_pipeline() as pipeline, pipeline.database.transaction() as tx:
        proposal = pipeline.ledger.review.withdraw(proposal_id, decision, tx=tx)
    row = proposal_row(proposal) | {"withdrawn_by": decision.actor}
    click.echo(json.dumps(row) if as_json else f"proposal {proposal_id} is withdrawn; nothing was changed")


def proposal_row(proposal: Proposal) -> dict[str, Any]:
    """Return the published form of a proposal."""
    row = json_row(proposal)
    decision = row.pop("decision")
    decided = {"proposed_by": decision["actor"], "reason": decision["reason"], "change_ref": decision["change_ref"]}
    return row | decided | {"expires_at": rfc3339(proposal.expires_at)}


def _carried_out(proposal: Proposal, replay_run_id: str | None) -> str:
    what = f"proposal {proposal.proposal_id} is approved: {counted(proposal.units, 'unit')}"
    match proposal.command:
        case Command.RELEASE:
            return f"{what} released"
        case Command.REPLAY:
            return f"{what}, replay {replay_run_id} runs (kfm replay status {replay_run_id})"
        case Command.RUN_REPLAY:
            return f"{what}; start the replay of run {proposal.content['run_id']} again"
