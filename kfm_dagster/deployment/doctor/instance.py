"""The Dagster instance: what its `dagster.yaml` says of dead runs, slots and lanes, and which daemons work in it.

The file is read as YAML and the heartbeats from their table, so nothing of Dagster is started, made or migrated.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from kfm_dagster.deployment.doctor.finding import Diagnosis, fault, ok, warning
from kfm_dagster.documents.yaml_text import read_yaml
from kfm_dagster.settings import Environment, Settings

LANE, BULK = "kfm/lane", "bulk"
_FILE = "dagster.yaml of this release (kfm init writes it where there is none)"


def dagster_home(settings: Settings) -> Path:
    """Return the DAGSTER_HOME of the deployment, as `kfm init` chooses it."""
    return Path(os.environ.get("DAGSTER_HOME") or settings.home / "dagster").absolute()


def check_instance(settings: Settings) -> Iterator[Diagnosis]:
    """Look at `dagster.yaml`."""
    file = dagster_home(settings) / "dagster.yaml"
    if not file.is_file():
        yield fault("Dagster has no instance here", observed=f"no {file}", expected=_FILE, next_step="run kfm init")
        return
    try:
        found: Any = read_yaml(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        yield fault(
            "dagster.yaml cannot be read",
            observed=f"{file}: {type(error).__name__}",
            expected=_FILE,
            next_step="correct it, or move it away and run kfm init",
        )
        return
    config = found if isinstance(found, dict) else {}
    yield from _storage(settings, config)
    yield from _monitoring(_part(config, "run_monitoring"))
    yield from _retries(_part(config, "run_retries"))
    yield from _slots(settings, config)


def _storage(settings: Settings, config: Mapping[str, Any]) -> Iterator[Diagnosis]:
    if settings.env is Environment.PROD and not settings.dagster_dsn and "postgres" not in _part(config, "storage"):
        yield warning(
            "Dagster keeps its runs in files of one machine",
            observed="no KFM_DAGSTER_DSN",
            expected="PostgreSQL in prod",
            next_step="set KFM_DAGSTER_DSN and run kfm init",
        )


def _monitoring(monitoring: Mapping[str, Any]) -> Iterator[Diagnosis]:
    if not monitoring.get("enabled", False):
        yield fault(
            "nobody notices that a run's process died: the run stays started, and keeps its slot, for ever",
            observed="run_monitoring is not enabled",
            expected="run_monitoring: {enabled: true}",
            next_step=f"enable it in dagster.yaml, as in {_FILE}",
        )
        return
    yield ok("run monitoring is on")
    if not monitoring.get("free_slots_after_run_end_seconds"):
        yield warning(
            "pool slots of a run that died are never given back",
            observed="no run_monitoring.free_slots_after_run_end_seconds",
            expected="30, as in the dagster.yaml of this release",
            next_step="set it in dagster.yaml",
        )


def _retries(retries: Mapping[str, Any]) -> Iterator[Diagnosis]:
    again = retries.get("retry_on_asset_or_op_failure", True)
    if retries.get("enabled", False) and again and retries.get("max_retries", 0) != 0:
        yield warning(
            "Dagster begins failed runs again beside the ledger, which lets failed units in again by itself",
            observed="run_retries is enabled for failures of steps",
            expected="run_retries: {enabled: false}, or retry_on_asset_or_op_failure: false",
            next_step="set it in dagster.yaml",
        )
    else:
        yield ok("failed units are tried again by the ledger alone")


def _slots(settings: Settings, config: Mapping[str, Any]) -> Iterator[Diagnosis]:
    coordinator = _part(config, "run_coordinator")
    # An older dagster.yaml has them with the coordinator; Dagster takes one of both.
    runs = {**_part(coordinator, "config"), **_part(_part(config, "concurrency"), "runs")}
    slots = runs.get("max_concurrent_runs")
    if coordinator.get("class") != "QueuedRunCoordinator" and slots is None:
        yield fault(
            "runs are not queued: as many start at a time as are asked for",
            observed=coordinator.get("class", "no run_coordinator"),
            expected="QueuedRunCoordinator with max_concurrent_runs",
            next_step=f"set it in dagster.yaml, as in {_FILE}",
        )
        return
    if not isinstance(slots, int):
        yield warning(
            "the number of runs at a time is Dagster's default",
            observed="no max_concurrent_runs",
            expected="one more than this machine has cores",
            next_step="set max_concurrent_runs in dagster.yaml",
        )
        return
    limits = runs.get("tag_concurrency_limits") or []
    bulk = [one.get("limit") for one in limits if one.get("key") == LANE and one.get("value") == BULK]
    allowed = settings.bulk_runs(slots)
    if not bulk or int(bulk[0]) > allowed:
        yield warning(
            "bulk runs that a person starts may take the slots of live messages",
            observed=f"tag_concurrency_limits let {bulk[0] if bulk else 'all'} of {slots} runs be of {LANE}: {BULK}",
            expected=f"{allowed}, what KFM_LIVE_SHARE ({settings.live_share:g}) leaves",
            next_step="set the limit in dagster.yaml",
        )
    else:
        yield ok(f"{slots} runs at a time, {bulk[0]} of them bulk")


def _part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, dict) else {}
