"""Virtual stores follow the Items that stand, whatever came before, in whatever order, whichever writer died."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kfm_dagster.catalog.changes import ChangeKind, FollowError
from kfm_dagster.catalog.publisher import FolderPublisher, Staged
from kfm_dagster.contracts.issues import IntegrityIssue
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.followers.virtual import VirtualZarr
from kfm_dagster.storage.object_handle import FolderObject, ObjectReadError
from kfm_dagster.storage.objects import ObjectStores
from kfm_dagster_tests.followers.virtual.granules import NAME, Granule, change_of, put
from kfm_dagster_tests.moments import dying

WITHDRAWN = ChangeKind.WITHDRAWN
FOLDER = "goes-abi/2025/2025-06-01"


def shown(place: Path) -> dict[str, Any]:
    """Every document that the day's list leads to, by its name, and the list itself."""
    folder = place / FOLDER
    if not (folder / "stores.json").is_file():
        return {}
    stores = json.loads((folder / "stores.json").read_bytes())["stores"]
    return {one["href"]: [one, json.loads((folder / one["href"]).read_bytes())] for one in stores}


def objects_of(found: Mapping[str, Any]) -> set[str]:
    return {uri for _, document in found.values() for uri in document["templates"].values()}


def in_one_go(root: Path, contract: DatasetContract, granules: Sequence[Granule]) -> dict[str, Any]:
    """The stores of these Items and no others, with no history."""
    with tempfile.TemporaryDirectory() as place:
        VirtualZarr(FolderPublisher(Path(place)), ObjectStores(object_root=root)).follow(
            contract, [change_of(one) for one in granules]
        )
        return shown(Path(place))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_stores_are_a_function_of_the_items_that_stand(
    data: st.DataObject, contract: DatasetContract, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root, place = (tmp_path_factory.mktemp("drawn") / name for name in ("objects", "virtual"))
    follower = VirtualZarr(FolderPublisher(place), ObjectStores(object_root=root))
    standing: dict[str, Granule] = {}
    # Two grids and two bands: what does not fit together is in stores of its own.
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
                standing[granule.item_id] = granule
                changes[granule.item_id] = change_of(granule)
            else:
                standing.pop(granule.item_id, None)
                changes[granule.item_id] = change_of(granule, kind=WITHDRAWN)
        for _ in range(data.draw(st.integers(1, 2))):  # at least once
            follower.follow(contract, list(changes.values()))
    found = shown(place)
    assert found == in_one_go(root, contract, list(standing.values()))
    assert objects_of(found) == {granule.uri for granule in standing.values()}


def test_a_crash_leaves_readers_the_old_stores_or_the_new_ones(
    contract: DatasetContract, objects: Path, tmp_path: Path
) -> None:
    before = [Granule(minute=minute, band=band) for minute in (0, 1, 2) for band in (13, 14)]
    late = [Granule(minute=3), Granule(minute=1, band=14, revision=1)]
    put(objects, before + late)
    old = in_one_go(objects, contract, before)
    standing = [one for one in before if one.item_id not in {before[0].item_id, late[1].item_id}]
    new = in_one_go(objects, contract, standing + late)
    changes = [change_of(before[0], kind=WITHDRAWN), *map(change_of, late)]
    for at in count(1):
        place = tmp_path / f"virtual-{at}"
        follower = VirtualZarr(FolderPublisher(place), ObjectStores(object_root=objects))
        follower.follow(contract, [change_of(one) for one in before])
        with dying(at=at, only="catalog.") as death:
            follower.follow(contract, changes)
        assert shown(place) in (old, new)
        follower.follow(contract, changes)
        assert shown(place) == new
        if not death.died:
            break
    # Documents and lists, staged and put in their places, and what nobody names any more.
    assert at > 15


def test_what_nobody_names_is_removed_a_list_later(
    contract: DatasetContract, objects: Path, place: Path, follower: VirtualZarr
) -> None:
    for minute in range(4):
        put(objects, [Granule(minute=minute)])
        follower.follow(contract, [change_of(Granule(minute=minute))])
        # A reader of the list before finds its document still.
        assert len(list((place / FOLDER).glob("*.json"))) == min(minute + 1, 2) + 1


def test_a_list_that_another_writer_replaced_is_not_overwritten(
    contract: DatasetContract, objects: Path, place: Path, follower: VirtualZarr
) -> None:
    first, second = Granule(minute=0), Granule(minute=1)
    put(objects, [first, second])
    meanwhile = iter([lambda: follower.follow(contract, [change_of(second)])])

    class Slow(FolderPublisher):
        """Is overtaken while it writes its document."""

        @contextmanager
        def staging(self, files: Mapping[str, bytes]) -> Iterator[Staged]:
            if any(NAME in path for path in files):
                next(meanwhile, lambda: None)()
            with super().staging(files) as staged:
                yield staged

    stalled = VirtualZarr(Slow(place), ObjectStores(object_root=objects))
    with pytest.raises(FollowError, match="was replaced meanwhile"):
        stalled.follow(contract, [change_of(first)])
    assert objects_of(shown(place)) == {second.uri}
    stalled.follow(contract, [change_of(first)])
    assert objects_of(shown(place)) == {first.uri, second.uri}


def test_chunk_indexes_are_requests_of_their_own_and_made_once(
    contract: DatasetContract, objects: Path, follower: VirtualZarr, reads: list[int]
) -> None:
    granules = [Granule(minute=minute) for minute in range(3)]
    put(objects, granules)
    changes = [change_of(one) for one in granules]
    follower.follow(contract, changes)
    assert follower.report == Counter(added=3)
    follower.follow(contract, changes)
    assert follower.report == Counter()
    follower.follow(contract, [change_of(granules[0], kind=WITHDRAWN)])
    assert follower.report == Counter(removed=1)
    assert sorted(reads) == sorted(len(one.content) for one in granules)


def test_an_object_that_does_not_answer_is_read_again_and_the_others_are_published(
    contract: DatasetContract, objects: Path, place: Path, follower: VirtualZarr, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, away = Granule(minute=0), Granule(minute=1)
    put(objects, [good, away])
    answer = FolderObject.read

    def read(self: FolderObject, start: int, length: int) -> bytes:
        if self.uri == away.uri:
            raise ObjectReadError(IntegrityIssue.STORAGE_UNAVAILABLE, self.uri, "the store answers 503")
        return answer(self, start, length)

    monkeypatch.setattr(FolderObject, "read", read)
    with pytest.raises(FollowError, match="503"):
        follower.follow(contract, [change_of(good), change_of(away)])
    assert objects_of(shown(place)) == {good.uri}
    monkeypatch.undo()
    follower.follow(contract, [change_of(good), change_of(away)])
    assert follower.report == Counter(added=1)
    assert objects_of(shown(place)) == {good.uri, away.uri}


@pytest.mark.parametrize("what", ["gone", "cut", "another format", "another size", "elsewhere"])
def test_an_object_that_no_store_can_refer_to_is_left_out_and_costs_nothing_else(
    contract: DatasetContract, objects: Path, place: Path, follower: VirtualZarr, what: str
) -> None:
    good, bad = Granule(minute=0), Granule(minute=1)
    put(objects, [good, bad])
    path = objects / "noaa-goes19" / bad.key
    match what:
        case "gone":
            path.unlink()
        case "cut":
            path.write_bytes(bad.content[:-1])
        case "another format":
            path.write_bytes(b"CDF\1" + bytes(len(bad.content) - 4))
        case "another size":
            path.write_bytes(bad.content + b"more")
        case "elsewhere":
            path.rename(objects.parent / "outside.nc")
            path.symlink_to(objects.parent / "outside.nc")
    changed = change_of(bad)
    if what == "another size" and changed.item is not None:
        # Of an upload in parts, whose ETag is no checksum, nothing but its size tells the version.
        del changed.item["assets"]["data"]["file:checksum"]
    follower.follow(contract, [change_of(good), changed])
    assert follower.report == Counter(added=1, left_out=1)
    assert objects_of(shown(place)) == {good.uri}


def test_the_old_object_of_an_item_leaves_even_where_the_new_one_cannot_be_read(
    contract: DatasetContract, objects: Path, place: Path, follower: VirtualZarr
) -> None:
    old, new = Granule(), Granule(revision=1)
    put(objects, [old])
    follower.follow(contract, [change_of(old)])
    follower.follow(contract, [change_of(new, kind=ChangeKind.UPDATED)])
    assert objects_of(shown(place)) == set()


@pytest.mark.parametrize("other", [{"west": 0.02}, {"scale": 0.06}, {"zlib": False, "shuffle": False}])
def test_what_does_not_fit_has_a_store_of_its_own_under_the_same_name(
    contract: DatasetContract, objects: Path, place: Path, follower: VirtualZarr, other: dict[str, Any]
) -> None:
    granules = [Granule(minute=0), Granule(minute=1, **other), Granule(minute=2)]
    put(objects, granules)
    follower.follow(contract, [change_of(one) for one in granules])
    listed = [one for one, _ in shown(place).values()]
    assert [(one["name"], one["steps"]) for one in listed] == [(NAME, 2), (NAME, 1)]


def test_forgetting_leaves_nothing(
    contract: DatasetContract, objects: Path, place: Path, follower: VirtualZarr
) -> None:
    of_two_days = [Granule(), Granule(minute=24 * 60)]
    put(objects, of_two_days)
    for granule in of_two_days:
        follower.follow(contract, [change_of(granule)])
    follower.forget(contract)
    assert [path for path in place.rglob("*") if path.is_file()] == []
    follower.forget(contract)
    follower.follow(contract, [change_of(Granule())])
    assert objects_of(shown(place)) == {Granule().uri}


def test_a_dataset_that_asks_for_none_has_none(
    contracts: ContractRegistry, contract: DatasetContract, objects: Path, place: Path, follower: VirtualZarr
) -> None:
    put(objects, [Granule()])
    follower.follow(contract.model_copy(update={"virtual": []}), [change_of(Granule())])
    assert not place.exists()
    # Nor has an Item of no rule.
    rules = [contract.virtual[0].model_copy(update={"match": {"product": "ABI-L2-LSTC"}})]
    follower.follow(contract.model_copy(update={"virtual": rules}), [change_of(replace(Granule(), minute=1))])
    assert not place.exists()
    assert {one.id for one in contracts if one.virtual} == {"goes-abi", "hrrr"}
