"""Followers get the current Items in order, after writes, undos, refusals and stalls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
from kfm_dagster.storage.database import Database
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
    """A follower that stores Items; before and after the changes it runs actions that the test sets."""

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


def catalogued(root: Path) -> dict[tuple[str, str], Any]:
    """Return the Items that a reader of the catalog finds."""
    return {(item["collection"], item["id"]): item for item in trees.items(root)}


def operations(*more: st.SearchStrategy[tuple[str, Any]], ways: Sequence[str]) -> st.SearchStrategy[Any]:
    """Draw operations: writes of units, undos of runs, turns of the follower in one of `ways`, and `more`."""
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


def carried_out(
    operations: list[tuple[str, Any]],
    mirror: Mirror,
    catalog: Catalog,
    following: FollowerRunner,
    write: Callable[..., None],
    clock: Clock,
) -> Iterator[tuple[str, Any]]:
    """Execute the operations, yielding those of other kinds; then let the follower take a turn without an error."""
    runs: list[str] = []
    for operation, argument in operations:
        if operation == "write":
            runs.append(next(_names))
            write(runs[-1], *(unit(*scan) for scan in argument))
        elif operation == "undo":
            for dataset in ("goes-abi", "nexrad-l2") if argument < len(runs) else ():
                own_tx(catalog).undo(dataset, runs[argument])
        elif operation == "follow":
            mirror.first = fail if argument == "refused" else nothing
            mirror.last = fail if argument == "taken, then failed" else nothing
            following.catch_up([mirror], within=60)
            clock.advance(LONGEST_PAUSE.total_seconds())
        else:
            yield operation, argument
    mirror.first = mirror.last = nothing
    following.catch_up([mirror], within=60)


@settings(ON_A_GROWING_CATALOG, max_examples=15)
@given(operations=operations(ways=["well", "refused", "taken, then failed"]))
def test_followers_have_the_current_items_after_writes_undos_and_refusals(
    catalog: Catalog,
    following: FollowerRunner,
    root: Path,
    contracts: ContractRegistry,
    write: Callable[..., None],
    clock: Clock,
    operations: list[tuple[str, Any]],
) -> None:
    mirror = Mirror()
    assert list(carried_out(operations, mirror, catalog, following, write, clock)) == []
    assert mirror.items == catalogued(root)
    assert following.catch_up([mirror]) == 0
    for dataset in ("goes-abi", "nexrad-l2"):
        following.rebuild(mirror, contracts[dataset])
    assert mirror.items == catalogued(root)


def test_each_change_is_followed_once_with_the_kind_the_follower_expects(
    catalog: Catalog, database: Database, following: FollowerRunner, write: Callable[..., None]
) -> None:
    mirror = Mirror()

    def claims() -> int:
        with database.engine.connect() as connection:
            return int(connection.exec_driver_sql("SELECT max(turn) FROM outbox").scalar_one())

    def kinds() -> list[ChangeKind]:
        following.catch_up([mirror])
        changes, mirror.taken = mirror.taken, []
        return [kind for _, kind in changes]

    write("first", goes(0))
    write("second", goes(0, created=1, platform="goes-1"))
    assert kinds() == [CREATED]
    write("second", goes(0, created=1, platform="goes-1"))
    assert kinds() == []
    # A follower that has every change claims nothing.
    claimed = claims()
    assert (kinds(), claims()) == ([], claimed)
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
    # A process can have died after it followed the creation and before it recorded this, so the withdrawal is sent.
    assert kinds() == [WITHDRAWN]


def test_a_failing_follower_is_deferred_with_growing_pauses_and_delays_no_other_follower(
    following: FollowerRunner, write: Callable[..., None], clock: Clock
) -> None:
    failing, well = Mirror(), Mirror()
    write("run", goes(0))
    write("run", nexrad())
    full = PublishError(StacIssue.IO_ERROR, "the disk is full")
    for pause, error, text in ((15, FollowError(observed="it is away"), "it is away"), (30, full, "KFM_VIRTUAL_URL")):
        failing.first = Mock(side_effect=error)
        following.catch_up([failing, well])
        [failing_state, _] = [state for state in following.states() if state.follower == failing.name]
        assert (failing_state.behind, failing_state.change_id) == (1, 0)
        assert text in str(failing_state.last_error)
        clock.advance(pause - 1)
        following.catch_up([failing])
        assert failing_state in following.states()
        clock.advance(1)
    assert len(well.items) == 2
    failing.first = nothing
    following.catch_up([failing])
    assert failing.items == well.items
    assert {
        (state.behind, state.failures, state.last_error, state.next_attempt_at) for state in following.states()
    } == {(0, 0, None, None)}


@pytest.mark.clause("OPR-22")
def test_a_follower_gets_a_change_after_the_followers_on_which_it_depends(
    following: FollowerRunner, write: Callable[..., None], clock: Clock
) -> None:
    earlier, second = Mirror(), Mirror()
    later = Mirror(after=(earlier.name, second.name))
    write("first", goes(0))
    assert following.catch_up([earlier, later]) == 1
    # The second follower has no change yet, so the later follower gets no turn.
    assert later.name not in {state.follower for state in following.states()}
    assert following.catch_up([second]) == 1
    earlier.first = fail
    write("second", goes(1))
    assert following.catch_up([earlier, second]) == 1
    # Of the two changes, only one has reached both earlier followers.
    assert following.catch_up([later]) == len(later.taken) == 1
    earlier.first = nothing
    clock.advance(FIRST_PAUSE.total_seconds())
    assert following.catch_up([earlier, second, later]) == 2
    assert later.items == earlier.items == second.items
    assert {state.failures for state in following.states()} == {0}


def test_one_process_at_a_time_advances_a_follower_until_the_process_stalls(
    following: FollowerRunner, contracts: ContractRegistry, write: Callable[..., None], clock: Clock
) -> None:
    mirror = Mirror()
    write("run", goes(0))
    taken_counts: list[int] = []

    def meanwhile() -> None:
        mirror.first = nothing
        taken_counts.append(following.catch_up([mirror]))
        with pytest.raises(FollowError, match="is being brought up to date"):
            following.rebuild(mirror, contracts["goes-abi"])
        clock.advance(LEASE.total_seconds() - 1)
        taken_counts.append(following.catch_up([mirror]))
        clock.advance(1)
        write("run", goes(1))
        taken_counts.append(following.catch_up([mirror]))

    mirror.first = meanwhile
    following.catch_up([mirror])
    assert taken_counts == [0, 0, 2]
    [mirror_state] = [state for state in following.states() if state.follower == mirror.name]
    assert mirror_state.behind == 0
    # The stalled process repeats its own Item, but does not move the cursor back: the second Item is not repeated.
    first, second, repeated = (item_id for item_id, _ in mirror.taken)
    assert first == repeated != second


def test_a_failing_rebuild_is_deferred_and_resumes_by_itself(
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
    assert mirror.items == catalogued(root) != {}


def test_a_file_of_an_uncommitted_writer_is_not_followed(
    following: FollowerRunner, root: Path, write: Callable[..., None]
) -> None:
    """The writer died after the file was published and before the index was updated."""
    mirror = Mirror()
    write("run", goes(0))
    [(path, content)] = [(path, content) for path, content in trees.files(root).items() if b'"Feature"' in content]
    (root / path).write_bytes(content.replace(b"goes-19", b"goes-99"))
    assert trees.files(root)[path] != content
    following.catch_up([mirror])
    assert mirror.items == {}
    # Registering again restores the file, which is a change.
    write("run", goes(0))
    following.catch_up([mirror])
    assert mirror.items == catalogued(root) != {}
