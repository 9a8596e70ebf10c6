"""CPython's cyclic collector in processes that ingest: it runs rarely.

By default, the collector examines all containers of a process again and again while a run creates new ones. This took
an eighth of a run's CPU. Does not belong here: callers (code server, the process that forks runs, worker, tests).
"""

from __future__ import annotations

import gc

THRESHOLDS = (100_000, 20, 20)
"""After so many new containers, the youngest generation is examined; after so many such collections, the next
generation. A run creates hundreds of containers for each unit, and reference counts free nearly all of them; CPython's
own 700 is for small programs. Up to 100,000 containers wait to be freed, some 20 MB. No buffer of an object waits,
because readers leave no cycles."""


def collect_rarely() -> None:
    """Make the collector of this process and of its forks run less often from now on."""
    gc.set_threshold(*THRESHOLDS)
