"""Many inputs of one subject: examined by several processes, and summed up. Does not belong here: one (`trial.py`)."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from kfm_dagster_tests.fuzz.libhdf5 import Libhdf5, recording
from kfm_dagster_tests.fuzz.mutations import Input, draw
from kfm_dagster_tests.fuzz.specimens import SUBJECTS, Specimen, Subject
from kfm_dagster_tests.fuzz.trial import Trial, examine, peak_memory

CHUNK = 100
"""Inputs that a process examines before it reports."""
MEASURED = 20
"""Of one in so many inputs memory is traced; of all, the process's own is looked at."""
MOST_GROWN = 384 << 20
"""Bytes by which inputs may raise what a process has resident at most; one of the soak begins with 130 MB."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something wrong with an input, which subject, seed and number make again."""

    subject: str
    seed: int
    number: int
    text: str

    def __str__(self) -> str:
        """Say what is wrong, and how to see it again."""
        again = f"--subject {self.subject} --seed {self.seed} --only {self.number}"
        return f"{self.subject}, seed {self.seed}, input {self.number}: {self.text}\n    again: {again}"


@dataclass(kw_only=True)
class Summary:
    """What many inputs gave."""

    subject: str
    inputs: int = 0
    fates: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    """Accepted files that libhdf5 was asked about."""
    requests: int = 0
    read_bytes: int = 0
    memory: int = 0
    grown: int = 0
    cpu_seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)

    def add(self, other: Summary) -> None:
        """Count what another process found."""
        self.inputs += other.inputs
        self.fates += other.fates
        self.compared += other.compared
        self.requests = max(self.requests, other.requests)
        self.read_bytes = max(self.read_bytes, other.read_bytes)
        self.memory = max(self.memory, other.memory)
        self.grown = max(self.grown, other.grown)
        self.cpu_seconds += other.cpu_seconds
        self.findings += other.findings

    def __str__(self) -> str:
        """Return the figures in one line."""
        accepted = sum(self.fates[fate] for fate in ("ok", "suspect"))
        against = f", {self.compared:,} held against libhdf5" if self.compared else ""
        return (
            f"{self.subject}: {self.inputs:,} inputs, {len(self.findings)} findings, {accepted:,} accepted{against}, "
            f"at most {self.requests} requests, {self.read_bytes / 1024:,.0f} KiB asked for and "
            f"{self.memory / 1e6:.1f} MB allocated, {self.cpu_seconds:.0f} s CPU"
        )


class Campaign(ExitStack):
    """One process's share of a subject. Once closed, it asks libhdf5 nothing more."""

    def __init__(self, name: str, *, specimens: Sequence[Specimen] | None = None) -> None:
        super().__init__()
        self._name = name
        self._subject: Subject = SUBJECTS[name]
        self._specimens = specimens
        self._libhdf5 = self.enter_context(Libhdf5())
        self._resident_before = peak_memory()

    def examine_all(self, numbers: Iterable[int], *, seed: int, measured_of: int = MEASURED) -> Summary:
        """Examine the inputs of some numbers; of one in `measured_of` memory is traced."""
        found = Summary(subject=self._name)
        begun = time.process_time()
        for number in numbers:
            drawn = draw(self._subject, seed, number, specimens=self._specimens)
            trial, compared = self.examine(drawn, measured=number % measured_of == 0)
            found.inputs += 1
            found.fates[trial.fate] += 1
            found.compared += compared
            found.requests = max(found.requests, trial.requests)
            found.read_bytes = max(found.read_bytes, trial.read_bytes)
            found.memory = max(found.memory, trial.memory)
            before, found.grown = found.grown, peak_memory() - self._resident_before
            if found.grown > MOST_GROWN >= before:
                trial.findings.append(f"the process has {found.grown} bytes more resident")
            found.findings += [
                Finding(subject=self._name, seed=seed, number=number, text=text) for text in trial.findings
            ]
        found.cpu_seconds = time.process_time() - begun
        return found

    def examine(self, drawn: Input, *, measured: bool = False) -> tuple[Trial, bool]:
        """Examine one input, and tell whether libhdf5 was asked about it."""
        with ExitStack() as stack:
            asked = stack.enter_context(recording()) if self._subject.is_hdf5 else []
            trial = examine(self._subject, drawn, measured=measured, asked=asked)
        # Bytes that are not there libhdf5 cannot be shown.
        if trial.header is None or not asked or drawn.size != len(drawn.content):
            return trial, False
        # What the second reading asked again is asked once.
        questions = list({repr(question): question for question in asked}.values())
        if differing := self._libhdf5.differences(drawn.content, questions):
            trial.findings.append(f"{differing[0]} ({len(differing)} of {len(questions)} answers)")
        return trial, True


def explore(
    name: str, *, inputs: int, seed: int = 0, first: int = 0, processes: int = 2, measured_of: int = MEASURED
) -> Summary:
    """Examine so many inputs of a subject; all of them, whatever is found."""
    found = Summary(subject=name)
    chunks = [
        (name, range(start, min(start + CHUNK, first + inputs)), seed, measured_of)
        for start in range(first, first + inputs, CHUNK)
    ]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for summary in pool.imap_unordered(_examine_all, chunks):
            found.add(summary)
    found.findings.sort(key=lambda finding: finding.number)
    return found


_campaigns: dict[str, Campaign] = {}
"""One per process, because making the specimens costs more than an input."""


def _examine_all(chunk: tuple[str, Iterable[int], int, int]) -> Summary:
    name, numbers, seed, measured_of = chunk
    if name not in _campaigns:
        _campaigns[name] = Campaign(name)
    return _campaigns[name].examine_all(numbers, seed=seed, measured_of=measured_of)
