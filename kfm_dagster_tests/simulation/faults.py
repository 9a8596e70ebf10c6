"""The faults: what can go wrong in a seed, and how often. Does not belong here: making it happen.

Each seed draws which faults it has and how often each comes (swarm testing, as TigerBeetle's VOPR does it): a fault
that always comes hides what only its absence shows, and a rare one is met often enough where it is nearly alone.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from enum import StrEnum, unique


@unique
class Fault(StrEnum):
    """What can go wrong."""

    KILL = "kill"
    """A process dies at a point."""
    KILL_IN_STATEMENT = "kill in a statement"
    """A process dies in a transaction."""
    STALL = "stall"
    """A process of a sensor or a person hangs at a point."""
    STALL_IN_RUN = "stall in a run"
    """A process of a run hangs at a point."""
    JUMP = "jump"
    """Much time passes at once."""
    TWIN = "twin"
    """A run is started twice, by two processes."""
    RE_EXECUTION = "re-execution"
    """A run whose process has died is executed again at once."""
    HASTE = "haste"
    """A run that was taken for dead is executed again, whether it is dead or not."""
    OBJECT_SILENT = "object silent"
    """A provider's store does not answer."""
    STORE_SILENT = "store silent"
    """The store of landed messages and outputs does not answer."""
    STORE_REFUSES = "store refuses"
    """The store of landed messages and outputs refuses access: trying again does not help."""
    CATALOG_FAILS = "catalog fails"
    """A file of the catalog does not get its place."""
    LINEAGE_FAILS = "lineage fails"
    """A file of lineage does not get its place."""
    FOLLOWER_FAILS = "follower fails"
    """A follower of the catalog does not take its changes."""
    DELIVERED_TWICE = "delivered twice"
    """A message stays visible to the next receiver."""
    OBJECT_LATE = "object late"
    """An object appears after it was announced."""
    OBJECT_GONE = "object gone"
    """An object is gone for ever when its feed ends; seeds do not draw it."""
    MESSAGE_LATE = "message late"
    """A message comes long after its object."""
    ANNOUNCED_TWICE = "announced twice"
    """Two messages announce the same."""
    UNSOUND = "unsound"
    """An object says what cannot be: a gate has its unit leave."""
    POISONOUS = "poisonous"
    """An object says what no source is cited for: a gate stops its whole batch."""


USUAL: Mapping[Fault, float] = {
    Fault.KILL: 0.002,
    Fault.KILL_IN_STATEMENT: 0.0002,
    Fault.STALL: 0.003,
    Fault.STALL_IN_RUN: 0.015,
    Fault.JUMP: 0.01,
    Fault.TWIN: 0.15,
    Fault.RE_EXECUTION: 0.4,
    Fault.HASTE: 0.7,
    Fault.OBJECT_SILENT: 0.05,
    Fault.STORE_SILENT: 0.02,
    Fault.STORE_REFUSES: 0.01,
    Fault.CATALOG_FAILS: 0.03,
    Fault.LINEAGE_FAILS: 0.05,
    Fault.FOLLOWER_FAILS: 0.1,
    Fault.DELIVERED_TWICE: 0.05,
    Fault.OBJECT_LATE: 0.15,
    Fault.MESSAGE_LATE: 0.3,
    Fault.ANNOUNCED_TWICE: 0.1,
    Fault.UNSOUND: 0.08,
    Fault.POISONOUS: 0.03,
}
"""Shares of the occasions on which a fault comes, in a seed that has it as usual."""
PRESENT = 0.7
"""Share of the seeds that have a fault at all."""
SPREAD = 4.0
"""A fault comes up to so many times as often as usual, or as rarely."""
CALM = dict.fromkeys(Fault, 0.0)


def draw(rng: random.Random) -> Mapping[Fault, float]:
    """Draw the faults of a seed."""
    return CALM | {
        fault: min(share * SPREAD ** rng.uniform(-1, 1), 0.9) if rng.random() < PRESENT else 0.0
        for fault, share in USUAL.items()
    }
