"""Run tags: what the run list says of a run that has settled units.

Belongs here: tags that a run gets for what it found. Does not belong here: those that it is asked for with
(`run_requests.py`).
"""

from __future__ import annotations

import dagster as dg

from kfm_dagster.ledger.reports import DayReport
from kfm_dagster.stages.batch import StageBatch

QUARANTINED_TAG = "kfm/quarantined"
"""Units that the run quarantined, by dataset: `hrrr=3`."""
SKIPPED_TAG = "kfm/skipped"
"""Stages that the run skipped, by dataset: `hrrr=6`."""
EMPTY_TAG = "kfm/empty"
"""Datasets of which nothing of the run's day is known."""


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

    Nothing is written for a run in which all is well. A re-execution begins with the tags of the run before it.
    """
    wanted = {SKIPPED_TAG: str(skipped) if skipped else None}
    if settled is not None:
        quarantined = 0 if settled.reused else settled.state.validation_summary.get("quarantined", 0)
        wanted[QUARANTINED_TAG] = str(quarantined) if quarantined else None
        wanted[EMPTY_TAG] = None if day.units else ""
    known = instance.get_run_by_id(run.run_id)
    before = known.tags if known else {}
    after = {tag: _entered(before.get(tag, ""), dataset, value) for tag, value in wanted.items()}
    if changed := {tag: value for tag, value in after.items() if value != before.get(tag, "")}:
        instance.add_run_tags(run.run_id, changed)


def _entered(tag: str, dataset: str, value: str | None) -> str:
    """Return a tag with the value of one of its datasets."""
    entries = dict(entry.partition("=")[::2] for entry in tag.split(",") if entry)
    entries.pop(dataset, None)
    if value is not None:
        entries[dataset] = value
    return ",".join(f"{name}={of}" if of else name for name, of in sorted(entries.items()))
