"""Catalog follower of virtual Zarr stores: current Items are steps of their day's stores.

Does not belong here: reading objects (`index.py`), documents (`references.py`), publishing them (`day.py`).
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor

from typing_extensions import override

from kfm_dagster.catalog.changes import Follower, FollowError, ItemChange
from kfm_dagster.catalog.follower_sources import FollowerContext, FollowerSource
from kfm_dagster.contracts.key_grammar import InvalidKeyTimeError, KeyGrammarReader, KeyMatch
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.contracts.virtual import VirtualStore
from kfm_dagster.failpoints import with_context
from kfm_dagster.followers.virtual import day as days
from kfm_dagster.followers.virtual.day import DayOfStores, Listed
from kfm_dagster.followers.virtual.index import Indexed, index, object_uri
from kfm_dagster.followers.virtual.references import Frame, StoreStep, VirtualCube
from kfm_dagster.plural import counted
from kfm_dagster.storage.objects import ObjectStores
from kfm_dagster.storage.publisher import Publisher, open_publisher

_LOG = logging.getLogger(__name__)

STORES_AT_ONCE = 8
"""Stores that are updated in parallel; updating the largest takes some 100 MB."""
READS_AT_ONCE = 32
"""Objects whose indexes are read in parallel."""


class VirtualZarrSource(FollowerSource):
    """Creates the follower if KFM_VIRTUAL_URL is set."""

    @override
    def followers(self, context: FollowerContext) -> Sequence[Follower]:
        place = self.settings.virtual_url
        return [VirtualZarr(open_publisher(place), context.objects, root=self.settings.virtual_root)] if place else ()


class VirtualZarr:
    """Keeps virtual stores below a publisher's root, which has the address `root`.

    `report` counts the results of the last `follow`: Items `added` and `removed`, Items `left_out` (no store can refer
    to their object), and `refused` fields of added objects. Left-out Items and refused fields are logged.
    """

    name = "virtual-zarr"
    after: Sequence[str] = ()

    def __init__(self, publisher: Publisher, objects: ObjectStores, *, root: str = "") -> None:
        self._publisher = publisher
        self._root = root
        self._objects = objects
        self.report: Counter[str] = Counter()

    def follow(self, contract: DatasetContract, changes: Sequence[ItemChange]) -> None:
        """Update the stores of a collection with these Items. Raises FollowError and PublishError.

        Items whose object store does not answer are left for the next call. All other Items are published; the next
        call does not read these again.
        """
        self.report = Counter()
        if not contract.virtual:
            return
        by_day: dict[str, list[ItemChange]] = defaultdict(list)
        for change in changes:
            by_day[change.partition].append(change)
        failures = [failure for day, daily in sorted(by_day.items()) for failure in self._day(contract, day, daily)]
        _LOG.info("virtual-zarr of %s: %s", contract.stac.collection, dict(self.report))
        if failures:
            raise failures[0]

    def forget(self, contract: DatasetContract) -> None:
        """Remove all stores of a collection. Raises PublishError."""
        days.forget(self._publisher, contract.stac.collection)

    def _day(self, contract: DatasetContract, day: str, of_day: Sequence[ItemChange]) -> list[FollowError]:
        items: dict[str, list[ItemChange]] = defaultdict(list)
        rules: dict[str, VirtualStore] = {}
        for change, name, rule in _placed(contract, of_day):
            items[name].append(change)
            rules[change.item_id] = rule
        withdrawn = {change.item_id for change in of_day if change.content is None}
        published = DayOfStores(
            self._publisher,
            collection=contract.stac.collection,
            day=day,
            region=contract.storage.region,
            root=self._root,
        )
        listed: dict[str, list[Listed]] = defaultdict(list)
        for entry in published.listed:
            listed[entry.name].append(entry)
        # A withdrawn Item can be in any store, so search each store.
        names = items.keys() | (listed.keys() if withdrawn else set())
        if not names:
            return []
        days.add_days(self._publisher, contract.stac.collection, [day])
        with ThreadPoolExecutor(READS_AT_ONCE) as readers, ThreadPoolExecutor(STORES_AT_ONCE) as pool:

            def read(change: ItemChange) -> Indexed | FollowError:
                try:
                    return index(self._objects, contract, change, rule=rules[change.item_id])
                except FollowError as error:
                    return error

            def work(name: str) -> tuple[list[Listed], Counter[str], list[FollowError]]:
                stores = _to_change(published, listed[name], items.get(name, []), withdrawn)
                known = {step.item_id: step.content_sha256 for _, store in stores for step in store.steps}
                # Do not read an Item again if a store has this content already.
                new = [item for item in items.get(name, []) if known.get(item.item_id) != item.content_sha256]
                frames, steps, report, failures = _sorted_out(readers.map(with_context(read), new))
                # Remove the step of the old object even if the new object cannot be read.
                leaving = {*withdrawn, *(item.item_id for item in new)}
                report["removed"] = len(leaving & known.keys())
                untouched = [entry for entry in listed[name] if all(entry is not changing for changing, _ in stores)]
                return [*untouched, *_changed(published, name, stores, leaving, frames, steps)], report, failures

            results = list(pool.map(with_context(work), sorted(names)))
        unchanged = [entry for name in listed.keys() - names for entry in listed[name]]
        published.publish([*unchanged, *(entry for store_entries, *_ in results for entry in store_entries)])
        for _, report, _ in results:
            self.report += report
        return [failure for *_, failures in results for failure in failures]


def _placed(contract: DatasetContract, changes: Iterable[ItemChange]) -> Iterator[tuple[ItemChange, str, VirtualStore]]:
    """Yield the Items that belong to a store, with the store's name and rule."""
    grammar = KeyGrammarReader(contract)
    for change in changes:
        if change.content is not None and (match := _match(grammar, change)) is not None:
            for rule in contract.virtual:
                if (name := rule.store_of(match.groups, match.start.hour)) is not None:
                    yield change, name, rule
                    break


