"""Run-state around a plain function: it runs once in a run, and again only if one of its inputs has changed.

    python docs/examples/run_state/lengths.py RUN OUT FILE...   # executed; the second time: skipped

It uses neither Dagster nor other parts of the product: only a function, its inputs_hash, and one record. As for the
product, `KFM_RUN_STATE` names the store of records. With `lakefs://repository/branch` each branch has its own records,
and a revert undoes data and records together (docs/run-state.md).
"""

from __future__ import annotations

import hashlib
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from kfm_dagster.run_state.choice import open_run_states
from kfm_dagster.run_state.record import InputReference, Outcome, RunState, ValidationSummary, inputs_hash
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database

NODE = "examples.lengths"
PARAMETERS = {"unit": "bytes"}


def main(run_id: str, out: Path, files: list[Path]) -> None:
    """Write the length of each file to `out`, unless this run has already done so for the same files."""
    settings = Settings.load()
    database = Database.open(settings.database_url)
    states = open_run_states(database, configured=settings.run_state, branch=settings.lakefs_branch, clock=_now)

    contents = {file.resolve().as_uri(): file.read_bytes() for file in files}
    inputs = [
        InputReference(uri=uri, checksum=hashlib.sha256(content).hexdigest()) for uri, content in contents.items()
    ]
    consumed = inputs_hash(inputs, PARAMETERS)
    known = states.get(NODE, run_id)
    if known is not None and known.outcome is Outcome.SUCCESS and known.inputs_hash == consumed:
        click.echo(f"skipped: {known.artifact_uri} has the same inputs")
        return

    lengths = json.dumps({uri: len(content) for uri, content in sorted(contents.items())}).encode()
    out.write_bytes(lengths)
    empty = sum(not content for content in contents.values())
    summary = ValidationSummary(checks=len(contents), passed=len(contents) - empty, failed=empty)
    record = RunState(
        dataset_id=NODE,
        run_id=run_id,
        lakefs_branch=settings.lakefs_branch,
        inputs_hash=consumed,
        validation_summary=summary.as_json(),
        outcome=summary.outcome,
        recorded_at=_now(),
        artifact_uri=out.resolve().as_uri(),
        artifact_sha256=hashlib.sha256(lengths).hexdigest(),
    )
    with database.transaction() as tx:
        # In the transaction of the function's other writes to this database.
        states.put(record, tx)
    click.echo(f"executed: {record.outcome}")


def _now() -> datetime:
    return datetime.now(UTC)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), [Path(name) for name in sys.argv[3:]])
