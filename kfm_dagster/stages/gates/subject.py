"""Subject of the gates: a stage's batch, its contract, and facts of ledger and catalog.

Belongs here: the values that all gates share (extracted fields, measured geometries), each computed once; and the
queries of the facts, in the caller's transaction. Does not belong here: rules (`evaluate.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property
from typing import Any

from kfm_dagster.contracts.cadence import ProductCount
from kfm_dagster.contracts.envelope import Envelope, Metadata, WalId
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.ledger.gaps import followed_in
from kfm_dagster.stages.gates.verdict import Gates
from kfm_dagster.storage.database import Transaction

_DEPTHS = {"Point": -1, "MultiPoint": 0, "Polygon": 1, "MultiPolygon": 2}
"""Levels of arrays around a line of positions, by geometry type (RFC 7946, section 3.1). A Point has -1, because its
coordinates are a position, not a line of positions."""
_LEAST = 4
"""Least number of positions of a closed ring (RFC 7946, section 3.1.6)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A measured geometry: its fault, or the extremes of its coordinates, in degrees."""

    fault: str | None = None
    longitudes: Sequence[float] = ()
    latitudes: Sequence[float] = ()


def measure(geometry: Any) -> Measured:
    """Measure a geometry. Never raises, whatever its content."""
    if not isinstance(geometry, Mapping) or geometry.get("type") not in _DEPTHS:
        return Measured(fault=f"geometry is none of {', '.join(_DEPTHS)}")
    depth = _DEPTHS[geometry["type"]]
    longitudes: list[float] = []
    latitudes: list[float] = []
    try:
        for line in _lines(geometry["coordinates"], depth):
            if depth >= 1 and (len(line) < _LEAST or list(line[0]) != list(line[-1])):
                return Measured(fault="geometry has a ring that is not closed, or of fewer than four positions")
            along, across = zip(*line, strict=True)
            # A sum, because min and max may miss a NaN.
            if not math.isfinite(sum(along) + sum(across)):
                return Measured(fault="geometry has a position that is not finite")
            longitudes += (min(along), max(along))
            latitudes += (min(across), max(across))
    except (KeyError, TypeError, ValueError):
        return Measured(fault="geometry has no arrays of positions")
    if not longitudes:
        return Measured(fault="geometry is empty")
    return Measured(longitudes=longitudes, latitudes=latitudes)


def _lines(coordinates: Any, depth: int) -> Sequence[Any]:
    """Return the lines of positions: a geometry's rings, or a single line of all its points."""
    if depth < 0:
        return [[coordinates]]
    if depth == 0:
        return [coordinates]
    return coordinates if depth == 1 else [ring for polygon in coordinates for ring in polygon]


_LISTS = (list, tuple)
_WHOLE = frozenset({
    "cube:variables", "cube:dimensions.x", "cube:dimensions.y", "cube:dimensions.valid_time", "cube:dimensions.level",
})  # fmt: skip
"""Objects that count as one field: their parts are texts of up to a hundred variables, or repeat `proj:transform`."""
NAMED = 5
"""Number of names that a text lists; further names are only counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionFacts:
    """The ledger's facts about the batch's partition."""

    day: date
    counts: Sequence[ProductCount]
    followed: Mapping[str, datetime] | None = None
    """Time when following each product began (`ingest/feed_watch.py`). None for a day whose buckets were listed; then
    all products are due."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CatalogOwner:
    """A unit whose Item is or was current in the catalog."""

    item_id: str
    wal_id: WalId
    object_uri: str
    object_version: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Extracted:
    """A unit and its reader's fields, as (path, value)."""

    unit: Envelope
    metadata: Metadata
    fields: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A stage's output; `reference_time` (aware) is the time of the claim.

    Facts that were not queried are None. Failed units already have a reason, so only G8 checks them.
    """

    stage: str
    """The operator that computed the batch."""
    sections: tuple[str, ...] = ()
    """The sections that a unit has after this stage if the unit has not failed."""
    contract: DatasetContract
    envelopes: Sequence[Envelope]
    reference_time: datetime
    rules: Gates
    """The card's gate rules, with their thresholds."""
    partition: PartitionFacts | None = None
    catalog: Sequence[CatalogOwner] | None = None
    sampled: bool = False
    """Whether the units are a sample of their day; G6 then does not count them."""

    @cached_property
    def current(self) -> tuple[Envelope, ...]:
        """Units that are still in the chain."""
        return tuple(unit for unit in self.envelopes if unit.failure is None)

    @cached_property
    def extracted(self) -> tuple[Extracted, ...]:
        """The extracted fields of each current unit that has metadata."""
        return tuple(
            Extracted(unit=unit, metadata=unit.metadata, fields=tuple(leaves(_read(unit.metadata))))
            for unit in self.current
            if unit.metadata is not None and unit.metadata.stac_properties
        )

    @cached_property
    def footprints(self) -> Mapping[int, Measured]:
        """The measure of each geometry, by its Python `id`; units of a scene share a geometry."""
        geometries = (unit.metadata.geometry for unit in self.current if unit.metadata is not None)
        different = {id(geometry): geometry for geometry in geometries}
        return {key: measure(geometry) for key, geometry in different.items()}


def _read(metadata: Metadata) -> Mapping[str, Any]:
    """Return the properties from the object itself, without the properties that governance adds."""
    return {name: value for name, value in metadata.stac_properties.items() if not name.startswith("kfm:")}


def leaves(fields: Mapping[str, Any], below: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of every field, names joined by dots; objects of a list share paths."""
    for name, value in fields.items():
        kind = type(value)
        if kind is dict and below + name not in _WHOLE:
            yield from leaves(value, f"{below}{name}.")
        elif kind in _LISTS and value and type(value[0]) is dict:
            for part in value:
                yield from leaves(part, f"{below}{name}.")
        else:
            yield below + name, value


def shortened(names: Sequence[str]) -> str:
    """Join the first NAMED names, and count the remaining names."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def partition_facts(contract: DatasetContract, partition: str, *, tx: Transaction) -> PartitionFacts | None:
    """Count the objects of a partition (`YYYY-MM-DD`); None for a contract without coverage.

    Call it once in a run: it reads all records of the partition, 50,000 on a full day of imagery.
    """
    if contract.coverage is None:
        return None
    rows = tx.run("gates.partition_products", dataset=contract.id, partition=partition)
    return PartitionFacts(
        day=date.fromisoformat(partition),
        counts=tuple(ProductCount(hour=row.hour, groups=row.extension, objects=row.objects) for row in rows),
        followed=followed_in(tx, contract.id, partition),
    )


def catalog_owners(
    contract: DatasetContract, units: Iterable[Envelope], *, tx: Transaction
) -> tuple[CatalogOwner, ...]:
    """Return the units whose Items are or were in the catalog under a batch's Item ids."""
    registered = (unit.stac for unit in units if unit.stac is not None)
    item_ids = sorted({stac.item_id for stac in registered if stac.item_id is not None})
    if not item_ids:
        return ()
    return tuple(tx.rows(CatalogOwner, "catalog.owners", collection_id=contract.stac.collection, item_ids=item_ids))
