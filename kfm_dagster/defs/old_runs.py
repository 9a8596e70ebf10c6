"""Old runs of Dagster: which of them nothing needs any more, and removing a run with its events and its logs.

The units of a run are asked of the ledger, by the root run whose name claims go under. Belongs here: what Dagster keeps
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

from kfm_dagster.defs.instance_storage import opened_instance
from kfm_dagster.defs.io_manager import root_run_id
from kfm_dagster.defs.run_storage import ACTIVE, PARTITION_TAG
from kfm_dagster.errors import DatabaseUnavailableError
from kfm_dagster.retention.pruning import OldBatch
from kfm_dagster.settings import environment
from kfm_dagster.storage.database import Database

BATCH = 500
"""Runs that are asked about together, and removed before the next ones are looked at."""
FINISHED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]


@dataclass(frozen=True, kw_only=True, slots=True)
class OldRun:
    """A finished run, its root run, its day, and the assets that it was to make; none named: all that there are."""

    run_id: str
    root: str
    partition: str | None
    assets: tuple[dg.AssetKey, ...]


@dataclass(frozen=True, kw_only=True)
class OldRuns:
    """The runs of an instance; opened for one look, in which what is newest stays so."""

    instance: dg.DagsterInstance
    database: Database
    _makers: dict[tuple[dg.AssetKey, str | None], str | None] = field(default_factory=dict, init=False)
    _newest: dict[str, str] = field(default_factory=dict, init=False)

    def batches(self, before: datetime) -> Iterator[OldBatch]:
        """Yield the runs that ended before that moment, the oldest first."""
        # All of them first: a page is asked for by the last run of the page before, which has to be there.
        old = list(self._old(before))
        for start in range(0, len(old), BATCH):
            part = old[start : start + BATCH]
            unsettled = self._unsettled(part)
            going = [run for run in part if run.root not in unsettled and self._is_free(run)]
            yield OldBatch(old=len(part), removable=[run.run_id for run in going], bytes=None)

    def remove(self, batch: OldBatch) -> None:
        """Remove runs. The row goes last: by it a run is found again that was left half removed."""
        for run_id in batch.removable:
            self.instance.compute_log_manager.delete_logs(prefix=[run_id])
            self._remove_events(run_id)
            self.instance.run_storage.delete_run(run_id)

    def _remove_events(self, run_id: str) -> None:
        # On SQLite a file for each run, which no deletion makes smaller; without it, the index has nothing of the run.
        files = Path(self.instance.root_directory, "history", "runs")
        if not files.is_dir() or (files / f"{run_id}.db").exists():
            self.instance.event_log_storage.delete_events(run_id)
        for suffix in ("-wal", "-shm", ""):
            (files / f"{run_id}.db{suffix}").unlink(missing_ok=True)

    def _old(self, before: datetime) -> Iterator[OldRun]:
        cursor: str | None = None
        while page := self.instance.get_run_records(
            dg.RunsFilter(statuses=FINISHED), limit=BATCH, cursor=cursor, ascending=True
        ):
            for record in page:
                run = record.dagster_run
                # One that was cancelled in the queue has no end.
                if (record.end_time or record.update_timestamp.timestamp()) < before.timestamp():
                    yield OldRun(
                        run_id=run.run_id,
                        root=root_run_id(run),
                        partition=run.tags.get(PARTITION_TAG),
                        assets=tuple(run.asset_selection or ()),
                    )
            cursor = page[-1].dagster_run.run_id

    def _unsettled(self, runs: Sequence[OldRun]) -> set[str]:
        with self.database.snapshot() as tx:
            asked = sorted({run.root for run in runs})
            return {row.run_id for row in tx.run("retention.unsettled_runs", runs=asked)}

    def _is_free(self, run: OldRun) -> bool:
        if run.root in self._at_work or self._is_newest(run):
            return False
        return not any(self._maker(asset, run.partition) == run.run_id for asset in run.assets or self._assets)

    @cached_property
    def _at_work(self) -> set[str]:
        """Root runs of which a run, original or re-execution, is queued or running."""
        return {root_run_id(run) for run in self.instance.get_runs(dg.RunsFilter(statuses=ACTIVE))}

    @cached_property
    def _assets(self) -> Sequence[dg.AssetKey]:
        return self.instance.get_asset_keys()

    def _is_newest(self, run: OldRun) -> bool:
        """Tell whether a run is the newest one of its day, after which the next one is named (`run_storage.py`)."""
        if run.partition is None:
            return False
        if run.partition not in self._newest:
            found = self.instance.get_run_ids(dg.RunsFilter(tags={PARTITION_TAG: run.partition}), limit=1)
            self._newest[run.partition] = found[0] if found else ""
        return self._newest[run.partition] == run.run_id

    def _maker(self, asset: dg.AssetKey, partition: str | None) -> str | None:
        """Return the run of an asset's newest materialisation for a day, by which the UI shows the day as filled."""
        if (asset, partition) not in self._makers:
            wanted = dg.AssetRecordsFilter(asset_key=asset, asset_partitions=[partition] if partition else None)
            found = self.instance.fetch_materializations(wanted, limit=1).records
            self._makers[asset, partition] = found[0].run_id if found else None
        return self._makers[asset, partition]


@contextmanager
def old_runs_of(home: Path, database: Database) -> Iterator[OldRuns | None]:
    """Open the runs of a DAGSTER_HOME; None where there is none. Raises DatabaseUnavailableError."""
    if not home.is_dir():
        yield None
        return
    with environment({"DAGSTER_HOME": str(home)}):
        instance = opened_instance(home)
        if instance is None:
            raise DatabaseUnavailableError(
                "Dagster's runs cannot be read", observed=str(home), next_step="bring it up to date (kfm init)"
            )
        with instance:
            yield OldRuns(instance=instance, database=database)
