"""The processes of runs on this machine: a run whose process is gone has failed.

The code server reports the death of a run that it started. If the code server dies with its runs, the runs stay
"started" and keep their slots, so the sensors, which run on the same machine, check for them. Does not belong here:
runs of other machines, which their launchers monitor (`dagster-k8s`, `dagster-aws`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import dagster as dg

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
SERVER_TAG = ".dagster/grpc_info"
"""The address of a run's code server; only Dagster's default launcher writes this tag."""


def fail_lost_runs(instance: dg.DagsterInstance, runs: Iterable[dg.DagsterRun]) -> bool:
    """Report started runs whose process is gone as failed; return whether there were any."""
    lost = False
    for run in runs:
        pid = _pid(instance, run) if run.status is dg.DagsterRunStatus.STARTED else None
        if pid is None or is_running(pid):
            continue
        lost = True
        # A process that succeeds records the run's end before it exits, so the run is read again.
        current = instance.get_run_by_id(run.run_id)
        if current is not None and not current.is_finished:
            instance.report_run_failed(current, f"the run's process {pid} is gone")
    return lost


def _pid(instance: dg.DagsterInstance, run: dg.DagsterRun) -> int | None:
    if json.loads(run.tags.get(SERVER_TAG, "{}")).get("host") not in LOOPBACK:
        return None
    for entry in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT):
        event = entry.dagster_event
        # The first process id is the run's; events of steps in separate processes come later.
        if event is not None and "pid" in event.engine_event_data.metadata:
            return int(str(event.engine_event_data.metadata["pid"].value))
    return None


def is_running(pid: int) -> bool:
    """Return whether a process of this machine runs; a zombie does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    status = Path(f"/proc/{pid}/stat")
    try:
        # The state follows the name, which is in parentheses and may contain any character.
        return status.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError, IndexError):
        # No /proc on this system, or the process ended meanwhile, which the next check detects.
        return True
