"""Virtual stores depend on the catalog's current Items only, not on order or crashes."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kfm_dagster.catalog.changes import ChangeKind, FollowError, ItemChange
from kfm_dagster.catalog.item import canonical
from kfm_dagster.contracts.issues import IntegrityIssue
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.followers.virtual import VirtualZarr
from kfm_dagster.storage import object_handle
from kfm_dagster.storage.object_handle import FolderObject, ObjectReadError
from kfm_dagster.storage.objects import ObjectStores
from kfm_dagster.storage.publisher import FolderPublisher, Staged
from kfm_dagster_tests.followers.virtual.granules import NAME, Granule, change_of, put
from kfm_dagster_tests.moments import deaths, dying

WITHDRAWN = ChangeKind.WITHDRAWN
FOLDER = "goes-abi/2025/2025-06-01"


def shown(place: Path) -> dict[str, Any]:
    """Return each store of the day by its document's name: the store's entry in the list, and the document."""
    folder = place / FOLDER
    if not (folder / "stores.json").is_file():
        return {}
    stores = json.loads((folder / "stores.json").read_bytes())["stores"]
    return {store["href"]: [store, json.loads((folder / store["href"]).read_bytes())] for store in stores}


def objects_of(place: Path) -> set[str]:
    return {uri for _, document in shown(place).values() for *_, uri, _ in document["kfm"]["steps"]}


def in_one_go(root: Path, contract: DatasetContract, granules: Sequence[Granule]) -> dict[str, Any]:
    """Publish the stores of these Items in one call, into an empty folder."""
    with tempfile.TemporaryDirectory() as place:
        VirtualZarr(FolderPublisher(Path(place)), ObjectStores(object_root=root)).follow(
            contract, [change_of(granule) for granule in granules]
        )
        return shown(Path(place))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_stores_depend_only_on_the_current_items(
    data: st.DataObject, contract: DatasetContract, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root, place = (tmp_path_factory.mktemp("drawn") / name for name in ("objects", "virtual"))
    follower = VirtualZarr(FolderPublisher(place), ObjectStores(object_root=root))
    remaining: dict[str, Granule] = {}
    # Two grids and two bands: Items that do not fit together get separate stores.
    drawn = st.builds(
        Granule,
        minute=st.integers(0, 4),
        revision=st.integers(0, 1),
        west=st.sampled_from([0.01, 0.02]),
        band=st.sampled_from([13, 14]),
        blank=st.booleans(),
    )
    for _ in range(data.draw(st.integers(1, 5))):
        changes = {}
        for granule in data.draw(st.lists(drawn, max_size=4)):
            if data.draw(st.booleans()):
                put(root, [granule])
                remaining[granule.item_id] = granule
                changes[granule.item_id] = change_of(granule)
            else:
                remaining.pop(granule.item_id, None)
                changes[granule.item_id] = change_of(granule, kind=WITHDRAWN)
        for _ in range(data.draw(st.integers(1, 2))):  # at-least-once delivery
            follower.follow(contract, list(changes.values()))
    assert shown(place) == in_one_go(root, contract, list(remaining.values()))
    assert objects_of(place) == {granule.uri for granule in remaining.values()}


@dataclass(frozen=True)
class Stores:
    """The folder of the virtual stores, the folder of the provider's buckets, and the follower."""

    contract: DatasetContract
    objects: Path
    place: Path
    follower: VirtualZarr

    def follow(self, *granules: Granule, kind: ChangeKind = ChangeKind.CREATED) -> Counter[str]:
        """Follow a change of each granule's Item; return the follower's report."""
        self.follower.follow(self.contract, [change_of(granule, kind=kind) for granule in granules])
        return self.follower.report

    def store(self, *granules: Granule) -> None:
        put(self.objects, granules)

    def uris(self) -> set[str]:
        return objects_of(self.place)


@pytest.fixture
def stores(contract: DatasetContract, tmp_path: Path) -> Stores:
    objects, place = tmp_path / "objects", tmp_path / "virtual"
    return Stores(contract, objects, place, VirtualZarr(FolderPublisher(place), ObjectStores(object_root=objects)))


