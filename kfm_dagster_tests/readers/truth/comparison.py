"""What is compared of an object, how near it must be, and which family's function compares it."""

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
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.readers.base import READERS, HeaderMetadata, ReadError, ReadRequest
from kfm_dagster.readers.ranges import BytesSource

CONTRACTS = ContractRegistry.load()

DEGREES, SECONDS = "degree", "second"


class CountingSource(BytesSource):
    """Counts what a reader asks for: start and length of each request, and the bytes that came."""

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
    """A value and the independent reader's. They are equal, or where `within` is given differ by no more than that."""

    name: str
    found: Any
    expected: Any
    within: float | None = None
    unit: str = ""

    @cached_property
    def difference(self) -> float:
        """Largest difference of any number of both, in the unit; infinite where they are not of one form."""
        if self.unit == SECONDS:
            return abs((self.found - self.expected).total_seconds())
        found, expected = (
            [value] if isinstance(value, int | float) else value for value in (self.found, self.expected)
        )
        if not (isinstance(found, list | tuple) and isinstance(expected, list | tuple) and len(found) == len(expected)):
            return math.inf
        # Degrees are those of a circle: 180 and -180 are one meridian.
        turn = 360.0 if self.unit == DEGREES else math.inf
        return max((abs(_folded(one - other, turn)) for one, other in zip(found, expected, strict=True)), default=0.0)

    @property
    def is_equal(self) -> bool:
        if self.within is None:
            return bool(self.found == self.expected)
        return self.difference <= self.within

    def __str__(self) -> str:
        return f"{self.name}: {self.found!r}, expected {self.expected!r}"


def same(name: str, found: Any, expected: Any) -> Compared:
    return Compared(name=name, found=found, expected=expected)


def near(name: str, found: Any, expected: Any, *, within: float) -> Compared:
    """Numbers, or lists of as many."""
    return Compared(name=name, found=found, expected=expected, within=within)


def degrees(name: str, found: Any, expected: Any, *, within: float = 0.01) -> Compared:
    """Longitudes and latitudes, such as a box."""
    return Compared(name=name, found=found, expected=expected, within=within, unit=DEGREES)


def seconds(name: str, found: datetime, expected: datetime, *, within: float = 1.0) -> Compared:
    return Compared(name=name, found=found, expected=expected, within=within, unit=SECONDS)


def _folded(difference: float, turn: float) -> float:
    return difference if turn == math.inf else (difference + turn / 2) % turn - turn / 2


