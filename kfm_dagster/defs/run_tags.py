"""Run tags: by what runs are found in the run list, whose filter takes a tag's whole value.

So nothing is a list: what is of a dataset has a tag of its own, `kfm/quarantined.hrrr: 3`, which no other step of the
run writes, and `kfm/quarantined: yes` finds the run whichever dataset it is of. Belongs here: their names, and those
that a run gets for what it found. Does not belong here: what sensors ask for (`run_requests.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import dagster as dg

from kfm_dagster.ledger.reports import DayReport
from kfm_dagster.stages.batch import StageBatch

LANE_TAG = "kfm/lane"
"""The lane whose units a run works; dagster.yaml limits the runs of the bulk lane by it."""
SOURCE_TAG = "kfm/source"
"""Where a run takes its units from."""
BACKFILL_TAG = "kfm/backfill"
"""The backfill (kfm backfill) that a run lists a day for."""
FORCE_TAG = "kfm/force"
"""A reason under this tag makes a run compute what earlier runs have applied; it changes no unit that has ended."""
DATASET_TAG = "kfm/dataset"
"""A dataset whose chain a run was asked for."""
QUARANTINED_TAG = "kfm/quarantined"
"""Units that a run quarantined."""
SKIPPED_TAG = "kfm/skipped"
"""Stages that a run skipped."""
EMPTY_TAG = "kfm/empty"
"""Nothing is known of the dataset's day."""
YES, NO = "yes", "no"
_NONE = {"0", NO}


def of_dataset(tag: str, dataset: str) -> str:
    """Return the tag that is of one dataset."""
    return f"{tag}.{dataset}"


def dataset_tags(datasets: Iterable[str]) -> dict[str, str]:
    """Return the tags by which the runs of these datasets are found."""
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
    """Say in the run list that a run skips stages of a dataset, has quarantined units, or that its day is empty.

    Nothing is written for a run in which all is well. A re-execution begins with the tags of the run before it, which
    Dagster takes away from none: what does not hold any more becomes 0 or no.
    """
    found = {SKIPPED_TAG: str(skipped)}
    if settled is not None:
        quarantined = 0 if settled.reused else settled.state.validation_summary.get("quarantined", 0)
        found |= {QUARANTINED_TAG: str(quarantined), EMPTY_TAG: NO if day.units else YES}
    known = instance.get_run_by_id(run.run_id)
    before = known.tags if known else {}
    after = {of_dataset(tag, dataset): value for tag, value in found.items()}
    after |= {tag: _of_any(tag, {**before, **after}) for tag in found}
    changed = {
        tag: value for tag, value in after.items() if value != before.get(tag) and (tag in before or value not in _NONE)
    }
    if changed:
        instance.add_run_tags(run.run_id, changed)


def _of_any(tag: str, tags: Mapping[str, str]) -> str:
    """Return whether a tag holds of any dataset."""
    return YES if any(value not in _NONE for name, value in tags.items() if name.startswith(f"{tag}.")) else NO
