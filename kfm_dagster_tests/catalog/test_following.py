"""Followers of the catalog: they get what stands, in order, whatever was written, undone, refused or stalled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfm_dagster.catalog.changes import ChangeKind, FollowError, ItemChange
from kfm_dagster.catalog.following import LEASE, FollowerRunner
from kfm_dagster.catalog.store import Catalog
from kfm_dagster.contracts.issues import StacIssue
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.outbox import FIRST_PAUSE, LONGEST_PAUSE
from kfm_dagster.storage.publisher import PublishError
from kfm_dagster_tests.catalog import trees
from kfm_dagster_tests.catalog.conftest import ON_A_GROWING_CATALOG
from kfm_dagster_tests.catalog.envelopes import goes, nexrad
from kfm_dagster_tests.catalog.test_undo import unit
from kfm_dagster_tests.ledger.bench import Clock
from kfm_dagster_tests.transactions import own_tx

CREATED, UPDATED, WITHDRAWN = ChangeKind.CREATED, ChangeKind.UPDATED, ChangeKind.WITHDRAWN
_names = (f"follower-{number}" for number in count())


def nothing() -> None:
    """Do nothing."""


def fail() -> None:
    raise FollowError(observed="it is away")


class Mirror:
    """A follower that keeps the Items, and does first what a test has set."""

    def __init__(self, *, after: Sequence[str] = ()) -> None:
        self.name = next(_names)
        self.after = after
        self.items: dict[tuple[str, str], Any] = {}
        self.taken: list[tuple[str, ChangeKind]] = []
        self.first: Callable[[], None] = nothing
        self.last: Callable[[], None] = nothing

    def follow(self, contract: DatasetContract, changes: Sequence[ItemChange]) -> None:
        self.first()
        for change in changes:
            self.taken.append((change.item_id, change.kind))
            key = (contract.stac.collection, change.item_id)
            if change.kind is WITHDRAWN:
                self.items.pop(key, None)
            else:
                self.items[key] = change.item
        self.last()

    def forget(self, contract: DatasetContract) -> None:
        self.items = {key: item for key, item in self.items.items() if key[0] != contract.stac.collection}


def standing(root: Path) -> dict[tuple[str, str], Any]:
    """The Items that a reader of the catalog finds."""
    return {(item["collection"], item["id"]): item for item in trees.items(root)}


def operations(*more: st.SearchStrategy[tuple[str, Any]], ways: Sequence[str]) -> st.SearchStrategy[Any]:
    """Writes of units, undoing of runs and following in these ways, and more."""
    writes = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3)), min_size=1, max_size=5)
    return st.lists(
        st.one_of(
            st.tuples(st.just("write"), writes),
            st.tuples(st.just("undo"), st.integers(0, 5)),
            st.tuples(st.just("follow"), st.sampled_from(ways)),
            *more,
        ),
        min_size=3,
        max_size=12,
    )


@settings(ON_A_GROWING_CATALOG, max_examples=25)
@given(operations=operations(ways=["well", "refused", "taken, then failed"]))
def test_followers_have_what_stands_whatever_was_written_undone_and_refused(
    catalog: Catalog,
    following: FollowerRunner,
    root: Path,
    contracts: ContractRegistry,
    write: Callable[..., None],
    clock: Clock,
    operations: list[tuple[str, Any]],
) -> None:
    mirror, runs = Mirror(), list[str]()
    for operation, argument in operations:
        if operation == "write":
            runs.append(next(_names))
            write(runs[-1], *(unit(*one) for one in argument))
        elif operation == "undo" and argument < len(runs):
            for dataset in ("goes-abi", "nexrad-l2"):
                own_tx(catalog).undo(dataset, runs[argument])
        elif operation == "follow":
            mirror.first = fail if argument == "refused" else nothing
            mirror.last = fail if argument == "taken, then failed" else nothing
            following.catch_up([mirror])
            clock.advance(LONGEST_PAUSE.total_seconds())
    mirror.first = mirror.last = nothing
    following.catch_up([mirror])
    assert mirror.items == standing(root)
    assert following.catch_up([mirror]) == 0
    for dataset in ("goes-abi", "nexrad-l2"):
        following.rebuild(mirror, contracts[dataset])
    assert mirror.items == standing(root)


def test_what_happened_to_an_item_is_told_once_by_what_it_is_for_the_follower(
    catalog: Catalog, following: FollowerRunner, write: Callable[..., None]
) -> None:
    mirror = Mirror()

    def kinds() -> list[ChangeKind]:
        following.catch_up([mirror])
        taken, mirror.taken = mirror.taken, []
        return [kind for _, kind in taken]

    write("first", goes(0))
    write("second", goes(0, created=1, platform="goes-1"))
    assert kinds() == [CREATED]
    write("second", goes(0, created=1, platform="goes-1"))
    assert kinds() == []
    write("third", goes(0, created=2, platform="goes-2"))
    assert kinds() == [UPDATED]
    own_tx(catalog).undo("goes-abi", "third")
    assert kinds() == [UPDATED]
    write("fourth", goes(0, created=3, platform="goes-3"))
    for run_id in ("fourth", "second", "first"):
        own_tx(catalog).undo("goes-abi", run_id)
    assert kinds() == [WITHDRAWN]
    write("fifth", goes(1))
    own_tx(catalog).undo("goes-abi", "fifth")
    # Somebody may have failed to tell what it took.
    assert kinds() == [WITHDRAWN]


def test_a_follower_that_fails_is_put_off_further_and_further_and_costs_no_other(
    following: FollowerRunner, write: Callable[..., None], clock: Clock
) -> None:
    failing, well = Mirror(), Mirror()
    write("run", goes(0))
    write("run", nexrad())
    full = PublishError(StacIssue.IO_ERROR, "the disk is full")
    for pause, error, says in ((15, FollowError(observed="it is away"), "it is away"), (30, full, "KFM_VIRTUAL_URL")):
        failing.first = Mock(side_effect=error)
        following.catch_up([failing, well])
        [place, _] = [state for state in following.states() if state.follower == failing.name]
        assert (place.behind, place.change_id) == (1, 0)
        assert says in str(place.last_error)
        clock.advance(pause - 1)
        following.catch_up([failing])
        assert place in following.states()
        clock.advance(1)
    assert len(well.items) == 2
    failing.first = nothing
    following.catch_up([failing])
    assert failing.items == well.items
    assert {
        (state.behind, state.failures, state.last_error, state.next_attempt_at) for state in following.states()
    } == {(0, 0, None, None)}


@pytest.mark.clause("OPR-22")
def test_a_follower_gets_a_change_after_those_that_it_comes_after(
    following: FollowerRunner, write: Callable[..., None], clock: Clock
) -> None:
    earlier, other = Mirror(), Mirror()
    later = Mirror(after=(earlier.name, other.name))
    write("first", goes(0))
    assert following.catch_up([earlier, later]) == 1
    # The other one has nothing yet, so no turn is taken.
    assert later.name not in {place.follower for place in following.states()}
    assert following.catch_up([other]) == 1
    earlier.first = fail
    write("second", goes(1))
    assert following.catch_up([earlier, other]) == 1
    # Of two changes the one that both have.
    assert following.catch_up([later]) == len(later.taken) == 1
    earlier.first = nothing
    clock.advance(FIRST_PAUSE.total_seconds())
    assert following.catch_up([earlier, other, later]) == 2
    assert later.items == earlier.items == other.items
    assert {place.failures for place in following.states()} == {0}


def test_a_follower_is_brought_on_by_one_process_until_that_one_stalls(
    following: FollowerRunner, contracts: ContractRegistry, write: Callable[..., None], clock: Clock
) -> None:
    mirror = Mirror()
    write("run", goes(0))
    seen: list[int] = []

    def meanwhile() -> None:
        mirror.first = nothing
        seen.append(following.catch_up([mirror]))
        with pytest.raises(FollowError, match="is being brought up to date"):
            following.rebuild(mirror, contracts["goes-abi"])
        clock.advance(LEASE.total_seconds() - 1)
        seen.append(following.catch_up([mirror]))
        clock.advance(1)
        write("run", goes(1))
        seen.append(following.catch_up([mirror]))

    mirror.first = meanwhile
    following.catch_up([mirror])
    assert seen == [0, 0, 2]
    [place] = [state for state in following.states() if state.follower == mirror.name]
    assert place.behind == 0
    # The end of the one that stalled moves nothing back: the other Item does not come again.
    first, second, again = (item_id for item_id, _ in mirror.taken)
    assert first == again != second


def test_a_rebuild_that_fails_is_put_off_and_goes_on_by_itself(
    following: FollowerRunner, contracts: ContractRegistry, root: Path, write: Callable[..., None], clock: Clock
) -> None:
    mirror = Mirror()
    write("run", goes(0), goes(1))
    following.catch_up([mirror])
    mirror.first = fail
    with pytest.raises(FollowError, match="it is away"):
        following.rebuild(mirror, contracts["goes-abi"])
    assert mirror.items == {}
    mirror.first = nothing
    clock.advance(FIRST_PAUSE.total_seconds())
    following.catch_up([mirror])
    assert mirror.items == standing(root) != {}


def test_a_file_of_a_writer_that_has_not_committed_is_not_told(
    following: FollowerRunner, root: Path, write: Callable[..., None]
) -> None:
    """The file is in its place before the index says so; a writer that dies there has changed nothing."""
    mirror = Mirror()
    write("run", goes(0))
    [(path, content)] = [(path, content) for path, content in trees.files(root).items() if b'"Feature"' in content]
    (root / path).write_bytes(content.replace(b"goes-19", b"goes-99"))
    assert trees.files(root)[path] != content
    following.catch_up([mirror])
    assert mirror.items == {}
    # Registering again brings the file back, which is a change.
    write("run", goes(0))
    following.catch_up([mirror])
    assert mirror.items == standing(root) != {}
