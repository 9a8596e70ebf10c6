"""The follower `stac-api`: the API equals the catalog after crashes and stalls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kfm_dagster.catalog.changes import FollowError, ItemChange
from kfm_dagster.catalog.following import FollowerRunner
from kfm_dagster.catalog.item import canonical
from kfm_dagster.catalog.store import Catalog
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.followers.stac_api.database import StacApiDatabase, StacApiTransaction
from kfm_dagster.followers.stac_api.follower import PgstacFollower
from kfm_dagster.outbox import LONGEST_PAUSE
from kfm_dagster_tests.catalog.conftest import ON_A_GROWING_CATALOG
from kfm_dagster_tests.catalog.envelopes import DAY, goes, nexrad, with_metadata
from kfm_dagster_tests.catalog.test_following import Mirror, carried_out, fail, operations
from kfm_dagster_tests.followers.stac_api.api import Api
from kfm_dagster_tests.ledger.bench import Clock
from kfm_dagster_tests.moments import dying

pytestmark = [pytest.mark.one_database, pytest.mark.clause("OPR-23")]

Write = Callable[..., None]

OPERATIONS = operations(
    st.tuples(st.just("come late"), st.integers(0, 5)), ways=["well", "taken, then failed", "refused"]
)


class Recording(Mirror):
    """Runs the test's actions before and after each call of the follower, and records the calls."""

    def __init__(self, follower: PgstacFollower) -> None:
        super().__init__()
        self.name = follower.name
        self.follower = follower
        self.calls: list[tuple[DatasetContract, Sequence[ItemChange]]] = []

    def follow(self, contract: DatasetContract, changes: Sequence[ItemChange]) -> None:
        self.calls.append((contract, changes))
        self.first()
        self.follower.follow(contract, changes)
        self.last()


@settings(ON_A_GROWING_CATALOG, max_examples=10)
@given(operations=OPERATIONS)
# An Item is written and undone before the API has the collection.
@example([("write", [(0, 0)]), ("undo", 0), ("follow", "well"), ("write", [(0, 0)])])
# A crash between the API's commit and our cursor's commit.
@example([("write", [(0, 0), (1, 0)]), ("follow", "taken, then failed")])
# Stalled callers repeat earlier changes.
@example([
    ("write", [(0, 0), (1, 0), (2, 0)]), ("follow", "well"), ("write", [(0, 1)]), ("follow", "well"),
    ("write", [(3, 0)]), ("undo", 0), ("follow", "well"), ("come late", 0), ("come late", 1),
])  # fmt: skip
def test_the_api_equals_the_catalog_after_writes_undos_refusals_and_delays(
    catalog: Catalog,
    following: FollowerRunner,
    follower: PgstacFollower,
    api: Api,
    write: Write,
    clock: Clock,
    operations: list[tuple[str, Any]],
) -> None:
    recording = Recording(follower)
    for _come_late, number in carried_out(operations, recording, catalog, following, write, clock):
        if number < len(recording.calls):
            follower.follow(*recording.calls[number])
    assert api.item_ids() == api.catalog_ids()
    assert all(comparison.equal for comparison in api.compared()), api.compared()
    assert {(place.behind, place.last_error) for place in following.states()} <= {(0, None)}
    cursors = "SELECT collection_id, change_id, changed_at FROM kfm.stac_collections ORDER BY 1"
    before = api.rows(), api.ask(cursors)
    for late in recording.calls:
        follower.follow(*late)
        assert (api.rows(), api.ask(cursors)) == before


def test_a_crash_at_any_point_leaves_items_and_cursor_consistent(
    following: FollowerRunner, follower: PgstacFollower, api: Api, write: Write
) -> None:
    write("run", goes(0))
    following.catch_up([follower])
    write("again", goes(0, created=1, platform="goes-1"), goes(1))
    recording = Recording(follower)
    recording.first = fail
    following.catch_up([recording])
    last = recording.calls[-1][1][-1].change_id

    def state() -> tuple[list[str], bool]:
        [row] = api.ask("SELECT change_id FROM kfm.stac_collections")
        return sorted(item["properties"]["platform"] for item in api.searched()), row.change_id == last

    states = [state()]
    for at in count(1):
        with dying(at=at) as death:
            follower.follow(*recording.calls[-1])
        if not death.died:
            break
        states.append(state())
    assert set(map(str, states)) == {str((["goes-19"], False)), str((["goes-1", "goes-19"], True))}
    assert all(comparison.equal for comparison in api.compared())


