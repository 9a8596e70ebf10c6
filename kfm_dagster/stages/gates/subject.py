"""What the gates look at: a stage's batch, the contract that it is held against, and facts of ledger and catalog.

Belongs here: values, and the fields that were extracted, found once for every gate. Does not belong here: asking the
database for the facts (`facts.py`), rules (one module each).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property
from typing import Any

from kfm_dagster.contracts.cadence import ProductCount
from kfm_dagster.contracts.envelope import Envelope, Metadata, WalId
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.stages.gates.positions import Measured, measure
from kfm_dagster.stages.gates.verdict import Gates

_LISTS = (list, tuple)
_WHOLE = frozenset({
    "cube:variables", "cube:dimensions.x", "cube:dimensions.y", "cube:dimensions.valid_time", "cube:dimensions.level",
})  # fmt: skip
"""Objects that are one field to the gates: texts of a hundred variables, and what `proj:transform` says already."""
NAMED = 5
"""Names that a text gives of a longer list."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionFacts:
    """What the ledger says of the partition that the batch is of."""

    day: date
    counts: Sequence[ProductCount]
    followed: Mapping[str, datetime] | None = None
    """When each product was first announced here; None where the day was listed, so that all of it is expected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CatalogOwner:
    """A unit whose Item stands in the catalog, or stood there before the one that does."""

    item_id: str
    wal_id: WalId
    object_uri: str
    object_version: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Extracted:
    """A unit and the fields that its reader gave, as (path, value)."""

    unit: Envelope
    metadata: Metadata
    fields: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One stage's output. `reference_time` (aware) is when the run claimed its units; facts not asked for are None.

    Units that have failed already carry their reason with them, so no gate but G8 looks at them.
    """

    stage: str
    """The operator whose output it is."""
    sections: tuple[str, ...] = ()
    """The sections that a unit has by then unless it failed."""
    contract: DatasetContract
    envelopes: Sequence[Envelope]
    reference_time: datetime
    rules: Gates
    """The card's, with their thresholds."""
    partition: PartitionFacts | None = None
    catalog: Sequence[CatalogOwner] | None = None
    sampled: bool = False
    """Whether the units are some of their day's, so that nothing follows from how many there are."""

    @cached_property
    def current(self) -> tuple[Envelope, ...]:
        """Units that are still in the chain."""
        return tuple(unit for unit in self.envelopes if unit.failure is None)

    @cached_property
    def extracted(self) -> tuple[Extracted, ...]:
        """What was extracted of each standing unit that has metadata."""
        return tuple(
            Extracted(unit=unit, metadata=unit.metadata, fields=tuple(leaves(_read(unit.metadata))))
            for unit in self.current
            if unit.metadata is not None and unit.metadata.stac_properties
        )

    @cached_property
    def footprints(self) -> Mapping[int, Measured]:
        """Every geometry, by its identity: units of one scene share it."""
        geometries = (unit.metadata.geometry for unit in self.current if unit.metadata is not None)
        different = {id(geometry): geometry for geometry in geometries}
        return {key: measure(geometry) for key, geometry in different.items()}


def _read(metadata: Metadata) -> Mapping[str, Any]:
    """Return the properties that were read from the object: governance adds those of ours."""
    return {name: value for name, value in metadata.stac_properties.items() if not name.startswith("kfm:")}


def leaves(fields: Mapping[str, Any], below: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of every field; names are joined by dots, the objects of a list share their paths."""
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
    """Join some names and say how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
