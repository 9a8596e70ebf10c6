"""The resident worker: long polling, recording, the chain, and maintenance; rest while idle.

Worker, sensors and runs share the ledger's work by claims. Belongs here: the schedule, and the locks that reveal dead
runs of this machine's workers. Does not belong here: the work itself, releasing the claims of dead runs (`ingest/`), or
reporting to Dagster (`defs/runless.py`).
"""

from __future__ import annotations

import fcntl
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.ingest.chain import run_chain
from kfm_dagster.ingest.evidence import EvidenceCollector
from kfm_dagster.ingest.intake import take_in
from kfm_dagster.ingest.kill_switch_policy import KillSwitchPolicy, units_in_flight
from kfm_dagster.ingest.maintenance import maintain
from kfm_dagster.ingest.nodes import MessageParse, Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.process_state import ProcessState
from kfm_dagster.notifications.sqs import LONG_POLL_SECONDS
from kfm_dagster.redaction import error_text, is_own
from kfm_dagster.settings import Settings
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster.storage.private import private_folder

_COMING = "."
"""Prefix of the name of a file that is not locked yet."""


class RunLocks:
    """The files of a machine's runs, below `folder`, each locked while its run lasts.

    Dagster does not know a worker's runs, and their leases last for minutes after a kill. So each run has a file that
    its process locks, and a file without a lock belongs to a dead run. Only this machine's files are examined, because
    locks may not work over a network file system.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Create the folder `$KFM_HOME/workers/<host>`. Raises ConfigurationError."""
        folder = settings.home.absolute() / "workers" / socket.gethostname()
        try:
            private_folder(folder)
        except OSError as error:
            raise ConfigurationError(
                "the folder of the workers' runs cannot be created",
                observed=f"{folder}: {error.strerror}",
                next_step="correct KFM_HOME",
            ) from None
        return cls(folder)

    @contextmanager
    def hold(self, run_id: str) -> Iterator[None]:
        """Lock a run's file while the block runs; a process that dies leaves it without a lock."""
        file, hidden = self._folder / run_id, self._folder / f"{_COMING}{run_id}"
        with hidden.open("xb") as lock:
            # The file is locked before it gets its name: for other processes, a run whose file has no lock is dead.
            fcntl.flock(lock, fcntl.LOCK_EX)
            hidden.rename(file)
            try:
                yield
            finally:
                file.unlink()

    def dead(self) -> list[str]:
        """Return the runs whose process is gone."""
        files = [file for file in self._folder.iterdir() if not file.name.startswith(_COMING)]
        return sorted(file.name for file in files if _is_free(file))

    def forget(self, run_ids: Iterable[str]) -> None:
        """Remove the files of dead runs."""
        for run_id in run_ids:
            (self._folder / run_id).unlink(missing_ok=True)


def _is_free(file: Path) -> bool:
    with suppress(FileNotFoundError, BlockingIOError), file.open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


GATHER_SECONDS = 1.0
"""Messages within this time after the first message are one batch, because each run costs a tenth of a second."""
UNITS_PER_READ = 16
"""A batch has at most this number of units times KFM_READ_CONCURRENCY: some seconds of work. Further
units are left to other workers and to this worker's next runs."""
LOOK_SECONDS = 5.0
"""Pause between two rounds of the ledger's maintenance, like the default pause between two ticks of the sensors."""
EVIDENCE_SECONDS = 60.0
"""The longest time between two collections of evidence; an idle worker collects evidence in each round."""
LEFT_SECONDS = 30.0
"""Time that pending units are left to the sensors; then the worker takes them, because no sensor requested a run."""
FIRST_PAUSE_SECONDS = 5.0
MAX_PAUSE_SECONDS = 600.0
"""Pauses after failures in a row: the first pause, and the limit of its doubling."""
REST_STEP_SECONDS = 0.2
"""The longest delay until a resting worker notices that it has to stop."""

