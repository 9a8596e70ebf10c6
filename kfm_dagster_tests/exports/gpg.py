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
    """Yield a function that runs gpg, whose agent ends with the block; skip without gpg."""
    gpg = program("gpg", required_by="KFM_REQUIRE_GPG")
    # The path must be short: it has the agent's socket, whose name is limited to 107 bytes.
    with tempfile.TemporaryDirectory(prefix="kfm-gpg-", ignore_cleanup_errors=True) as home:

        def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
            command = [gpg, "--homedir", home, "--batch", "--no-tty", *map(str, arguments)]
            return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=120)

        yield run
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "gpg-agent"], check=False, timeout=60)
