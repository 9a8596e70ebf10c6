"""Run locks: detect dead runs of this machine's workers by locks that end with a process.

Dagster does not know a worker's runs, and their leases last for minutes after a kill. So each run has a file, locked
while it works: a file without a lock belongs to a run whose process is gone. Only this machine's files are examined,
as locks may not work over a network file system. Does not belong here: claims of dead runs (`ingest/maintenance.py`).
"""

from __future__ import annotations

import fcntl
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from kfm_dagster.errors import ConfigurationError
from kfm_dagster.settings import Settings
from kfm_dagster.storage.private import private_folder

_COMING = "."
"""Prefix of the name of a file that is not locked yet."""


class RunLocks:
    """The files of one machine's runs, below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Create the folder `$KFM_HOME/workers/<host>`. Raises ConfigurationError."""
        folder = settings.home.absolute() / "workers" / socket.gethostname()
        try:
            private_folder(folder)
        except OSError as error:
            raise ConfigurationError(
                "the folder of the workers' runs cannot be made",
                observed=f"{folder}: {error.strerror}",
                next_step="correct KFM_HOME",
            ) from None
        return cls(folder)

    @contextmanager
    def hold(self, run_id: str) -> Iterator[None]:
        """Lock a run's file while the block runs; a process that dies leaves it without a lock."""
        file, hidden = self._folder / run_id, self._folder / f"{_COMING}{run_id}"
        with hidden.open("xb") as lock:
            # Locked before others see it: without the lock, they would regard the new run as dead.
            fcntl.flock(lock, fcntl.LOCK_EX)
            hidden.rename(file)
            try:
                yield
            finally:
                file.unlink()

    def dead(self) -> list[str]:
        """Return the runs whose process is gone."""
        files = [file for file in self._folder.iterdir() if not file.name.startswith(_COMING)]
        return sorted(file.name for file in files if _is_free(file))

    def forget(self, run_ids: Iterable[str]) -> None:
        """Remove the files of dead runs."""
        for run_id in run_ids:
            (self._folder / run_id).unlink(missing_ok=True)


def _is_free(file: Path) -> bool:
    with suppress(FileNotFoundError, BlockingIOError), file.open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
