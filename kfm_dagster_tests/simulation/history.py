"""One history: a seed lived through, from the first message until everything has ended.

Chaos first, for so many steps; then the faults end, and the world is driven until nothing waits any more. Whatever does
not hold ends the history, with what happened last. Does not belong here: many seeds (`__main__.py`).
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

DEFAULT_STEPS = 400
"""Steps under faults; a unit needs about a hundred and fifty."""
CALM_STEPS = 10_000
"""Steps in which everything must have ended once the faults are over; it takes some hundreds, and where a dozen workers
of one unit wait for each other some thousands."""
SURPRISE = "nobody_is_surprised"
"""Invariant: no part of the product meets an error that it does not handle."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a seed. `digest` is the same whenever the seed is lived through again."""

    seed: int
    steps: int
    digest: int
    units: int
    happened: Counter[str]
    violation: str | None = None
    detail: str = ""
    trace: Sequence[str] = field(default=(), repr=False)

    def __str__(self) -> str:
        """Say all that is needed to live through it again."""
        if self.violation is None:
            return f"seed {self.seed}: {self.steps} steps, {self.units} units, digest {self.digest:08x}"
        last = "\n    ".join(self.trace)
        return (
            f"seed {self.seed} breaks {self.violation} at step {self.steps}\n  {self.detail}\n"
            f"  again: python -m kfm_dagster_tests.simulation --first {self.seed} --seeds 1\n    {last}"
        )


class Simulation:
    """Lives through seeds, one after the other, in one database that is cloned for each.

    `faults` come as often as they say in every seed, the others as the seed draws them. A world that never comes to its
    end is given up after `calm_steps`.
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

    def live(self, seed: int, *, steps: int = DEFAULT_STEPS) -> Outcome:
        """Live through a seed."""
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
            _live(world, account, outside, steps, self._calm_steps)
        except ViolationError as error:
            violation, detail = error.invariant, str(error)
        except Exception as error:  # whatever it is, it is the finding
            violation, detail = SURPRISE, f"{type(error).__name__}: {error}"
        finally:
            # Before the end, which lets every actor go on once more.
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


def _live(world: World, account: Account, outside: Outside, steps: int, calm_steps: int) -> None:
    scheduler = world.scheduler
    scheduler.spawn("feed", world.feed.live, skew=scheduler.now - scheduler.now)
    world.spawn("messages", actors.sensor)
    world.spawn("ledger", actors.recovery)
    world.spawn("person", actors.person)
    while scheduler.steps < steps:
        scheduler.step()
    world.faulty, scheduler.faults = False, CALM
    while scheduler.steps < steps + calm_steps and (
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
        scheduler.current = None  # the account asks the database past the scheduler
        try:
            account.committed(actor)
        finally:
            scheduler.current = actor
        actor.in_transaction = False
        scheduler.holder = None
    if actor.in_transaction:
        scheduler.statement()  # nobody else could do anything that it sees
    else:
        scheduler.pause(failpoint.value)