def test_after_a_crash_readers_see_either_the_old_stores_or_the_new_stores(
    contract: DatasetContract, tmp_path: Path
) -> None:
    before = [Granule(minute=minute, band=band) for minute in (0, 1, 2) for band in (13, 14)]
    late = [Granule(minute=3), Granule(minute=1, band=14, revision=1)]
    objects = tmp_path / "objects"
    put(objects, before + late)
    old = in_one_go(objects, contract, before)
    remaining = [old for old in before if old.item_id not in {before[0].item_id, late[1].item_id}]
    new = in_one_go(objects, contract, remaining + late)
    changes = [change_of(before[0], kind=WITHDRAWN), *map(change_of, late)]
    for at, death in deaths():
        place = tmp_path / f"virtual-{at}"
        follower = VirtualZarr(FolderPublisher(place), ObjectStores(object_root=objects))
        follower.follow(contract, [change_of(old) for old in before])
        with dying(at=death, only="catalog."):
            follower.follow(contract, changes)
        assert shown(place) in (old, new)
        follower.follow(contract, changes)
        assert shown(place) == new
    # The process died at each point where documents and lists are staged or published, or old documents removed.
    assert at > 15


def test_a_document_that_is_no_longer_listed_is_removed_by_the_second_list_without_it(stores: Stores) -> None:
    for minute in range(4):
        stores.store(Granule(minute=minute))
        stores.follow(Granule(minute=minute))
        # A reader of the previous list still finds its document.
        assert len(list((stores.place / FOLDER).glob("*.json"))) == min(minute + 1, 2) + 1


def test_a_list_that_another_writer_replaced_is_not_overwritten(stores: Stores) -> None:
    first, second = Granule(minute=0), Granule(minute=1)
    stores.store(first, second)
    meanwhile = iter([lambda: stores.follow(second)])

    class Slow(FolderPublisher):
        """A publisher that another writer overtakes while it writes its document."""

        @contextmanager
        def staging(self, files: Mapping[str, bytes]) -> Iterator[Staged]:
            if any(NAME in path for path in files):
                next(meanwhile, lambda: None)()
            with super().staging(files) as staged:
                yield staged

    stalled = replace(stores, follower=VirtualZarr(Slow(stores.place), ObjectStores(object_root=stores.objects)))
    with pytest.raises(FollowError, match="was replaced meanwhile"):
        stalled.follow(first)
    assert stores.uris() == {second.uri}
    stalled.follow(first)
    assert stores.uris() == {first.uri, second.uri}


def test_the_chunk_index_of_each_object_is_read_once_in_one_request(stores: Stores, reads: list[int]) -> None:
    granules = [Granule(minute=minute) for minute in range(3)]
    stores.store(*granules)
    assert stores.follow(*granules) == Counter(added=3)
    assert stores.follow(*granules) == Counter()
    assert stores.follow(granules[0], kind=WITHDRAWN) == Counter(removed=1)
    assert sorted(reads) == sorted(len(granule.content) for granule in granules)


def without(granule: Granule, *names: str) -> ItemChange:
    """Return the change of an Item that lacks these fields of its object."""
    changed = change_of(granule)
    item = dict(changed.item or {})
    for name in names:
        del item["assets"]["data"][name]
    return replace(changed, content=canonical(item))


@pytest.mark.parametrize("request_of", ["read", "head"])
def test_an_unreachable_object_is_read_later_and_other_objects_are_published(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, request_of: str
) -> None:
    good, away = Granule(minute=0), Granule(minute=1)
    stores.store(good, away)
    answer, refusals = getattr(FolderObject, request_of), iter(["503"])

    def refused_once(self: FolderObject, *span: int) -> Any:
        if self.uri == away.uri:
            for status in refusals:
                raise ObjectReadError(IntegrityIssue.STORAGE_UNAVAILABLE, self.uri, f"the store answers {status}")
        return answer(self, *span)

    monkeypatch.setattr(FolderObject, request_of, refused_once)
    # The ETag of an upload in parts is not a checksum, so the Item has none, and the object's head is read first.
    changes = [change_of(good), without(away, *(["file:checksum"] if request_of == "head" else []))]
    with pytest.raises(FollowError, match="503"):
        stores.follower.follow(stores.contract, changes)
    assert stores.uris() == {good.uri}
    stores.follower.follow(stores.contract, changes)
    assert stores.follower.report == Counter(added=1)
    assert stores.uris() == {good.uri, away.uri}


