"""Compare a real object with an independent reader's answers, within tolerances, by family."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.contracts.key_grammar import KeyKind
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.readers.base import HeaderMetadata, ReadError
from kfm_dagster.readers.ranges import BytesSource
from kfm_dagster_tests.readers.reading import CONTRACTS, header_of, match_of

DEGREES, SECONDS = "degree", "second"


class CountingSource(BytesSource):
    """Records start and length of each request, and counts the bytes read."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.ranges: list[tuple[int, int]] = []
        self.bytes_read = 0

    @property
    def requests(self) -> list[int]:
        return [length for _, length in self.ranges]

    def read(self, start: int, length: int) -> bytes:
        data = super().read(start, length)
        self.ranges.append((start, length))
        self.bytes_read += len(data)
        return data


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A value of our reader and one of the independent reader: equal or, if `within` is set, at most that far apart."""

    name: str
    actual: Any
    expected: Any
    within: float | None = None
    unit: str = ""

    @cached_property
    def difference(self) -> float:
        """The largest difference of two numbers, in `unit`; infinite if the values differ in type or length."""
        if self.unit == SECONDS:
            return abs((self.actual - self.expected).total_seconds())
        actual, expected = (
            [value] if isinstance(value, int | float) else value for value in (self.actual, self.expected)
        )
        if not all(isinstance(value, list | tuple) for value in (actual, expected)) or len(actual) != len(expected):
            return math.inf
        # Degrees are those of a circle: 180 and -180 are one meridian.
        turn = 360.0 if self.unit == DEGREES else math.inf
        pairs = zip(actual, expected, strict=True)
        return max((abs(_folded(value - reference, turn)) for value, reference in pairs), default=0.0)

    @property
    def is_equal(self) -> bool:
        if self.within is None:
            return bool(self.actual == self.expected)
        return self.difference <= self.within

    def __str__(self) -> str:
        return f"{self.name}: {self.actual!r}, expected {self.expected!r}"


def same(name: str, actual: Any, expected: Any) -> Compared:
    return Compared(name=name, actual=actual, expected=expected)


def near(name: str, actual: Any, expected: Any, *, within: float) -> Compared:
    """Compare numbers, or lists of equal length."""
    return Compared(name=name, actual=actual, expected=expected, within=within)


def degrees(name: str, actual: Any, expected: Any, *, within: float = 0.01) -> Compared:
    """Compare longitudes and latitudes, such as a box."""
    return Compared(name=name, actual=actual, expected=expected, within=within, unit=DEGREES)


def seconds(name: str, actual: datetime, expected: datetime, *, within: float = 1.0) -> Compared:
    return Compared(name=name, actual=actual, expected=expected, within=within, unit=SECONDS)


def times(
    metadata: HeaderMetadata, start: datetime, end: datetime, moment: datetime, *, within: float = 0.0
) -> Iterator[Compared]:
    """Compare an Item's start, end and datetime."""
    yield seconds("start", metadata.start, start, within=within)
    yield seconds("end", metadata.end, end, within=within)
    yield seconds("datetime", metadata.datetime, moment, within=within)


def _folded(difference: float, turn: float) -> float:
    return difference if turn == math.inf else (difference + turn / 2) % turn - turn / 2


