"""Read an input as the chain does; report crashes, exceeded bounds and invalid Items."""

from __future__ import annotations

import json
import resource
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kfm_dagster.catalog.item import NoItemError
from kfm_dagster.catalog.validation import validate_item
from kfm_dagster.contracts.envelope import CheckStatus, Integrity
from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.followers.virtual import netcdf_step
from kfm_dagster.followers.virtual.netcdf_step import CubeStep, read_cube_step
from kfm_dagster.operators.stac_register import stac_register
from kfm_dagster.readers.base import BLOCK_BYTES, READERS, ByteSource, HeaderMetadata, ReadError, ReadRequest
from kfm_dagster_tests.fuzz.libhdf5 import Question
from kfm_dagster_tests.fuzz.mutations import Input
from kfm_dagster_tests.fuzz.specimens import INDEX, Subject
from kfm_dagster_tests.readers.reading import CONTRACTS, metadata_of, tracing_memory, unit_of

CUBE_BOUNDS = (netcdf_step.MAX_BLOCKS, netcdf_step.MAX_BLOCKS * BLOCK_BYTES)
"""The maximum of requests, and of requested bytes, for a chunk index."""
MEMORY_BYTES = 48 << 20
"""The maximum allocation for reading an object: a gzipped object of 8 MiB and its unpacked content take most."""
CPU_SECONDS = 20.0
"""Far more than any object takes, so that only endless reading is reported."""


class OutOfBoundsError(BaseException):
    """The reader exceeded its bounds; no `except Exception` of a reader hides this error."""


class OutOfTimeError(BaseException):
    """The reader computed for longer than any object takes."""


@dataclass
class Source:
    """An input as a ByteSource that counts."""

    content: bytes
    size: int
    zeros: bool
    bounds: tuple[int, int]
    requests: int = 0
    read_bytes: int = 0

    def read(self, start: int, length: int) -> bytes:
        stop = min(start + length, self.size)
        if start < 0 or length < 0:
            raise OutOfBoundsError(f"bytes from {start}, {length} of them")
        self.requests += 1
        self.read_bytes += max(stop - start, 0)
        if self.requests > self.bounds[0] or self.read_bytes > self.bounds[1]:
            raise OutOfBoundsError(f"{self.requests} requests for {self.read_bytes} bytes; at most {self.bounds}")
        content = self.content[start:stop]
        return content.ljust(stop - start, b"\0") if self.zeros and stop > start else content


@dataclass
class Trial:
    """The result of an input. `fate` is `ok`, `suspect`, `failed`, or the code of a refusal."""

    fate: str = ""
    findings: list[str] = field(default_factory=list)
    requests: int = 0
    read_bytes: int = 0
    memory: int = 0
    header: HeaderMetadata | None = None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A reader's outcome, its counted source, and the outcome of the chunk index, if it was read."""

    outcome: HeaderMetadata | ReadError
    source: Source
    cube: CubeStep | ReadError | None = None

    def as_text(self) -> str:
        """Return both outcomes as text."""
        return "\n".join(_as_text(outcome) for outcome in (self.outcome, self.cube))


def examine(
    subject: Subject, drawn: Input, *, measured: bool = False, questions: list[Question] | None = None
) -> Trial:
    """Read an input twice and create its Item; `measured` traces memory and takes longer.

    `questions` is the list being recorded; questions to a refused chunk index are removed from this list.
    """
    questions = [] if questions is None else questions
    trial = Trial()
    try:
        with _limited(), tracing_memory() if measured else nullcontext(lambda: 0) as peak:
            first = _read(subject, drawn, questions)
            trial.memory = peak()
        trial.requests, trial.read_bytes = first.source.requests, first.source.read_bytes
        with _limited():
            second = _read(subject, drawn, questions)
    except (Exception, OutOfBoundsError, OutOfTimeError) as error:
        trial.findings.append(f"{type(error).__name__}: {error} ({_where(error)})")
        return trial
    if trial.memory > MEMORY_BYTES:
        trial.findings.append(f"{trial.memory} bytes of memory")
    if first.as_text() != second.as_text():
        trial.findings.append("a second reading has another result")
    trial.header = first.outcome if isinstance(first.outcome, HeaderMetadata) else None
    _check_outcome(subject, drawn, first.outcome, trial)
    return trial


