"""What is measured of a step: what went through it, and what it took of its worker (IEN-11).

Nodes count the one, a meter measures the other, and lineage, `kfm explain` and the Dagster face tell both by the names
of these fields, which are the columns of `etl_steps`. A figure that nobody measured is None, never 0.
Belongs here: the values and their names. Does not belong here: measuring and writing them (`idempotent_node/steps.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class StepVolume:
    """What went through a step; None is what nobody counted. Rows are whatever the node works on: units, windows."""

    rows_in: int | None = None
    rows_out: int | None = None
    bytes_in: int | None = None
    bytes_out: int | None = None

    def with_declared(self, payload: Mapping[str, Any]) -> StepVolume:
        """Return the same with the sizes that the input manifest declares, where they are not known better."""
        sizes = [entry.get("size") for entry in payload["inputs"]]
        if self.bytes_in is not None or not sizes or None in sizes:
            return self
        return replace(self, bytes_in=sum(sizes))


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """What a step took of its worker: wall and CPU seconds of the process, and what these mean where it is known."""

    seconds: float | None = None
    cpu_seconds: float | None = None
    energy_kwh: float | None = None
    carbon_gco2e: float | None = None
    measured_by: str | None = None
    cost_usd: float | None = None


def inputs_of(row: Any) -> list[Mapping[str, Any]]:
    """Return the inputs of an intent's row: of the ledger, which its manifest only names, the units that it claimed."""
    entries = [*row.payload["inputs"], *([row.claimed] if row.claimed else [])]
    return list({entry["uri"]: entry for entry in entries}.values())


MEASURES = tuple(entry.name for part in (Spent, StepVolume) for entry in fields(part))
"""Columns of `etl_steps` that hold what was measured."""
