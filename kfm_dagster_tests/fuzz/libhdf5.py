"""Compare a reader's answers about an HDF5 file with libhdf5's, in another process.

libhdf5 trusts its input (docs/adr/003), so a mutated file can make it crash, hang or exhaust the memory.
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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple
from unittest.mock import patch

import h5py
import numpy as np
import pyfive

from kfm_dagster.readers.hdf5 import MAX_NUMBERS, MAX_TEXT_BYTES, Hdf5Dataset, Hdf5Group, Hdf5Object
from kfm_dagster.readers.hdf5_chunks import StoredValues

MEMORY_BYTES = 4 << 30
CPU_SECONDS = 20.0
ENDS = ("libhdf5 hangs", "libhdf5 died", "libhdf5 closes no file")
"""Results after which a new process is started."""
HANG_SECONDS = 300.0
"""Without an answer within this time the process counts as hanging."""


class Question(NamedTuple):
    """A question about an object ("" is the root group), and our reader's answer."""

    name: str
    kind: str
    argument: Any
    answer: Any

    def __str__(self) -> str:
        return f"{self.kind} {self.argument} of {self.name!r}"

    def difference(self, value: Any, reader: str) -> str:
        return f"{self} is {str(value)[:80]!r} for {reader}, {str(self.answer)[:80]!r} for us"


@contextmanager
def recording() -> Iterator[list[Question]]:
    """Record the questions of readers to HDF5 files within the `with` block."""
    questions: list[Question] = []
    with ExitStack() as stack:
        for holder, kind in _RECORDED:
            stack.enter_context(patch.object(holder, kind, _recorded(vars(holder)[kind], kind, questions)))
        yield questions


_RECORDED = (
    *((Hdf5Object, kind) for kind in ("text", "number", "attributes")),
    *((Hdf5Group, kind) for kind in ("dataset", "datasets")),
    *((Hdf5Dataset, kind) for kind in ("shape", "data_type")),
    *((StoredValues, kind) for kind in ("chunks", "element", "values")),
)


def _recorded(original: Any, kind: str, questions: list[Question]) -> Any:
    call = original.fget if isinstance(original, property) else original

    def recorded(self: Any, *arguments: Any) -> Any:
        result = call(self, *arguments)
        answer = {"dataset": lambda: result is not None, "datasets": lambda: list(result)}.get(kind, lambda: result)()
        questions.append(Question(getattr(self, "name", ""), kind, arguments[0] if arguments else None, answer))
        return result

    return property(recorded) if isinstance(original, property) else recorded


class Libhdf5(ExitStack):
    """A process that answers questions by libhdf5; it is replaced when it dies."""

    _pipe: Connection | None = None

    def differences(self, content: bytes, questions: list[Question]) -> list[str]:
        """Return the questions that libhdf5 refuses or answers differently, or the report that it died."""
        pipe = self._pipe = self._pipe or self._started()
        try:
            pipe.send((content, questions))
            results: list[str] = pipe.recv() if pipe.poll(HANG_SECONDS) else ["libhdf5 hangs"]
        except (OSError, EOFError):
            results = ["libhdf5 died of this file"]
        if "".join(results[:1]).startswith(ENDS):
            self.close()
        return results

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
    """Answer questions until the pipe closes or a limit of CPU time or memory is reached."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(EOFError):
        while True:
            content, questions = pipe.recv()
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
            try:
                results = differences(content, questions)
            except RuntimeError as error:
                # Closing the file failed: the state of libhdf5 is unknown, so this process ends.
                pipe.send([f"libhdf5 closes no file: {_short(error)}"])
                os._exit(1)
            signal.setitimer(signal.ITIMER_PROF, 0)
            pipe.send(results)


def differences(content: bytes, questions: list[Question]) -> list[str]:
    """Return the questions that h5py refuses or answers differently, or else pyfive's differences."""
    try:
        file = h5py.File(io.BytesIO(content), "r")
    except Exception as error:
        return [f"libhdf5 opens no file: {_short(error)}"]
    results = []
    with file:
        for question in questions:
            try:
                value = _ANSWERS[question.kind](file, question)
            except UnicodeDecodeError:
                # Not a difference: libhdf5 returned the bytes, and h5py then refused to decode them.
                continue
            except Exception as error:
                results.append(f"libhdf5 refuses {question}: {_short(error)}")
                continue
            if value is not None:
                results.append(question.difference(value, "libhdf5"))
    return results or _pyfive_differences(content, questions)


def _pyfive_differences(content: bytes, questions: list[Question]) -> list[str]:
    """Return the differences from pyfive's answers; a question that pyfive refuses has none."""
    try:
        file = pyfive.File(io.BytesIO(content))
    except Exception:
        return []
    results = []
    for question in questions:
        if question.kind in _PYFIVE_ANSWERS:
            with warnings.catch_warnings(action="ignore"), suppress(Exception):
                if (value := _ANSWERS[question.kind](file, question)) is not None:
                    results.append(question.difference(value, "pyfive"))
    return results


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:160]}"


def _object(file: h5py.File, name: str) -> Any:
    return file[name] if name else file


def _dataset(file: h5py.File, question: Question) -> Any:
    exists = question.argument in file and isinstance(file[question.argument], h5py.Dataset | h5py.Group)
    return None if exists == question.answer else exists


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
    # Our reader has None for a type whose values it does not read.
    return None if question.answer in {None, dtype.name} else dtype.name


def _element(file: h5py.File, question: Question) -> Any:
    dataset = _object(file, question.name)
    value = dataset[question.argument] if dataset.ndim else dataset[()]
    # For an element that was never written, libhdf5 gives the fill value.
    if question.answer is None:
        return None if not dataset.id.get_storage_size() or dataset.chunks else value
    return None if _same_number(value, question.answer) else value


def _chunks(file: h5py.File, question: Question) -> Any:
    """Compare offset and length of each chunk by the chunk's index; contiguous values are one chunk."""
    dataset, ours = file[question.name], {index: (offset, length) for index, offset, length in question.answer}
    if dataset.chunks is None:
        offset = dataset.id.get_offset()
        theirs = {} if offset is None else {(0,) * dataset.ndim: (offset, dataset.nbytes)}
    else:
        infos = [dataset.id.get_chunk_info(number) for number in range(dataset.id.get_num_chunks())]
        indexes = (tuple(map(operator.floordiv, info.chunk_offset, dataset.chunks)) for info in infos)
        theirs = {index: (info.byte_offset, info.size) for index, info in zip(indexes, infos, strict=True)}
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
    """Compare our listed attributes with libhdf5's of the same kinds.

    An attribute that libhdf5 refuses is a difference only if our reader lists it.
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
        listed = ours.pop(name, None)
        if expected is not None and not _same(listed, expected):
            wrong[name] = expected
        elif expected is None and listed not in {None, ""}:
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
    """Return the text of a scalar or an array of one, empty if null; None for other values."""
    if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "SO":
        value = value.item()
    if isinstance(value, h5py.Empty | pyfive.h5py.Empty):
        return "" if value.dtype.kind in "SO" else None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else None


def _same(actual: Any, expected: Any) -> bool:
    if isinstance(expected, str) or isinstance(actual, str | None):
        return bool(actual == expected)
    ours, theirs = np.ravel(actual), np.ravel(expected)
    return len(ours) == len(theirs) and all(_same_number(*pair) for pair in zip(theirs, ours, strict=True))


def _same_number(value: Any, actual: float) -> bool:
    return bool(float(value) == actual or (math.isnan(float(value)) and math.isnan(actual)))


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
