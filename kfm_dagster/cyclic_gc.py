"""CPython's cyclic collector in processes that ingest: it runs rarely.

By default, the collector examines all containers of a process again and again while a run creates new ones. The
examinations took an eighth of a run's CPU. Does not belong here: callers (code server, the process that forks runs,
worker, tests).
"""

from __future__ import annotations

import gc

THRESHOLDS = (100_000, 20, 20)
"""The youngest generation is examined after 100,000 new containers, the next two each after 20 examinations of the
generation before. A run creates hundreds of containers for each unit, and reference counts free nearly all of them;
CPython's default of 700 suits small programs. At most 100,000 containers, some 20 MB, wait to be freed. The bytes of
NOAA's objects never wait, because readers leave no cycles."""


def collect_rarely() -> None:
    """Make the collector of this process and of its forks run less often from now on."""
    gc.set_threshold(*THRESHOLDS)
