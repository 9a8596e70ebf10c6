"""What a change touches: the commit that it is compared with, and the paths that differ from it.

The selection of tests and the mutants of a change use the same base.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VARIABLE = "KFM_CHANGED_BASE"
AGE = "12 hours ago"
"""A base is older than one sitting's commits; a fresh clone knows no more of what was tested before."""


def base_commit(root: Path = ROOT, named: str = "") -> str | None:
    """Return the named commit, else that of KFM_CHANGED_BASE, else the newest one older than AGE; None without any."""
    if named := named or os.environ.get(VARIABLE, ""):
        return _git(root, "rev-parse", "--quiet", "--verify", f"{named}^{{commit}}") or None
    return _git(root, "rev-list", "-1", f"--before={AGE}", "HEAD") or None


def changed_paths(root: Path, base: str) -> frozenset[str]:
    """Return the paths, from the root, that differ from a commit, with the untracked ones; a rename counts twice."""
    differing = _git(root, "diff", "--name-only", "--no-renames", "-z", base)
    untracked = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    return frozenset(filter(None, f"{differing}\0{untracked}".split("\0")))


def _git(root: Path, *arguments: str) -> str:
    """Return what git prints; nothing where it fails: outside a checkout, or no such commit."""
    done = subprocess.run(["git", "-C", str(root), *arguments], check=False, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""
