"""Read objects under their keys, change HDF5 files by h5py, find messages of GRIB2."""

from __future__ import annotations

import io
import struct
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import h5py
import pytest

from kfm_dagster.contracts.envelope import Envelope, Metadata
from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.contracts.key_grammar import KeyMatch
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.operators.metadata_extract import metadata_extract
from kfm_dagster.readers.base import READERS, ByteSource, HeaderMetadata, ReadError, ReadRequest
from kfm_dagster.readers.ranges import BytesSource
from kfm_dagster_tests.factories import envelope

CONTRACTS = ContractRegistry.load()
Change = Callable[[h5py.File], None]
Outcome = HeaderMetadata | MetadataIssue
TRUNCATION_CODES = {
    MetadataIssue.TRUNCATED_OBJECT,
    MetadataIssue.UNREADABLE_FORMAT,
    MetadataIssue.INCOMPLETE_PRODUCT_METADATA,
}
"""The codes with which a truncated object is refused."""


class Reading:
    """The reader of a dataset, for objects under the dataset's keys."""

    def __init__(self, dataset: str) -> None:
        self.grammar = CONTRACTS.grammars[dataset]
        self._reader = CONTRACTS[dataset].metadata_extract.reader

    def read(self, key: str, content: bytes | ByteSource) -> HeaderMetadata:
        return header_of(self._reader, content, key=key, groups=match_of(self.grammar.contract.id, key).groups)

    def outcome(self, key: str, content: bytes) -> Outcome:
        return outcome(self.read, key, content)

    def refusal(self, key: str, content: bytes) -> MetadataIssue:
        return code_of(self.read, key, content)


def match_of(dataset: str, key: str) -> KeyMatch:
    """Match a key by its dataset's grammar."""
    match = CONTRACTS.grammars[dataset].match(key)
    assert match is not None, key
    return match


def unit_of(dataset: str, key: str, *, bucket: str = "bucket", **changes: Any) -> Envelope:
    """Return the envelope of the object of a key, with the key's times."""
    match = match_of(dataset, key)
    times: dict[str, Any] = {"time_range_start": match.start, "time_range_end": match.end, "event_time": match.end}
    return envelope(dataset=dataset, object_uri=f"s3://{bucket}/{key}", **(times | changes))


def metadata_of(unit: Envelope, source: ByteSource, *, index: bytes | None = None, **changes: Any) -> Metadata:
    """Return the result of metadata-extract under the shipped contract; `changes` replace arguments."""
    arguments: dict[str, Any] = {
        "contract": CONTRACTS[unit.dataset],
        "grammar": CONTRACTS.grammars[unit.dataset],
        "source": source,
        "open_sidecar": lambda _: None if index is None else BytesSource(index),
        "readers": READERS,
    }
    return metadata_extract(unit, **(arguments | changes))


class Oversized(BytesSource):
    """An object whose size is larger than its bytes."""

    def __init__(self, data: bytes, size: int) -> None:
        super().__init__(data)
        self._size = size

    @property
    def size(self) -> int:
        return self._size


@contextmanager
def tracing_memory() -> Iterator[Callable[[], int]]:
    """Trace the allocations of the block; the yielded function returns their peak in bytes."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@contextmanager
def allocating_at_most(size: int) -> Iterator[None]:
    """Fail if the block allocates `size` bytes or more."""
    with tracing_memory() as peak:
        yield
        assert peak() < size


def header_of(
    reader: str,
    content: bytes | ByteSource,
    *,
    key: str = "x",
    groups: Mapping[str, str] | None = None,
    index: bytes | str | None = None,
    **more: bool,
) -> HeaderMetadata:
    """Read an object by the named reader, with its sidecar `index` and `more` request fields."""

    def sidecar(suffix: str) -> BytesSource | None:
        assert suffix == ".idx"
        beside = index.encode() if isinstance(index, str) else index
        return None if beside is None else BytesSource(beside)

    source = BytesSource(content) if isinstance(content, bytes) else content
    return READERS[reader](ReadRequest(key=key, groups=groups or {}, source=source, sidecar=sidecar, **more))


def code_of(read: Callable[..., object], *args: Any, **options: Any) -> MetadataIssue:
    """Return the code of a refusal."""
    with pytest.raises(ReadError) as refused:
        read(*args, **options)
    return refused.value.code


def outcome(read: Callable[..., HeaderMetadata], *args: Any, **options: Any) -> Outcome:
    """Return the header, or the code of its refusal."""
    try:
        return read(*args, **options)
    except ReadError as error:
        return error.code


def codes(metadata: HeaderMetadata) -> list[MetadataIssue]:
    return [code for code, _ in metadata.findings]


def is_unchecked(result: Outcome) -> bool:
    """Return whether the object was read with the finding that its completeness is unchecked."""
    return isinstance(result, HeaderMetadata) and codes(result) == [MetadataIssue.COMPLETENESS_UNCHECKED]


def patched(content: bytes, at: int, value: bytes) -> bytes:
    """Return the content with other bytes at an offset."""
    return content[:at] + value + content[at + len(value) :]


def rewritten(content: bytes, change: Change) -> bytes:
    """Return the file as changed by h5py."""
    buffer = io.BytesIO(content)
    with h5py.File(buffer, "r+") as file:
        change(file)
    return buffer.getvalue()


def attribute(name: str, value: Any, variable: str | None = None) -> Change:
    return lambda file: (file[variable] if variable else file).attrs.__setitem__(name, value)


def deleted(name: str) -> Change:
    return lambda file: file.__delitem__(name)


def replaced(name: str, **options: Any) -> Change:
    """Replace a variable, with other options and the same attributes."""

    def change(file: h5py.File) -> None:
        attributes = {key: value for key, value in file[name].attrs.items() if "_LIST" not in key}
        del file[name]
        file.create_dataset(name, **options).attrs.update(attributes)

    return change


def messages_of(content: bytes) -> list[int]:
    """Return the offsets of the messages of a GRIB2 object."""
    offsets, at = [], 0
    while at >= 0:
        offsets.append(at)
        at = content.find(b"GRIB", at + struct.unpack_from(">Q", content, at + 8)[0])
    return offsets


def index_of(content: bytes, *, run: datetime, step: str) -> bytes:
    """Return an index in wgrib2's form, with a variable name that no table has."""
    lines = (
        f"{number}:{at}:d={run:%Y%m%d%H}:FIELD:surface:{step}:\n"
        for number, at in enumerate(messages_of(content), start=1)
    )
    return "".join(lines).encode()
