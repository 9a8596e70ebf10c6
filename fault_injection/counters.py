"""The counters: occasions and firings of each rule of a plan, over all processes, and the log of firings.

A folder has a file per rule (`<rule>.count`: occasions, firings), written under a file lock, and `injected.ndjson`, to
which every firing is appended before it takes effect. A kill at any moment leaves the files intact. Belongs here:
counts that outlive processes. Does not belong here: when a rule fires.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

LOG = "injected.ndjson"
_WIDTH = 12
"""Digits of a number: a line of fixed length is written by one system call, which a SIGKILL does not split."""


class FaultCounters:
    """Counts in a folder, which any number of threads and processes of one machine may share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def occasion(self, rule: str, fires: Callable[[int, int], bool]) -> int | None:
        """Count an occasion of a rule; return its number if `fires(occasion, firings so far)`, else None."""
        with self._locked(rule) as handle:
            seen, fired = _read(handle)
            hit = fires(seen + 1, fired)
            os.pwrite(handle, f"{seen + 1:{_WIDTH}d} {fired + hit:{_WIDTH}d}\n".encode(), 0)
            return seen + 1 if hit else None

    def counts(self, rule: str) -> tuple[int, int]:
        """Occasions and firings of a rule until now."""
        with self._locked(rule) as handle:
            return _read(handle)

    def note(self, fault: Mapping[str, Any]) -> None:
        """Append a firing to the log."""
        line = {"at": datetime.now(UTC).isoformat(), "pid": os.getpid(), **fault}
        handle = os.open(self.folder / LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        finally:
            os.close(handle)

    def injected(self) -> list[dict[str, Any]]:
        """Every firing so far, in the order of the log."""
        path = self.folder / LOG
        return [orjson.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []

    @contextmanager
    def _locked(self, rule: str) -> Iterator[int]:
        # A descriptor per access: flock then also excludes other threads, and ends with a killed process.
        handle = os.open(self.folder / f"{rule}.count", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield handle
        finally:
            os.close(handle)


def _read(handle: int) -> tuple[int, int]:
    seen, fired = (os.pread(handle, 2 * _WIDTH + 2, 0) or b"0 0").split()
    return int(seen), int(fired)
