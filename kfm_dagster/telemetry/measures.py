"""Measures of a step: its data volume, and the resources that it used (IEN-11).

Nodes count the data, and a meter measures the resources. Lineage, `kfm runs show` and Dagster show the figures by the
names of these fields, which are the columns of `etl_steps`. A figure that was not measured is None, never 0.
Belongs here: the values and their names. Does not belong here: measuring and writing them (`idempotent_node/steps.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class StepVolume:
    """Data through a step; None if not counted. In the steps of the chain, a row is a unit."""

    rows_in: int | None = None
    rows_out: int | None = None
    bytes_in: int | None = None
    bytes_out: int | None = None

    def with_declared(self, payload: Mapping[str, Any]) -> StepVolume:
        """Return the volume; uncounted `bytes_in` is the sum of the inputs' sizes, if all are known."""
        sizes = [entry.get("size") for entry in payload["inputs"]]
        if self.bytes_in is not None or not sizes or None in sizes:
            return self
        return replace(self, bytes_in=sum(sizes))


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """Resources of a step: wall and CPU seconds of the process; energy, carbon, cost if known."""

    seconds: float | None = None
    cpu_seconds: float | None = None
    energy_kwh: float | None = None
    carbon_gco2e: float | None = None
    measured_by: str | None = None
    cost_usd: float | None = None


def inputs_of(row: Any) -> list[Mapping[str, Any]]:
    """Return an intent's inputs by URI; the entry of the claimed units replaces an earlier one."""
    entries = [*row.payload["inputs"], *([row.claimed] if row.claimed else [])]
    return list({entry["uri"]: entry for entry in entries}.values())


MEASURES = tuple(entry.name for part in (Spent, StepVolume) for entry in fields(part))
"""Columns of `etl_steps` that hold measures."""
