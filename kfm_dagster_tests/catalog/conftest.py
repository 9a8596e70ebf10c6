"""Fixtures of the catalog's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from kfm_dagster.catalog.following import FollowerRunner
from kfm_dagster.catalog.store import Catalog
from kfm_dagster.contracts.envelope import Envelope, StacResult
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.fence import open_fence
from kfm_dagster.storage.publisher import FolderPublisher
from kfm_dagster_tests.catalog.envelopes import candidates
from kfm_dagster_tests.ledger.bench import Clock

ON_A_GROWING_CATALOG = settings(
    # Each example starts with the previous one's catalog, so shrinking would take minutes.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Folder of the catalog."""
    return tmp_path / "catalog"


@pytest.fixture
def open_catalog(database: Database, root: Path, contracts: ContractRegistry) -> Callable[[], Catalog]:
    """Return a function that opens the catalog as another process, with pages of three Items."""
    return lambda: Catalog(database, FolderPublisher(root), contracts, page_size=3)


@pytest.fixture
def catalog(open_catalog: Callable[[], Catalog]) -> Catalog:
    """A catalog in a folder, once with SQLite and once with PostgreSQL."""
    return open_catalog()


Register = Callable[..., list[StacResult]]


def codes(results: list[StacResult]) -> list[str | None]:
    return [result.issues[0].code if result.issues else None for result in results]


@pytest.fixture
def register(catalog: Catalog, contracts: ContractRegistry) -> Register:
    """Return a function that registers envelopes of one dataset, by default with a fence that refuses no unit."""
    return lambda *envelopes, fence=open_fence: catalog.register(candidates(contracts, envelopes), fence=fence)


Write = Callable[..., list[StacResult]]


@pytest.fixture
def write(catalog: Catalog, contracts: ContractRegistry) -> Write:
    """Return a function that registers envelopes under a run, one batch per dataset."""

    def write(run_id: str, *envelopes: Envelope) -> list[StacResult]:
        results = []
        for dataset in sorted({envelope.dataset for envelope in envelopes}):
            own = [envelope for envelope in envelopes if envelope.dataset == dataset]
            results += catalog.register(candidates(contracts, own, run_id), fence=open_fence)
        return results

    return write


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def following(database: Database, contracts: ContractRegistry, root: Path, clock: Clock) -> FollowerRunner:
    return FollowerRunner(database, contracts, FolderPublisher(root), clock=clock)
