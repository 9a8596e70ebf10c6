"""Size peers: sizes of a product's newest objects, for the admission of units (ADR 030).

Belongs here: the peers of a batch. Admissions are serialised (`Ledger.ensure`), so a row that is read here cannot
change before it is overwritten. Does not belong here: which sizes are suspect (`contracts/quality.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, timedelta
from typing import NamedTuple

from kfm_dagster.contracts.envelope import COMPLETED_BY, Envelope, WalId
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.quality import PEERS_KEPT, PeerSizes
from kfm_dagster.ledger.rows import key_groups
from kfm_dagster.storage.database import Transaction


class _Place(NamedTuple):
    """Key of stored sizes: a product, and the month of its objects."""

    dataset: str
    product: str
    month: str

    @property
    def before(self) -> _Place:
        """The key of the month before."""
        last = date.fromisoformat(f"{self.month}-01") - timedelta(days=1)
        return self._replace(month=_month_of(last.isoformat()))


class SizePeers:
    """The peers of a batch's units, as they were before the batch.

    For datasets without peers in their contract, no statement runs. Units of a batch are not peers of each other,
    because only their recording shows which of them are new.
    """

    def __init__(
        self, units: Sequence[Envelope], places: Mapping[WalId, _Place], known: Mapping[_Place, list[int]]
    ) -> None:
        self._places = places
        self._units = units
        self._known = known
        self._peers = {place: self._of(place) for place in set(places.values())}

    @classmethod
    def of(cls, units: Sequence[Envelope], registry: ContractRegistry, tx: Transaction) -> SizePeers:
        """Look up the known sizes of the units' products, with a single statement."""
        places = {unit.wal_id: place for unit in units if (place := _place(unit, registry)) is not None}
        return cls(units, places, _look_up(set(places.values()), tx) if places else {})

    def held_against(self, unit: Envelope) -> Envelope:
        """Return the unit with the peer sizes to compare its size with."""
        place = self._places.get(unit.wal_id)
        return unit if place is None else unit.evolve(peer_sizes=self._peers[place])

    def keep(self, created: Collection[WalId], tx: Transaction) -> None:
        """Store the sizes of new units, with a single statement; units without a size are skipped."""
        sizes: dict[_Place, list[int]] = {}
        for unit in self._units:
            if unit.wal_id in created and unit.wal_id in self._places and unit.object_size:
                sizes.setdefault(self._places[unit.wal_id], []).append(unit.object_size)
        batch = [
            {**place._asdict(), "sizes": [*self._known.get(place, ()), *new][-PEERS_KEPT:]}
            for place, new in sorted(sizes.items())
        ]
        if batch:
            tx.run("size_peers.keep", batch=batch)

    def _of(self, place: _Place) -> PeerSizes | None:
        # Includes the month before, whose sizes are still recent at the beginning of a month.
        return PeerSizes.of([*self._known.get(place.before, ()), *self._known.get(place, ())][-PEERS_KEPT:])


def _place(unit: Envelope, registry: ContractRegistry) -> _Place | None:
    """Return the key of a unit's peers; None if the contract declares no peers.

    Also None for a completion (ADR 019), which is not a new object and keeps the peers of its object's first unit.
    """
    contract = registry[unit.dataset]
    if contract.integrity.peers is None or COMPLETED_BY in (unit.object_version or ""):
        return None
    groups = key_groups(contract, unit.key, contract.integrity.peers.groups)
    product = " ".join(f"{name}={value}" for name, value in groups.items())
    return _Place(unit.dataset, product, _month_of(unit.partition))


def _look_up(places: Iterable[_Place], tx: Transaction) -> dict[_Place, list[int]]:
    needed = {*places, *(place.before for place in places)}
    rows = tx.run("size_peers.known", batch=[place._asdict() for place in sorted(needed)])
    return {_Place(row.dataset, row.product, row.month): row.sizes for row in rows}


def _month_of(day: str) -> str:
    return day[:7]
