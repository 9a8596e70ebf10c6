"""Reference of the states, reasons and codes of records, log lines and answers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from docs_site.text import code, prose, table

PACKAGE = Path(__file__).resolve().parents[1] / "kfm_dagster"


class Words(NamedTuple):
    """An enum of texts: its name, its module, its description, and each value with its meaning."""

    name: str
    module: str
    meaning: str
    values: list[tuple[str, str]]


def page() -> str:
    """Return the page."""
    lines = [
        "# States, reasons and codes",
        "",
        "Each list is an enum of the code, so a record has no other word. The dataset's [contract](contracts.md)",
        "defines whether a unit continues after a finding of an operator. [Alerts](../alerts.md) has the rules,",
        "[validation errors](../runbooks/validation-errors.md) the repairs.",
        "",
    ]
    for room, enums in sorted(_by_room().items()):
        lines += [f"## {room}", ""]
        for words in enums:
            lines += [f"### {words.name}", "", f"{prose(words.meaning)} `{words.module}`", ""]
            lines += table(["value", "meaning"], [(code(value), prose(meaning)) for value, meaning in words.values])
    return "\n".join(lines)


def vocabularies() -> Iterator[Words]:
    """Yield every StrEnum of the package, except the demo's."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).as_posix()
        if module.startswith("demo/"):
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and "StrEnum" in [ast.unparse(base) for base in node.bases]:
                yield Words(node.name, module, ast.get_docstring(node) or "", list(_values(node)))


def _by_room() -> dict[str, list[Words]]:
    rooms: dict[str, list[Words]] = {}
    for words in vocabularies():
        rooms.setdefault(words.module.partition("/")[0].removesuffix(".py"), []).append(words)
    return rooms


def _values(enum: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield each member's value, and its meaning: the tuple's second text, or the text below."""
    for node, after in zip(enum.body, [*enum.body[1:], None], strict=True):
        if isinstance(node, ast.Assign):
            value, meaning = node.value, ""
            if isinstance(node.value, ast.Tuple):
                value, meaning = node.value.elts[0], ast.literal_eval(node.value.elts[1])
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                meaning = str(after.value.value)
            yield str(value.value) if isinstance(value, ast.Constant) else ast.unparse(value), meaning
