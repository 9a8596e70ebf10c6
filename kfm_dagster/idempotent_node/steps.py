"""Steps (`etl_steps`): the end of each intent, with volume and resources (IEN-11).

The caller that changes an intent's status also writes the row, so that every end is recorded exactly once. Unknown
figures are absent: those of a dead worker, and the cost if no price is set. Unmeasured energy is estimated from
the CPU seconds by an assumption that the row names.
Belongs here: measuring and writing. Does not belong here: the values (`telemetry/measures.py`), how energy is measured
(`telemetry/energy.py`), or a step's lineage (`lineage/steps.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime

from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Transaction
from kfm_dagster.telemetry.energy import CodecarbonMeter, Energy, EnergyAssumption
from kfm_dagster.telemetry.measures import Spent, StepVolume
from kfm_dagster.telemetry.totals import Total, Totals

DIED = "WorkerDied"
"""Error of an intent whose worker died without recording an error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepEnd:
    """The end of an intent, without its status. `error` is the exception's type, or DIED."""

    volume: StepVolume = field(default_factory=StepVolume)
    spent: Spent = field(default_factory=Spent)
    error: str | None = None

    def write(self, tx: Transaction, *, wal_id: int, status: str, at: datetime) -> None:
        """Write the row of an intent that this transaction resolved; count energy and carbon."""
        tx.run(
            "idempotent_node.put_step",
            {**asdict(self.volume), **asdict(self.spent)},
            wal_id=wal_id,
            status=status,
            ended_at=at,
            error=None if self.error is None else self.error[:200],
        )
        totals = Totals()
        totals.add(Total.ENERGY_KWH, amount=self.spent.energy_kwh or 0)
        totals.add(Total.CARBON_GCO2E, amount=self.spent.carbon_gco2e or 0)
        totals.write(tx)


class StepMeter:
    """Measures steps. Each of several parallel steps counts the whole process's CPU and energy."""

    def __init__(
        self,
        *,
        energy: CodecarbonMeter | None = None,
        usd_per_hour: float | None = None,
        assumption: EnergyAssumption | None = None,
    ) -> None:
        self._energy = energy
        self._assumption = assumption or EnergyAssumption()
        self._usd_per_hour = usd_per_hour
        self._begun: dict[int, tuple[float, float, Callable[[], Energy | None] | None]] = {}

    @classmethod
    def of(cls, settings: Settings, *, energy: CodecarbonMeter | None) -> StepMeter:
        """Return the meter for these settings."""
        assumption = EnergyAssumption(watts_per_core=settings.watts_per_core, gco2e_per_kwh=settings.grid_gco2e_per_kwh)
        return cls(energy=energy, usd_per_hour=settings.worker_usd_per_hour, assumption=assumption)

    def prepare(self) -> None:
        """Initialise the energy meter; slow, so call it before a transaction blocks other writers."""
        if self._energy is not None:
            self._energy.prepare()

    def begin(self, wal_id: int) -> None:
        """Begin or restart measuring an intent."""
        self.end(wal_id)
        end_energy = self._energy.begin() if self._energy is not None else None
        self._begun[wal_id] = time.perf_counter(), time.process_time(), end_energy

    def transfer(self, wal_id: int, other: int) -> None:
        """Pass an intent's measurement to the intent that takes over its work."""
        self.end(other)
        if (start := self._begun.pop(wal_id, None)) is not None:
            self._begun[other] = start

    def end(self, wal_id: int) -> Spent:
        """End and return an intent's measurement; empty if this process has not begun it."""
        start = self._begun.pop(wal_id, None)
        if start is None:
            return Spent()
        wall, cpu, end_energy = start
        seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
        measured = end_energy() if end_energy else None
        energy = measured or self._assumption.of(cpu_seconds)
        return Spent(
            seconds=seconds,
            cpu_seconds=cpu_seconds,
            energy_kwh=energy.kwh,
            carbon_gco2e=energy.gco2e,
            measured_by=energy.method,
            cost_usd=None if self._usd_per_hour is None else seconds / 3600 * self._usd_per_hour,
        )
