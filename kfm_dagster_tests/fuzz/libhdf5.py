"""libhdf5's answers to the very questions that a reader asked of a file, by h5py, in a process of its own.

In a process of its own because libhdf5 trusts its input (docs/adr/003): a mutated file may kill it, keep it busy or
make it take all memory there is. Belongs here: recording, asking, comparing. Does not belong here: which files
(`mutations.py`).
"""

from __future__ import annotations

import io
import math
import multiprocessing
import operator
import os
import resource
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import h5py
import numpy as np
import pyfive

from kfm_dagster.readers.hdf5 import MAX_NUMBERS, MAX_TEXT_BYTES, Hdf5Dataset, Hdf5Group, Hdf5Object
from kfm_dagster.readers.hdf5_chunks import StoredValues

MEMORY_BYTES = 4 << 30
CPU_SECONDS = 20.0
ENDS = ("libhdf5 hangs", "libhdf5 died", "libhdf5 closes no file")
"""After these the next question is asked of another process."""
HANG_SECONDS = 300.0
"""Without an answer for so long, the process is taken for dead: it has CPU_SECONDS for one file."""


class Question(NamedTuple):
    """What was asked of which object, the root group being "", and our answer."""

    name: str
    kind: str
    argument: Any
    answer: Any

    def __str__(self) -> str:
        return f"{self.kind} {self.argument} of {self.name!r}"

    def differs(self, said: Any, reader: str) -> str:
        return f"{self} is {str(said)[:80]!r} for {reader}, {str(self.answer)[:80]!r} for us"


@contextmanager
def recording() -> Iterator[list[Question]]:
    """Record what readers ask of HDF5 files meanwhile."""
    asked: list[Question] = []
    undo = [_recorded(holder, kind, asked) for holder, kind in _RECORDED]
    try:
        yield asked
    finally:
        for restore in undo:
            restore()


_RECORDED = (
    *((Hdf5Object, kind) for kind in ("text", "number", "attributes")),
    *((Hdf5Group, kind) for kind in ("dataset", "datasets")),
    *((Hdf5Dataset, kind) for kind in ("shape", "data_type")),
    *((StoredValues, kind) for kind in ("chunks", "element", "values")),
)


def _recorded(holder: type, kind: str, asked: list[Question]) -> Callable[[], None]:
    original = vars(holder)[kind]
    ask = original.fget if isinstance(original, property) else original

    def answered(self: Any, *arguments: Any) -> Any:
        answer = ask(self, *arguments)
        said = {"dataset": lambda: answer is not None, "datasets": lambda: list(answer)}.get(kind, lambda: answer)()
        asked.append(Question(getattr(self, "name", ""), kind, arguments[0] if arguments else None, said))
        return answer

    setattr(holder, kind, property(answered) if isinstance(original, property) else answered)
    return lambda: setattr(holder, kind, original)


class Libhdf5(ExitStack):
    """A process that answers; another one takes its place when it dies."""

    _pipe: Connection | None = None

    def differences(self, content: bytes, asked: list[Question]) -> list[str]:
        """Say what libhdf5 refuses or answers otherwise; that it died, where it did."""
        pipe = self._pipe = self._pipe or self._started()
        try:
            pipe.send((content, asked))
            found: list[str] = pipe.recv() if pipe.poll(HANG_SECONDS) else ["libhdf5 hangs"]
        except (OSError, EOFError):
            found = ["libhdf5 died of it"]
        if "".join(found[:1]).startswith(ENDS):
            self.close()
        return found

    def _started(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_answer, args=(theirs,))
        process.start()
        theirs.close()
        self.callback(setattr, self, "_pipe", None)
        self.callback(process.join)
        self.callback(process.kill)
        self.callback(ours.close)
        return ours


