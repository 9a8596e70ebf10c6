"""The resident worker: receive by long polling, record, run the chain, look after the ledger; rest while nothing comes.

It shares the ledger's work with sensors and runs: claims decide. Belongs here: when what is done. Does not belong here:
how (`ingest/`), how its runs are known to be dead (`run_locks.py`), or what Dagster shows of it (`defs/runless.py`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.ingest.chain import run_chain
from kfm_dagster.ingest.evidence import EvidenceCollector
from kfm_dagster.ingest.intake import take_in
from kfm_dagster.ingest.kill_switch_policy import KillSwitchPolicy, units_in_flight
from kfm_dagster.ingest.maintenance import look_after
from kfm_dagster.ingest.nodes import MessageParse, Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.process_state import ProcessState
from kfm_dagster.redaction import error_text, is_own
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster.worker.run_locks import RunLocks

LONG_POLL_SECONDS = 5
"""How long a request waits for a message: less than the client waits for an answer (10 s), and no longer than the
ledger goes without a look. An idle worker makes so few requests that they cost no CPU worth naming."""
GATHER_SECONDS = 1.0
"""What comes within so long after the first message is one batch: a run costs a tenth of a second whatever it holds."""
UNITS_PER_READ = 16
"""Units that a worker takes on at a time, for each object that it reads at a time: work for some seconds. What it does
not take waits on the queue for whichever worker is free: one that took all would leave the others idle."""
LOOK_SECONDS = 5.0
"""Pause between two looks at the ledger, as between two ticks of the sensors."""
EVIDENCE_SECONDS = 60.0
"""The longest time between two collections of evidence; a worker that has nothing to do collects it at once."""
LEFT_SECONDS = 30.0
"""What is pending for so long nobody comes for: a sensor has asked for its run within two ticks, and a run starts in
seconds."""
FIRST_PAUSE_SECONDS = 5.0
MAX_PAUSE_SECONDS = 600.0
"""Pauses after failures in a row: the first one, and the longest that doubling it leads to."""
REST_STEP_SECONDS = 0.2
"""How soon a rest ends once the worker is to stop."""

DayKey = tuple[str, str]
"""A dataset and a partition."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkedBatch:
    """One run of a worker: what each step of the chain put out, upstream first."""

    dataset: str
    partition: str
    run_id: str
    outputs: Sequence[StageBatch]
    seconds: float

    @property
    def units(self) -> int:
        """How many units the run claimed."""
        return len(self.outputs[0].envelopes)

    def as_json(self) -> dict[str, Any]:
        """Return the run and how its units ended, as the ledger counted them; a retrying one was given another try."""
        summary = self.outputs[-1].state.validation_summary
        ends = {name: summary.get(name, 0) for name in ("succeeded", "retrying", "quarantined", "lost")}
        named = {"dataset": self.dataset, "partition": self.partition, "run_id": self.run_id}
        return {**named, "units": self.units, **ends, "seconds": round(self.seconds, 3)}


@dataclass
class _Failures:
    """Failures in a row, and when the next try is due on the monotonic clock."""

    number: int = 0
    until: float = 0.0

    def add(self) -> float:
        pause = min(FIRST_PAUSE_SECONDS * 2.0**self.number, MAX_PAUSE_SECONDS)
        self.number += 1
        self.until = time.monotonic() + pause
        return pause