@pytest.mark.parametrize(
    "what", ["gone", "truncated", "another format", "another size", "another version", "no ETag", "elsewhere"]
)
def test_only_the_object_that_no_store_can_reference_is_left_out(
    stores: Stores, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = Granule(minute=0), Granule(minute=1)
    stores.store(good, bad)
    path, outside = stores.objects / "noaa-goes19" / bad.key, stores.objects.parent / "outside.nc"
    match what:
        case "gone":
            path.unlink()
        case "truncated":
            path.write_bytes(bad.content[:-1])
        case "another format":
            path.write_bytes(b"CDF\1" + bytes(len(bad.content) - 4))
        case "another size":
            path.write_bytes(bad.content + b"more")
        case "another version":
            path.write_bytes(replace(bad, revision=1).content)
        case "no ETag":
            # A folder gives no checksum for objects large enough for an upload in parts.
            monkeypatch.setattr(object_handle, "SINGLE_PART_BYTES", 16)
        case "elsewhere":
            path.rename(outside)
            path.symlink_to(outside)
    # The ETag of an upload in parts is not a checksum, so only the size identifies the version.
    unknown = {
        "another size": ["file:checksum"],
        "another version": ["file:size"],
        "no ETag": ["file:checksum", "file:size"],
    }
    stores.follower.follow(stores.contract, [change_of(good), without(bad, *unknown.get(what, []))])
    assert stores.follower.report == Counter(added=1, left_out=1)
    assert stores.uris() == {good.uri}


def test_an_items_old_object_is_removed_even_if_the_new_one_cannot_be_read(stores: Stores) -> None:
    stores.store(Granule())
    stores.follow(Granule())
    stores.follow(Granule(revision=1), kind=ChangeKind.UPDATED)
    assert stores.uris() == set()


@pytest.mark.parametrize("other", [{"west": 0.02}, {"scale": 0.06}, {"zlib": False, "shuffle": False}])
def test_an_item_that_does_not_fit_gets_a_second_store_of_the_same_name(stores: Stores, other: dict[str, Any]) -> None:
    granules = [Granule(minute=0), Granule(minute=1, **other), Granule(minute=2)]
    stores.store(*granules)
    stores.follow(*granules)
    listed = [entry for entry, _ in shown(stores.place).values()]
    assert [(entry["name"], entry["steps"]) for entry in listed] == [(NAME, 2), (NAME, 1)]


def test_forgetting_removes_all_stores(stores: Stores) -> None:
    of_two_days = [Granule(), Granule(minute=24 * 60)]
    stores.store(*of_two_days)
    for granule in of_two_days:
        stores.follow(granule)
    stores.follower.forget(stores.contract)
    assert [path for path in stores.place.rglob("*") if path.is_file()] == []
    stores.follower.forget(stores.contract)
    stores.follow(Granule())
    assert stores.uris() == {Granule().uri}


def test_a_dataset_without_virtual_rules_has_no_stores(stores: Stores, contracts: ContractRegistry) -> None:
    stores.store(Granule())
    # An Item that matches no rule has no store either.
    other = stores.contract.virtual[0].model_copy(update={"match": {"product": "ABI-L2-LSTC"}})
    for number, rules in enumerate([[], [other]]):
        replace(stores, contract=stores.contract.model_copy(update={"virtual": rules})).follow(Granule(minute=number))
        assert not stores.place.exists()
    assert {contract.id for contract in contracts if contract.virtual} == {"goes-abi", "hrrr"}
