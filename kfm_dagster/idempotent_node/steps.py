"""Steps (`etl_steps`): how each intent ended, what went through it, and what that took (IEN-11).

A row is written with the move of its intent, by whoever moves it, so that every end is known exactly once. Figures that
nobody measured are absent: a dead worker's, energy without a meter, cost without a price.
Belongs here: measuring and writing. Does not belong here: what lineage tells of a step (`lineage/steps.py`), or how
energy is measured (`telemetry/energy.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from typing import Any

from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.storage.database import Transaction
from kfm_dagster.telemetry.energy import Energy, EnergyMeter, NoEnergyMeter

_SECONDS_PER_HOUR = 3600
DIED = "WorkerDied"
"""Error of an intent whose worker ended without a word."""
_ERROR_LENGTH = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Volume:
    """What went through a step; None is what nobody counted. Rows are whatever the node works on: units, windows."""

    rows_in: int | None = None
    rows_out: int | None = None
    bytes_in: int | None = None
    bytes_out: int | None = None

    def with_declared(self, payload: Mapping[str, Any]) -> Volume:
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


@dataclass(frozen=True, kw_only=True, slots=True)
class StepEnd:
    """What is kept of an end besides the intent and its status. `error` is the kind of a failure."""

    volume: Volume = Volume()
    spent: Spent = Spent()
    error: str | None = None

    def write(self, tx: Transaction, *, wal_id: int, status: str, at: datetime) -> None:
        """Write the row of an intent that this transaction has moved."""
        tx.run(
            "idempotent_node.put_step",
            {**asdict(self.volume), **asdict(self.spent)},
            wal_id=wal_id,
            status=status,
            ended_at=rfc3339(at),
            error=None if self.error is None else self.error[:_ERROR_LENGTH],
        )


MEASURES = tuple(entry.name for part in (Spent, Volume) for entry in fields(part))
"""Columns of `etl_steps` that hold what was measured."""


@dataclass(frozen=True, slots=True)
class _Begun:
    wall: float
    cpu: float
    end_energy: Callable[[], Energy | None] | None


class StepMeter:
    """Measures the steps of this process. CPU and energy are the process's, so steps side by side share them."""

    def __init__(self, *, energy: EnergyMeter | None = None, usd_per_hour: float | None = None) -> None:
        self._energy = energy or NoEnergyMeter()
        self._usd_per_hour = usd_per_hour
        self._begun: dict[int, _Begun] = {}

    def prepare(self) -> None:
        """Do what takes long the first time, outside a transaction that others wait for."""
        self._energy.prepare()

    def begin(self, wal_id: int) -> None:
        """Begin with an intent; one that is begun again is measured anew."""
        self.end(wal_id)
        self._begun[wal_id] = _Begun(time.perf_counter(), time.process_time(), self._energy.begin())

    def hand_on(self, wal_id: int, other: int) -> None:
        """Let what was begun with an intent be another's, which takes the work over."""
        self.end(other)
        if (begun := self._begun.pop(wal_id, None)) is not None:
            self._begun[other] = begun

    def end(self, wal_id: int) -> Spent:
        """Return what an intent took until now; nothing for one that this process has not begun."""
        begun = self._begun.pop(wal_id, None)
        if begun is None:
            return Spent()
        seconds = time.perf_counter() - begun.wall
        energy = begun.end_energy() if begun.end_energy else None
        spent = Spent(
            seconds=seconds,
            cpu_seconds=time.process_time() - begun.cpu,
            cost_usd=None if self._usd_per_hour is None else seconds / _SECONDS_PER_HOUR * self._usd_per_hour,
        )
        if energy is None:
            return spent
        return replace(spent, energy_kwh=energy.kwh, carbon_gco2e=energy.gco2e, measured_by=energy.method)
