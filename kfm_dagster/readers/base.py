"""The interface of readers: their input, result and error.

A reader sees an object only through a `ByteSource` (range requests) and must bound what it reads, allocates and loops
over, whatever the bytes contain. Its only error is `ReadError`, with an issue code. It does not know the contract,
whose rules `operators/metadata_extract.py` applies.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from importlib.resources import files
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple, Protocol

from kfm_dagster.contracts.formats import readers
from kfm_dagster.contracts.issues import MetadataIssue

BLOCK_BYTES = 64 * 1024
"""Bytes of a block. Most readers request whole blocks of this size."""


class ByteSource(Protocol):
    """An object as bytes, by range requests."""

    @property
    def size(self) -> int:
        """Size of the object in bytes."""
        ...

    def read(self, start: int, length: int) -> bytes:
        """Return bytes [start, start + length), fewer only if the object ends before."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadRequest:
    """An object to read. `groups` has the texts that the named groups of the key grammar match.

    `sidecar(suffix)` opens key + suffix. `closed`: the object is the last chunk that its radar volume will have,
    because the radar has begun a later volume. `has_sidecars`: the dataset has sidecars; a missing one may still come.
    """

    key: str
    groups: Mapping[str, str]
    source: ByteSource
    sidecar: Callable[[str], ByteSource | None]
    closed: bool = False
    has_sidecars: bool = True


class Layer(NamedTuple):
    """A field in bytes [offset, offset + length) of the object, in the format's own terms."""

    variable: str
    level: str
    step: str
    qualifier: str
    """Any further distinction (ensemble member, probability); empty for most fields."""
    offset: int
    length: int

    @property
    def name(self) -> str:
        """Name of the field: `TMP 2 m above ground 1 hour fcst`."""
        return " ".join(filter(None, (self.variable, self.level, self.step, self.qualifier)))


@dataclass(frozen=True, kw_only=True, slots=True)
class HeaderMetadata:
    """Metadata from the headers of an object.

    Datetimes are aware UTC. `geometry` is GeoJSON in WGS 84 degrees: a Polygon or MultiPolygon, split at the
    antimeridian (RFC 7946, 3.1.9), or a Point or MultiPoint if the place has no area. It is empty if the object states
    no place. The bbox of an Item is computed from the geometry only. `properties` are STAC properties; `native` are the
    format's own values, unrounded, for comparison with an independent reader; `findings` are issues that do not stop
    the reader.
    """

    start: datetime
    end: datetime
    datetime: datetime
    geometry: Mapping[str, Any]
    properties: Mapping[str, Any]
    native: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[tuple[MetadataIssue, str], ...] = ()
    sidecars: tuple[str, ...] = ()
    """Suffixes of the existing sidecars that match the object."""
    layers: tuple[Layer, ...] = ()
    """All fields in order; empty if their names are unknown, or if there are too many."""


class ReadError(Exception):
    """The object cannot be read; `code` is the reason."""

    def __init__(self, code: MetadataIssue, message: str) -> None:
        self.code = code
        super().__init__(message)


def unchecked(*reasons: str | None) -> tuple[tuple[MetadataIssue, str], ...]:
    """Return the finding COMPLETENESS_UNCHECKED with the non-empty reasons, if there are any."""
    text = "; ".join(filter(None, reasons))
    return ((MetadataIssue.COMPLETENESS_UNCHECKED, text),) if text else ()


class Reader(Protocol):
    """A function from a request to the object's own metadata. Raises ReadError."""

    def __call__(self, request: ReadRequest, /) -> HeaderMetadata:
        """Read the headers."""
        ...


def table(name: str) -> Iterator[Mapping[str, str]]:
    """Yield the rows of a CSV file in this folder. Its first lines, comments, name its source."""
    text = files("kfm_dagster.readers").joinpath(name).read_text(encoding="utf-8")
    yield from csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))


@dataclass(frozen=True, slots=True)
class LazyReader:
    """A reader, imported on its first call; `goes-abi` names `read_goes_abi` of `goes_abi.py`."""

    name: str

    @property
    def module(self) -> ModuleType:
        """Import the reader's module; after the first import, a dictionary look-up."""
        return import_module(f"kfm_dagster.readers.{self.name.replace('-', '_')}")

    @property
    def first_bytes(self) -> int:
        """Length of the first request for an object: the module's FIRST_BYTES, else a block."""
        return int(getattr(self.module, "FIRST_BYTES", BLOCK_BYTES))

    def __call__(self, request: ReadRequest, /) -> HeaderMetadata:
        """Read the headers. Raises ReadError."""
        header: HeaderMetadata = getattr(self.module, f"read_{self.name.replace('-', '_')}")(request)
        return header


READERS: Mapping[str, LazyReader] = MappingProxyType({name: LazyReader(name) for name in readers()})
