"""The location of the tests' folders and servers: in memory if that has room.

Belongs here: the choice of the folder. Does not belong here: its content (`tmp_path`, `databases.py`).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

RUN = "KFM_TEST_RUN"
MEMORY = Path("/dev/shm")
NEEDED_BYTES = 4 << 30
"""Twice the suite's files, plus its servers' memory; a container's /dev/shm has 64 MB by default."""


def use_memory() -> None:
    """Put temporary files in memory if MEMORY has room and TMPDIR is not set.

    Creating a database takes a tenth of the time, and a killed process leaves the same files as on a disk, so
    crash tests stay valid.
    """
    if "TMPDIR" not in os.environ and _room() >= NEEDED_BYTES:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


def begin_run(config: pytest.Config) -> None:
    """Create the folder of this run of pytest, shared by its workers and removed by their parent."""
    if not hasattr(config, "workerinput"):
        os.environ[RUN] = tempfile.mkdtemp(prefix="kfm-suite-")
        # pytest's base folder is private to its owner; some servers run as other users.
        of_this_run().chmod(0o755)


def of_this_run() -> Path:
    """Return the folder that the workers of this run share."""
    return Path(os.environ[RUN])


def end_run(config: pytest.Config) -> None:
    """Remove the folder of the run, whose workers have ended."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(RUN), ignore_errors=True)


def _room() -> int:
    """Return how many bytes files in MEMORY are allowed to take, or 0 if MEMORY does not exist."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        available = {name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in lines)}
        # Only half, since the tests' processes need memory.
        return min(shutil.disk_usage(MEMORY).free, available["MemAvailable"] // 2)
    except (OSError, KeyError):
        return 0
