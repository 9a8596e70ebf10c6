"""The change under test: the base commit and the paths that differ from it.

The selection of tests and the mutants of a change use the same base.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VARIABLE = "KFM_CHANGED_BASE"
AGE = "12 hours ago"
"""The minimum age of a base, so that a change includes every commit of the last half day."""


def base_commit(root: Path = ROOT, named: str = "") -> str | None:
    """Return the named commit, else that of KFM_CHANGED_BASE, else the newest older than AGE."""
    if named := named or os.environ.get(VARIABLE, ""):
        return _git(root, "rev-parse", "--quiet", "--verify", f"{named}^{{commit}}") or None
    return _git(root, "rev-list", "-1", f"--before={AGE}", "HEAD") or None


def changed_paths(root: Path, base: str) -> frozenset[str]:
    """Return the paths that differ from a commit, and untracked paths; a rename gives the old and the new path."""
    differing = _git(root, "diff", "--name-only", "--no-renames", "-z", base)
    untracked = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    return frozenset(filter(None, f"{differing}\0{untracked}".split("\0")))


def _git(root: Path, *arguments: str) -> str:
    """Return git's output, or "" if git fails (no checkout, an unknown commit)."""
    done = subprocess.run(["git", "-C", str(root), *arguments], check=False, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""
