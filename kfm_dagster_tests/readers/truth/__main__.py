"""Print what our readers say of real objects, against independent readers: `python -m kfm_dagster_tests.readers.truth`.

A row has the object's path, its reader, how many fields are equal of how many compared, the largest difference of its
bounding box in degrees and of its times in seconds, and the requests and bytes that reading it took. Below stands what
differs; then the exit code is 1. Objects of families without a comparison are counted.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click

from kfm_dagster.cli.tables import show_rows
from kfm_dagster_tests.readers.truth.comparison import DEGREES, SECONDS, Outcome, hold, real_objects

SHARED_DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
COLUMNS = ("object", "reader", "equal", "bbox_degrees", "time_seconds", "requests", "bytes")


def main(folder: Path = SHARED_DATA) -> int:
    """Compare every object below the folder; 1 when any differs, or there is none."""
    file = folder / "reference.json"
    reference: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    outcomes = [hold(real) for real in real_objects(folder, reference)]
    show_rows([_row(outcome) for outcome in outcomes], COLUMNS)
    compared, differing = (sum(map(count, outcomes)) for count in (_compared, _differing))
    click.echo(f"{len(outcomes)} objects, {compared - differing} of {compared} fields equal")
    seen = {outcome.real.path for outcome in outcomes}
    others = Counter(entry["family"] for path, entry in reference.items() if path not in seen)
    if others:
        click.echo("not compared: " + ", ".join(f"{name} {count}" for name, count in sorted(others.items())))
    for outcome in outcomes:
        for text in outcome.differing:
            click.echo(f"{outcome.real.path}: {text}")
    return 1 if differing or not outcomes else 0


def _row(outcome: Outcome) -> dict[str, str]:
    off = {unit: outcome.largest(unit) for unit in (DEGREES, SECONDS)}
    return {
        "object": outcome.real.path,
        "reader": outcome.real.reader,
        "equal": f"{_compared(outcome) - _differing(outcome)}/{_compared(outcome)}",
        "bbox_degrees": "" if off[DEGREES] is None else f"{off[DEGREES]:.4f}",
        "time_seconds": "" if off[SECONDS] is None else f"{off[SECONDS]:.3f}",
        "requests": str(len(outcome.source.requests)),
        "bytes": f"{outcome.source.bytes_read:,}",
    }


def _compared(outcome: Outcome) -> int:
    return len(outcome.compared)


def _differing(outcome: Outcome) -> int:
    return len(outcome.differing)


if __name__ == "__main__":
    sys.exit(main())
