"""The history of one seed, from the first message until every unit has ended.

The first steps have faults; then the faults end, and the world continues until nothing is pending. A violation ends
the history, and its outcome has the last steps. Does not belong here: many seeds (`exploring.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kfm_dagster import failpoints
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.failpoints import Failpoint
from kfm_dagster.stages.card import Card
from kfm_dagster_tests.simulation import actors
from kfm_dagster_tests.simulation.faults import CALM, Fault
from kfm_dagster_tests.simulation.invariants import Account, ViolationError
from kfm_dagster_tests.simulation.memory import RewrittenTrigger, Template
from kfm_dagster_tests.simulation.outside import Outside
from kfm_dagster_tests.simulation.scheduling import Actor, Scheduler
from kfm_dagster_tests.simulation.world import World, simulated_contracts

FAULTY_STEPS = 400
"""Steps under faults; a unit needs about a hundred and fifty."""
CALM_STEPS = 10_000
"""Maximum steps without faults until every unit has ended. Usually some hundreds suffice, or some thousands if a
dozen workers of one unit wait for each other."""
SURPRISE = "every_error_is_handled"
"""Invariant: the product handles every error that occurs."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a seed. `digest` is the same in every simulation of the seed."""

    seed: int
    steps: int
    digest: int
    units: int
    happened: Counter[str]
    violation: str | None = None
    detail: str = ""
    trace: Sequence[str] = field(default=(), repr=False)

    def __str__(self) -> str:
        """Return the text needed to reproduce the seed."""
        if self.violation is None:
            return f"seed {self.seed}: {self.steps} steps, {self.units} units, digest {self.digest:08x}"
        last = "\n    ".join(self.trace)
        return (
            f"seed {self.seed} breaks {self.violation} at step {self.steps}\n  {self.detail}\n"
            f"  again: python -m kfm_dagster_tests.simulation --first {self.seed} --seeds 1\n    {last}"
        )


class Simulation:
    """Simulates seeds one after the other, each in a clone of one database.

    `faults` have these probabilities in every seed; each seed draws the probabilities of the other faults. A world that
    never ends is stopped after `calm_steps` steps without faults.
    """

    def __init__(
        self,
        *,
        triggers: Sequence[RewrittenTrigger] = (),
        faults: Mapping[Fault, float] | None = None,
        calm_steps: int = CALM_STEPS,
    ) -> None:
        self._faults = faults or {}
        self._calm_steps = calm_steps
        self._template = Template(triggers=triggers)
        self._registry: ContractRegistry = simulated_contracts()
        self._card = Card.load()

    def live(self, seed: int) -> Outcome:
        """Simulate a seed."""
        scheduler = Scheduler(seed)
        scheduler.faults = {**scheduler.faults, **self._faults}
        world = World(
            scheduler=scheduler, registry=self._registry, card=self._card, template=self._template, run=actors.run
        )
        account = Account(world)
        outside = Outside(world)
        failpoints.install(lambda failpoint, _: _reached(failpoint, scheduler, account))
        violation, detail = None, ""
        try:
            _live(world, account, outside, self._calm_steps)
        except ViolationError as error:
            violation, detail = error.invariant, str(error)
        except Exception as error:  # every error is a violation
            violation, detail = SURPRISE, f"{type(error).__name__}: {error}"
        finally:
            # Read these before `end`, which resumes every actor once more.
            lived, digest, trace = scheduler.steps, scheduler.digest, list(scheduler.trace)
            failpoints.install(None)
            scheduler.end()
        return Outcome(
            seed=seed,
            steps=lived,
            digest=digest,
            units=len(account.units),
            happened=scheduler.happened,
            violation=violation,
            detail=detail,
            trace=trace,
        )


def _live(world: World, account: Account, outside: Outside, calm_steps: int) -> None:
    scheduler = world.scheduler
    scheduler.spawn("feed", world.feed.live, skew=scheduler.now - scheduler.now)
    world.spawn("messages", actors.sensor)
    world.spawn("ledger", actors.recovery)
    world.spawn("person", actors.person)
    while scheduler.steps < FAULTY_STEPS:
        scheduler.step()
    world.faulty, scheduler.faults = False, CALM
    while scheduler.steps < FAULTY_STEPS + calm_steps and (
        _is_at_work(scheduler)
        or account.unfinished()
        or outside.missing()
        or outside.without_lineage()
        or outside.not_followed()
    ):
        scheduler.step()
    while scheduler.holder is not None:
        scheduler.step()
    account.finished()
    outside.finished()


def _is_at_work(scheduler: Scheduler) -> bool:
    return any(not actor.dead and (actor.run_id or actor.name == "feed") for actor in scheduler.actors)


def _reached(failpoint: Failpoint, scheduler: Scheduler, account: Account) -> None:
    actor: Actor | None = scheduler.current
    if actor is None or failpoint is Failpoint.DATABASE_BEGIN:
        return
    if failpoint is Failpoint.DATABASE_COMMIT_AFTER:
        scheduler.current = None  # the account queries the database without the scheduler
        try:
            account.committed(actor)
        finally:
            scheduler.current = actor
        actor.in_transaction = False
        scheduler.holder = None
    if actor.in_transaction:
        scheduler.statement()  # no other actor could change anything that this actor sees
    else:
        scheduler.pause(failpoint.value)
