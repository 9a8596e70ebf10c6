"""Configuration: the files that say what is ingested and how, read together and refused before anything is started.

Whatever starts servers, daemons or workers reads it first, so that a wrong file is one line there and not a line of
every process. Belongs here: which files there are. Does not belong here: their forms (`contracts/`, `stages/card.py`),
or the environment (`settings.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.readers.registry import refuse_orphans
from kfm_dagster.settings import Settings
from kfm_dagster.stages.card import Card
from kfm_dagster.telemetry.energy import EnergyMeter, open_energy_meter


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Dataset contracts, the pipeline card, and what measures energy by the grid that is named."""

    registry: ContractRegistry
    card: Card
    energy: EnergyMeter


def read_configuration(settings: Settings) -> Configuration:
    """Read everything that settings name; makes nothing. Raises ContractError, CardError or ConfigurationError."""
    registry = ContractRegistry.load(settings.contracts_dir)
    refuse_orphans(registry)
    card = Card.load(settings.configs_dir)
    return Configuration(registry=registry, card=card, energy=open_energy_meter(settings.energy_grid))
