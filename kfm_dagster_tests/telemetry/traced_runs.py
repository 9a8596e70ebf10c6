"""The processes that `test_traces.py` traces, because a process has one tracer provider.

python -m kfm_dagster_tests.telemetry.traced_runs ingest|recover HOME OBJECTS
"""

from __future__ import annotations

import sys
from pathlib import Path

from kfm_dagster.governance.log import Decision, GovernanceAction
from kfm_dagster.ingest.nodes import Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.settings import Settings
from kfm_dagster.telemetry.traces import flush_traces
from kfm_dagster_tests.clocks import locked
from kfm_dagster_tests.integration import chain
from kfm_dagster_tests.transactions import own_tx

DATASET = "nexrad-l2"
JANE = Decision(actor="jane", reason="a test", change_ref="CHG-1")


def ingest(pipeline: Pipeline, objects: Path) -> None:
    """Run a success, a failure, a repetition of the success, and a run that dies."""
    good, bad, lost = chain.volumes(3)
    chain.put(objects, [good, chain.missing(bad)])
    chain.take(pipeline, chain.announce([item.event() for item in (good, bad)], registry=pipeline.registry))
    _run(pipeline, "run-1")
    [done] = own_tx(pipeline.ledger).find(status=Status.SUCCEEDED)
    own_tx(pipeline.ledger).override(
        {done.wal_id: done.version},
        from_status=Status.SUCCEEDED,
        action=GovernanceAction.REPEAT,
        decision=JANE,
        replay_reason="incident",
        replay_run_id="replay-1",
    )
    _run(pipeline, "run-2")
    chain.put(objects, [lost])
    chain.take(pipeline, chain.announce([lost.event()], registry=pipeline.registry))
    try:
        _run(pipeline, "run-3", dies_at=chain.Failpoint(operator="metadata_extract", point="committed"))
    except chain.CrashError:
        flush_traces()


def recover(pipeline: Pipeline, _: Path) -> None:
    """Release the dead run's unit."""
    own_tx(pipeline.ledger).release_lost(run_ids=["run-3"])


def _run(pipeline: Pipeline, run_id: str, dies_at: chain.Failpoint | None = None) -> None:
    chain.run_chain(pipeline, DATASET, chain.DAY.isoformat(), run_id, Source.LEDGER, dies_at=dies_at)


if __name__ == "__main__":
    process, home, objects = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    opened = locked(Pipeline.open(Settings(home=home, object_root=objects, retry_backoff_seconds=60)))
    queue = chain.FakeQueue()
    opened.connect_queue = lambda *_: queue  # type: ignore[assignment, return-value]
    {"ingest": ingest, "recover": recover}[process](opened, objects)
    opened.close()
