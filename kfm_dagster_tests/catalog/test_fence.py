"""The catalog under crashes and concurrency: a worker without its claim changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from kfm_dagster.catalog.item import Candidate
from kfm_dagster.catalog.store import Catalog
from kfm_dagster.contracts.envelope import Envelope, StacStatus, WalId
from kfm_dagster.contracts.issues import FenceIssue, StacIssue
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.failpoints import Failpoint
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.storage.database import Database, Transaction
from kfm_dagster.storage.fence import Fence, open_fence
from kfm_dagster.storage.publisher import FolderPublisher
from kfm_dagster_tests.catalog import trees
from kfm_dagster_tests.catalog.conftest import Register, codes
from kfm_dagster_tests.catalog.envelopes import DAY, candidates, goes, hrrr, nexrad
from kfm_dagster_tests.databases import every_row
from kfm_dagster_tests.moments import deaths, dying, meanwhile
from kfm_dagster_tests.transactions import own_tx

CREATED, UPDATED, NO_OP, FAILED = StacStatus.CREATED, StacStatus.UPDATED, StacStatus.NO_OP, StacStatus.FAILED
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def refusing(*units: Envelope, issue: FenceIssue = FenceIssue.CLAIM_LOST, from_call: int = 1) -> Fence:
    """Return a fence that refuses these units from its n-th call on."""
    calls: list[int] = []

    def fence(_tx: Transaction, attempts: Mapping[WalId, int]) -> Mapping[WalId, FenceIssue]:
        calls.append(1)
        lost = {unit.wal_id for unit in units} if len(calls) >= from_call else set()
        return {wal_id: issue for wal_id in attempts if wal_id in lost}

    return fence


def removed(root: Path, href: str) -> None:
    (root / href).unlink()


@pytest.mark.clause("BEY-02")
@pytest.mark.parametrize("from_call", [1, 2], ids=["at the first check", "at the check before the swap"])
@pytest.mark.parametrize("issue", FenceIssue)
@pytest.mark.parametrize(
    ("change", "statuses"),
    [
        pytest.param({"platform": "goes-18"}, [UPDATED, FAILED, CREATED], id="a changed Item"),
        pytest.param({}, [NO_OP, FAILED, CREATED], id="a file to be restored"),
    ],
)
def test_a_refused_unit_changes_neither_index_nor_file_and_the_other_units_are_registered(
    register: Register, database: Database, root: Path, change: dict[str, Any], statuses: list[StacStatus],
    issue: FenceIssue, from_call: int,
) -> None:  # fmt: skip
    first = register(goes(0), goes(1))
    if not change:
        for result in first:
            removed(root, str(result.item_href))
    lost = goes(1, **change)
    row, file = every_row(database)["catalog_items"][1], trees.files(root).get(str(first[1].item_href))
    fence = refusing(lost, issue=issue, from_call=from_call)
    results = register(goes(0, **change), lost, goes(2), fence=fence)
    assert [result.write_status for result in results] == statuses
    assert codes(results) == [None, issue, None]
    assert every_row(database)["catalog_items"][1] == row
    assert trees.files(root).get(str(first[1].item_href)) == file
    # The worker that holds the claim now registers the Item.
    repeated = register(lost)
    assert repeated[0].write_status is statuses[0]
    # A unit that lost its claim fails, even if its Item is unchanged.
    [late] = register(lost, fence=refusing(lost, issue=issue))
    assert (late.write_status, late.item_href) == (FAILED, None)
    trees.assert_consistent(root)


@pytest.mark.clause("BEY-02")
def test_a_claim_cannot_be_taken_over_while_its_holder_writes(
    register: Register, contracts: ContractRegistry, database: Database, database_url: str
) -> None:
    """The fence's answer must stay valid until the commit."""
    ledger = Ledger(database, registry=contracts, worker_id="test", clock=lambda: NOW)
    own_tx(ledger).ensure([goes(0)])
    claimed = own_tx(ledger).claim(dataset="goes-abi", partition=DAY.date().isoformat(), run_id="run", limit=10)

    def take_over() -> None:
        options = {"timeout": 0} if database.dialect == "sqlite" else {}
        rival = sa.create_engine(database_url, connect_args=options, isolation_level="AUTOCOMMIT")
        with rival.connect() as connection:
            lock = "SELECT wal_id FROM nodd_wal_records FOR NO KEY UPDATE NOWAIT"
            with pytest.raises(sa.exc.OperationalError):
                connection.exec_driver_sql("BEGIN IMMEDIATE" if database.dialect == "sqlite" else lock)
        rival.dispose()

    unit = goes(0).evolve(attempt=claimed[0].attempt)
    # Documents are staged after the Item, in the fence's transaction.
    with meanwhile(Failpoint.CATALOG_STAGE_BEFORE, take_over, nth=2):
        [result] = register(unit, fence=ledger.leases.fence("run"))
    assert result.write_status is CREATED