DayKey = tuple[str, str]
"""A dataset and a partition."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkedBatch:
    """A run of a worker: the output of each step of the chain, upstream first."""

    dataset: str
    partition: str
    run_id: str
    outputs: Sequence[StageBatch]
    seconds: float

    @property
    def units(self) -> int:
        """The number of units that the run claimed; 0 if it reused the output of an earlier run."""
        claim = self.outputs[0]
        return 0 if claim.skipped else len(claim.envelopes)

    def as_json(self) -> dict[str, Any]:
        """Return the run and its units by outcome; `retrying` units get another attempt."""
        summary = self.outputs[-1].state.validation_summary
        outcomes = {name: summary.get(name, 0) for name in ("succeeded", "retrying", "quarantined", "lost")}
        run = {"dataset": self.dataset, "partition": self.partition, "run_id": self.run_id}
        return {**run, "units": self.units, **outcomes, "seconds": round(self.seconds, 3)}


@dataclass
class _Failures:
    """Failures in a row, and the time of the next try on the monotonic clock."""

    number: int = 0
    until: float = 0.0

    def add(self) -> float:
        pause = min(FIRST_PAUSE_SECONDS * 2.0**self.number, MAX_PAUSE_SECONDS)
        self.number += 1
        self.until = time.monotonic() + pause
        return pause


@dataclass(kw_only=True)
class Worker:
    """Ingests until stopped. `report` receives batches with claimed units, `warn` failures."""

    pipeline: Pipeline
    locks: RunLocks
    report: Callable[[WorkedBatch], None]
    warn: Callable[[str], None]
    state: ProcessState = field(default_factory=ProcessState, init=False)
    batches: int = field(default=0, init=False)
    """Number of batches with claimed units."""
    stopping: bool = field(default=False, init=False)
    """Whether the worker ends after the current batch."""
    _last_batch: int | None = field(default=None, init=False)
    _next_look: float = field(default=0.0, init=False)
    _next_evidence: float = field(default=0.0, init=False)
    _ended: set[str] = field(default_factory=set, init=False)
    """Failed runs, whose remaining claims can be released."""
    _waiting: dict[DayKey, float] | None = field(default=None, init=False)
    """By day, the time since which units were pending at each `_look`; None before the first `_look`."""
    _failures: dict[DayKey, _Failures] = field(default_factory=dict, init=False)

    def stop(self) -> None:
        """End after the current batch. Signal handlers may call this."""
        # Not a threading.Event, because a signal handler that interrupts Event.wait would deadlock on the Event's lock.
        self.stopping = True

    def work(self, *, until_empty: bool = False, max_batches: int | None = None) -> None:
        """Ingest until stopped, until no work is left (`until_empty`), or for `max_batches`."""
        outside = _Failures()
        self._last_batch = max_batches
        while not self._done:
            try:
                idle = self._round()
            except Exception as error:  # the database or queue may work again in the next round
                pause = outside.add()
                self.warn(f"{_line(error)}; again in {pause:.0f} s")
                self._rest(pause)
                continue
            outside = _Failures()
            if idle and until_empty and not self._on_its_way():
                break
        try:
            self._look()
        except Exception as error:  # the next worker or sensor continues
            self.warn(_line(error))

    def _round(self) -> bool:
        """Receive messages and work once; return whether no work existed."""
        self.state.ensure_ready(self.pipeline.settings, self.pipeline.database)
        overdue = self._look() if time.monotonic() >= self._next_look else set()
        wait = 0 if overdue else LONG_POLL_SECONDS
        report = take_in(self.pipeline, self.state, wait_seconds=wait, budget_seconds=GATHER_SECONDS, most=self._most)
        # Units of tomorrow wait until their day begins.
        today = self.pipeline.clock().date().isoformat()
        for key in sorted(key for key in report.work | overdue if key[1] <= today):
            self._work_off(key)
        idle = not overdue and report.received == 0 and not report.full
        if idle or time.monotonic() >= self._next_evidence:
            EvidenceCollector(self.pipeline).collect()
            self._next_evidence = time.monotonic() + EVIDENCE_SECONDS
        if report.off or report.full:
            # No request has waited for messages, so without this rest the next round would begin immediately.
            self._rest(LONG_POLL_SECONDS)
        return idle

    def _look(self) -> set[DayKey]:
        """Maintain the ledger; return the days with due retries or overdue pending units."""
        dead = {*self.locks.dead(), *self._ended}
        due = maintain(
            self.pipeline, self.state, dead=lambda runs: [run for run in runs if run in dead], warn=self.warn
        )
        self.locks.forget(dead)
        self._ended -= dead
        now = time.monotonic()
        self._next_look = now + LOOK_SECONDS
        # At the first look, and after a dead run, new pending units may be a killed worker's: they count as overdue.
        before = self._waiting or {}
        first = now - LEFT_SECONDS if self._waiting is None or dead else now
        self._waiting = {key: before.get(key, first) for key in self._pending()}
        return {key for key, since in self._waiting.items() if key in due or now - since >= LEFT_SECONDS}

    def _pending(self) -> set[DayKey]:
        off = KillSwitchPolicy.now(self.pipeline.ledger.switches)
        return {
            (entry.dataset, entry.partition)
            for entry in self.pipeline.ledger.pending_by_partition()
            if entry.lane is Lane.LIVE
            and off.of(entry.dataset) is None
            and entry.dataset in self.pipeline.registry.contracts
        }

    @property
    def _done(self) -> bool:
        return self.stopping or (self._last_batch is not None and self.batches >= self._last_batch)

    @property
    def _most(self) -> int:
        settings = self.pipeline.settings
        return min(UNITS_PER_READ * settings.read_concurrency, settings.max_units_per_run)

    def _work_off(self, key: DayKey) -> None:
        """Run the chain over a day's pending units until a run claims fewer than its limit."""
        failures = self._failures.setdefault(key, _Failures())
        units = self._most
        while units >= self._most and not self._done and time.monotonic() >= failures.until:
            try:
                batch = self._run(key)
            except Exception as error:
                pause = failures.add()
                self._next_look = 0.0
                self.warn(f"{' '.join(key)}: {_line(error)}; next try of the day in {pause:.0f} s")
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
        while not self.stopping and (remaining := until - time.monotonic()) > 0:
            time.sleep(min(remaining, REST_STEP_SECONDS))


def _line(error: Exception) -> str:
    """Return an error as a line: the text of our own error, otherwise `error_text`."""
    return " ".join(str(error).split()) if is_own(error) else error_text(error)
