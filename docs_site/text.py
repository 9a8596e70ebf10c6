"""Markdown that the generated pages share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table, with a blank line at the end; no lines without rows."""
    lines = [f"| {' | '.join(cell(value) for value in row)} |" for row in rows]
    return [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}", *lines, ""] if lines else []


def cell(text: str) -> str:
    """Return a text as a cell, without the bars and line breaks that would end it."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """Return a text as code, even if it contains backticks."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def prose(text: str) -> str:
    """Return a text in which no `<` begins a tag; code is unchanged."""
    parts = text.split("`")
    return "`".join(part if number % 2 else part.replace("<", "&lt;") for number, part in enumerate(parts))
