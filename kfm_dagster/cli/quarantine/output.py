"""What the commands about quarantined units print: a case with its evidence, and what was decided."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import click

from kfm_dagster.cli.tables import show_fields, show_section
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.state_machine import Status

HISTORY_COLUMNS = ("version", "at", "from", "to", "actor", "reason", "error_code", "run_id", "attempts")
SHOWN_BYTES = 64
"""Of each end of the object in a table; `--json` has all that is kept."""


def say_outcome(records: Iterable[NoddWalRecord], outcome: str, *, as_json: bool) -> None:
    """Print a line for each record, or a JSON object."""
    for record in records:
        row = {"wal_id": record.wal_id, "from": record.status, "to": outcome, "seen_version": record.version}
        # A transition is one version; a case that is closed leaves the record as it is.
        new = f" > {record.version + 1}" if isinstance(outcome, Status) else ""
        text = f"{record.wal_id}: {record.status} > {outcome} (version {record.version}{new})"
        click.echo(json.dumps(row) if as_json else text)


def show_case(row: Mapping[str, Any], bundle: Mapping[str, Any] | None) -> None:
    """Print a case with its evidence, None where there is none yet."""
    show_fields({name: value for name, value in row.items() if value is not None})
    if bundle is None:
        click.echo("evidence: not collected yet, the next tick of the sensor nodd_ledger does it")
        return
    if "lost" in bundle:
        click.echo(f"evidence: lost ({bundle['lost']})")
        return
    found, announced = bundle["found"], bundle["announced"]
    facts = {"error": bundle["error"], "operator": bundle["operator"], "code_version": bundle["code_version"]}
    facts |= {"run_id": bundle["run_id"], "message": bundle["message"]}
    show_fields(facts)
    rows = [
        {"object": name, "announced": announced.get(name), "found": found.get(name)}
        for name in ("version", "size", "sequencer", "event_time", "content_type", "last_modified", "state", "why")
    ]
    show_section("object", rows, ("object", "announced", "found"))
    for name in ("first", "last"):
        _show_bytes(name, bytes.fromhex(found[f"{name}_hex"]), size=found["size"])
    show_section("history", bundle["history"], HISTORY_COLUMNS)


def _show_bytes(name: str, content: bytes, *, size: int | None) -> None:
    shown = content[:SHOWN_BYTES] if name == "first" else content[-SHOWN_BYTES:]
    begin = 0 if name == "first" else (size or 0) - len(shown)
    click.echo(f"{name} bytes: {len(content)} kept" + (f", {len(shown)} shown" if shown else ""))
    for start in range(0, len(shown), 16):
        line = shown[start : start + 16]
        readable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
        click.echo(f"  {begin + start:08x}  {line.hex(' '):<47}  {readable}")