@dataclass(frozen=True, kw_only=True)
class RealObject:
    """A real object, and the independent reader's answers."""

    path: str
    """Relative to the data folder."""
    key: str
    groups: Mapping[str, str]
    content: bytes
    expected: Mapping[str, Any]
    family: str
    reader: str
    contract: DatasetContract | None = None
    """The contract that has the key, if any."""
    beside: Path | None = None
    """The object's file; its sidecars are in the same folder."""

    def read(self, source: BytesSource) -> HeaderMetadata:
        """Read the object's metadata. Raises ReadError."""
        has_sidecars = self.contract is None or bool(self.contract.storage.sidecars)
        file = self.beside and self.beside.with_name(f"{self.beside.name}.idx")
        index = file.read_bytes() if file and file.is_file() else None
        return header_of(self.reader, source, key=self.key, groups=self.groups, index=index, has_sidecars=has_sidecars)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The results of comparing an object, and the requests for reading it."""

    real: RealObject
    compared: tuple[Compared, ...]
    source: CountingSource
    refused: bool = False

    @property
    def differing(self) -> list[str]:
        """The differences, as texts."""
        return [str(item) for item in self.compared if not item.is_equal]

    def largest(self, unit: str) -> float | None:
        """Return the largest difference of values in a unit; None if no value has the unit."""
        return max((item.difference for item in self.compared if item.unit == unit), default=None)


Opened = tuple[str, Mapping[str, str], bytes]
"""Key, groups of its grammar, and content."""
OpenFile = Callable[[str, bytes, Mapping[str, Any]], Opened | None]


@dataclass(frozen=True, kw_only=True)
class Family:
    compare: Callable[[RealObject, HeaderMetadata], Iterator[Compared]]
    reader: str
    refused: Mapping[str, MetadataIssue]
    open_file: OpenFile | None


FAMILIES: dict[str, Family] = {}
"""By their names in reference.json."""
NO_OBJECTS = {
    "idx": "indexes, which the GRIB2 reader reads as sidecars, without their objects",
    "messages": "notifications of SNS and SQS, not objects",
    "files/rtofs/wa_RTOFS_global.nc": "an extract in NetCDF-3; the bucket's objects are NetCDF-4",
}
"""Families and paths that no reader reads, with the reason; any `.idx` file counts as `idx`."""


def compares(
    *families: str,
    reader: str,
    refused: Mapping[str, MetadataIssue] | None = None,
    open_file: OpenFile | None = None,
) -> Callable[[Callable[[RealObject, HeaderMetadata], Iterator[Compared]]], Any]:
    """Register a function that compares objects of these families, which `reader` reads.

    An object with a contract is read by the contract's reader. `open_file` is for other objects: it takes path, content
    and the independent reader's answers, and returns None for a file that is not an object of the family. `refused` has
    the expected code of a refusal by a part of the object's path.
    """

    def register(compare: Callable[[RealObject, HeaderMetadata], Iterator[Compared]]) -> Any:
        for name in families:
            assert name not in FAMILIES, f"{name} has a comparison already"
            FAMILIES[name] = Family(compare=compare, reader=reader, refused=refused or {}, open_file=open_file)
        return compare

    return register


def real_objects(folder: Path, reference: Mapping[str, Any], *families: str) -> Iterator[RealObject]:
    """Yield the real objects of some families or of all; each file of a folder is an object."""
    for path, entry in reference.items():
        family, file = entry["family"], folder / path
        if family not in FAMILIES or family not in (families or FAMILIES) or why_not_compared(path, entry):
            continue
        files = sorted(file.iterdir()) if file.is_dir() else [file] if file.is_file() else []
        for object_file in files:
            real = _opened(object_file, object_file.relative_to(folder).as_posix(), entry)
            if real is not None:
                yield real


def why_not_compared(path: str, entry: Mapping[str, Any]) -> str | None:
    """Return why a path of the reference is not compared, or None if it has no reason."""
    if reason := NO_OBJECTS.get(path) or NO_OBJECTS.get("idx" if path.endswith(".idx") else entry["family"]):
        return reason
    if entry["family"] in FAMILIES:
        return None
    top, _, rest = path.partition("/")
    if top == "files":
        return "files/ has no key, and its family has no comparison"
    bucket, _, key = rest.partition("/")
    if bucket not in CONTRACTS.buckets:
        return "its bucket is in no contract"
    kind = CONTRACTS.route(bucket=bucket, key=key).kind
    return None if kind is KeyKind.DATA else f"its key is {kind.name} by the contracts of its bucket"


def _opened(file: Path, path: str, entry: Mapping[str, Any]) -> RealObject | None:
    family, expected = FAMILIES[entry["family"]], entry["reference"]
    content, known = file.read_bytes(), {"path": path, "family": entry["family"], "beside": file}
    top, _, rest = path.partition("/")
    bucket, _, key = rest.partition("/")
    route = CONTRACTS.route(bucket=bucket, key=key) if top == "objects" else None
    contract = route.contract if route is not None and route.kind is KeyKind.DATA else None
    if contract is not None:
        reader = contract.metadata_extract.reader
        opened: Opened | None = key, match_of(contract.id, key).groups, content
    else:
        reader = family.reader
        opened = family.open_file(path, content, expected) if family.open_file else None
    if opened is None:
        return None
    key, groups, content = opened
    return RealObject(
        key=key, groups=groups, content=content, reader=reader, contract=contract, expected=expected, **known
    )


def compare(real: RealObject) -> Outcome:
    """Read an object and compare its metadata with the independent reader's answers."""
    family, source = FAMILIES[real.family], CountingSource(real.content)
    code = next((code for part, code in family.refused.items() if part in real.path), None)
    try:
        metadata = real.read(source)
    except ReadError as refusal:
        return Outcome(real=real, compared=(same("refused", refusal.code, code),), source=source, refused=True)
    compared = (same("refused", None, code),) if code else tuple(family.compare(real, metadata))
    return Outcome(real=real, compared=compared, source=source)


def leaves(prefix: str, actual: Any, expected: Any) -> Iterator[Compared]:
    """Compare every value of nested objects, by path; a missing name is None."""
    if isinstance(actual, Mapping) and isinstance(expected, Mapping):
        for name in sorted({*actual, *expected}):
            yield from leaves(f"{prefix}.{name}", actual.get(name), expected.get(name))
    else:
        yield same(prefix, actual, expected)