@dataclass(frozen=True, kw_only=True)
class RealObject:
    """A real object, and what an independent reader says of it."""

    path: str
    """Below the data folder."""
    key: str
    groups: Mapping[str, str]
    content: bytes
    expected: Mapping[str, Any]
    family: str
    reader: str
    contract: DatasetContract | None = None
    """Of the key, where there is one."""
    beside: Path | None = None
    """The object's own file, where its sidecars may be."""

    def read(self, source: BytesSource) -> HeaderMetadata:
        """What the reader says. Raises ReadError."""
        request = ReadRequest(
            key=self.key,
            groups=self.groups,
            source=source,
            sidecar=self._sidecar,
            has_sidecars=self.contract is None or bool(self.contract.storage.sidecars),
        )
        return READERS[self.reader](request)

    def _sidecar(self, suffix: str) -> BytesSource | None:
        file = self.beside and self.beside.with_name(self.beside.name + suffix)
        return BytesSource(file.read_bytes()) if file and file.is_file() else None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of comparing an object, and what reading it took."""

    real: RealObject
    compared: tuple[Compared, ...]
    source: CountingSource
    refused: bool = False

    @property
    def differing(self) -> list[str]:
        """What is not equal, as texts."""
        return [str(one) for one in self.compared if not one.is_equal]

    def largest(self, unit: str) -> float | None:
        """Largest difference of a unit, None when nothing was compared in it."""
        return max((one.difference for one in self.compared if one.unit == unit), default=None)


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
"""By the name that reference.json has for them."""
NO_OBJECTS = {
    "idx": "indexes of objects that are not here: no reader's, but the GRIB2 reader's sidecars",
    "messages": "what SNS and SQS send: notifications, no objects",
    "files/rtofs/wa_RTOFS_global.nc": "an extract in NetCDF-3; the bucket's objects are NetCDF-4",
}
"""Families and paths that no reader reads, and why; `.idx` files beside an object count as `idx`."""


def compares(
    *families: str,
    reader: str,
    refused: Mapping[str, MetadataIssue] | None = None,
    open_file: OpenFile | None = None,
) -> Callable[[Callable[[RealObject, HeaderMetadata], Iterator[Compared]]], Any]:
    """Register the function that compares objects of these families, which `reader` reads.

    An object that a contract names is read as the contract says. `open_file` is for others: it takes path, content
    and the independent reader's answers, and returns None for what is no object of the family. `refused` names parts of
    the paths of objects that are to be refused, and with which code.
    """

    def register(compare: Callable[[RealObject, HeaderMetadata], Iterator[Compared]]) -> Any:
        for name in families:
            assert name not in FAMILIES, f"{name} has a comparison already"
            FAMILIES[name] = Family(compare=compare, reader=reader, refused=refused or {}, open_file=open_file)
        return compare

    return register


def real_objects(folder: Path, reference: Mapping[str, Any], *families: str) -> Iterator[RealObject]:
    """Real objects of some families, or of all that have a comparison; of a folder with one answer, each file."""
    for path, entry in reference.items():
        family, file = entry["family"], folder / path
        if family not in FAMILIES or family not in (families or FAMILIES) or why_not_compared(path, entry):
            continue
        files = sorted(file.iterdir()) if file.is_dir() else [file] if file.is_file() else []
        for one in files:
            real = _opened(one, one.relative_to(folder).as_posix(), entry)
            if real is not None:
                yield real


def why_not_compared(path: str, entry: Mapping[str, Any]) -> str | None:
    """Why a path of the reference is not compared; None where there is no reason."""
    if reason := NO_OBJECTS.get(path) or NO_OBJECTS.get("idx" if path.endswith(".idx") else entry["family"]):
        return reason
    if entry["family"] in FAMILIES:
        return None
    top, _, rest = path.partition("/")
    if top == "files":
        return "files/ has no key, and its family has no comparison"
    bucket, _, key = rest.partition("/")
    if bucket not in CONTRACTS.buckets:
        return "no contract takes its bucket"
    kind = CONTRACTS.route(bucket=bucket, key=key).kind
    return None if kind is KeyKind.DATA else f"the contracts of its bucket have its key as {kind.name}"


def _opened(file: Path, path: str, entry: Mapping[str, Any]) -> RealObject | None:
    family, expected = FAMILIES[entry["family"]], entry["reference"]
    content, known = file.read_bytes(), {"path": path, "family": entry["family"], "beside": file}
    top, _, rest = path.partition("/")
    bucket, _, key = rest.partition("/")
    route = CONTRACTS.route(bucket=bucket, key=key) if top == "objects" else None
    contract = route.contract if route is not None and route.kind is KeyKind.DATA else None
    if contract is not None:
        match = CONTRACTS.grammars[contract.id].match(key)
        reader = contract.metadata_extract.reader
        opened: Opened | None = key, match.groups, content
    else:
        reader = family.reader
        opened = family.open_file(path, content, expected) if family.open_file else None
    if opened is None:
        return None
    key, groups, content = opened
    return RealObject(
        key=key, groups=groups, content=content, reader=reader, contract=contract, expected=expected, **known
    )


def hold(real: RealObject) -> Outcome:
    """Read an object and hold what its reader says against the independent reader's answer."""
    family, source = FAMILIES[real.family], CountingSource(real.content)
    code = next((code for part, code in family.refused.items() if part in real.path), None)
    try:
        found = real.read(source)
    except ReadError as refusal:
        return Outcome(real=real, compared=(same("refused", refusal.code, code),), source=source, refused=True)
    compared = (same("refused", None, code),) if code else tuple(family.compare(real, found))
    return Outcome(real=real, compared=compared, source=source)


def leaves(prefix: str, found: Any, expected: Any) -> Iterator[Compared]:
    """Every value of nested objects, by path; a name that one of both lacks is None there."""
    if isinstance(found, Mapping) and isinstance(expected, Mapping):
        for name in sorted({*found, *expected}):
            yield from leaves(f"{prefix}.{name}", found.get(name), expected.get(name))
    else:
        yield same(prefix, found, expected)
