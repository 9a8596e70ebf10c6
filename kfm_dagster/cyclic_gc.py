"""CPython's cyclic collector in processes that ingest: rarely, and not over what was loaded for good.

The collector looks at every container of a process again and again while a run makes its own; an eighth of a run's CPU
went into it. Does not belong here: who calls it (code server, the process that runs are forked from, worker).
"""

from __future__ import annotations

import gc

THRESHOLDS = (100_000, 20, 20)
"""Containers made before the youngest are looked at, and how often before older ones are. A run makes hundreds for each
unit, nearly all freed by their reference counts; CPython's own 700 is for small programs. At most 100,000 of them wait,
some 20 MB."""


def collect_rarely() -> None:
    """Take what is loaded out of the collector's sight, and have it look less often from now on."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