def _answer(pipe: Connection) -> None:
    """Answer until there are no more questions. What takes too long, or too much memory, ends this process."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(EOFError):
        while True:
            content, asked = pipe.recv()
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
            try:
                found = differences(content, asked)
            except RuntimeError as error:
                # It cannot close the file, and may be in any state.
                pipe.send([f"libhdf5 closes no file: {_short(error)}"])
                os._exit(1)
            signal.setitimer(signal.ITIMER_PROF, 0)
            pipe.send(found)


def differences(content: bytes, asked: list[Question]) -> list[str]:
    """Ask h5py everything again; what it refuses, or answers otherwise."""
    try:
        file = h5py.File(io.BytesIO(content), "r")
    except Exception as error:
        return [f"libhdf5 opens no file: {_short(error)}"]
    found = []
    with file:
        for question in asked:
            try:
                said = _ANSWERS[question.kind](file, question)
            except UnicodeDecodeError:
                # Of h5py, which knows no replacement; libhdf5 has given it the bytes.
                continue
            except Exception as error:
                found.append(f"libhdf5 refuses {question}: {_short(error)}")
                continue
            if said is not None:
                found.append(question.differs(said, "libhdf5"))
    return found or _of_pyfive(content, asked)


def _of_pyfive(content: bytes, asked: list[Question]) -> list[str]:
    """Ask pyfive again what libhdf5 answers as ours does; pyfive reads less, and what it refuses says nothing."""
    try:
        file = pyfive.File(io.BytesIO(content))
    except Exception:
        return []
    found = []
    for question in asked:
        if question.kind in _PYFIVE_ANSWERS:
            with warnings.catch_warnings(action="ignore"), suppress(Exception):
                if (said := _ANSWERS[question.kind](file, question)) is not None:
                    found.append(question.differs(said, "pyfive"))
    return found


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:160]}"


def _object(file: h5py.File, name: str) -> Any:
    return file[name] if name else file


def _dataset(file: h5py.File, question: Question) -> Any:
    there = question.argument in file and isinstance(file[question.argument], h5py.Dataset | h5py.Group)
    return None if there == question.answer else there


def _datasets(file: h5py.File, question: Question) -> Any:
    names = sorted(name for name in file if isinstance(file[name], h5py.Dataset))
    return None if names == question.answer else names


def _shape(file: h5py.File, question: Question) -> Any:
    shape = _object(file, question.name).shape
    # h5py has None for the null dataspace.
    shape = (0,) if shape is None else shape
    return None if shape == question.answer else shape


def _data_type(file: h5py.File, question: Question) -> Any:
    dtype = _object(file, question.name).dtype
    # A type that ours knows no number by is not one whose values are read.
    return None if question.answer in {None, dtype.name} else dtype.name


def _element(file: h5py.File, question: Question) -> Any:
    dataset = _object(file, question.name)
    value = dataset[question.argument] if dataset.ndim else dataset[()]
    # Where nothing was written, libhdf5 gives a fill value.
    if question.answer is None:
        return None if not dataset.id.get_storage_size() or dataset.chunks else value
    return None if _same_number(value, question.answer) else value


def _chunks(file: h5py.File, question: Question) -> Any:
    """Where the chunks are, by their places; of values in one piece, where that is."""
    dataset, ours = file[question.name], {place: (offset, length) for place, offset, length in question.answer}
    if dataset.chunks is None:
        offset = dataset.id.get_offset()
        theirs = {} if offset is None else {(0,) * dataset.ndim: (offset, dataset.nbytes)}
    else:
        infos = [dataset.id.get_chunk_info(number) for number in range(dataset.id.get_num_chunks())]
        places = (tuple(map(operator.floordiv, one.chunk_offset, dataset.chunks)) for one in infos)
        theirs = {place: (one.byte_offset, one.size) for place, one in zip(places, infos, strict=True)}
    return None if ours == theirs else sorted(theirs.items() - ours.items())[:1] or "fewer"


def _values(file: h5py.File, question: Question) -> Any:
    value = np.asarray(file[question.name][()]).tobytes()
    return None if value == question.answer else value[:20]


def _attribute(file: h5py.File, question: Question) -> Any:
    attributes = _object(file, question.name).attrs
    if question.argument not in attributes:
        return None if question.answer is None else "absent"
    if question.answer is None:
        return "there"
    value = attributes[question.argument]
    if question.kind == "text":
        text = _as_text(value)
        return None if text == question.answer else repr(text)
    numbers = np.ravel(value)
    return None if numbers.size == 1 and _same_number(numbers[0], question.answer) else numbers


def _attributes(file: h5py.File, question: Question) -> Any:
    """Every attribute of ours must be libhdf5's, and every one of the kinds that we list must be among ours.

    One that libhdf5 refuses is a difference only where we list it.
    """
    ours, wrong = dict(question.answer), {}
    attributes = _object(file, question.name).attrs
    for name in attributes:
        try:
            value = attributes[name]
        except (OSError, TypeError, ValueError):
            if name in ours:
                raise
            continue
        expected = _listed(value)
        found = ours.pop(name, None)
        if expected is not None and not _same(found, expected):
            wrong[name] = expected
        elif expected is None and found not in {None, ""}:
            wrong[name] = value
    return {**wrong, **dict.fromkeys((name for name, value in ours.items() if value != ""), "absent")} or None


def _listed(value: Any) -> Any:
    text = _as_text(value)
    if text is not None:
        return text if len(text) <= MAX_TEXT_BYTES else None
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "iuf" and 0 < value.size <= MAX_NUMBERS:
        numbers = np.ravel(value).tolist()
        return numbers if len(numbers) > 1 else numbers[0]
    return None


def _as_text(value: Any) -> str | None:
    """A single text of a fixed or of any length; of no element, the empty one."""
    if isinstance(value, h5py.Empty | pyfive.h5py.Empty):
        return "" if value.dtype.kind in "SO" else None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else None


def _same(found: Any, expected: Any) -> bool:
    if isinstance(expected, str) or isinstance(found, str | None):
        return bool(found == expected)
    ours, theirs = np.ravel(found), np.ravel(expected)
    return len(ours) == len(theirs) and all(_same_number(*pair) for pair in zip(theirs, ours, strict=True))


def _same_number(value: Any, found: float) -> bool:
    return bool(float(value) == found or (math.isnan(float(value)) and math.isnan(found)))


_ANSWERS = {
    "dataset": _dataset,
    "datasets": _datasets,
    "shape": _shape,
    "data_type": _data_type,
    "chunks": _chunks,
    "values": _values,
    "element": _element,
    "text": _attribute,
    "number": _attribute,
    "attributes": _attributes,
}

_PYFIVE_ANSWERS = frozenset({"text", "number", "attributes", "shape", "data_type"})
