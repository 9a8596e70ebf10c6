"""Configuration: a deployment's files, read and checked before any process starts.

Belongs here: the list of files. Does not belong here: the models of the files (`contracts/`, `stages/card.py`), the
names of stages (`chain.py`), the environment (`settings.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from kfm_dagster.catalog.follower_sources import FollowerSources
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.governance.areas import refuse_unmaskable
from kfm_dagster.retention import RetentionPolicy
from kfm_dagster.settings import Settings
from kfm_dagster.stages.card import Card
from kfm_dagster.telemetry.energy import CodecarbonMeter, open_energy_meter


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Contracts, pipeline card, followers, and the energy meter (None without KFM_ENERGY_GRID)."""

    registry: ContractRegistry
    card: Card
    followers: FollowerSources
    energy: CodecarbonMeter | None

    @classmethod
    def load(cls, settings: Settings) -> Configuration:
        """Read all configured files. Raises ContractError, CardError or ConfigurationError."""
        registry = ContractRegistry.load(settings.contracts_dir).only(settings.followed)
        refuse_unmaskable(settings, registry)
        _refuse_days_before_all(settings, registry)
        card = Card.load(settings.configs_dir)
        followers = FollowerSources.load(settings, registry)
        # Only checked here: retention reads the policy itself, because the file may change while a deployment runs.
        RetentionPolicy.load(settings.configs_dir)
        energy = open_energy_meter(settings.energy_grid)
        return cls(registry=registry, card=card, followers=followers, energy=energy)


def _refuse_days_before_all(settings: Settings, registry: ContractRegistry) -> None:
    """Refuse a first day before the first day of all datasets.

    A wrong year may give more partitions than Dagster's maximum, 100,000.
    """
    if settings.first_day is not None and settings.first_day < registry.first_day:
        raise ConfigurationError(
            "environment variable KFM_FIRST_DAY is wrong",
            observed=settings.first_day,
            expected=f"{registry.first_day} or later: no dataset begins earlier",
            next_step="correct or unset KFM_FIRST_DAY",
        )
