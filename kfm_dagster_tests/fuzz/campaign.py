"""Examine many inputs of one subject and sum up the results; `trial.py` examines one input."""

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
"""Allocated memory is traced for every tenth input; the process's peak memory is checked after every input."""
MAX_GROWTH_BYTES = 384 << 20
"""The maximum growth of the process's peak memory, in bytes; a process of the soak begins with 130 MB."""


@dataclass(kw_only=True)
class Summary:
    """Results of many inputs. A finding begins with its input's number, from which `draw` creates the input again."""

    fates: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    """Accepted files that were compared with libhdf5."""
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
            f"{self.fates.total():,} inputs, {self.accepted:,} accepted, {self.compared:,} compared with libhdf5, "
            f"at most {self.requests} requests, {self.read_bytes / 1024:,.0f} KiB requested and "
            f"{self.memory / 1e6:.1f} MB allocated"
        )


class Campaign(ExitStack):
    """The inputs of a subject. Closing it ends libhdf5's process."""

    def __init__(self, name: str, *, specimens: Sequence[Specimen] | None = None) -> None:
        super().__init__()
        self._subject = SUBJECTS[name]
        self._specimens = specimens
        self._libhdf5 = self.enter_context(Libhdf5())

    def examine_all(self, numbers: Iterable[int], *, seed: int) -> Summary:
        """Examine the inputs of these numbers, and continue after findings."""
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
            if grown > MAX_GROWTH_BYTES >= before:
                trial.findings.append(f"the process has {grown} bytes more resident")
            summary.findings += [f"{number}: {text}" for text in trial.findings]
        return summary

    def examine(self, drawn: Input, *, measured: bool = False) -> tuple[Trial, bool]:
        """Examine one input, and return whether it was compared with libhdf5."""
        with ExitStack() as stack:
            recorded = stack.enter_context(recording()) if self._subject.is_hdf5 else []
            trial = examine(self._subject, drawn, measured=measured, questions=recorded)
        # libhdf5 cannot read bytes that are in the stated size but not in the content.
        if trial.header is None or not recorded or drawn.size != len(drawn.content):
            return trial, False
        # Each input is read twice, so each question was recorded twice.
        questions = list({repr(question): question for question in recorded}.values())
        if differing := self._libhdf5.differences(drawn.content, questions):
            trial.findings.append(f"{differing[0]} ({len(differing)} of {len(questions)} answers)")
        return trial, True
