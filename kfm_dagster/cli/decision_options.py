"""Decisions on the command line: actor, reason, change reference, units and confirmation.

Belongs here: the options of all commands that record a decision. Does not belong here: the decisions themselves.
"""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from kfm_dagster.cli.completion import UNIT
from kfm_dagster.errors import RefusedError
from kfm_dagster.governance.log import Decision, UnattributedDecisionError, decision_in
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.plural import counted
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Transaction
from kfm_dagster.views.units import record_of

confirm_option = click.option("--confirm", is_flag=True, help="Do not ask first; needed without a terminal.")


def require_confirmation(question: str, *, confirmed: bool) -> None:
    """Ask, unless confirmed. Raises RefusedError without a terminal, click.Abort after a `no`."""
    if confirmed:
        return
    if not sys.stdin.isatty():
        raise RefusedError(
            "the confirmation needs a terminal",
            observed=question,
            expected="--confirm",
            next_step="look at the plan, then add --confirm",
        )
    click.confirm(question, abort=True, err=True)


Command = TypeVar("Command", bound=Callable[..., Any])


actor_option = click.option("--actor", help="Actor of the decision. Default: KFM_ACTOR, else the user of this machine.")
change_ref_option = click.option("--change-ref", help="Change or incident. Needed for a release, and always in prod.")
# Eager: click reads --dry-run first, wherever it is typed, because a dry run needs no --reason.
dry_run_option = click.option("--dry-run", "dry", is_flag=True, is_eager=True, help="Show what would be done.")
REPLAY_REASON = "Replay reason, such as incident or test; `reasons` in replay_plan.yaml adds more reasons."


class _Reason(click.Option):
    """The option --reason, required except for a dry run, which decides nothing."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        is_typed = isinstance(value, str)
        return super().process_value(ctx, value if is_typed or not ctx.params.get("dry") else "dry run")


def decision_options(command: Command) -> Command:
    """Add the options of a decision: --reason, --change-ref, --actor."""
    reason = click.option("--reason", required=True, cls=_Reason, help="Reason, recorded in the governance log.")
    return reason(change_ref_option(actor_option(command)))


def decision_of(settings: Settings, *, actor: str | None, reason: str, change_ref: str | None) -> Decision:
    """Return the decision, or raise UnattributedDecisionError if a required part is empty."""
    return decision_in(settings.env, actor=actor_of(settings, actor), reason=reason, change_ref=change_ref)


def proposed_line(proposal_id: int, units: int) -> str:
    """Return the line about an override that waits for a second person."""
    what = f"proposal {proposal_id} ({counted(units, 'unit')})"
    return f"{what} waits for a second person: kfm governance approve {proposal_id}"


def actor_of(settings: Settings, actor: str | None) -> str:
    """Return `actor`, else KFM_ACTOR, else the OS user. Raises UnattributedDecisionError."""
    return actor or settings.actor or _user()


def records_of(ledger: Ledger, wal_ids: Iterable[str], tx: Transaction) -> list[NoddWalRecord]:
    """Return the records named by id or prefix, each once. Raises UnknownNameError."""
    return [record_of(ledger, wal_id, tx=tx) for wal_id in dict.fromkeys(UNIT.whole(tx, typed) for typed in wal_ids)]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a user id without a name
        raise UnattributedDecisionError(
            "the actor is unknown", expected="a name", next_step="give --actor, or set KFM_ACTOR"
        ) from None
