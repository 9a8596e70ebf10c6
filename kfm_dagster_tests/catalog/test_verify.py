"""Reading a catalog back: what stands as told passes, what was torn or lost does not, another writer is waited for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

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


class SilentPublisher(FolderPublisher):
    """A folder that does not answer."""

    def read(self, paths: Sequence[str]) -> Mapping[str, bytes]:
        raise PublishError(StacIssue.IO_ERROR, "the share is gone")


def test_what_stands_as_told_is_verified(catalog: Catalog, register: Register) -> None:
    first, second = goes(0, created=9), goes(1)
    created = register(first, second)
    unchanged = register(first, second)
    overtaken = register(goes(0, created=1))
    assert overtaken[0].superseded
    catalog.verify(DATASET, [*created, *unchanged, *overtaken])


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_bytes(file.read_bytes()[:-9])])
def test_a_lost_or_torn_item_is_told(
    catalog: Catalog, register: Register, root: Path, damage: Callable[[Path], object]
) -> None:
    results = register(goes(0), goes(1))
    damage(root / str(results[1].item_href))
    with pytest.raises(DependencyUnavailableError, match=str(results[1].item_href)):
        catalog.verify(DATASET, results)


def test_an_item_that_the_index_does_not_know_is_told_and_nothing_is_made_up(
    database: Database, catalog: Catalog, register: Register
) -> None:
    (result,) = register(goes(0))
    stranger = replace(result, item_id="nobody", content_sha256="0" * 64)
    before = _collections(database)
    with pytest.raises(DependencyUnavailableError, match="says"):
        catalog.verify("hrrr", [stranger])
    assert _collections(database) == before


def test_what_another_writer_has_replaced_since_stands_as_the_index_says(catalog: Catalog, register: Register) -> None:
    told = register(goes(0))
    (newer,) = register(goes(0, platform="goes-18"))
    assert newer.write_status is StacStatus.UPDATED
    catalog.verify(DATASET, told)


def test_another_writers_promotion_is_waited_for(
    database: Database, contracts: ContractRegistry, register: Register, root: Path
) -> None:
    """Its files are in their places before its index is; without the wait the whole batch would lose an attempt."""
    told = register(goes(0))
    path = str(told[0].item_href)
    half_done = (root / path).read_bytes().replace(b"goes-19", b"goes-18")
    Catalog(database, MovingPublisher(root, {path: half_done}), contracts).verify(DATASET, told)


def test_a_place_that_does_not_answer_is_told_with_what_to_do(
    database: Database, contracts: ContractRegistry, register: Register, root: Path
) -> None:
    told = register(goes(0))
    with pytest.raises(DependencyUnavailableError, match="the share is gone") as raised:
        Catalog(database, SilentPublisher(root), contracts).verify(DATASET, told)
    assert raised.value.next_step


def _collections(database: Database) -> list[object]:
    with database.snapshot() as tx:
        return list(tx.connection.exec_driver_sql("SELECT * FROM catalog_collections"))
