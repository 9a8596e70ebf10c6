"""A backlog drained by a new deployment: duration, and work of all processes and servers.

Belongs here: the measurement. Does not belong here: which backlogs are compared (`backlog.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from benchmarks.fast_queue import FastQueue
from benchmarks.ledger import filled
from benchmarks.objects import DAY
from benchmarks.processes import CODE_SERVER, MemoryWatch, cpu_seconds_by_process
from benchmarks.surroundings import Surroundings
from kfm_dagster.deployment.drain import drain
from kfm_dagster.deployment.local import Deployment
from kfm_dagster.ingest.acknowledgement import Progress
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.run_state.record import RunState
from kfm_dagster.settings import Settings, environment

CHILDREN = (CODE_SERVER, "daemon")
"""The processes that a `Deployment` starts, in order."""
EVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Drained:
    """Seconds from first record to last settlement; CPU and requests since the deployment began."""

    units: int
    succeeded: int
    seconds: float
    cpu_seconds: dict[str, float]
    by_node: dict[str, float]
    peak_run_mib: float
    runs: int
    store: dict[str, int] = field(default_factory=dict)
    servers_cpu_seconds: dict[str, float] = field(default_factory=dict)
    """CPU seconds of queue and store, which are not the product's."""


def drain_backlog(
    home: Path,
    fauxqs: Path,
    bodies: Sequence[str],
    surroundings: Surroundings,
    *,
    timeout_seconds: float,
    report: Callable[[Progress], None],
    settings: dict[str, str] | None = None,
    records: int = 0,
) -> Drained:
    """Drain the messages with a deployment whose ledger has a number of earlier records.

    Raises DependencyUnavailableError after the timeout.
    """
    home.mkdir(parents=True)
    store = surroundings.store
    with FastQueue(fauxqs, latency_ms=surroundings.place.queue_latency_ms) as queue:
        queue.fill(bodies)
        queue_began = queue.cpu_seconds()
        with environment({**queue.environment(), **surroundings.variables(), **_settings(home), **(settings or {})}):
            pipeline = Pipeline.open(Settings.load())
            earlier = filled(pipeline.database, records, settled=True) if records else 0
            filled_by = cpu_seconds_by_process(surroundings.database.pids)
            began = pipeline.clock()
            if store is not None:
                store.counts()
            store_began = 0.0 if store is None else store.cpu_seconds()
            with Deployment(home, environment={}) as deployment, MemoryWatch(deployment.pids) as watch:
                drain(deployment, pipeline, timeout_seconds=timeout_seconds, report=report)
                cpu_seconds = deployed_cpu_seconds(deployment, surroundings)
            for kind, seconds in filled_by.items():
                cpu_seconds[kind] -= seconds
            servers = {"queue": queue.cpu_seconds() - queue_began}
            counts = {}
            if store is not None:
                servers["store"], counts = store.cpu_seconds() - store_began, store.counts()
            return Drained(
                units=len(bodies),
                cpu_seconds=cpu_seconds,
                peak_run_mib=watch.peak_mib,
                store=counts,
                servers_cpu_seconds=servers,
                **_recorded(pipeline, len(bodies), since=began, earlier=earlier),
            )


def deployed_cpu_seconds(deployment: Deployment, surroundings: Surroundings) -> dict[str, float]:
    """Return a running deployment's CPU seconds by kind of process, with its database's server."""
    pids = dict(zip(CHILDREN, deployment.pids(), strict=True))
    return cpu_seconds_by_process({**pids, **surroundings.database.pids})


def _settings(home: Path) -> dict[str, str]:
    return {
        "KFM_HOME": str(home.absolute()),
        "KFM_MAX_IN_FLIGHT_UNITS": "100000",
        "KFM_FIRST_DAY": DAY.isoformat(),
        "KFM_SCHEDULED_LISTINGS": "false",
        # A short pause between ticks, because this pause affects latency and not cost.
        "KFM_SENSOR_INTERVAL_SECONDS": "1",
    }


def node_seconds(states: Iterable[RunState]) -> dict[str, float]:
    """Return wall seconds by node, summed over runs; `states` must be sorted by run and time.

    A node's time is the time between the run's previous record and the node's own record, so it includes Dagster's
    part. The first node of a run has no previous record and does not count.
    """
    spent: defaultdict[str, float] = defaultdict(float)
    for _, records in groupby(states, key=lambda state: state.run_id):
        for earlier, later in pairwise(records):
            spent[later.dataset_id.split(".", 1)[1]] += (later.recorded_at - earlier.recorded_at).total_seconds()
    return dict(spent)


def ledger_span(pipeline: Pipeline, *, since: datetime = EVER) -> tuple[datetime, datetime]:
    """Return the times of the first record since `since`, and of the last change."""
    with pipeline.database.snapshot() as tx:
        row = tx.run("reports.ledger_span", since=since).one()
    return row.began_at, row.ended_at


def _recorded(pipeline: Pipeline, units: int, *, since: datetime, earlier: int) -> dict[str, Any]:
    """Return the figures of ledger and run-state after the earlier records; close the pipeline."""
    began, ended = ledger_span(pipeline, since=since)
    with pipeline.database.snapshot() as tx:
        runs = tx.connection.exec_driver_sql("SELECT DISTINCT run_id FROM run_state").scalars().all()
    states = [state for run in runs for state in pipeline.stages.run_states.of_run(run) if state.recorded_at >= began]
    with pipeline.database.snapshot() as tx:
        counts = pipeline.ledger.counts(tx=tx)
    pipeline.close()
    return {
        "succeeded": sum(by_status[Status.SUCCEEDED] for by_status in counts.values()) - earlier,
        "seconds": (ended - began).total_seconds(),
        "by_node": {node: seconds * 1000 / units for node, seconds in node_seconds(states).items()},
        "runs": len({state.run_id for state in states}),
    }
