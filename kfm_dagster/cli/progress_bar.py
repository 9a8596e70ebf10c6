"""Progress bars of commands, and the bar of commands that wait for a queue to drain."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kfm_dagster.ingest.acknowledgement import Progress as QueueProgress
from kfm_dagster.plural import counted

LINE_SECONDS = 15.0
"""Interval of the lines that replace the bar if the output is not a terminal."""


def bar_of(console: Console, counted: str = "", text: str = "", *, transient: bool = False) -> Progress:
    """Return a bar with completed and total number, the noun `counted`, elapsed time and a text."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(counted))
    return Progress(*columns, TimeElapsedColumn(), TextColumn(text), console=console, transient=transient)


@contextmanager
def drain_bar(console: Console) -> Iterator[Callable[[QueueProgress], None]]:
    """Show on a console: terminal units of all, queued messages, units waiting for a retry.

    Nothing is shown before the first report, so that an early refusal stays a single line. Without a terminal, a line
    is printed every LINE_SECONDS.
    """
    bar = bar_of(console, "units", "{task.fields[waiting]}")
    task = bar.add_task("ingesting", total=None, waiting="")
    next_line = time.monotonic() + LINE_SECONDS

    def report(now: QueueProgress) -> None:
        nonlocal next_line
        parts = ((now.queued, "message", "queued"), (now.waiting, "unit", "waiting for a retry"))
        waiting = ", ".join(f"{counted(number, noun)} {state}" for number, noun, state in parts if number)
        if console.is_terminal:
            bar.start()
            bar.update(task, total=now.units or None, completed=now.terminal, waiting=waiting)
        elif time.monotonic() >= next_line:
            next_line = time.monotonic() + LINE_SECONDS
            console.print(f"ingesting {now.terminal}/{now.units} units{', ' * bool(waiting)}{waiting}", soft_wrap=True)

    try:
        yield report
    finally:
        if bar.live.is_started:
            bar.stop()
