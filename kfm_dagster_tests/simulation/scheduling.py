"""The scheduler runs one actor at a time, and can switch, stall or kill it at each point.

An actor is a greenlet that runs the product's code, as a process or as a thread of a process. Each failpoint of this
code (`kfm_dagster/failpoints.py`), each call to a simulated service and each SQL statement is a point. One seeded
generator draws which actor continues, how much time passes, and who dies, so a seed determines the history. Belongs
here: control and time. Does not belong here: actions (`actors.py`), invariants (`invariants.py`).
"""

from __future__ import annotations

import random
import zlib
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from greenlet import getcurrent, greenlet

from kfm_dagster_tests.simulation.faults import Fault, draw

START = datetime(2025, 12, 4, 12, tzinfo=UTC)
TRACE_LENGTH = 60
STALLS = (120.0, 1200.0)
"""A stall ends within one of these numbers of seconds: less than half of a lease (300 s), or four leases."""


class Killed(BaseException):
    """The process ends here, without any cleanup."""


@dataclass(kw_only=True, eq=False)
class Actor:
    """A process, or a thread of the process `of`; its clock is wrong by `skew`, and `run_id` is its run."""

    name: str
    skew: timedelta
    run_id: str | None = None
    of: Actor | None = None
    body: greenlet | None = None
    point: str = "start"
    wake: datetime = START
    dead: bool = False
    doomed: bool = False
    in_transaction: bool = False
    stalled: bool = False
    attempts: dict[str, int] = field(default_factory=dict)
    """Units that the actor works on, with the attempt of its last known claim."""
    named_dead: frozenset[str] = frozenset()
    """Runs that the actor considers dead during a recovery."""
    threads: list[Actor] = field(default_factory=list)

    def doom(self) -> None:
        """Make the whole process die at its next points."""
        process = self.of or self
        for actor in (process, *process.threads):
            actor.doomed = True

    def joined(self, thread: Actor, now: datetime) -> None:
        """End a thread after its last task; a thread that has not started never starts."""
        self.threads.remove(thread)
        thread.doomed, thread.wake, thread.dead = True, now, thread.point == "start"


class Scheduler:
    """Runs actors by a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.faults: Mapping[Fault, float] = draw(self.rng)
        self.now = START
        self.steps = 0
        self.actors: list[Actor] = []
        self.current: Actor | None = None
        self.holder: Actor | None = None
        """The actor in a transaction: SQLite has one writer at a time."""
        self.trace: deque[str] = deque(maxlen=TRACE_LENGTH)
        self.digest = 0
        """The checksum of all steps: equal for two simulations with the same steps."""
        self.happened: Counter[str] = Counter()
        self.ending = False
        self._hub = getcurrent()

    def happens(self, fault: Fault) -> bool:
        """Draw whether a fault occurs now."""
        share = self.faults[fault]
        return share > 0 and self.rng.random() < share

    def spawn(
        self,
        name: str,
        work: Callable[[Actor], None],
        *,
        skew: timedelta,
        run_id: str | None = None,
        of: Actor | None = None,
    ) -> Actor:
        """Add an actor that does `work` from its next turn on."""
        actor = Actor(name=name, skew=skew, run_id=run_id, of=of, wake=self.now)

        def live() -> None:
            try:
                work(actor)
            except Killed:
                if of is None:
                    self.happened["killed"] += 1
                    self.note(f"{name} is gone")
            finally:
                actor.dead = True
                if self.holder is actor:
                    self.holder = None

        actor.body = greenlet(live, parent=self._hub)
        self.actors.append(actor)
        if of is not None:
            of.threads.append(actor)
        return actor

    def step(self) -> bool:
        """Run one actor to its next point; return False if none can run, now or later."""
        self.actors = [actor for actor in self.actors if not actor.dead]
        able = [actor for actor in self.actors if self.holder is None or not self._waits_for_lock(actor)]
        if not able:
            return False
        ready = [actor for actor in able if actor.wake <= self.now]
        if not ready:
            self.now = min(actor.wake for actor in able)
            ready = [actor for actor in able if actor.wake <= self.now]
        self._pass_time()
        self._resume(ready[int(self.rng.random() * len(ready))])
        return True

    def end(self) -> None:
        """End every actor, so that the interpreter keeps nothing of this world."""
        self.ending = True
        for actor in self.actors:
            if not actor.dead:
                actor.doomed = True
                self._resume(actor)

    def pause(self, point: str, *, seconds: float = 0.0) -> None:
        """Reach a point: other actors can run first, and the current actor can die. Raises Killed."""
        actor = self.current
        if actor is None:
            return
        if actor.doomed:
            raise Killed
        if seconds:
            actor.wake = self.now + timedelta(seconds=seconds)
        elif not actor.in_transaction and self.happens(Fault.STALL_IN_RUN if actor.run_id else Fault.STALL):
            self._stall(actor)
        actor.point = point
        if self.happens(Fault.KILL):
            actor.doom()
        self._hub.switch()
        actor.stalled = False
        if actor.doomed:
            raise Killed

    def statement(self) -> None:
        """Reach a SQL statement: no other actor runs, but the current actor can die. Raises Killed."""
        actor = self.current
        if actor is None:
            return
        if self.happens(Fault.KILL_IN_STATEMENT):
            actor.doom()
        if actor.doomed:
            raise Killed

    def note(self, event: str) -> None:
        """Add an event to the trace and the checksum."""
        line = f"{self.steps} {event}"
        self.digest = zlib.crc32(line.encode(), self.digest)
        self.trace.append(line)

    def _stall(self, actor: Actor) -> None:
        """Stall an actor alone (an unanswered request), or its whole process (a paused virtual machine)."""
        self.happened["stalled"] += 1
        actor.stalled = True
        actor.wake = self.now + timedelta(seconds=self.rng.choice(STALLS) * self.rng.random())
        if actor.threads and self.rng.random() < 0.5:
            for thread in actor.threads:
                thread.wake = max(thread.wake, actor.wake)

    def _resume(self, actor: Actor) -> None:
        self.steps += 1
        self.note(f"{actor.name} {actor.point}")
        self.current = actor
        try:
            actor.body.switch()
        finally:
            self.current = None

    def _pass_time(self) -> None:
        if self.happens(Fault.JUMP):
            self.now += timedelta(seconds=self.rng.uniform(60, 1500))
        else:
            self.now += timedelta(seconds=2 * self.rng.random())

    def _waits_for_lock(self, actor: Actor) -> bool:
        return actor is not self.holder and actor.point == LOCK


LOCK = "database.lock"
"""The point at which an actor waits for a transaction while another actor holds one."""
