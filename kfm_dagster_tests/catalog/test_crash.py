"""Crashes anywhere, rivals and readers at the same time: index and files end up the same as without them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from kfm_dagster.catalog.item import Candidate
from kfm_dagster.catalog.publisher import FolderPublisher
from kfm_dagster.catalog.store import Catalog
from kfm_dagster.contracts.envelope import Envelope, StacStatus
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.failpoints import Failpoint
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.fence import open_fence
from kfm_dagster_tests.catalog import trees
from kfm_dagster_tests.catalog.envelopes import candidates, goes, hrrr, nexrad
from kfm_dagster_tests.moments import dying, meanwhile


def _first(contracts: ContractRegistry) -> list[Candidate]:
    return candidates(contracts, [goes(0), goes(1)])


def _second(contracts: ContractRegistry) -> list[Candidate]:
    """One unchanged Item, one changed, and enough new ones to begin a page."""
    return candidates(contracts, [goes(0), goes(1, platform="goes-18"), *(goes(number) for number in range(2, 5))])


@pytest.mark.clause("WAL-08", "WAL-05")
def test_a_crash_anywhere_converges_to_the_tree_of_a_clean_run(
    database: Database, contracts: ContractRegistry, tmp_path: Path
) -> None:
    def catalog_in(name: str) -> Catalog:
        trees.forget(database)
        return Catalog(database, FolderPublisher(tmp_path / name), contracts, page_size=3)

    clean = catalog_in("clean")
    for batch in (_first(contracts), _second(contracts)):
        clean.register(batch, fence=open_fence)
    expected = trees.files(tmp_path / "clean")
    for at in count(1):
        catalog, root = catalog_in(f"crash-{at}"), tmp_path / f"crash-{at}"
        catalog.register(_first(contracts), fence=open_fence)
        with dying(database, at=at) as death:
            catalog.register(_second(contracts), fence=open_fence)
        _assert_whole(root)
        results = catalog.register(_second(contracts), fence=open_fence)
        # Either the crashed attempt was committed, and nothing is left to do, or it had no effect on the index.
        rest = {result.write_status for result in results[2:]}
        assert rest in ({StacStatus.CREATED}, {StacStatus.NO_OP}), death
        assert trees.files(root) == expected, death
        trees.assert_consistent(root)
        trees.assert_counted(database)
        if not death.died:
            break
    assert at > 40


@pytest.mark.clause("OPR-08", "OPR-09")
def test_rivals_lose_nothing_and_a_reader_never_sees_a_torn_or_invalid_file(
    open_catalog: Callable[[], Catalog], contracts: ContractRegistry, database: Database, root: Path
) -> None:
    """Three writers with Items of their own and one that all of them want, while a reader walks the tree."""
    rounds, writers = 6, 3
    outcomes: list[StacStatus] = []
    problems: list[BaseException] = []
    done = threading.Event()

    def write(writer: int) -> None:
        catalog = open_catalog()
        try:
            for turn in range(rounds):
                number = 1 + writer * rounds + turn
                batch = candidates(contracts, [goes(number), goes(0, platform=f"goes-{writer}{turn}")])
                own, shared = catalog.register(batch, fence=open_fence)
                assert own.write_status is StacStatus.CREATED
                outcomes.append(shared.write_status)
        except BaseException as error:
            problems.append(error)

    def read() -> None:
        try:
            while not done.is_set():
                _assert_whole(root)
        except BaseException as error:
            problems.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    reader.join()
    assert problems == []
    assert len(trees.item_ids(root)) == 1 + writers * rounds
    assert outcomes.count(StacStatus.CREATED) == 1
    assert set(outcomes) <= {StacStatus.CREATED, StacStatus.UPDATED, StacStatus.FAILED}
    trees.assert_consistent(root)
    trees.assert_counted(database)


@pytest.mark.clause("OPR-09")
@pytest.mark.parametrize(
    ("standing", "rival"),
    [
        pytest.param(goes(9), goes(1), id="pages of one collection"),
        pytest.param(nexrad(), hrrr(), id="the root of two new collections"),
    ],
)
def test_pages_and_root_are_never_overwritten_by_who_did_not_see_the_rival(
    open_catalog: Callable[[], Catalog], contracts: ContractRegistry, database: Database, root: Path,
    standing: Envelope, rival: Envelope,
) -> None:  # fmt: skip
    """One writer stops with its pages and its root composed but not written, and a rival comes."""
    open_catalog().register(candidates(contracts, [standing]), fence=open_fence)
    composed, finished = threading.Event(), threading.Event()

    def stop() -> None:
        composed.set()
        # With the rival locked out this waits in vain; without a lock the rival is done long before.
        finished.wait(timeout=1)

    results: list[StacStatus] = []

    def register(envelope: Envelope) -> None:
        [result] = open_catalog().register(candidates(contracts, [envelope]), fence=open_fence)
        results.append(result.write_status)

    first = threading.Thread(target=register, args=(goes(0),))
    second = threading.Thread(target=register, args=(rival,))
    # The documents are staged after the Item.
    with meanwhile(Failpoint.CATALOG_STAGE_BEFORE, stop, nth=2):
        first.start()
        assert composed.wait(timeout=30)
        second.start()
        second.join(timeout=0.9)
        if not second.is_alive():
            finished.set()
        first.join()
        second.join()
    assert results == [StacStatus.CREATED] * 2
    assert len(trees.item_ids(root)) == 3
    trees.assert_consistent(root)
    trees.assert_counted(database)


def _assert_whole(root: Path) -> None:
    """What a reader may rely on at any moment: every link leads to a valid document."""
    if (root / "catalog.json").is_file():
        for name, document in trees.walk(root).items():
            assert json.dumps(document), name
            assert trees.validate_document(document) == [], name
