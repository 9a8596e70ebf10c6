"""Crashes at every failpoint, rivals and readers at the same time: index and files end up the same as without them."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.catalog.item import Candidate
from kfm_dagster.catalog.publisher import STAGING, FolderPublisher, _StagedInFolder
from kfm_dagster.catalog.store import Catalog
from kfm_dagster.contracts.envelope import Envelope, StacStatus
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.storage.database import Database, Transaction
from kfm_dagster.storage.fence import open_fence
from kfm_dagster_tests.catalog import trees
from kfm_dagster_tests.catalog.envelopes import candidates, goes, hrrr, nexrad
from kfm_dagster_tests.databases import unguarded


class Crash(BaseException):
    """The process ends here; no handler of the package may catch it."""


class Failpoints:
    """Counts every step that touches the database or a file, and crashes before or after the chosen one."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.passed = 0
        self.crash_at: int | None = None
        for owner, name in (
            (Transaction, "run"),
            (Transaction, "run_many"),
            (FolderPublisher, "_write"),
            (_StagedInFolder, "settle"),
        ):
            patch.setattr(owner, name, self._wrap(getattr(owner, name)))
        patch.setattr(_StagedInFolder, "promote", self._one_by_one(_StagedInFolder.promote))
        transaction = Database.transaction

        @contextmanager
        def committing(database: Database) -> Iterator[Transaction]:
            with transaction(database) as tx:
                yield tx
                self._pass()
            self._pass()

        patch.setattr(Database, "transaction", committing)

    def _pass(self) -> None:
        self.passed += 1
        if self.passed == self.crash_at:
            raise Crash

    def _wrap(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **more: Any) -> Any:
            self._pass()
            result = step(*arguments, **more)
            self._pass()
            return result

        return wrapped

    def _one_by_one(self, promote: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(staged: _StagedInFolder, paths: list[str]) -> Any:
            failures: dict[str, Any] = {}
            for path in paths:
                failures |= promote(staged, [path])
                self._pass()
            return failures

        return wrapped


def _first(contracts: ContractRegistry) -> list[Candidate]:
    return candidates(contracts, [goes(0), goes(1)])


def _second(contracts: ContractRegistry) -> list[Candidate]:
    """One unchanged Item, one changed, and enough new ones to begin a page."""
    return candidates(contracts, [goes(0), goes(1, platform="goes-18"), *(goes(number) for number in range(2, 5))])


def _empty(database: Database) -> None:
    with database.transaction() as tx, unguarded(tx.connection, "catalog_items"):
        for table in ("catalog_items", "catalog_collections", "catalog_pages", "catalog_summaries"):
            tx.connection.exec_driver_sql(f"DELETE FROM {table}")


@pytest.mark.clause("WAL-08", "WAL-05")
def test_a_crash_at_any_failpoint_converges_to_the_tree_of_a_clean_run(
    database: Database, contracts: ContractRegistry, tmp_path: Path
) -> None:
    def catalog_in(name: str) -> Catalog:
        _empty(database)
        return Catalog(database, FolderPublisher(tmp_path / name), contracts, page_size=3)

    clean = catalog_in("clean")
    clean.register(_first(contracts), fence=open_fence)
    with pytest.MonkeyPatch.context() as patch:
        failpoints = Failpoints(patch)
        clean.register(_second(contracts), fence=open_fence)
    expected = trees.files(tmp_path / "clean")
    assert failpoints.passed > 40

    for failpoint in range(1, failpoints.passed + 1):
        catalog, root = catalog_in(f"crash-{failpoint}"), tmp_path / f"crash-{failpoint}"
        catalog.register(_first(contracts), fence=open_fence)
        with pytest.MonkeyPatch.context() as patch:
            crashing = Failpoints(patch)
            crashing.crash_at = failpoint
            with pytest.raises(Crash):
                catalog.register(_second(contracts), fence=open_fence)
        _assert_whole(root)
        results = catalog.register(_second(contracts), fence=open_fence)
        # Either the crashed attempt was committed, and nothing is left to do, or it had no effect on the index.
        rest = {result.write_status for result in results[2:]}
        assert rest in ({StacStatus.CREATED}, {StacStatus.NO_OP}), failpoint
        assert trees.files(root) == expected, f"failpoint {failpoint}"
        trees.assert_consistent(root)
        trees.assert_counted(database)


_VICTIM = """
    import os, sys
    from pathlib import Path
    from kfm_dagster.catalog import publisher
    from kfm_dagster.catalog.store import Catalog
    from kfm_dagster.contracts.loader import ContractRegistry
    from kfm_dagster.storage.database import Database
    from kfm_dagster.storage.fence import open_fence
    from kfm_dagster_tests.catalog.envelopes import candidates, goes

    url, root, failpoint = sys.argv[1:]
    setattr(publisher._StagedInFolder, {"staged": "promote", "promoted": "settle"}[failpoint], lambda *_: os._exit(9))
    contracts = ContractRegistry.load()
    catalog = Catalog(Database.open(url), publisher.FolderPublisher(Path(root)), contracts, page_size=3)
    catalog.register(candidates(contracts, [goes(0), goes(1)]), fence=open_fence)
"""


@pytest.mark.clause("WAL-08")
@pytest.mark.parametrize("failpoint", ["staged", "promoted"])
def test_a_killed_process_leaves_nothing_that_the_next_one_does_not_clear(
    database_url: str, contracts: ContractRegistry, tmp_path: Path, failpoint: str
) -> None:
    root = tmp_path / "catalog"
    victim = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_VICTIM), database_url, str(root), failpoint], check=False
    )
    assert victim.returncode == 9
    assert list((root / STAGING).iterdir())
    database = Database.open(database_url)
    results = Catalog(database, FolderPublisher(root), contracts, page_size=3).register(
        _first(contracts), fence=open_fence
    )
    database.dispose()
    assert [result.write_status for result in results] == [StacStatus.CREATED] * 2
    assert not list((root / STAGING).iterdir())
    trees.assert_consistent(root)


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
    open_catalog: Callable[[], Catalog],
    contracts: ContractRegistry,
    database: Database,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    standing: Envelope,
    rival: Envelope,
) -> None:
    """One writer stops with its pages and its root composed but not written, and a rival comes."""
    open_catalog().register(candidates(contracts, [standing]), fence=open_fence)
    composed, finished = threading.Event(), threading.Event()
    write = FolderPublisher._write

    def stop_before_documents(publisher: FolderPublisher, staged: Any, files: Mapping[str, bytes]) -> None:
        if "goes-abi/collection.json" in files and not composed.is_set():
            composed.set()
            # With the rival locked out this waits in vain; without a lock the rival is done long before.
            finished.wait(timeout=1)
        write(publisher, staged, files)

    monkeypatch.setattr(FolderPublisher, "_write", stop_before_documents)
    results: list[StacStatus] = []

    def register(envelope: Envelope) -> None:
        results.extend(
            result.write_status
            for result in open_catalog().register(candidates(contracts, [envelope]), fence=open_fence)
        )

    first = threading.Thread(target=register, args=(goes(0),))
    first.start()
    assert composed.wait(timeout=30)
    second = threading.Thread(target=register, args=(rival,))
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