@pytest.mark.clause("BEY-02")
def test_claims_are_locked_before_the_collection(register: Register, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    run = Transaction.run

    def recorded(tx: Transaction, name: str, *arguments: Any, **named: Any) -> Any:
        steps.append(name)
        return run(tx, name, *arguments, **named)

    def fence(_tx: Transaction, attempts: Mapping[WalId, int]) -> Mapping[WalId, FenceIssue]:
        steps.append(f"fence {len(attempts)}")
        return {}

    monkeypatch.setattr(Transaction, "run", recorded)
    register(goes(0), goes(1), fence=fence)
    assert steps[:5] == [
        "fence 2", "catalog.current", "catalog.log_promotions", "fence 2", "catalog.open_collection",
    ]  # fmt: skip


@pytest.mark.clause("BEY-02")
def test_of_two_versions_of_an_item_the_version_with_a_claim_is_kept(register: Register, root: Path) -> None:
    older, newer = goes(0, created=1), goes(0, created=9)
    results = register(newer, older, fence=refusing(newer))
    assert [result.write_status for result in results] == [FAILED, CREATED]
    assert codes(results) == [FenceIssue.CLAIM_LOST, None]
    assert trees.walk(root)[str(results[1].item_href)]["properties"]["kfm:wal_id"] == older.wal_id
    # The newer version loses its claim after it was chosen, so the older version fails, too, in spite of its claim.
    older, newer = goes(5, created=1), goes(5, created=9)
    results = register(older, newer, fence=refusing(newer, from_call=2))
    assert codes(results) == [StacIssue.CATALOG_CONFLICT, FenceIssue.CLAIM_LOST]


@pytest.mark.clause("BEY-01")
@pytest.mark.parametrize(
    "issues",
    [
        pytest.param([goes(0, created=created) for created in (1, 4, 9)], id="by the contract's precedence"),
        pytest.param(
            [goes(0, version=text * 4, sequencer=text) for text in ("0055AE00", "0055AED6", "0055AED7")],
            id="by the sequencer of one key",
        ),
    ],
)
def test_a_late_older_version_changes_nothing_and_its_result_names_the_superseding_unit(
    register: Register, root: Path, issues: list[Envelope]
) -> None:
    oldest, older, newer = issues
    current, first = register(newer, older)
    before = trees.files(root)
    [late] = register(oldest)
    for result in (first, late):
        assert (result.write_status, result.superseded, result.superseded_by) == (NO_OP, True, newer.wal_id)
        assert (result.content_sha256, result.issues) == (current.content_sha256, ())
    assert trees.files(root) == before
    [repeated] = register(newer)
    assert (repeated.write_status, repeated.superseded, repeated.superseded_by) == (NO_OP, False, None)


def test_repeated_registrations_name_the_same_replaced_unit(register: Register, root: Path) -> None:
    first, second = goes(0, version="1" * 32), goes(0, version="2" * 32)
    [created] = register(first)
    [updated] = register(second)
    [repeated] = register(second)
    removed(root, str(updated.item_href))
    restored, once_more = (register(second)[0] for _ in range(2))
    assert created.replaces is None
    replacements = [(result.write_status, result.replaces) for result in (updated, repeated, restored, once_more)]
    assert replacements == [(UPDATED, first.wal_id), *[(NO_OP, first.wal_id)] * 3]
    [repaired] = register(goes(0, version="2" * 32, platform="goes-18"))
    assert (repaired.write_status, repaired.replaces) == (UPDATED, second.wal_id)


def _first(contracts: ContractRegistry) -> list[Candidate]:
    return candidates(contracts, [goes(0), goes(1)])


def _second(contracts: ContractRegistry) -> list[Candidate]:
    """Return one unchanged Item, one changed Item, and enough new Items to start a page."""
    return candidates(contracts, [goes(0), goes(1, platform="goes-18"), *(goes(number) for number in range(2, 5))])


@pytest.mark.clause("WAL-08", "WAL-05")
def test_a_retry_after_a_crash_at_any_point_gives_the_tree_of_a_run_without_a_crash(
    database: Database, contracts: ContractRegistry, tmp_path: Path
) -> None:
    def catalog_in(name: str) -> Catalog:
        trees.forget(database)
        return Catalog(database, FolderPublisher(tmp_path / name), contracts, page_size=3)

    clean = catalog_in("clean")
    for batch in (_first(contracts), _second(contracts)):
        clean.register(batch, fence=open_fence)
    expected = trees.files(tmp_path / "clean")
    trees.assert_consistent(tmp_path / "clean")
    for at, death in deaths():
        catalog, root = catalog_in(f"crash-{at}"), tmp_path / f"crash-{at}"
        catalog.register(_first(contracts), fence=open_fence)
        with dying(database, at=death):
            catalog.register(_second(contracts), fence=open_fence)
        _assert_whole(root)
        results = catalog.register(_second(contracts), fence=open_fence)
        # The crashed attempt was either committed completely or had no effect on the index.
        rest = {result.write_status for result in results[2:]}
        assert rest in ({StacStatus.CREATED}, {StacStatus.NO_OP}), death
        assert trees.files(root) == expected, death
        trees.assert_counted(database)
    assert at > 40


@pytest.mark.clause("OPR-08", "OPR-09")
def test_concurrent_writers_lose_no_item_and_readers_see_only_complete_valid_files(
    open_catalog: Callable[[], Catalog], contracts: ContractRegistry, database: Database, root: Path
) -> None:
    """Each of three writers registers its own Items and one shared Item, while a reader walks the tree."""
    rounds, writers = 6, 3
    outcomes: list[StacStatus] = []
    done = threading.Event()

    def write(writer: int) -> None:
        catalog = open_catalog()
        for turn in range(rounds):
            number = 1 + writer * rounds + turn
            batch = candidates(contracts, [goes(number), goes(0, platform=f"goes-{writer}{turn}")])
            own, shared = catalog.register(batch, fence=open_fence)
            assert own.write_status is StacStatus.CREATED
            outcomes.append(shared.write_status)

    def read() -> None:
        while not done.is_set():
            _assert_whole(root)

    with ThreadPoolExecutor(writers + 1) as pool:
        reader = pool.submit(read)
        try:
            list(pool.map(write, range(writers)))
        finally:
            done.set()
        reader.result()
    assert len(trees.item_ids(root)) == 1 + writers * rounds
    assert outcomes.count(StacStatus.CREATED) == 1
    assert set(outcomes) <= {StacStatus.CREATED, StacStatus.UPDATED, StacStatus.FAILED}
    trees.assert_consistent(root)
    trees.assert_counted(database)


@pytest.mark.clause("OPR-09")
@pytest.mark.parametrize(
    ("registered_first", "rival"),
    [
        pytest.param(goes(9), goes(1), id="pages of one collection"),
        pytest.param(nexrad(), hrrr(), id="the root of two new collections"),
    ],
)
def test_a_writer_does_not_overwrite_pages_and_root_that_another_writer_has_just_written(
    open_catalog: Callable[[], Catalog], contracts: ContractRegistry, database: Database, root: Path,
    registered_first: Envelope, rival: Envelope,
) -> None:  # fmt: skip
    """One writer pauses before writing its pages and root, and another writer runs."""
    open_catalog().register(candidates(contracts, [registered_first]), fence=open_fence)
    composed, finished = threading.Event(), threading.Event()

    def stop() -> None:
        composed.set()
        # The wait times out if the other writer is locked out; without a lock the other would finish sooner.
        finished.wait(timeout=1)

    def register(envelope: Envelope) -> StacStatus:
        [result] = open_catalog().register(candidates(contracts, [envelope]), fence=open_fence)
        return result.write_status

    # Documents are staged after the Item.
    with meanwhile(Failpoint.CATALOG_STAGE_BEFORE, stop, nth=2), ThreadPoolExecutor(2) as pool:
        first = pool.submit(register, goes(0))
        assert composed.wait(timeout=30)
        second = pool.submit(register, rival)
        second.add_done_callback(lambda _: finished.set())
        assert first.result() is second.result() is StacStatus.CREATED
    assert len(trees.item_ids(root)) == 3
    trees.assert_consistent(root)
    trees.assert_counted(database)


def _assert_whole(root: Path) -> None:
    """Check the guarantee for readers at any time: every link leads to a valid document."""
    if (root / "catalog.json").is_file():
        for name, document in trees.walk(root).items():
            assert trees.validate_document(document) == [], name
