"""What the exports are made from: real runs of the chain, and a node of another team with awkward names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.idempotent_node.node import run_node
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster_tests.databases import migrated_sqlite
from kfm_dagster_tests.exports.gpg import Gpg, own_gpg
from kfm_dagster_tests.idempotent_node import counting
from kfm_dagster_tests.integration import chain

DAY = chain.DAY.isoformat()
WORKED = "11111111-0000-4000-8000-000000000001"
AGAIN = "11111111-0000-4000-8000-000000000002"
AWKWARD = 'it\'s \\ "a" node;\nMERGE (n:Hack) // ünïcödé \u2028 🌪 ,'


def _run_twice(folder: Path, database_url: str) -> Pipeline:
    chain.put(folder / "objects", chain.volumes(2))
    opened = chain.open_pipeline(folder / "home", folder / "objects", url=database_url)
    for run_id in (WORKED, AGAIN):
        chain.run_chain(opened, "nexrad-l2", DAY, run_id)
        opened.clock.forward(3600)
    return opened


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with home, objects and SQLite database of both runs, for the tests to copy."""
    folder = tmp_path_factory.mktemp("two-runs")
    _run_twice(folder, migrated_sqlite(folder / "kfm.db")).close()
    return folder


@pytest.fixture
def pipeline(recorded: Path, tmp_path: Path, database_url: str) -> Iterator[Pipeline]:
    """Two runs of a day, the second with nothing new, once on SQLite and once on PostgreSQL."""
    if database_url.startswith("sqlite"):
        opened = chain.open_copy(recorded, tmp_path, url=database_url, seconds=7200)
    else:
        opened = _run_twice(tmp_path, database_url)
    yield opened
    opened.close()


@pytest.fixture
def with_awkward_names(pipeline: Pipeline, tmp_path: Path) -> None:
    """A node whose name and files hold what CSV, openCypher and shells take for their own."""
    file = tmp_path / 'a\'b,"c".txt'
    file.write_text("one line\n")
    node = counting.CountLines(files=[file], folder=tmp_path / "out", name=AWKWARD)
    run_node(pipeline.nodes, node, run_id=counting.RUN, code=counting.CODE)


@pytest.fixture(scope="session")
def governed(contracts: ContractRegistry) -> ContractRegistry:
    """The contracts, with those of the Collection nexrad-l2 governed."""
    return ContractRegistry.of(
        contract.model_copy(
            update={"governance": contract.governance.model_copy(update={"sensitivity": "restricted"})}
            if contract.stac.collection == "nexrad-l2"
            else {}
        )
        for contract in contracts
    )


@pytest.fixture
def gpg() -> Iterator[Gpg]:
    """GnuPG with a keyring of the test's own."""
    with own_gpg() as run:
        yield run
