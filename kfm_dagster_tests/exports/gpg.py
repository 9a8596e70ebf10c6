"""GnuPG in a temporary home, to verify bundles as their recipients do."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kfm_dagster_tests.programs import program

Gpg = Callable[..., subprocess.CompletedProcess[str]]


@contextmanager
def own_gpg() -> Iterator[Gpg]:
    """Yield a function that runs gpg; on exit, end gpg's agent. Skip the test if gpg is missing."""
    gpg = program("gpg", required_by="KFM_REQUIRE_GPG")
    # The folder's path must be short: the path of the agent's socket in it is limited to 107 bytes.
    with tempfile.TemporaryDirectory(prefix="kfm-gpg-", ignore_cleanup_errors=True) as home:

        def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
            command = [gpg, "--homedir", home, "--batch", "--no-tty", *map(str, arguments)]
            return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=120)

        yield run
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "gpg-agent"], check=False, timeout=60)
