"""The run launcher of one machine: Dagster's own, which can also tell whether a run's process is still there.

Dagster's DefaultRunLauncher leaves it to the code server to notice that a run died. When the code server dies with its
runs, nobody does: the runs stay "started" for ever and keep their slots. Run monitoring asks this one. Daemon and code
server must see each other's processes: containers of one pod share loopback, and need `shareProcessNamespace`, too.
Does not belong here: launchers of clusters, which look after their workers themselves (`dagster-k8s`, `dagster-aws`).
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import dagster as dg
from dagster._core.launcher import CheckRunHealthResult, DefaultRunLauncher, WorkerStatus
from dagster._core.storage.tags import GRPC_INFO_TAG

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class LocalRunLauncher(DefaultRunLauncher):
    """Starts runs as children of the code server, and looks for their processes while it is on this machine."""

    @property
    def supports_check_run_worker_health(self) -> bool:
        """Run monitoring may ask."""
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """Say whether the process of a started run is there. Of another machine's nothing is known."""
        pid = self._pid(run)
        if pid is None or is_running(pid):
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        return CheckRunHealthResult(WorkerStatus.FAILED, msg=f"the run's process {pid} is gone")

    def _pid(self, run: dg.DagsterRun) -> int | None:
        host = json.loads(run.tags.get(GRPC_INFO_TAG, "{}")).get("host")
        if host not in LOOPBACK:
            return None
        events = self._instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
        pids = [
            int(str(event.dagster_event.engine_event_data.metadata["pid"].value))
            for event in events
            if event.dagster_event is not None and "pid" in event.dagster_event.engine_event_data.metadata
        ]
        # The first is the run's own; steps that run in processes of their own come later.
        return pids[0] if pids else None


def is_running(pid: int) -> bool:
    """Tell whether a process of this machine runs. One that is dead and that nobody has waited for does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    status = Path(f"/proc/{pid}/stat")
    try:
        # The state follows the name, which is in parentheses and may hold anything.
        return status.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError, IndexError):
        # No /proc on this system, or it ended meanwhile, which the next look will see.
        return True
