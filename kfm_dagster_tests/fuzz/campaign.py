"""Many inputs of one subject, examined and summed up. Does not belong here: one input (`trial.py`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from kfm_dagster_tests.fuzz.libhdf5 import Libhdf5, recording
from kfm_dagster_tests.fuzz.mutations import Input, draw
from kfm_dagster_tests.fuzz.specimens import SUBJECTS, Specimen
from kfm_dagster_tests.fuzz.trial import Trial, examine, peak_memory

MEASURED = 10
"""Of one in so many inputs memory is traced; of all, the process's own is looked at."""
MOST_GROWN = 384 << 20
"""Bytes by which inputs may raise what a process has resident at most; one of the soak begins with 130 MB."""


@dataclass(kw_only=True)
class Summary:
    """Results of many inputs. A finding begins with the number of its input, for `draw`."""

    fates: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    """Accepted files that libhdf5 was asked about."""
    requests: int = 0
    read_bytes: int = 0
    memory: int = 0
    findings: list[str] = field(default_factory=list)

    @property
    def accepted(self) -> int:
        return self.fates["ok"] + self.fates["suspect"]

    def __str__(self) -> str:
        """Return the figures in one line."""
        return (
            f"{self.fates.total():,} inputs, {self.accepted:,} accepted, {self.compared:,} held against libhdf5, "
            f"at most {self.requests} requests, {self.read_bytes / 1024:,.0f} KiB asked for and "
            f"{self.memory / 1e6:.1f} MB allocated"
        )


class Campaign(ExitStack):
    """The inputs of a subject. Once closed, it asks libhdf5 nothing more."""

    def __init__(self, name: str, *, specimens: Sequence[Specimen] | None = None) -> None:
        super().__init__()
        self._subject = SUBJECTS[name]
        self._specimens = specimens
        self._libhdf5 = self.enter_context(Libhdf5())

    def examine_all(self, numbers: Iterable[int], *, seed: int) -> Summary:
        """Examine the inputs of some numbers; all of them, whatever is found."""
        summary, resident, grown = Summary(), peak_memory(), 0
        for number in numbers:
            drawn = draw(self._subject, seed, number, specimens=self._specimens)
            trial, compared = self.examine(drawn, measured=number % MEASURED == 0)
            summary.fates[trial.fate] += 1
            summary.compared += compared
            summary.requests = max(summary.requests, trial.requests)
            summary.read_bytes = max(summary.read_bytes, trial.read_bytes)
            summary.memory = max(summary.memory, trial.memory)
            before, grown = grown, peak_memory() - resident
            if grown > MOST_GROWN >= before:
                trial.findings.append(f"the process has {grown} bytes more resident")
            summary.findings += [f"{number}: {text}" for text in trial.findings]
        return summary

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
