"""Runless reports: a resident worker's results as asset events of Dagster, without a run.

Each asset has a single event per batch, because an event takes 10 to 15 ms. Belongs here: access to the instance, and
the handling of failed reports. Does not belong here: the metadata of a materialisation (`display.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import dagster as dg

from kfm_dagster.defs.chain import asset_keys
from kfm_dagster.defs.display import account_of, stage_metadata
from kfm_dagster.defs.instance_storage import opened_instance
from kfm_dagster.errors import DatabaseUnavailableError
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.plural import counted
from kfm_dagster.redaction import error_text
from kfm_dagster.settings import environment
from kfm_dagster.worker.resident import WorkedBatch

PAUSE_SECONDS = 60.0
"""Pause of reports after a failure, because each batch would wait for an unavailable storage."""


class RunlessReports:
    """Reports each batch to Dagster's instance while the next batch runs; a failure only warns."""

    def __init__(self, dagster_home: Path, pipeline: Pipeline, *, warn: Callable[[str], None]) -> None:
        self._home = dagster_home
        self._pipeline = pipeline
        self._warn = warn
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dagster-reports")
        self._last: Future[None] | None = None
        self._instance: dg.DagsterInstance | None = None
        self._paused_until = 0.0
        self._unreported = 0

    def report(self, batch: WorkedBatch) -> None:
        """Begin the report of a batch, after the report of the batch before; never raise an error."""
        if self._last is not None:
            self._last.result()
        self._last = self._thread.submit(self._attempt, batch)

    def close(self) -> None:
        """End the last report, and dispose of the instance."""
        self._thread.shutdown()
        self._dispose()

    def _attempt(self, batch: WorkedBatch) -> None:
        if time.monotonic() < self._paused_until:
            self._unreported += 1
            return
        try:
            # Dagster locates its storage by this variable.
            with environment({"DAGSTER_HOME": str(self._home)}):
                self._report(batch)
        except Exception as error:
            self._dispose()
            self._unreported += 1
            self._paused_until = time.monotonic() + PAUSE_SECONDS
            self._warn(f"a report to Dagster failed, the next follows in {PAUSE_SECONDS:.0f} s: {error_text(error)}")
            return
        if self._unreported:
            count = counted(self._unreported, "report")
            self._warn(f"Dagster answers again; {count} of batches were not sent, and the ledger has these batches")
            self._unreported = 0

    def _dispose(self) -> None:
        if self._instance is not None:
            self._instance.dispose()
            self._instance = None

    def _report(self, batch: WorkedBatch) -> None:
        instance = self._opened()
        day = self._pipeline.ledger.day(dataset=batch.dataset, partition=batch.partition)
        for key, output in zip(asset_keys(batch.dataset), batch.outputs, strict=True):
            account = account_of(self._pipeline, output.state.dataset_id, batch.run_id)
            shown = stage_metadata(key.path[-1], output, day=day, settings=self._pipeline.settings, account=account)
            instance.report_runless_asset_event(
                dg.AssetMaterialization(asset_key=key, partition=batch.partition, metadata=shown)
            )

    def _opened(self) -> dg.DagsterInstance:
        if self._instance is None:
            self._instance = opened_instance(self._home)
        if self._instance is None:
            raise DatabaseUnavailableError(
                "Dagster's storage is not there, or does not answer", observed=self._home, next_step="kfm init"
            )
        return self._instance
