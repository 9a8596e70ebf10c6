"""Print what our readers say of real objects, against independent readers: `python -m kfm_dagster_tests.readers.truth`.

A row has the object's path, its reader, how many fields are equal of how many compared, the largest difference of its
bounding box in degrees and of its times in seconds, and the requests and bytes that reading it took. Below stands the
same by family, with how many of its objects are refused, as they have to be; then what is no object, and why; then what
differs. The exit code is 1 where something differs, or where a path of the reference is neither compared nor explained.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from kfm_dagster.cli.tables import show_rows
from kfm_dagster_tests.readers.truth.comparison import (
    DEGREES,
    SECONDS,
    Outcome,
    hold,
    real_objects,
    why_not_compared,
)

SHARED_DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
OBJECT_COLUMNS = ("object", "reader", "equal", "bbox_degrees", "time_seconds", "requests", "bytes")
FAMILY_COLUMNS = ("family", "reader", "objects", "refused", "fields", "equal", "bbox_degrees", "time_seconds")


def main(folder: Path = SHARED_DATA) -> int:
    """Compare every object below the folder; 1 when any differs, when one is left out, or when there is none."""
    file = folder / "reference.json"
    reference: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    outcomes = [hold(real) for real in real_objects(folder, reference)]
    show_rows([_object_row(outcome) for outcome in outcomes], OBJECT_COLUMNS)
    show_rows(list(_family_rows(outcomes)), FAMILY_COLUMNS)
    compared = sum(len(outcome.compared) for outcome in outcomes)
    differing = sum(len(outcome.differing) for outcome in outcomes)
    click.echo(f"{len(outcomes)} objects, {compared - differing} of {compared} fields equal")
    left_out = _say_what_is_no_object(reference, outcomes)
    for outcome in outcomes:
        for text in outcome.differing:
            click.echo(f"{outcome.real.path}: {text}")
    return 1 if differing or left_out or not outcomes else 0


def _say_what_is_no_object(reference: dict[str, Any], outcomes: Sequence[Outcome]) -> bool:
    """Say how many paths are not compared, and why; tell whether there are some without a reason."""
    reasons: Counter[str] = Counter()
    left_out = False
    for path, entry in reference.items():
        if any(outcome.real.path.startswith(path) for outcome in outcomes):
            continue
        if (why := why_not_compared(path, entry)) is None:
            click.echo(f"{path}: not compared, and nobody says why")
            left_out = True
        else:
            reasons[why] += 1
    for why, count in reasons.items():
        click.echo(f"not compared: {count} {why}")
    return left_out


def _family_rows(outcomes: Sequence[Outcome]) -> Iterator[dict[str, str]]:
    for family, reader in dict.fromkeys((outcome.real.family, outcome.real.reader) for outcome in outcomes):
        own = [outcome for outcome in outcomes if (outcome.real.family, outcome.real.reader) == (family, reader)]
        fields = [one for outcome in own for one in outcome.compared]
        yield {
            "family": family,
            "reader": reader,
            "objects": str(len(own)),
            "refused": str(sum(outcome.refused for outcome in own)),
            "fields": str(len(fields)),
            "equal": str(sum(one.is_equal for one in fields)),
            **_largest(own),
        }


def _object_row(outcome: Outcome) -> dict[str, str]:
    fields = len(outcome.compared)
    return {
        "object": outcome.real.path,
        "reader": outcome.real.reader,
        "equal": f"{fields - len(outcome.differing)}/{fields}",
        **_largest([outcome]),
        "requests": str(len(outcome.source.requests)),
        "bytes": f"{outcome.source.bytes_read:,}",
    }


def _largest(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Return the largest differences of boxes and times, empty where none was compared."""
    shown = {}
    for name, unit, decimals in (("bbox_degrees", DEGREES, 4), ("time_seconds", SECONDS, 3)):
        found = [off for outcome in outcomes if (off := outcome.largest(unit)) is not None]
        shown[name] = f"{max(found):.{decimals}f}" if found else ""
    return shown


if __name__ == "__main__":
    sys.exit(main())
