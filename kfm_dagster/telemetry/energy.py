"""Energy of each step: from CPU seconds by a named assumption, or measured by codecarbon.

    kWh = CPU seconds x watts of a busy core / 3,600,000        g CO2e = kWh x intensity of the grid

    pip install 'kfm-dagster[energy]'; export KFM_ENERGY_GRID=USA/virginia

The assumption leaves out memory, idle machines and cooling. codecarbon, an extra, reads the processor's energy counters
(RAPL) if permitted; otherwise, it multiplies the rated power by the load. Its tables with the yearly mix of each grid
give the carbon. The first measurement in a process takes some seconds, because codecarbon detects the hardware, and
each later measurement about 10 ms. Does not belong here: the calls that measure (`idempotent_node/steps.py`).
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kfm_dagster.errors import ConfigurationError
from kfm_dagster.redaction import error_text
from kfm_dagster.settings import GCO2E_PER_KWH, WATTS_PER_CORE

_LOG = logging.getLogger(__name__)

_DISTRIBUTION = "codecarbon"
_GRAMS = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Energy:
    """Energy of some work: kWh, grams of CO2 equivalent, and the method."""

    kwh: float
    gco2e: float
    method: str


_WATT_SECONDS_PER_KWH = 3_600_000


@dataclass(frozen=True, kw_only=True, slots=True)
class EnergyAssumption:
    """Assumption, if there is no meter: watts of a busy core, grams of CO2e per kWh of the grid."""

    watts_per_core: float = WATTS_PER_CORE
    gco2e_per_kwh: float = GCO2E_PER_KWH

    def of(self, cpu_seconds: float) -> Energy:
        """Return the energy of CPU seconds; `method` names the assumption and its sources."""
        kwh = cpu_seconds * self.watts_per_core / _WATT_SECONDS_PER_KWH
        return Energy(kwh=kwh, gco2e=kwh * self.gco2e_per_kwh, method=str(self))

    def __str__(self) -> str:
        core = "AWS vCPU, Cloud Carbon Footprint" if self.watts_per_core == WATTS_PER_CORE else "KFM_WATTS_PER_CORE"
        grid = "world 2024, IEA Electricity 2025" if self.gco2e_per_kwh == GCO2E_PER_KWH else "KFM_GRID_GCO2E_PER_KWH"
        return f"assumed: {self.watts_per_core:g} W per busy core ({core}), {self.gco2e_per_kwh:g} gCO2e/kWh ({grid})"


class CodecarbonMeter:
    """Measures with codecarbon: one tracker for each process, created on first use."""

    def __init__(self, *, country: str, region: str | None) -> None:
        self._country = country
        self._region = region
        self._method = f"{_DISTRIBUTION} {version(_DISTRIBUTION)}, {'/'.join(filter(None, (country, region)))}"
        self._busy = threading.Lock()
        self._tracker: Any = None

    def prepare(self) -> None:
        """Detect the hardware, which is slow the first time; a repetition does no harm."""
        if self._tracker is None and (end := self.begin()) is not None:
            end()

    def begin(self) -> Callable[[], Energy | None] | None:
        """Begin a measurement; return the function that ends it, None if another runs or on failure."""
        if not self._busy.acquire(blocking=False):
            return None
        try:
            self._opened().start_task()
        except Exception as error:
            # Do not release the lock, so that a tracker that failed once is not used again. The work continues.
            _LOG.warning("codecarbon does not measure here; energy is not recorded: %s", error_text(error))
            return None
        return self._end

    def _end(self) -> Energy | None:
        try:
            measured = self._tracker.stop_task()
            return Energy(kwh=measured.energy_consumed, gco2e=measured.emissions * _GRAMS, method=self._method)
        except Exception as error:
            _LOG.warning("codecarbon lost a measurement; its energy is not recorded: %s", error_text(error))
            return None
        finally:
            self._busy.release()

    def _opened(self) -> Any:
        if self._tracker is None:
            from codecarbon import OfflineEmissionsTracker  # noqa: PLC0415, an extra that few have installed

            self._tracker = OfflineEmissionsTracker(
                country_iso_code=self._country,
                region=self._region,
                tracking_mode="process",
                # Concurrent runs each have their own tracker.
                allow_multiple_runs=True,
                output_methods=[],
                log_level="error",
            )
        return self._tracker


def open_energy_meter(grid: str) -> CodecarbonMeter | None:
    """Return the meter for a grid: `COUNTRY` (ISO 3166-1 alpha-3) or `USA/state`; None for "".

    Raises ConfigurationError if codecarbon is not installed, or has no figures for the grid; for such a grid,
    codecarbon itself would use the world's figures.
    """
    if not grid:
        return None
    if find_spec(_DISTRIBUTION) is None:
        raise ConfigurationError(
            "KFM_ENERGY_GRID is set, but codecarbon is not installed",
            observed=repr(grid),
            next_step="pip install 'kfm-dagster[energy]', or unset KFM_ENERGY_GRID",
        )
    if not _has_figures(grid):
        raise ConfigurationError(
            "codecarbon has no figures for the grid of KFM_ENERGY_GRID",
            observed=repr(grid),
            expected="an ISO 3166-1 alpha-3 code, such as DEU, or a state, such as USA/virginia",
            next_step="correct or unset KFM_ENERGY_GRID",
        )
    country, _, state = grid.partition("/")
    return CodecarbonMeter(country=country, region=state or None)


def _has_figures(grid: str) -> bool:
    from codecarbon.input import DataSource  # noqa: PLC0415, an extra that few have installed

    source = DataSource()  # type: ignore[no-untyped-call]
    country, slash, state = grid.partition("/")
    if slash:
        # Keys that begin with an underscore name the unit and the source of the figures.
        return country == "USA" and not state.startswith("_") and state in source.get_country_emissions_data("usa")
    # codecarbon's getter loads pandas and all its tables, which would delay each command.
    return country in json.loads(Path(source.global_energy_mix_data_path).read_text(encoding="utf-8"))
