"""Where the tests' folders and servers stand: in memory, where it can hold them.

Belongs here: the choice of the folder. Does not belong here: what stands in it (`tmp_path`, `databases.py`).
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
"""Twice what the suite leaves while it runs, and room for its servers; a container's /dev/shm has 64 MB by default."""


def use_memory() -> None:
    """Put temporary files of this process and of those that it starts in memory, if it has room and nobody chose.

    A killed process leaves in memory what it leaves on a disk, so no test of a crash is the weaker; but creating a
    database takes a tenth of the time, and nobody waits for a disk.
    """
    if "TMPDIR" not in os.environ and _room() >= NEEDED_BYTES:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


def begin_run(config: pytest.Config) -> None:
    """Name the run of the suite, by a folder that its workers share; only the process that started them ends it."""
    if not hasattr(config, "workerinput"):
        os.environ[RUN] = tempfile.mkdtemp(prefix="kfm-suite-")
        # pytest's own base folder is closed to all but its owner; servers may run as users of their own.
        of_this_run().chmod(0o755)


def of_this_run() -> Path:
    """Return the folder that the workers of this run share."""
    return Path(os.environ[RUN])


def end_run(config: pytest.Config) -> None:
    """Remove the folder of the run, whose workers have ended."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(RUN), ignore_errors=True)


def _room() -> int:
    """Bytes that MEMORY and the machine can still hold, 0 where it is no such folder."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        available = {name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in lines)}
        # Half: the processes of the tests need theirs.
        return min(shutil.disk_usage(MEMORY).free, available["MemAvailable"] // 2)
    except (OSError, KeyError):
        return 0
