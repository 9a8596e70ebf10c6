"""The catalog's follower that keeps virtual Zarr stores: the Items that stand, as steps of the stores of their day.

Belongs here: which Items go to which store, and in which order a batch of changes is worked off. Does not belong here:
which steps a store then has (`changing.py`), where stores stand (`day.py`).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from typing_extensions import override

from kfm_dagster.catalog.changes import Follower, FollowError, ItemChange
from kfm_dagster.catalog.discovery import FollowerContext, FollowerSource
from kfm_dagster.catalog.publisher import Publisher, open_publisher
from kfm_dagster.contracts.key_grammar import InvalidKeyTimeError, KeyGrammarReader, KeyMatch
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.contracts.virtual import VirtualStore
from kfm_dagster.failpoints import with_context
from kfm_dagster.followers.virtual import day as days
from kfm_dagster.followers.virtual.changing import Changed, Replacement, VirtualReport, changed
from kfm_dagster.followers.virtual.day import DayOfStores, Listed
from kfm_dagster.followers.virtual.index import Indexed, index, object_uri
from kfm_dagster.storage.objects import ObjectStores

_LOG = logging.getLogger(__name__)

STORES_AT_ONCE = 8
"""Stores that are worked on side by side; the largest takes some 100 MB while it is."""
READS_AT_ONCE = 32
"""Objects whose indexes are read side by side."""


class VirtualZarrSource(FollowerSource):
    """Follows where KFM_VIRTUAL_URL names a place."""

    @override
    def followers(self, context: FollowerContext) -> Sequence[Follower]:
        place = self.settings.virtual_url
        return [VirtualZarr(open_publisher(place), context.objects)] if place else ()


class VirtualZarr:
    """Keeps virtual stores below a publisher's root. `report`: what the last `follow` took."""

    name = "virtual-zarr"
    after: Sequence[str] = ()

    def __init__(self, publisher: Publisher, objects: ObjectStores) -> None:
        self._publisher = publisher
        self._objects = objects
        self.report = VirtualReport()

    def follow(self, contract: DatasetContract, changes: Sequence[ItemChange]) -> None:
        """Bring the stores of a collection in line with these Items. Raises FollowError.

        What the store of an object does not answer for is left for the next time; all else is published, and costs no
        request again.
        """
        self.report = VirtualReport()
        if not contract.virtual:
            return
        by_day: dict[str, list[ItemChange]] = defaultdict(list)
        for change in changes:
            by_day[change.partition].append(change)
        failures = [failure for day, of_day in sorted(by_day.items()) for failure in self._day(contract, day, of_day)]
        _LOG.info("virtual-zarr of %s: %s", contract.stac.collection, self.report)
        if failures:
            raise failures[0]

    def forget(self, contract: DatasetContract) -> None:
        """Remove every store of a collection. Raises FollowError."""
        days.forget(self._publisher, contract.stac.collection)

    def _day(self, contract: DatasetContract, day: str, of_day: Sequence[ItemChange]) -> list[FollowError]:
        placed = _place(contract, of_day)
        here = DayOfStores(self._publisher, collection=contract.stac.collection, day=day)
        listed: dict[str, list[Listed]] = defaultdict(list)
        for one in here.listed:
            listed[one.name].append(one)
        # Nothing says in which store a withdrawn Item is, so each is looked at.
        names = placed.items.keys() | (listed.keys() if placed.gone else set())
        if not names:
            return []
        days.add_days(self._publisher, contract.stac.collection, [day])
        with ThreadPoolExecutor(READS_AT_ONCE) as readers, ThreadPoolExecutor(STORES_AT_ONCE) as pool:

            def read(change: ItemChange) -> Indexed | FollowError:
                try:
                    return index(self._objects, contract, change, rule=placed.rules[change.item_id])
                except FollowError as error:
                    return error

            def work(name: str) -> Changed:
                wanted = Replacement(name=name, listed=listed[name], items=placed.items.get(name, []), gone=placed.gone)
                return changed(here, wanted, lambda items: readers.map(with_context(read), items))

            found = list(pool.map(with_context(work), sorted(names)))
        unchanged = [one for name in listed.keys() - names for one in listed[name]]
        here.publish([*unchanged, *(one for change in found for one in change.listed)])
        for change in found:
            self.report += change.report
        return [failure for change in found for failure in change.failures]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Placed:
    """The changes of a day by the name of their store; `gone` are Items that are in none any more."""

    items: Mapping[str, Sequence[ItemChange]]
    rules: Mapping[str, VirtualStore]
    gone: frozenset[str]


def _place(contract: DatasetContract, changes: Iterable[ItemChange]) -> _Placed:
    grammar = KeyGrammarReader(contract)
    items: dict[str, list[ItemChange]] = defaultdict(list)
    rules: dict[str, VirtualStore] = {}
    gone: set[str] = set()
    for change in changes:
        if change.item is None:
            gone.add(change.item_id)
            continue
        match = _match(grammar, change)
        for store in contract.virtual if match else ():
            if match and (name := store.store_of(match.groups, match.start.hour)) is not None:
                items[name].append(change)
                rules[change.item_id] = store
                break
    return _Placed(items=items, rules=rules, gone=frozenset(gone))


def _match(grammar: KeyGrammarReader, change: ItemChange) -> KeyMatch | None:
    """Understand the key of an Item's object; None for one of another dataset that adds to the collection."""
    try:
        return grammar.match(object_uri(change).removeprefix("s3://").partition("/")[2])
    except InvalidKeyTimeError:
        return None
