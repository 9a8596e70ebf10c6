"""Confirming: what changes many records waits for a person at the terminal, or for --confirm. Nothing else."""

from __future__ import annotations

import sys

import click

from kfm_dagster.errors import ExitCode, KfmError

confirm_option = click.option("--confirm", is_flag=True, help="Do it without asking; needed where nobody can be asked.")


class NotConfirmedError(KfmError):
    """Nobody is at the terminal to confirm it."""

    exit_code = ExitCode.REFUSED


def require_confirmation(question: str, *, confirmed: bool) -> None:
    """Ask, unless it is confirmed already. Raises NotConfirmedError where nobody can be asked, click.Abort on a no."""
    if confirmed:
        return
    if not sys.stdin.isatty():
        raise NotConfirmedError(observed=question, expected="--confirm", next_step="look at the plan, add --confirm")
    click.confirm(question, abort=True, err=True)
