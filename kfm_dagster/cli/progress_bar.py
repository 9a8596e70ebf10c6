"""Progress bars of commands, and the bar of commands that wait for a queue to drain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kfm_dagster.ingest.acknowledgement import Progress as QueueProgress
from kfm_dagster.plural import counted


def bar_of(console: Console, counted: str = "", text: str = "", *, transient: bool = False) -> Progress:
    """Return a bar of completed and total `counted`, with the elapsed time and a text."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(counted))
    return Progress(*columns, TimeElapsedColumn(), TextColumn(text), console=console, transient=transient)


@contextmanager
def drain_bar(console: Console) -> Iterator[Callable[[QueueProgress], None]]:
    """Show completed, known and waiting units on a console; nothing before the first report.

    So an early refusal stays a single line.
    """
    bar = bar_of(console, "units", "{task.fields[waiting]}")
    task = bar.add_task("ingesting", total=None, waiting="")

    def report(now: QueueProgress) -> None:
        bar.start()
        waiting = f"{counted(now.queued, 'message')} queued, {counted(now.waiting, 'unit')} in wait for a retry"
        bar.update(task, total=now.units or None, completed=now.terminal, waiting=waiting)

    try:
        yield report
    finally:
        if bar.live.is_started:
            bar.stop()