@dataclass(kw_only=True)
class Worker:
    """Ingests until told to stop. `report` hears of every batch that has claimed units, `warn` of what goes wrong."""

    pipeline: Pipeline
    locks: RunLocks
    report: Callable[[WorkedBatch], None]
    warn: Callable[[str], None]
    state: ProcessState = field(default_factory=ProcessState, init=False)
    batches: int = field(default=0, init=False)
    """Batches that have claimed units."""
    _last_batch: int | None = field(default=None, init=False)
    _stopping: bool = field(default=False, init=False)
    _next_look: float = field(default=0.0, init=False)
    _next_evidence: float = field(default=0.0, init=False)
    _ended: set[str] = field(default_factory=set, init=False)
    """Runs that failed: what they still hold is nobody's."""
    _waiting: dict[DayKey, float] | None = field(default=None, init=False)
    """Since when something of a day has been pending, as far as the looks saw."""
    _failures: dict[DayKey, _Failures] = field(default_factory=dict, init=False)

    @property
    def stopping(self) -> bool:
        """Whether it ends after the batch in work."""
        return self._stopping

    def stop(self) -> None:
        """End after the batch in work. May be called by a signal's handler."""
        # No threading.Event: a handler that interrupts a wait for one would wait for its lock for ever.
        self._stopping = True

    def work(self, *, until_empty: bool = False, max_batches: int | None = None) -> None:
        """Ingest until told to stop; until nothing is left to do; or until so many batches are done."""
        outside = _Failures()
        self._last_batch = max_batches
        while not self._done:
            try:
                idle = self._round()
            except Exception as error:  # what it works with may come back, and the next round asks for it again
                pause = outside.add()
                self.warn(f"{_line(error)}; again in {pause:.0f} s")
                self._rest(pause)
                continue
            outside = _Failures()
            if idle and until_empty and not self._on_its_way():
                break
        try:
            self._look()
        except Exception as error:  # whoever looks next does what it could not
            self.warn(_line(error))

    def _round(self) -> bool:
        """Take in and work once; return whether there was nothing to do."""
        self.state.ensure_ready(self.pipeline.settings, self.pipeline.database)
        left = self._look() if time.monotonic() >= self._next_look else set()
        wait = 0 if left else LONG_POLL_SECONDS
        taken = take_in(self.pipeline, self.state, wait_seconds=wait, budget_seconds=GATHER_SECONDS, most=self._most)
        # What is of tomorrow waits until its day begins.
        for key in sorted(key for key in taken.work | left if key[1] <= self._today):
            self._work_off(key)
        idle = not left and taken.received == 0 and not taken.full
        if idle or time.monotonic() >= self._next_evidence:
            EvidenceCollector(self.pipeline).collect()
            self._next_evidence = time.monotonic() + EVIDENCE_SECONDS
        if taken.off or taken.full:
            # Nothing was received, so nothing was waited for.
            self._rest(LONG_POLL_SECONDS)
        return idle

    def _look(self) -> set[DayKey]:
        """Look after the ledger; return the days of which something is due, or was left pending by others."""
        gone = {*self.locks.dead(), *self._ended}
        ledger = self.pipeline.ledger
        due = look_after(
            self.pipeline, self.state, ledger, dead=lambda runs: [one for one in runs if one in gone], warn=self.warn
        )
        self.locks.forget(gone)
        self._ended -= gone
        now = time.monotonic()
        self._next_look = now + LOOK_SECONDS
        # What was there when the worker began may be what it left when it was killed.
        before = self._waiting or {}
        first = now - LEFT_SECONDS if self._waiting is None or gone else now
        self._waiting = {key: before.get(key, first) for key in self._pending()}
        return {key for key, since in self._waiting.items() if key in due or now - since >= LEFT_SECONDS}

    def _pending(self) -> set[DayKey]:
        off = KillSwitchPolicy.now(self.pipeline.ledger.switches)
        return {
            (entry.dataset, entry.partition)
            for entry in self.pipeline.ledger.pending_by_partition()
            if entry.lane is Lane.LIVE and off.of(entry.dataset) is None
        }

    @property
    def _done(self) -> bool:
        return self._stopping or (self._last_batch is not None and self.batches >= self._last_batch)

    @property
    def _most(self) -> int:
        """Units of a batch."""
        settings = self.pipeline.settings
        return min(UNITS_PER_READ * settings.read_concurrency, settings.max_units_per_run)

    @property
    def _today(self) -> str:
        return self.pipeline.clock().date().isoformat()

    def _work_off(self, key: DayKey) -> None:
        """Run the chain over what is pending of a day, until a run finds less than it may take."""
        failures = self._failures.setdefault(key, _Failures())
        units = self._most
        while units >= self._most and not self._done and time.monotonic() >= failures.until:
            try:
                batch = self._run(key)
            except Exception as error:
                pause = failures.add()
                self._next_look = 0.0
                self.warn(f"{' '.join(key)}: {_line(error)}; the day again in {pause:.0f} s")
                return
            failures.number, units = 0, batch.units
            if units:
                self.batches += 1
                self.report(batch)

    def _run(self, key: DayKey) -> WorkedBatch:
        (dataset, partition), run_id, began = key, str(uuid.uuid4()), time.monotonic()
        first = MessageParse(
            pipeline=self.pipeline,
            dataset=dataset,
            partition=partition,
            run_id=run_id,
            source=Source.LEDGER,
            limit=self._most,
            lane=Lane.LIVE,
        )
        with self.locks.hold(run_id):
            try:
                outputs = run_chain(first, pause=self._rest)
            except Exception:
                self._ended.add(run_id)
                raise
        seconds = time.monotonic() - began
        return WorkedBatch(dataset=dataset, partition=partition, run_id=run_id, outputs=outputs, seconds=seconds)

    def _on_its_way(self) -> int:
        ledger, today = self.pipeline.ledger, self.pipeline.clock().date()
        return units_in_flight(ledger, Lane.LIVE, KillSwitchPolicy.now(ledger.switches), today=today)

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stopping and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, REST_STEP_SECONDS))


def _line(error: Exception) -> str:
    """Return an error as a line: ours say what was observed, of others the class says most."""
    return " ".join(str(error).split()) if is_own(error) else error_text(error)