def _match(grammar: KeyGrammarReader, change: ItemChange) -> KeyMatch | None:
    """Parse the key of an Item's object; None if another dataset added the Item."""
    try:
        return grammar.match(object_uri(change).removeprefix("s3://").partition("/")[2])
    except InvalidKeyTimeError:
        return None


def _to_change(
    here: DayOfStores, listed: Sequence[Listed], items: Sequence[ItemChange], gone: AbstractSet[str]
) -> list[tuple[Listed, VirtualCube]]:
    """Read the stores of a name that new or withdrawn Items can change."""
    stores = []
    for entry in listed:
        content = here.content(entry)
        if items or any(f'"{item_id}"'.encode() in content for item_id in gone):
            stores.append((entry, days.store_of(content, entry.href)))
    return stores


def _changed(
    here: DayOfStores,
    name: str,
    stores: Iterable[tuple[Listed, VirtualCube]],
    leaving: AbstractSet[str],
    frames: Mapping[str, Frame],
    steps: dict[str, list[StoreStep]],
) -> Iterator[Listed]:
    """Write the stores of a name with the new `steps`, and without the Items in `leaving`."""
    for entry, store in stores:
        signature = store.frame.signature
        updated = store.changed(leaving, steps.pop(signature, ()), frames.get(signature, store.frame))
        if updated.steps == store.steps:
            yield entry
        elif updated.steps:
            yield here.put(name, updated)
    for signature, frame_steps in steps.items():
        frame = frames[signature]
        yield here.put(name, VirtualCube(frame=frame, steps=()).changed(leaving, frame_steps, frame))


def _sorted_out(
    indexes: Iterable[Indexed | FollowError],
) -> tuple[dict[str, Frame], dict[str, list[StoreStep]], Counter[str], list[FollowError]]:
    """Return frames and steps by frame signature, counts for the report, and read failures."""
    frames: dict[str, Frame] = {}
    steps: dict[str, list[StoreStep]] = defaultdict(list)
    report: Counter[str] = Counter()
    failures: list[FollowError] = []
    for result in indexes:
        if isinstance(result, FollowError):
            failures.append(result)
        elif isinstance(result, str):
            report["left_out"] += 1
            _LOG.warning("left out of the virtual stores: %s", result)
        else:
            frame, step, refused = result
            report["added"] += 1
            report["refused"] += len(refused)
            if refused:
                fields = counted(len(refused), "field")
                _LOG.warning("virtual store without %s of %s: %s", fields, step.uri, "; ".join(refused[:3]))
            signature = frame.signature
            frames[signature] = frames[signature].joined(frame) if signature in frames else frame
            steps[signature].append(step)
    return frames, steps, report, failures
