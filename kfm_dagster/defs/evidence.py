"""Evidence of a stage: the hashes, addresses and inputs by which it can be followed, as one table behind a click.

Belongs here: what only a person needs who goes deeper. Does not belong here: what became of a stage (`display.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dagster as dg

from kfm_dagster.defs.failing_units import MAX_TABLE_ROWS, SHOWN_IN_PLACE
from kfm_dagster.exports.explanations.run_report import NodeAccount


def evidence(known: Mapping[str, str | None], account: NodeAccount | None) -> dict[str, dg.MarkdownMetadataValue]:
    """Return the metadata entry `evidence`: what is known, what the node's account adds to it, and its inputs."""
    of_account = {} if account is None else {name: getattr(account, name) for name in _OF_ACCOUNT}
    rows = [[name, str(value)] for name, value in {**known, **of_account}.items() if value is not None]
    parts = [_table(["what", "value"], rows)]
    if account is not None and account.inputs:
        parts.append(_inputs(account.inputs))
    # Filled up, for the UI hides nothing that is short.
    return {"evidence": dg.MetadataValue.md("\n\n".join(parts).ljust(SHOWN_IN_PLACE))}


_OF_ACCOUNT = ("content_hash", "intent", "applied_by")
"""Which content it was, and which run applied it."""


def _inputs(inputs: Sequence[Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(name for entry in inputs for name in entry))
    shown = [[str(entry.get(name, "")) for name in names] for entry in inputs[:MAX_TABLE_ROWS]]
    title = f"inputs, {len(shown)} of {len(inputs)}:" if len(inputs) > len(shown) else "inputs:"
    return f"{title}\n\n{_table(names, shown)}"


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [names, ["---"] * len(names), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
