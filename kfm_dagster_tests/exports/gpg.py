"""GnuPG with a home of its own: what anybody else would verify a bundle with."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

Gpg = Callable[..., subprocess.CompletedProcess[str]]


@contextmanager
def own_gpg() -> Iterator[Gpg]:
    """Let gpg be run; its agent, should one be needed, ends with the block. Skips the test where there is none."""
    if shutil.which("gpg") is None:
        if os.environ.get("KFM_REQUIRE_GPG") == "1":
            pytest.fail("KFM_REQUIRE_GPG=1, and no gpg is on the PATH")
        pytest.skip("no gpg on the PATH")
    # A short path: the agent's socket is in it, and the name of a socket has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="kfm-gpg-", ignore_cleanup_errors=True) as home:

        def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
            command = ["gpg", "--homedir", home, "--batch", "--no-tty", *map(str, arguments)]
            return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=120)

        yield run
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "gpg-agent"], check=False, timeout=60)
