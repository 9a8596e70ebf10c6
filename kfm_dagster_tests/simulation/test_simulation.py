"""The simulation keeps its invariants, reaches required events, and detects mutations."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kfm_dagster.stages.batch import SkipCause
from kfm_dagster_tests.programs import printed_by
from kfm_dagster_tests.simulation.exploring import explore
from kfm_dagster_tests.simulation.history import Simulation
from kfm_dagster_tests.simulation.mutations import MUTATIONS, Mutation
from kfm_dagster_tests.timeouts import HANG_SECONDS

pytestmark = pytest.mark.timeout(HANG_SECONDS)

ROOT = Path(__file__).resolve().parents[2]
BOUND = 300
"""The number of seeds within which a mutation must be detected; most need fewer than ten."""
CALM_STEPS = 4_000
"""More steps than a seed of the unchanged product needs; a mutated world can run for ever."""
REACHED = {
    "killed",
    "stalled",
    "re-executed",
    "rewritten",
    "object lost",
    "dead-lettered",
    "dead letters worked on",
    "unreadable message",
    "found by a listing",
    "follower failed",
    "superseded",
    "stale_event",
    "worker_lost",
    "lease_expired",
    "attempts_exhausted",
    "kill switch on",
    "kill switch off",
    "quarantined by a person",
    "release",
    "repeat",
    "repair_and_replace",
    "rolled back",
    "started twice",
    "step tried again",
    "unsound object",
    "poisonous object",
    *SkipCause,
}
"""Events that must happen, because otherwise the steps would prove little."""
FIRST = 288
"""From this seed on, the rarest event soon happens: the skip of a stage that had succeeded with other inputs."""


@pytest.mark.clause("WSM-19", "WSM-12", "BEY-02", "BEY-03")
@pytest.mark.parametrize(
    ("seeds", "steps", "meeting"), [(6, 2_000, set()), (20, 16_000, REACHED)], ids=["of every commit", "whole"]
)
def test_no_history_of_crashes_stalls_and_disorder_violates_an_invariant(
    seeds: int, steps: int, meeting: set[str], figure: Callable[[str], None]
) -> None:
    exploration = explore(first=FIRST if meeting else 0, seeds=seeds, least_steps=steps, meeting=meeting)
    figure(f"simulation: {exploration}")
    assert not exploration.broken, "\n".join(map(str, exploration.broken[:3]))
    assert exploration.steps >= steps
    assert not meeting - exploration.happened.keys()


@pytest.mark.clause("WSM-19")
@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_each_mutation_is_detected_by_its_invariant(mutation: Mutation) -> None:
    simulation = Simulation(triggers=mutation.triggers, faults=mutation.under, calm_steps=CALM_STEPS)
    with mutation.applied():
        outcomes = map(simulation.live, range(mutation.first, mutation.first + BOUND))
        broken = next((outcome for outcome in outcomes if outcome.violation), None)
    assert broken is not None, f"{BOUND} seeds do not detect the mutation"
    assert broken.violation == mutation.invariant, str(broken)


DIGESTS = """
import json
from kfm_dagster_tests.simulation.history import Simulation
simulation = Simulation()
print(json.dumps([[one.steps, one.digest] for one in map(simulation.live, [3, 15])]))
"""


def test_a_seed_gives_the_same_history_in_every_process_and_order() -> None:
    simulation = Simulation()
    here = {seed: simulation.live(seed) for seed in (15, 3)}
    # A process with another hash seed for sets and dictionaries.
    other = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    printed = printed_by(sys.executable, "-c", DIGESTS, folder=ROOT, PYTHONHASHSEED=other)
    assert json.loads(printed) == [[here[seed].steps, here[seed].digest] for seed in (3, 15)]
