"""The package's modules as syntax trees, parsed once in a process."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import kfm_dagster

PACKAGE = Path(kfm_dagster.__file__).parent


@cache
def trees() -> dict[str, ast.Module]:
    """Return the tree of each module, by its path below the package."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}
