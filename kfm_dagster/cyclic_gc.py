"""CPython's cyclic collector in processes that ingest: it runs rarely.

By default it examines every container of a process again and again while a run creates its own, which took an eighth of
a run's CPU. Does not belong here: its callers (code server, the process that forks runs, worker, tests).
"""

from __future__ import annotations

import gc

THRESHOLDS = (100_000, 20, 20)
"""New containers before a collection of the youngest generation, and collections before an older generation's. A run
creates hundreds for each unit, nearly all freed by their reference counts; CPython's own 700 is for small programs. Up
to 100,000 containers wait to be freed, some 20 MB; no buffer of an object waits, because readers leave no cycles."""


def collect_rarely() -> None:
    """Make the collector of this process and of its forks run less often from now on."""
    gc.set_threshold(*THRESHOLDS)
