"""The faults of a seed and their probabilities. Does not belong here: causing the faults.

Each seed draws its faults and their probabilities (swarm testing, as in TigerBeetle's VOPR): a fault that is
always present hides errors that need its absence, and rare faults occur often enough in seeds with few other faults.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from enum import StrEnum, unique


@unique
class Fault(StrEnum):
    """A fault."""

    KILL = "kill"
    """A process dies at a point."""
    KILL_IN_STATEMENT = "kill in a statement"
    """A process dies in a transaction."""
    STALL = "stall"
    """A process of a sensor or a person hangs at a point."""
    STALL_IN_RUN = "stall in a run"
    """A process of a run hangs at a point."""
    JUMP = "jump"
    """Much time passes in one step."""
    TWIN = "twin"
    """A run is started twice, by two processes."""
    RE_EXECUTION = "re-execution"
    """A run whose process has died is executed again immediately."""
    HASTE = "haste"
    """A run that looked dead is executed again, whether it is dead or not."""
    OBJECT_SILENT = "object silent"
    """A provider's store does not answer."""
    STORE_SILENT = "store silent"
    """The store of landed messages and outputs does not answer."""
    STORE_REFUSES = "store refuses"
    """The store of landed messages and outputs refuses access, also on retries."""
    CATALOG_FAILS = "catalog fails"
    """A file of the catalog cannot be published."""
    LINEAGE_FAILS = "lineage fails"
    """A file of lineage cannot be published."""
    FOLLOWER_FAILS = "follower fails"
    """A follower of the catalog refuses its changes."""
    DELIVERED_TWICE = "delivered twice"
    """A message stays visible to the next receiver."""
    OBJECT_LATE = "object late"
    """An object appears after it was announced."""
    OBJECT_GONE = "object gone"
    """An object is deleted permanently when its feed ends; seeds do not draw this fault."""
    MESSAGE_LATE = "message late"
    """A message arrives long after its object."""
    ANNOUNCED_TWICE = "announced twice"
    """Two messages announce the same object."""
    UNSOUND = "unsound"
    """An object has an impossible value: a gate rejects its unit."""
    POISONOUS = "poisonous"
    """An object has a value without a cited source: a gate stops its whole batch."""


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
"""The usual probability of each fault per occasion, in a seed that has this fault."""
PRESENT = 0.7
"""The share of seeds that have a given fault."""
SPREAD = 4.0
"""The factor by which a seed raises or lowers a probability, at most."""
CALM = dict.fromkeys(Fault, 0.0)


def draw(rng: random.Random) -> Mapping[Fault, float]:
    """Draw the faults of a seed."""
    return CALM | {
        fault: min(share * SPREAD ** rng.uniform(-1, 1), 0.9) if rng.random() < PRESENT else 0.0
        for fault, share in USUAL.items()
    }
