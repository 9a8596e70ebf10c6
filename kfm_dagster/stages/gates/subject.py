"""Subject of the gates: a stage's batch, its contract, and facts of ledger and catalog.

Belongs here: values, and the extracted fields, computed once for all gates. Does not belong here: querying the facts
(`facts.py`), rules (one module each).
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
"""Objects that are one field to the gates: texts of a hundred variables, and values that `proj:transform` has."""
NAMED = 5
"""Names of a longer list in a text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionFacts:
    """The ledger's facts about the batch's partition."""

    day: date
    counts: Sequence[ProductCount]
    followed: Mapping[str, datetime] | None = None
    """When each product was first announced here; None where the day was listed, so that all of it is expected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CatalogOwner:
    """A unit whose Item is current in the catalog, or was before."""

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
    """A stage's output. `reference_time` (aware) is that of the claim; unqueried facts are None.

    Failed units have their reason already, so only G8 checks them.
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
    """Whether the units are a sample of their day, so that their number means nothing."""

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
    """Return the properties from the object itself, without ours, which governance adds."""
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
    """Join the first NAMED names, and count the others."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
