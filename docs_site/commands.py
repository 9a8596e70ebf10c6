"""Reference of the `kfm` command: what `--help` says of it and of every command below it."""

from __future__ import annotations

from collections.abc import Iterator

import click

from docs_site.text import table
from kfm_dagster.cli.main import kfm
from kfm_dagster.errors import ExitCode

MEANINGS = {
    ExitCode.DONE: "done",
    ExitCode.USAGE: "an argument, a setting or a file is wrong",
    ExitCode.REFUSED: "refused by a rule: a guard, a state, an answer that did not confirm",
    ExitCode.FINISHED_WITH_FAILURES: "finished, and something is at fault or waits for a person",
    ExitCode.DEPENDENCY_UNAVAILABLE: "a database, queue or store does not answer",
    ExitCode.WAITS_FOR_APPROVAL: "waits for a second person",
}


def page() -> str:
    """Return the page."""
    rows = [(f"`{code.value}`", meaning) for code, meaning in MEANINGS.items()]
    lines = [
        "# Commands",
        "",
        "What `kfm COMMAND --help` says. Each refusal is one line on standard error: what, what was observed, what was",
        "expected, and the next step.",
        "",
        *table(["exit code", "meaning"], [*rows, ("`130`", "interrupted by Ctrl-C; nothing is lost")]),
    ]
    for path, context in walk(kfm, "kfm"):
        level = "##" if path.count(" ") < 2 else "###"
        lines += [f"{level} {path}", "", "```text", context.get_help(), "```", ""]
    return "\n".join(lines)


def walk(command: click.Command, path: str, parent: click.Context | None = None) -> Iterator[tuple[str, click.Context]]:
    """Every command of a tree that is shown, as it is typed, with a context to ask for its help."""
    context = click.Context(command, info_name=path.rpartition(" ")[2], parent=parent, terminal_width=100)
    yield path, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from walk(below, f"{path} {name}", context)