def _read(subject: Subject, drawn: Input, questions: list[Question]) -> Reading:
    bounds = (subject.bounds.requests, subject.bounds.read_bytes)
    source = Source(drawn.content, drawn.size, drawn.zeros, bounds)
    shared = Source(drawn.index or b"", len(drawn.index or b""), zeros=False, bounds=bounds)

    def sidecar(suffix: str) -> ByteSource | None:
        return shared if drawn.index is not None and suffix == INDEX else None

    specimen = drawn.specimen
    request = ReadRequest(
        key=specimen.key,
        groups=specimen.groups,
        source=source,
        sidecar=sidecar,
        has_sidecars=specimen.index is not None,
    )
    try:
        outcome: HeaderMetadata | ReadError = READERS[subject.reader](request)
    except ReadError as refusal:
        outcome = refusal
    source.requests += shared.requests
    source.read_bytes += shared.read_bytes
    if source.requests > bounds[0] or source.read_bytes > bounds[1]:
        raise OutOfBoundsError(f"{source.requests} requests for {source.read_bytes} bytes; at most {bounds}")
    read_cube = subject.along is not None and not isinstance(outcome, ReadError)
    cube = _cube(drawn, questions, along=str(subject.along)) if read_cube else None
    return Reading(outcome=outcome, source=source, cube=cube)


def _cube(drawn: Input, questions: list[Question], *, along: str) -> CubeStep | ReadError:
    before = len(questions)
    source = Source(drawn.content, drawn.size, drawn.zeros, CUBE_BOUNDS)
    try:
        return read_cube_step(source, along=along)
    except ReadError as refusal:
        del questions[before:]
        return refusal


def _as_text(outcome: object) -> str:
    return f"{outcome.code} {outcome}" if isinstance(outcome, ReadError) else repr(outcome)


def _check_outcome(subject: Subject, drawn: Input, outcome: HeaderMetadata | ReadError, trial: Trial) -> None:
    """Run the following operators on the outcome as the chain does, and record the findings."""

    def reader(_: ReadRequest, /) -> HeaderMetadata:
        if isinstance(outcome, ReadError):
            raise outcome
        return outcome

    specimen = drawn.specimen
    contract, grammar = CONTRACTS[specimen.dataset], CONTRACTS.grammars[specimen.dataset]
    checked = Integrity(status=CheckStatus.OK, actual_size_bytes=drawn.size)
    envelope = unit_of(specimen.dataset, specimen.key, object_version="0", object_size=None, integrity=checked)
    metadata = metadata_of(envelope, _NoSource(), readers={contract.metadata_extract.reader: reader})
    trial.fate = outcome.code.value if isinstance(outcome, ReadError) else metadata.status.value
    if isinstance(outcome, ReadError) and outcome.code not in MetadataIssue:
        trial.findings.append(f"a refusal with the code {outcome.code!r}")
    between_lines = subject.of_lines and drawn.content.endswith(b"\n")
    if drawn.is_cut and metadata.status is CheckStatus.OK and not between_lines:
        trial.findings.append(f"a cut object is ok: {drawn.size} of {len(specimen.content)} bytes")
    if metadata.status is CheckStatus.FAILED:
        return
    try:
        json.dumps([dict(metadata.stac_properties), metadata.geometry, metadata.bbox], allow_nan=False)
        item = stac_register(envelope.evolve(metadata=metadata), contract=contract, grammar=grammar).item
    except (NoItemError, TypeError, ValueError) as error:
        trial.findings.append(f"no Item: {error}")
        return
    trial.findings += [f"an Item that is not valid: {reason}" for reason in validate_item(item)]


class _NoSource:
    """A source without content, because the object is read already."""

    size = 0

    def read(self, start: int, length: int) -> bytes:
        raise AssertionError


@contextmanager
def _limited() -> Iterator[None]:
    """Raise OutOfTimeError after CPU_SECONDS of processor time."""

    def stop(*_: Any) -> None:
        raise OutOfTimeError(f"more than {CPU_SECONDS} s of computing")

    before: Callable[..., Any] | int | None = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def peak_memory() -> int:
    """Return the process's peak of resident memory, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _where(error: BaseException) -> str:
    """Return the innermost line and function of the package in the error's traceback."""
    ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "/kfm_dagster/" in frame.filename]
    return "".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in ours[-1:])
