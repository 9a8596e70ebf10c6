"""Names in Dagster: assets and ops of each dataset's chain, partitions, and run tags.

Tags are the search keys of the run list, whose filter matches a tag's whole value. If a tag's value listed datasets, a
search for one dataset would not find it. So each dataset has its own tag, such as `kfm/quarantined.hrrr: 3`, which only
the dataset's steps write, and `kfm/quarantined: yes` finds runs of any dataset. Does not belong here: tags of requested
runs (`sensors.py`), the first day (`ingest/window.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date

import dagster as dg

from kfm_dagster.ingest.node import ChainNode
from kfm_dagster.ingest.nodes import chain
from kfm_dagster.ledger.reports import DayReport
from kfm_dagster.stages.batch import StageBatch

QUEUE_KEY = dg.AssetKey(["queue"])


def asset_key(dataset: str, noun: str) -> dg.AssetKey:
    """Return the key `<dataset>/<noun>`, the dataset spelt as in groups, jobs and ops."""
    return dg.AssetKey([slug(dataset), noun])


def dataset_of(key: dg.AssetKey) -> str:
    """Return the dataset id of an asset."""
    # No id has an underscore (contracts/model.py).
    return key.path[0].replace("_", "-")


def asset_keys(dataset: str) -> list[dg.AssetKey]:
    """Return the keys of a dataset's chain, upstream first."""
    return [asset_key(dataset, node.asset) for node in chain()]


def node_of(noun: str) -> type[ChainNode] | None:
    """Return the node of the asset with this noun; None for an asset outside the chain."""
    return next((node for node in chain() if node.asset == noun), None)


def op_name(dataset: str, operator: str) -> str:
    """Return the op's name `<dataset>__<operator>`."""
    return f"{slug(dataset)}__{operator}"


def slug(dataset: str) -> str:
    """Return the dataset id as a Dagster name, which takes no hyphen."""
    return dataset.replace("-", "_")


def daily_partitions(first_day: date) -> dg.DailyPartitionsDefinition:
    """Return the partitions: the days (UTC) from `first_day` up to and including today.

    All datasets have the same partitions, so that a run can cover several datasets. A unit belongs to the day of its
    key's time, so that a day's objects can be listed by prefix.
    """
    return dg.DailyPartitionsDefinition(start_date=first_day.isoformat(), timezone="UTC", end_offset=1)


LANE_TAG = "kfm/lane"
"""The lane of a run's units; dagster.yaml limits the runs of the bulk lane by it."""
SOURCE_TAG = "kfm/source"
"""The source of a run's units."""
BACKFILL_TAG = "kfm/backfill"
"""The backfill (kfm backfill) that requested a run's listing of a day."""
FORCE_TAG = "kfm/force"
"""Makes a run compute content again that earlier runs applied; terminal units stay terminal. The value is a reason."""
DATASET_TAG = "kfm/dataset"
"""A dataset of the run's request."""
QUARANTINED_TAG = "kfm/quarantined"
"""Number of units that a run quarantined."""
SKIPPED_TAG = "kfm/skipped"
"""Number of stages that a run skipped."""
EMPTY_TAG = "kfm/empty"
"""`yes` if no unit of the dataset's day is known."""
YES, NO = "yes", "no"
_NONE = {"0", NO}


def of_dataset(tag: str, dataset: str) -> str:
    """Return a tag's name for one dataset, such as `kfm/empty.hrrr`."""
    return f"{tag}.{dataset}"


def dataset_tags(datasets: Iterable[str]) -> dict[str, str]:
    """Return the tags that find the runs of these datasets."""
    return {of_dataset(DATASET_TAG, dataset): YES for dataset in datasets}


def tag_run(
    instance: dg.DagsterInstance,
    run: dg.DagsterRun,
    dataset: str,
    *,
    day: DayReport,
    skipped: int,
    settled: StageBatch | None,
) -> None:
    """Tag a run with a dataset, and with its skipped stages, quarantined units and empty day.

    Only properties that the run has are tagged. A re-execution begins with the tags of the run before it, and Dagster
    cannot remove tags, so a value that no longer holds becomes 0 or no.
    """
    values = {SKIPPED_TAG: str(skipped)}
    if settled is not None:
        quarantined = 0 if settled.reused else settled.state.validation_summary.get("quarantined", 0)
        values |= {QUARANTINED_TAG: str(quarantined), EMPTY_TAG: NO if day.units else YES}
    known = instance.get_run_by_id(run.run_id)
    before = known.tags if known else {}
    after = {of_dataset(tag, dataset): value for tag, value in values.items()}
    after |= {tag: _of_any(tag, {**before, **after}) for tag in values}
    changed = {
        tag: value for tag, value in after.items() if value != before.get(tag) and (tag in before or value not in _NONE)
    }
    changed |= {tag: value for tag, value in dataset_tags([dataset]).items() if tag not in before}
    if changed:
        instance.add_run_tags(run.run_id, changed)


def _of_any(tag: str, tags: Mapping[str, str]) -> str:
    """Return YES if a tag holds for any dataset, else NO."""
    return YES if any(value not in _NONE for name, value in tags.items() if name.startswith(f"{tag}.")) else NO
