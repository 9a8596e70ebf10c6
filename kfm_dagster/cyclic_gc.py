"""CPython's cyclic collector in processes that ingest: it looks rarely.

Left alone it looks at every container of a process again and again while a run makes its own; an eighth of a run's CPU
went into it. Does not belong here: who calls it (code server, the process that runs are forked from, worker, tests).
"""

from __future__ import annotations

import gc

THRESHOLDS = (100_000, 20, 20)
"""Containers made before the youngest are looked at, and how often before older ones are. A run makes hundreds for each
unit, nearly all freed by their reference counts; CPython's own 700 is for small programs. At most 100,000 of them wait,
some 20 MB besides what they refer to: readers leave no cycles, so no buffer of an object waits."""


def collect_rarely() -> None:
    """Have the collector of this process, and of what is forked from it, look less often from now on."""
    gc.set_threshold(*THRESHOLDS)
