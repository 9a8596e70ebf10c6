"""Reference of the command `kfm`: its `--help`, and that of every command below it."""

from __future__ import annotations

from collections.abc import Iterator

import click

from docs_site.text import table
from kfm_dagster.cli.main import kfm
from kfm_dagster.errors import ExitCode

MEANINGS = {
    ExitCode.DONE: "done",
    ExitCode.USAGE: "an argument, a setting or a file is wrong",
    ExitCode.REFUSED: "refused: by a guard, by the state of a record, or without confirmation",
    ExitCode.FINISHED_WITH_FAILURES: "finished, with failures or with work for a person",
    ExitCode.DEPENDENCY_UNAVAILABLE: "a database, queue or store does not answer",
    ExitCode.WAITS_FOR_APPROVAL: "waits for a second person",
}


def page() -> str:
    """Return the page."""
    rows = [(f"`{code.value}`", meaning) for code, meaning in MEANINGS.items()]
    lines = [
        "# Commands",
        "",
        "The output of `kfm COMMAND --help`. Each refusal is one line on standard error: the fault, the observed and",
        "the expected value, and the next step.",
        "",
        *table(["exit code", "meaning"], [*rows, ("`130`", "interrupted by Ctrl-C; nothing is lost")]),
    ]
    for path, context in walk(kfm, "kfm"):
        level = "##" if path.count(" ") < 2 else "###"
        lines += [f"{level} {path}", "", "```text", context.get_help(), "```", ""]
    return "\n".join(lines)


def walk(command: click.Command, path: str, parent: click.Context | None = None) -> Iterator[tuple[str, click.Context]]:
    """Yield every shown command of a tree, as typed, with a context for its help."""
    context = click.Context(command, info_name=path.rpartition(" ")[2], parent=parent, terminal_width=100)
    yield path, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from walk(below, f"{path} {name}", context)
