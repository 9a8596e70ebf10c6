"""A machine's code server: Dagster's own, but its runs need not load the definitions.

`dagster api grpc` starts each run as a new Python process, which first spends seconds of CPU on importing Dagster and
the definitions. Here a single process imports them, and forks for each run. A run is still a separate process, which
may be killed, and which outlives the code server. Run as

    python -m kfm_dagster.defs.code_server -m kfm_dagster.definitions -h 127.0.0.1 -p 4000

Does not belong here: the server's start (`deployment/local.py`); whether a run's process is alive (`run_processes.py`).
"""

from __future__ import annotations

import signal
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from types import FrameType
from typing import Any

import click
from dagster._cli import api
from dagster._grpc import server
from dagster._grpc.server import DagsterApiServer

from kfm_dagster.cyclic_gc import collect_rarely
from kfm_dagster.defs import run_processes
from kfm_dagster.defs.long_ticks import SHORT

CODE_VERSION = "kfm_dagster.defs.code_version"
"""Name of a module that reads the code's fingerprint at import; only the process that forks runs imports it."""

LATE = ("duckdb", "pandas", "pint", "pystac")
"""Modules that a run imports and the definitions do not; pyarrow imports pandas, if installed, at its first array."""

UNKNOWN_EXIT = 255
"""multiprocessing's exit code for a child whose parent, the only process that could report the code, has ended."""


class RunProcess(ForkServerProcess):
    """A forked process that counts as alive until it ends, even if its parent ends earlier."""

    def is_alive(self) -> bool:
        """Return whether the process runs. Dagster reports a run without a process as failed."""
        if super().is_alive():
            return True
        return self.exitcode == UNKNOWN_EXIT and self.pid is not None and run_processes.is_running(self.pid)


class RunContext(ForkServerContext):
    """multiprocessing's `forkserver`, with RunProcess as its processes."""

    Process = RunProcess


class ForkingApiServer(DagsterApiServer):
    """Dagster's servicer, which forks runs from a process without Python threads."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # Dagster always uses "spawn" and has no setting for it.
        self._mp_ctx = RunContext()  # type: ignore[assignment]


@click.command()
@click.option("-m", "module", required=True, help="Module of the definitions; importing it must have no effect.")
@click.option("-h", "host", default="127.0.0.1", show_default=True, help="Address to serve at.")
@click.option("-p", "port", required=True, type=int, help="Port to serve at.")
def main(*, module: str, host: str, port: int) -> None:
    """Serve the definitions of a module, as `dagster api grpc` does."""
    # In each run's process, multiprocessing executes this main module again, so the modules that this module imports
    # are preloaded, too.
    ours = [run_processes.__name__, CODE_VERSION, module]
    forkserver.set_forkserver_preload([api.__name__, server.__name__, *ours, *LATE, "kfm_dagster.fork_template"])
    collect_rarely()
    # Dagster uses the handler of SIGINT for SIGTERM, too, and then waits for the ticks under way.
    signal.signal(signal.SIGINT, _stop)
    SHORT.clear()
    # Started now, so that this process and the forking process import at the same time.
    forkserver.ensure_running()
    server.DagsterApiServer = ForkingApiServer  # type: ignore[misc]
    api.api_cli.main(["grpc", "-m", module, "-h", host, "-p", str(port)], prog_name="dagster api")


def _stop(number: int, frame: FrameType | None) -> None:
    SHORT.set()
    signal.default_int_handler(number, frame)


if __name__ == "__main__":
    main()
