"""Putting together what retention works with: the policy, the store, and who prunes each kind. Nothing else."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from kfm_dagster.retention.policy import RetentionKind, RetentionPolicy
from kfm_dagster.retention.pruning import Pruner, Retention
from kfm_dagster.retention.stored_files import stored_files
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.objects import open_store
from kfm_dagster.storage.roots import deployment_id, refuse_foreign, storage_root


def retention_of(
    settings: Settings, database: Database, *, runs: Pruner | None, clock: Callable[[], datetime]
) -> Retention:
    """Return the retention of a deployment. `runs` prunes Dagster's, None where there is no Dagster.

    Raises CardError for a wrong policy, ConfigurationError, and ForeignRootError where the store is another
    deployment's, whose files this ledger does not know.
    """
    refuse_foreign([storage_root(settings)], deployment_id(database))
    pruners: dict[RetentionKind, Pruner] = dict(stored_files(open_store(settings.storage), database))
    if runs is not None:
        pruners[RetentionKind.DAGSTER_RUNS] = runs
    return Retention(policy=RetentionPolicy.load(settings.configs_dir), pruners=pruners, database=database, clock=clock)
