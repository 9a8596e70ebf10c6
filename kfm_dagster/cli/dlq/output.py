"""What the commands of the dead-letter queue print: plans, progress and reports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.console import Console

from kfm_dagster.cli.progress_bar import bar_of
from kfm_dagster.cli.tables import show_rows
from kfm_dagster.plural import counted
from kfm_dagster.recovery.dead_letters.batches import NOT_MEANT, DeadLetterWork, End, LetterOutcome, Report
from kfm_dagster.recovery.dead_letters.plan import DeadLetterPlan

GROUP_COLUMNS = ("class", "dataset", "error_code", "messages", "units", "no_replay", "recurred")
OUTCOME_COLUMNS = ("outcome", "messages")
USUAL = {LetterOutcome.DELETED, LetterOutcome.WAITS, LetterOutcome.MOVED, LetterOutcome.DISCARDED}
"""Outcomes that are counted and not listed; `--json` lists every message."""
MESSAGE_COLUMNS = ("message_id", "class", "dataset", "error_code", "outcome", "detail")


@contextmanager
def bar(name: str, *, total: int) -> Iterator[Report]:
    """Show messages worked on of messages planned, on stderr."""
    with bar_of(Console(stderr=True)) as bar:
        task = bar.add_task(name, total=total)
        yield lambda report: bar.update(
            task, completed=sum(report.outcomes.values()) - report.outcomes[LetterOutcome.LEFT]
        )


def show_plan(planned: DeadLetterPlan, *, limit: int | None = None) -> None:
    """Print what would be worked on, and how many of it under a limit."""
    now = f", {limit} of them now" if limit is not None and limit < planned.selected else ""
    click.echo(f"{planned.queue}: {counted(planned.looked_at, 'message')} looked at, {planned.selected} selected{now}")
    show_rows(planned.groups, GROUP_COLUMNS)


def show_report(done: DeadLetterWork) -> None:
    """Print what became of the messages; what a person has to know besides goes to stderr."""
    unusual = [message for message in done.messages if message.outcome not in USUAL and message.detail not in NOT_MEANT]
    if unusual:
        show_rows([message.as_json() for message in unusual], MESSAGE_COLUMNS)
    show_rows(
        [{"outcome": outcome.value, "messages": count} for outcome, count in done.outcomes.most_common()],
        OUTCOME_COLUMNS,
    )
    click.echo(
        f"{done.run_id}: batches {done.batches}, units created {done.created}, let in again {done.requeued}, "
        f"quarantined {done.quarantined}"
    )
    if done.outcomes[LetterOutcome.WAITS]:
        click.echo(
            f"{done.outcomes[LetterOutcome.WAITS]} messages stay until the daemon (or kfm drain) has worked their units"
        )
    for message_id in sorted(done.unmet):
        click.echo(f"not done: {message_id}", err=True)
    if done.end not in {None, End.EMPTY, End.LIMIT}:
        click.echo(f"ended at {done.end}" + (f": {done.detail}" if done.detail else ""), err=True)
