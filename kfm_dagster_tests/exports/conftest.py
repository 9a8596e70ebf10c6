"""Data of the exports: real runs of the chain, another team's node with awkward names; and GnuPG."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.idempotent_node.node import run_node
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster_tests.databases import migrated_sqlite
from kfm_dagster_tests.factories import with_section
from kfm_dagster_tests.idempotent_node import counting
from kfm_dagster_tests.integration import chain
from kfm_dagster_tests.programs import program

DAY = chain.DAY.isoformat()
FIRST_RUN = "11111111-0000-4000-8000-000000000001"
SECOND_RUN = "11111111-0000-4000-8000-000000000002"
AWKWARD = 'it\'s \\ "a" node;\nMERGE (n:Hack) // ünïcödé \u2028 🌪 ,'


def _run_twice(folder: Path, database_url: str) -> Pipeline:
    chain.put(folder / "objects", chain.volumes(2))
    opened = chain.open_pipeline(folder / "home", folder / "objects", url=database_url)
    for run_id in (FIRST_RUN, SECOND_RUN):
        chain.run_chain(opened, "nexrad-l2", DAY, run_id)
        opened.clock.forward(3600)
    return opened


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder with home, objects and database of two runs, which the tests copy."""
    folder = tmp_path_factory.mktemp("two-runs")
    _run_twice(folder, migrated_sqlite(folder / "kfm.db")).close()
    return folder


@pytest.fixture
def pipeline(recorded: Path, tmp_path: Path, database_url: str) -> Iterator[Pipeline]:
    """Open a pipeline after two runs of a day, the second without new objects."""
    if database_url.startswith("sqlite"):
        opened = chain.open_copy(recorded, tmp_path, url=database_url, seconds=7200)
    else:
        opened = _run_twice(tmp_path, database_url)
    yield opened
    opened.close()


@pytest.fixture
def with_awkward_names(pipeline: Pipeline, tmp_path: Path) -> None:
    """Run a node whose name and files have special characters of CSV, openCypher and shells."""
    file = tmp_path / 'a\'b,"c".txt'
    file.write_text("one line\n")
    node = counting.CountLines(files=[file], folder=tmp_path / "out", name=AWKWARD)
    run_node(pipeline.nodes, node, run_id=counting.RUN, code=counting.CODE)


@pytest.fixture(scope="session")
def governed(contracts: ContractRegistry) -> ContractRegistry:
    """Return the contracts; those of the Collection nexrad-l2 have restricted sensitivity."""
    return ContractRegistry.of(
        with_section(contract, "governance", sensitivity="restricted")
        if contract.stac.collection == "nexrad-l2"
        else contract
        for contract in contracts
    )


Gpg = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def gpg() -> Iterator[Gpg]:
    """Yield a function that runs GnuPG with its own keyring, as recipients do; skip the test if gpg is missing."""
    command = program("gpg", required_by="KFM_REQUIRE_GPG")
    # The folder's path must be short: the path of the agent's socket in it is limited to 107 bytes.
    with tempfile.TemporaryDirectory(prefix="kfm-gpg-", ignore_cleanup_errors=True) as home:

        def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
            words = [command, "--homedir", home, "--batch", "--no-tty", *map(str, arguments)]
            return subprocess.run(words, capture_output=True, text=True, errors="replace", check=False, timeout=120)

        yield run
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "gpg-agent"], check=False, timeout=60)
