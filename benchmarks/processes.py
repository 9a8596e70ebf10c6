"""Resources of a deployment: CPU of its live and ended processes, and memory of runs.

Does not belong here: the work of these processes (`backlog.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Self

import psutil

SAMPLE_SECONDS = 0.25
CODE_SERVER = "code server"
RUN = "run"


def cpu_seconds_of(pids: Sequence[int]) -> float:
    """Return the CPU seconds of processes and all their descendants, live and ended.

    Runs are forked by a process for which the code server never waits (ADR 016), so the system's sum for the server's
    children (`getrusage(RUSAGE_CHILDREN)`) lacks the runs. The time of an ended process is added to its parent's only
    if the parent has waited for it, so call this while the processes run. Only Linux reports the time of ended
    children.
    """
    total = 0.0
    for root in map(psutil.Process, pids):
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total += sum(process.cpu_times()[:4])  # user and system time, of itself and of awaited children
    return total


def cpu_seconds_by_process(pids: Mapping[str, int]) -> dict[str, float]:
    """Return the CPU seconds of named processes and their descendants, with runs separate.

    A code server forks runs from its own child (`defs/code_server.py`): processes forked by that child are `run`.
    """
    spent: dict[str, float] = {}
    for name, pid in pids.items():
        spent[name] = cpu_seconds_of([pid])
        if name == CODE_SERVER:
            spent[RUN] = _forked_by_children(pid)
            spent[name] -= spent[RUN]
    return spent


def _forked_by_children(pid: int) -> float:
    total = 0.0
    for child in psutil.Process(pid).children():
        with suppress(psutil.NoSuchProcess):
            total += sum(child.cpu_times()[2:4])  # of its ended children
            running = [run.pid for run in child.children()]
            total += cpu_seconds_of(running)
    return total


class MemoryWatch:
    """Samples the resident memory of all descendants of a deployment's processes, runs included."""

    def __init__(self, pids: Callable[[], list[int]]) -> None:
        self._pids = pids
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak_mib = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            for pid in self._pids():
                for resident in _run_processes(pid):
                    self.peak_mib = max(self.peak_mib, resident / 2**20)


def _run_processes(pid: int) -> Iterator[int]:
    """Yield the resident bytes of every descendant; runs are descendants of the code server."""
    try:
        for run in psutil.Process(pid).children(recursive=True):
            yield int(run.memory_info().rss)
    except psutil.Error:
        return
