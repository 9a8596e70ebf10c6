"""Programs as processes: run to their end, or run beside a test, with a log.

Belongs here: finding, starting and ending any program. Does not belong here: commands of documents (`docs/console.py`).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from kfm_dagster_tests.timeouts import HANG_SECONDS, until


def program(*names: str, required_by: str) -> str:
    """Return the path of the first installed program; else skip, or fail if the variable `required_by` is 1."""
    if path := next(filter(None, map(shutil.which, names)), None):
        return path
    reason = f"no {' or '.join(names)} is on the PATH"
    if os.environ.get(required_by) == "1":
        pytest.fail(f"{required_by}=1, and {reason}")
    pytest.skip(reason)


def run_program(*command: str | Path, folder: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, with `variables` added to the environment."""
    environment = {**os.environ, **variables}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=HANG_SECONDS
    )


def printed_by(*command: str | Path, folder: Path | None = None, **variables: str) -> str:
    """Run a program that must succeed, and return its standard output."""
    done = run_program(*command, folder=folder, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def git(folder: Path, *arguments: str, **variables: str) -> str:
    """Run git in a folder, with an author for its commits, and return its output."""
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    return printed_by("git", "-C", folder, *author, *arguments, **variables)


@contextmanager
def running(
    command: Sequence[str | Path],
    log: Path,
    *,
    ready: Callable[[], object] = lambda: True,
    end: signal.Signals = signal.SIGTERM,
    **variables: str,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in its log's folder; on entry, wait until it is ready; on exit, end the program by a signal."""
    with log.open("wb") as output:
        environment = {**os.environ, **variables}
        process = subprocess.Popen(command, cwd=log.parent, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        until(lambda: process.poll() is not None or ready(), log.read_text)
        assert process.poll() is None, log.read_text(errors="replace")
        yield process
    finally:
        process.send_signal(end)
        process.wait(timeout=HANG_SECONDS)
