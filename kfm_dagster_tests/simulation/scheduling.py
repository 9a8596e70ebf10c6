"""The scheduler: actors that run one at a time, and may be switched, stalled or killed wherever they reach a point.

An actor is a greenlet that runs real code; every failpoint of that code (`kfm_dagster/failpoints.py`), every call to a
simulated service and every SQL statement is a point. Which actor goes on, how much time passes, and who dies is drawn
from one seeded generator, so a seed is a history. Belongs here: control and time. Does not belong here: what actors do
(`actors.py`), what must hold (`invariants.py`).
"""

from __future__ import annotations

import random
import zlib
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from greenlet import getcurrent, greenlet

START = datetime(2025, 12, 4, 12, tzinfo=UTC)
TRACE_LENGTH = 60
STALLS = (120.0, 1200.0)
"""Seconds that a stall may take: much less than a lease, or much more."""


class Killed(BaseException):
    """The process ends here; nothing of it happens any more, not even its cleaning up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chances:
    """How often things go wrong, per point that is reached (kills and stalls) or per step (jumps of time)."""

    kill: float = 0.006
    kill_in_statement: float = 0.002
    stall: float = 0.003
    stall_in_run: float = 0.06
    jump: float = 0.01


CALM = Chances(kill=0, kill_in_statement=0, stall=0, stall_in_run=0, jump=0)


@dataclass(kw_only=True, eq=False)
class Actor:
    """One process. Its clock is wrong by `skew`; `run_id` is that of the run it works for, if any."""

    name: str
    skew: timedelta
    run_id: str | None = None
    body: greenlet | None = None
    point: str = "start"
    wake: datetime = START
    dead: bool = False
    doomed: bool = False
    in_transaction: bool = False
    stalled: bool = False
    attempts: dict[str, int] = field(default_factory=dict)
    """Units that it works on, with the attempt of the claim that it believes in."""
    named_dead: frozenset[str] = frozenset()
    """Runs that it believes dead while it recovers."""
    after_commit: list[Callable[[], None]] = field(default_factory=list)


class Scheduler:
    """Runs actors by a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.chances = Chances()
        self.now = START
        self.steps = 0
        self.actors: list[Actor] = []
        self.current: Actor | None = None
        self.holder: Actor | None = None
        """Who is in a transaction: SQLite has one writer at a time."""
        self.trace: deque[str] = deque(maxlen=TRACE_LENGTH)
        self.digest = 0
        """Checksum of everything that happened; two runs of a seed that agree in it have done the same."""
        self.happened: Counter[str] = Counter()
        self.ending = False
        self._hub = getcurrent()

    def spawn(self, name: str, work: Callable[[Actor], None], *, skew: timedelta, run_id: str | None = None) -> Actor:
        """Add an actor that does `work` from its next turn on."""
        actor = Actor(name=name, skew=skew, run_id=run_id, wake=self.now)

        def live() -> None:
            try:
                work(actor)
            except Killed:
                self.happened["killed"] += 1
                self.note(f"{name} is gone")
            finally:
                actor.dead = True
                if self.holder is actor:
                    self.holder = None

        actor.body = greenlet(live, parent=self._hub)
        self.actors.append(actor)
        return actor

    def step(self) -> bool:
        """Let one actor go on to its next point; False when nobody can, now or later."""
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
        """End every actor, so that nothing of this world is left in the interpreter."""
        self.ending = True
        for actor in self.actors:
            if not actor.dead:
                actor.doomed = True
                self._resume(actor)

    def pause(self, point: str, *, seconds: float = 0.0) -> None:
        """Reach a point: others may go on before the current actor does, and it may not survive. Raises Killed."""
        actor = self.current
        if actor is None:
            return
        if actor.doomed:
            raise Killed
        if seconds:
            actor.wake = self.now + timedelta(seconds=seconds)
        elif not actor.in_transaction and self.rng.random() < self._chance_to_stall(actor):
            # A paused virtual machine, a full disk, a network that hangs: a zombie goes on when all is over.
            self.happened["stalled"] += 1
            actor.stalled = True
            actor.wake = self.now + timedelta(seconds=self.rng.choice(STALLS) * self.rng.random())
        actor.point = point
        if self.rng.random() < self.chances.kill:
            actor.doomed = True
        self._hub.switch()
        actor.stalled = False
        if actor.doomed:
            raise Killed

    def statement(self) -> None:
        """Reach a SQL statement: nobody else goes on, but the actor may die inside its transaction. Raises Killed."""
        actor = self.current
        if actor is not None and (actor.doomed or self.rng.random() < self.chances.kill_in_statement):
            actor.doomed = True
            raise Killed

    def note(self, what: str) -> None:
        """Put something into the trace and its checksum."""
        line = f"{self.steps} {what}"
        self.digest = zlib.crc32(line.encode(), self.digest)
        self.trace.append(line)

    def _resume(self, actor: Actor) -> None:
        self.steps += 1
        self.note(f"{actor.name} {actor.point}")
        self.current = actor
        try:
            actor.body.switch()
        finally:
            self.current = None

    def _pass_time(self) -> None:
        chance = self.rng.random()
        if chance < self.chances.jump:
            self.now += timedelta(seconds=self.rng.uniform(60, 1500))
        else:
            self.now += timedelta(seconds=chance)

    def _chance_to_stall(self, actor: Actor) -> float:
        return self.chances.stall_in_run if actor.run_id else self.chances.stall

    def _waits_for_lock(self, actor: Actor) -> bool:
        return actor is not self.holder and actor.point == LOCK


LOCK = "database.lock"
"""Point at which an actor wants a transaction; it stays there while another one has it."""
