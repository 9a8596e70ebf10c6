"""Chromium and a whole deployment: web server, daemon, code server, embedded cloud.

The cloud has the sample objects of two days. No message announces them, so only runs that a test starts ingest them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.demo.feed import Feed
from kfm_dagster.demo.run import DEMO_ENVIRONMENT
from kfm_dagster.demo.sample_day import sample_objects
from kfm_dagster.deployment.local import Deployment, free_port
from kfm_dagster.ledger.queries import LedgerQueries
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.browser.dagster_ui import DagsterUi
from kfm_dagster_tests.programs import program
from kfm_dagster_tests.transactions import own_tx

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM_ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 300_000
"""Milliseconds within which a page must show a run's start or end, also on a busy machine."""


@dataclass(frozen=True, kw_only=True)
class Running:
    """The deployment, and its ledger as another process sees it."""

    deployment: Deployment
    database: Database

    @property
    def catalog(self) -> Path:
        return self.deployment.home / "catalog"

    def ledger(self, *, partition: str, dataset: str | None = None) -> dict[str, NoddWalRecord]:
        records = own_tx(LedgerQueries(self.database)).find(dataset=dataset, partition=partition)
        return {record.object_uri: record for record in records}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    from playwright.sync_api import expect, sync_playwright

    # Playwright ends with the module: no other event loop can start in this thread while that of Playwright runs.
    executable = program(*CHROMIUM_NAMES, required_by="KFM_REQUIRE_BROWSER")
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=CHROMIUM_ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def running(
    chromium: Browser, contracts: ContractRegistry, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    home = tmp_path_factory.mktemp("browser")
    with EmbeddedCloud() as cloud:
        cloud.provision(contracts)
        feed = Feed(cloud, contracts)
        for item in sample_objects():
            feed.deliver(item)
        # This migrates the database before the deployment's processes open it.
        database = Database.open(f"sqlite:///{home / 'kfm.db'}")
        environment = {**cloud.environment(), **DEMO_ENVIRONMENT, "KFM_WAL_DSN": ""}
        with Deployment(home, environment=environment, web_port=free_port()) as deployment:
            yield Running(deployment=deployment, database=database)
        database.dispose()


@pytest.fixture(scope="module")
def ui(chromium: Browser, running: Running) -> Iterator[DagsterUi]:
    context = chromium.new_context()
    context.set_default_timeout(PATIENCE)
    yield DagsterUi(page=context.new_page(), url=running.deployment.url)
    context.close()
