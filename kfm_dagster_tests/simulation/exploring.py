"""Many seeds, simulated by several processes, and their totals (one seed: `history.py`)."""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections import Counter
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from kfm_dagster_tests.simulation.history import Outcome, Simulation

CHUNK = 10
"""Seeds that a process simulates before it reports."""
PROCESSES = 2


@dataclass(kw_only=True)
class Exploration:
    """The results of many seeds."""

    seeds: int = 0
    steps: int = 0
    units: int = 0
    seconds: float = 0.0
    happened: Counter[str] = field(default_factory=Counter)
    broken: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Add the outcome of one seed."""
        self.seeds += 1
        self.steps += outcome.steps
        self.units += outcome.units
        self.happened += outcome.happened
        if outcome.violation is not None:
            self.broken.append(outcome)

    def __str__(self) -> str:
        """Return the figures in one line."""
        return (
            f"{self.steps:,} steps over {self.seeds:,} seeds, {self.units:,} units, {len(self.broken)} seeds broken, "
            f"{self.seconds:.0f} s, {1000 * self.seconds / max(self.steps, 1):.2f} ms a step"
        )


def explore(
    *,
    seeds: int,
    first: int = 0,
    least_steps: int = 0,
    meeting: AbstractSet[str] = frozenset(),
) -> Exploration:
    """Simulate `seeds` seeds, also after violations.

    Continue until `least_steps` steps are done and all events of `meeting` have happened. For these events, at most ten
    times as many seeds are simulated.
    """
    exploration = Exploration()
    begun = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(PROCESSES, _prepare) as pool:
        beginning, count = first, seeds
        while count:
            for outcome in pool.imap(_live, range(beginning, beginning + count), CHUNK):
                exploration.add(outcome)
            beginning += count
            unmet = bool(meeting - exploration.happened.keys()) and exploration.seeds < 10 * seeds
            count = CHUNK * PROCESSES if exploration.steps < least_steps or unmet else 0
    exploration.seconds = time.monotonic() - begun
    return exploration


_simulations: list[Simulation] = []
"""One simulation per process, because the migration of its database costs more time than a seed."""


def _prepare() -> None:
    # The simulated lineage root fails often, and each failure would be logged.
    logging.getLogger("kfm_dagster").setLevel(logging.CRITICAL)
    _simulations.append(Simulation())


def _live(seed: int) -> Outcome:
    return _simulations[0].live(seed)