def test_only_one_process_at_a_time_writes_a_collection(
    following: FollowerRunner,
    follower: PgstacFollower,
    api: Api,
    write: Write,
    contracts: ContractRegistry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write("run", goes(0), nexrad())
    following.catch_up([follower])
    recording = Recording(follower)
    recording.first = fail
    write("again", goes(1), with_metadata(nexrad(), bbox=(0.0, 0.0, 1.0, 1.0)))
    following.catch_up([recording])
    late = {contract.id: changes for contract, changes in recording.calls}
    begin = StacApiDatabase.begin
    monkeypatch.setattr(StacApiDatabase, "begin", lambda api, of, **_: begin(api, of, lock_timeout="1s"))
    with follower.api.transaction() as tx:
        tx.run("lock", collection_id="goes-abi")
        with pytest.raises(FollowError, match="lock timeout"):
            follower.follow(contracts["goes-abi"], late["goes-abi"])
        follower.follow(contracts["nexrad-l2"], late["nexrad-l2"])
    follower.follow(contracts["goes-abi"], late["goes-abi"])
    assert all(comparison.equal for comparison in api.compared())


def test_loading_blocks_no_reader_even_after_pgstac_narrowed_its_partitions(
    following: FollowerRunner, follower: PgstacFollower, api: Api, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[str] = []
    counts: list[int] = []
    loosened: list[int] = []
    run = StacApiTransaction.run

    def looking(tx: StacApiTransaction, name: str, **parameters: Any) -> Any:
        if name == "move":
            locks = "SELECT relation::regclass AS place FROM pg_locks WHERE mode = 'AccessExclusiveLock'"
            of_items = "relation IN (SELECT oid FROM pg_class WHERE relname LIKE '%items%')"
            held.extend(row.place for row in api.ask(f"{locks} AND {of_items}"))
            api.ask("SET statement_timeout = '5s'")
            counts.append(len(api.searched(limit=100)))
        if name == "loosen_partitions":
            return loosened.append(len(run(tx, name, **parameters).all()))
        return run(tx, name, **parameters)

    monkeypatch.setattr(StacApiTransaction, "run", looking)
    write("first", goes(0))
    following.catch_up([follower])
    # pypgstac's queue and migration run this: it narrows the partition to the single scan that it has.
    api.ask("SELECT update_partition_stats(partition) FROM partition_stats")
    [row] = api.ask("SELECT count(*) AS bound FROM pg_constraint WHERE conname LIKE '_items_%_dt' AND contype = 'c'")
    assert row.bound == 1
    write("second", *(goes(number) for number in range(1, 5)), goes(0, day=DAY + timedelta(days=20)))
    following.catch_up([follower])
    # Only the narrowed partition is widened, and only once.
    write("third", goes(5))
    following.catch_up([follower])
    assert loosened == [0, 1, 0]
    assert held == []
    assert counts == [0, 1, 6]
    assert api.item_ids() == api.catalog_ids()


def test_an_item_that_differs_from_its_file_is_detected_before_commit(
    following: FollowerRunner, follower: PgstacFollower, api: Api, write: Write
) -> None:
    write("run", nexrad())
    following.catch_up([follower])
    api.ask("""
        CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN NEW.content := NEW.content || '{"stac_version": "1.0.0"}'; RETURN NEW; END $$
    """)
    api.ask("CREATE TRIGGER spoils BEFORE INSERT ON items FOR EACH ROW EXECUTE FUNCTION spoil()")
    before = api.rows()
    write("again", goes(0))
    assert following.catch_up([follower]) == 0
    [place] = [state for state in following.states() if state.failures]
    assert "differ from their written content" in str(place.last_error)
    assert api.rows() == before


def test_an_invalid_item_is_not_loaded(
    following: FollowerRunner, follower: PgstacFollower, api: Api, write: Write
) -> None:
    recording = Recording(follower)
    recording.first = fail
    write("run", goes(0), goes(1))
    following.catch_up([recording])
    [(contract, changes)] = recording.calls
    wrong = dict(changes[1].item or {}) | {"geometry": {"type": "Circle"}}
    with pytest.raises(FollowError, match=changes[1].item_id):
        follower.follow(contract, [changes[0], replace(changes[1], content=canonical(wrong))])
    assert api.rows() == set()


def test_another_ledger_is_refused_until_the_collection_is_rebuilt(
    following: FollowerRunner, follower: PgstacFollower, api: Api, write: Write, contracts: ContractRegistry,
    clock: Clock,
) -> None:  # fmt: skip
    write("run", goes(0))
    following.catch_up([follower])
    # The API's state is from an earlier ledger; the ledger has been recreated since.
    api.ask("UPDATE kfm.stac_collections SET change_id = 900, changed_at = changed_at - interval '1 day'")
    write("again", goes(1))
    following.catch_up([follower])
    [place] = following.states()
    assert "kfm stac rebuild --collection goes-abi" in str(place.last_error)
    assert len(api.item_ids()) == 1
    clock.advance(LONGEST_PAUSE.total_seconds())
    following.rebuild(follower, contracts["goes-abi"])
    assert api.item_ids() == api.catalog_ids()
