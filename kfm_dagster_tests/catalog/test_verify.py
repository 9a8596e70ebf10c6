"""Reading a catalog back: what stands as told passes, what was torn or lost does not, another writer is waited for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from kfm_dagster.catalog.publisher import FolderPublisher, PublishError
from kfm_dagster.catalog.store import Catalog
from kfm_dagster.contracts.envelope import StacStatus
from kfm_dagster.contracts.issues import StacIssue
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import DependencyUnavailableError
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.catalog.conftest import Register
from kfm_dagster_tests.catalog.envelopes import goes

DATASET = "goes-abi"


class MovingPublisher(FolderPublisher):
    """A folder whose first reading shows what another writer has half done; `shown` replaces what stands."""

    def __init__(self, root: Path, shown: dict[str, bytes]) -> None:
        super().__init__(root)
        self._shown = [shown]

    def read(self, paths: Sequence[str]) -> Mapping[str, bytes]:
        stands = dict(super().read(paths))
        return stands | self._shown.pop() if self._shown else stands


def test_results_are_verified_by_what_the_index_has(catalog: Catalog, register: Register) -> None:
    first, second = goes(0, created=9), goes(1)
    created = register(first, second)
    unchanged = register(first, second)
    overtaken = register(goes(0, created=1))
    assert overtaken[0].superseded
    catalog.verify(DATASET, [*created, *unchanged, *overtaken])
    # Another writer has replaced an Item since.
    (newer,) = register(goes(1, platform="goes-18"))
    assert newer.write_status is StacStatus.UPDATED
    catalog.verify(DATASET, created)


def test_a_lost_or_torn_item_is_told(catalog: Catalog, register: Register, root: Path) -> None:
    results = register(goes(0), goes(1))
    path = root / str(results[1].item_href)
    whole = path.read_bytes()
    for torn in (whole[:-9], None):
        path.unlink() if torn is None else path.write_bytes(torn)
        with pytest.raises(DependencyUnavailableError, match=str(results[1].item_href)):
            catalog.verify(DATASET, results)


def test_an_item_that_the_index_does_not_know_is_told_and_nothing_is_made_up(
    database: Database, catalog: Catalog, register: Register
) -> None:
    (result,) = register(goes(0))
    stranger = replace(result, item_id="nobody", content_sha256="0" * 64)
    before = _collections(database)
    with pytest.raises(DependencyUnavailableError, match=r"observed goes-abi.*expected content 0"):
        catalog.verify("hrrr", [stranger])
    assert _collections(database) == before


def test_another_writers_promotion_is_waited_for(
    database: Database, contracts: ContractRegistry, register: Register, root: Path
) -> None:
    """Its files are in their places before its index is; without the wait the whole batch would lose an attempt."""
    told = register(goes(0))
    path = str(told[0].item_href)
    half_done = (root / path).read_bytes().replace(b"goes-19", b"goes-18")
    Catalog(database, MovingPublisher(root, {path: half_done}), contracts).verify(DATASET, told)


def test_a_place_that_does_not_answer_is_told_with_what_to_do(
    catalog: Catalog, register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = register(goes(0))
    silent = Mock(side_effect=PublishError(StacIssue.IO_ERROR, "the share is gone"))
    monkeypatch.setattr(FolderPublisher, "read", silent)
    with pytest.raises(DependencyUnavailableError, match="the share is gone") as raised:
        catalog.verify(DATASET, told)
    assert raised.value.next_step


def _collections(database: Database) -> list[object]:
    with database.snapshot() as tx:
        return list(tx.connection.exec_driver_sql("SELECT * FROM catalog_collections"))
