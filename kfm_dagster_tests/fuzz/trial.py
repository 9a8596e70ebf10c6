"""One input, read by its reader as the chain reads it, and what is wrong with what came of it.

Belongs here: what a reader promises of any bytes. Does not belong here: where the bytes come from (`mutations.py`),
what libhdf5 says of them (`libhdf5.py`).
"""

from __future__ import annotations

import json
import resource
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from kfm_dagster.catalog.item import NoItemError
from kfm_dagster.catalog.validation import validate_item
from kfm_dagster.contracts.envelope import CheckStatus, Integrity
from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.followers.virtual import netcdf_step
from kfm_dagster.followers.virtual.netcdf_step import CubeStep, read_cube_step
from kfm_dagster.operators.metadata_extract import metadata_extract
from kfm_dagster.operators.stac_register import stac_register
from kfm_dagster.readers.base import BLOCK_BYTES, READERS, ByteSource, HeaderMetadata, ReadError, ReadRequest
from kfm_dagster_tests.fuzz.libhdf5 import Question
from kfm_dagster_tests.fuzz.mutations import Input
from kfm_dagster_tests.fuzz.specimens import CONTRACTS, INDEX, Subject
from kfm_dagster_tests.readers.reading import unit_of

CUBE_BOUNDS = (netcdf_step.MAX_BLOCKS, netcdf_step.MAX_BLOCKS * BLOCK_BYTES)
"""What a chunk index may cost: requests, and bytes that are asked for."""
MEMORY_BYTES = 48 << 20
"""Most that reading an object may allocate: the largest is a gzipped one of 8 MiB, held whole beside what is in it."""
CPU_SECONDS = 20.0
"""Far more than any object takes, so that only what does not end is found."""


class OutOfBoundsError(BaseException):
    """The reader asked for more than it may. No `except Exception` of a reader may hide it."""


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
        found = self.content[start:stop]
        return found.ljust(stop - start, b"\0") if self.zeros and stop > start else found


@dataclass
class Trial:
    """What came of an input. `fate` is `ok`, `suspect`, `failed`, or the code of a refusal."""

    fate: str = ""
    findings: list[str] = field(default_factory=list)
    requests: int = 0
    read_bytes: int = 0
    memory: int = 0
    header: HeaderMetadata | None = None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a reader gave, and what that took; `cube` is what came of the chunk index, where that was read."""

    outcome: HeaderMetadata | ReadError
    source: Source
    cube: CubeStep | ReadError | None = None

    def said(self) -> str:
        """Return all of it as text."""
        return "\n".join(_said(one) for one in (self.outcome, self.cube))


def examine(subject: Subject, drawn: Input, *, measured: bool = False, asked: list[Question] | None = None) -> Trial:
    """Read an input twice, and make its Item. `measured`: memory is traced, which takes longer.

    `asked` are the questions that are being recorded: those of a chunk index that is refused are taken out.
    """
    asked = [] if asked is None else asked
    trial = Trial()
    try:
        with _limited(), _allocations(trial) if measured else nullcontext():
            found = _read(subject, drawn, asked)
        trial.requests, trial.read_bytes = found.source.requests, found.source.read_bytes
        with _limited():
            again = _read(subject, drawn, asked)
    except (Exception, OutOfBoundsError, OutOfTimeError) as error:
        trial.findings.append(f"{type(error).__name__}: {error} ({_where(error)})")
        return trial
    if trial.memory > MEMORY_BYTES:
        trial.findings.append(f"{trial.memory} bytes of memory")
    if found.said() != again.said():
        trial.findings.append("a second reading says something else")
    trial.header = found.outcome if isinstance(found.outcome, HeaderMetadata) else None
    _judge(subject, drawn, found.outcome, trial)
    return trial


def _read(subject: Subject, drawn: Input, asked: list[Question]) -> Reading:
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
    cube = _cube(drawn, asked, along=str(subject.along)) if read_cube else None
    return Reading(outcome=outcome, source=source, cube=cube)


def _cube(drawn: Input, asked: list[Question], *, along: str) -> CubeStep | ReadError:
    before = len(asked)
    source = Source(drawn.content, drawn.size, drawn.zeros, CUBE_BOUNDS)
    try:
        return read_cube_step(source, along=along)
    except ReadError as refusal:
        del asked[before:]
        return refusal


def _said(outcome: object) -> str:
    return f"{outcome.code} {outcome}" if isinstance(outcome, ReadError) else repr(outcome)


def _judge(subject: Subject, drawn: Input, outcome: HeaderMetadata | ReadError, trial: Trial) -> None:
    """Give the outcome to the operators that follow, as the chain does."""

    def reader(_: ReadRequest, /) -> HeaderMetadata:
        if isinstance(outcome, ReadError):
            raise outcome
        return outcome

    specimen = drawn.specimen
    contract, grammar = CONTRACTS[specimen.dataset], CONTRACTS.grammars[specimen.dataset]
    checked = Integrity(status=CheckStatus.OK, actual_size_bytes=drawn.size)
    envelope = unit_of(specimen.dataset, specimen.key, object_version="0", object_size=None, integrity=checked)
    metadata = metadata_extract(
        envelope,
        contract=contract,
        grammar=grammar,
        source=_NoSource(),
        open_sidecar=lambda _: None,
        readers={contract.metadata_extract.reader: reader},
    )
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
    """For a reader that has read already."""

    size = 0

    def read(self, start: int, length: int) -> bytes:
        raise AssertionError


@contextmanager
def _limited() -> Iterator[None]:
    """End what computes for longer than CPU_SECONDS: processor time, so that a busy machine ends nothing."""

    def stop(*_: Any) -> None:
        raise OutOfTimeError(f"more than {CPU_SECONDS} s of computing")

    before: Callable[..., Any] | int | None = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextmanager
def _allocations(trial: Trial) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        trial.memory = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def peak_memory() -> int:
    """Bytes that this process had resident at most, so far."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _where(error: BaseException) -> str:
    """Function and line of the package where an error arose."""
    found, traceback = "", error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if "/kfm_dagster/" in code.co_filename:
            found = f"{code.co_filename.rpartition('/')[2]}:{traceback.tb_lineno} {code.co_name}"
        traceback = traceback.tb_next
    return found
