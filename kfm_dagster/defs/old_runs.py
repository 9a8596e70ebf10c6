"""Old runs of Dagster: select runs that nothing needs, and remove them with events and logs.

The ledger has a run's units under its root run, which holds the claims. Belongs here: what Dagster keeps
of a run. Does not belong here: the age (`retention/policy.py`), or ticks, which Dagster's own daemon purges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path

import dagster as dg

from kfm_dagster.defs.instance_storage import instance_of
from kfm_dagster.defs.io_manager import root_run_id
from kfm_dagster.defs.run_storage import ACTIVE, PARTITION_TAG, newest_run
from kfm_dagster.errors import DatabaseUnavailableError
from kfm_dagster.retention.pruning import OldBatch
from kfm_dagster.storage.database import Database

BATCH = 500
"""Runs that one query examines; they are removed before the next query."""
FINISHED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]


@dataclass(frozen=True, kw_only=True)
class OldRuns:
    """The runs of an instance; opened for one pass, during which the newest runs stay the same."""

    instance: dg.DagsterInstance
    database: Database
    _makers: dict[tuple[dg.AssetKey, str | None], str | None] = field(default_factory=dict, init=False)
    _newest: dict[str, str] = field(default_factory=dict, init=False)

    def batches(self, before: datetime) -> Iterator[OldBatch]:
        """Yield the runs that ended before `before`, the oldest first."""
        # All are read first: a page is requested by the last run of the page before, which must still exist.
        old = list(self._old(before))
        for start in range(0, len(old), BATCH):
            part = old[start : start + BATCH]
            with self.database.snapshot() as tx:
                roots = sorted({root_run_id(run) for run in part})
                unsettled = {row.run_id for row in tx.run("retention.unsettled_runs", runs=roots)}
            going = [run for run in part if root_run_id(run) not in unsettled and self._is_free(run)]
            yield OldBatch(old=len(part), removable=[run.run_id for run in going], bytes=None)

    def remove(self, batch: OldBatch) -> None:
        """Remove runs. The row goes last, so that a half-removed run is found again."""
        for run_id in batch.removable:
            self.instance.compute_log_manager.delete_logs(prefix=[run_id])
            self._remove_events(run_id)
            self.instance.run_storage.delete_run(run_id)

    def _remove_events(self, run_id: str) -> None:
        # SQLite has a file for each run, which deletions do not shrink; without it, the index has no events of the run.
        files = Path(self.instance.root_directory, "history", "runs")
        if not files.is_dir() or (files / f"{run_id}.db").exists():
            self.instance.event_log_storage.delete_events(run_id)
        for suffix in ("-wal", "-shm", ""):
            (files / f"{run_id}.db{suffix}").unlink(missing_ok=True)

    def _old(self, before: datetime) -> Iterator[dg.DagsterRun]:
        cursor: str | None = None
        while page := self.instance.get_run_records(
            dg.RunsFilter(statuses=FINISHED), limit=BATCH, cursor=cursor, ascending=True
        ):
            for record in page:
                # A run that was cancelled in the queue has no end time.
                if (record.end_time or record.update_timestamp.timestamp()) < before.timestamp():
                    yield record.dagster_run
            cursor = page[-1].dagster_run.run_id

    def _is_free(self, run: dg.DagsterRun) -> bool:
        if root_run_id(run) in self._at_work or self._is_newest(run):
            return False
        # No selection means all assets.
        assets, day = run.asset_selection or self._assets, run.tags.get(PARTITION_TAG)
        return not any(self._maker(asset, day) == run.run_id for asset in assets)

    @cached_property
    def _at_work(self) -> set[str]:
        """Root runs of which a run, original or re-execution, is queued or running."""
        return {root_run_id(run) for run in self.instance.get_runs(dg.RunsFilter(statuses=ACTIVE))}

    @cached_property
    def _assets(self) -> Sequence[dg.AssetKey]:
        return self.instance.get_asset_keys()

    def _is_newest(self, run: dg.DagsterRun) -> bool:
        """Return whether a run is its day's newest, which is in the next run key (`run_storage.py`)."""
        day = run.tags.get(PARTITION_TAG)
        if day is not None and day not in self._newest:
            self._newest[day] = newest_run(self.instance, day)
        return day is not None and self._newest[day] == run.run_id

    def _maker(self, asset: dg.AssetKey, partition: str | None) -> str | None:
        """Return the run of an asset's newest materialisation for a day, which fills it in the UI."""
        if (asset, partition) not in self._makers:
            filters = dg.AssetRecordsFilter(asset_key=asset, asset_partitions=[partition] if partition else None)
            records = self.instance.fetch_materializations(filters, limit=1).records
            self._makers[asset, partition] = records[0].run_id if records else None
        return self._makers[asset, partition]


@contextmanager
def old_runs_of(home: Path, database: Database) -> Iterator[OldRuns | None]:
    """Open the runs of a DAGSTER_HOME; None without the folder. Raises DatabaseUnavailableError."""
    if not home.is_dir():
        yield None
        return
    with instance_of(home) as instance:
        if instance is None:
            raise DatabaseUnavailableError(
                "Dagster's runs cannot be read", observed=str(home), next_step="bring it up to date (kfm init)"
            )
        yield OldRuns(instance=instance, database=database)
