"""Many seeds: lived through by several processes, and summed up. Does not belong here: one seed (`history.py`)."""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from kfm_dagster_tests.simulation.history import DEFAULT_STEPS, Outcome, Simulation

CHUNK = 10
"""Seeds that a process lives through before it tells."""


@dataclass(kw_only=True)
class Exploration:
    """What many seeds gave."""

    seeds: int = 0
    steps: int = 0
    units: int = 0
    seconds: float = 0.0
    happened: Counter[str] = field(default_factory=Counter)
    broken: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Count one seed."""
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
    steps: int = DEFAULT_STEPS,
    processes: int = 2,
) -> Exploration:
    """Live through so many seeds; all of them, whatever breaks.

    More are taken until `least_steps` are made, and, up to ten times as many, until all of `meeting` has happened.
    """
    found = Exploration()
    begun = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(processes, _prepare) as pool:
        beginning, wanted = first, seeds
        while wanted:
            chunks = [
                (range(start, min(start + CHUNK, beginning + wanted)), steps)
                for start in range(beginning, beginning + wanted, CHUNK)
            ]
            for outcomes in pool.imap(_live_all, chunks):
                for outcome in outcomes:
                    found.add(outcome)
            beginning += wanted
            unmet = bool(meeting - found.happened.keys()) and found.seeds < 10 * seeds
            wanted = CHUNK * processes if found.steps < least_steps or unmet else 0
    found.seconds = time.monotonic() - begun
    return found


_simulations: list[Simulation] = []
"""One per process, because migrating costs more than a seed."""


def _prepare() -> None:
    # A failing lineage root is simulated, and would be reported thousands of times.
    logging.getLogger("kfm_dagster").setLevel(logging.CRITICAL)
    _simulations.append(Simulation())


def _live_all(chunk: tuple[Iterable[int], int]) -> list[Outcome]:
    seeds, steps = chunk
    return [_simulations[0].live(seed, steps=steps) for seed in seeds]
