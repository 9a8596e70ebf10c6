"""The Dagster UI in a real browser: graph, runs, backfills, results."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import dagster as dg
import pytest

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.defs.chain import slug
from kfm_dagster.demo.run import DEMO_ENVIRONMENT
from kfm_dagster.ingest.nodes import chain
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster_tests.browser.conftest import Running
from kfm_dagster_tests.browser.dagster_ui import DagsterUi, expect
from kfm_dagster_tests.browser.pictures import keep_picture
from kfm_dagster_tests.timeouts import until

pytestmark = [pytest.mark.browser, pytest.mark.deployment]

CHAIN = [node.asset for node in chain()]
DAY, NEXT_DAY = "2025-04-02", "2025-04-03"
"""The days of the sample objects."""
INTACT = {
    ("goes-abi", DAY): 8,
    ("goes-abi", NEXT_DAY): 4,
    ("hrrr", DAY): 6,
    ("hrrr", NEXT_DAY): 2,
    ("nexrad-l2", DAY): 4,
    ("nexrad-l2", NEXT_DAY): 4,
}
"""(dataset, day) > number of intact objects in the buckets; one more GOES object of the first day is truncated."""


def succeeded(records: dict[str, NoddWalRecord]) -> dict[str, NoddWalRecord]:
    return {uri: record for uri, record in records.items() if record.status is Status.SUCCEEDED}


@pytest.fixture(scope="module")
def first_run(ui: DagsterUi, running: Running) -> dict[str, NoddWalRecord]:
    """Start a run of NEXRAD's first day by two clicks on the page of its group; return the day's ledger afterwards."""
    ui.open_group("nexrad_l2", partition=DAY)
    ui.click("Materialize all")
    ui.click("Launch 1 run")
    ui.follow("Launched run")
    ui.expect_success()
    return running.ledger(partition=DAY)


@pytest.fixture(scope="module")
def backfill(ui: DagsterUi, running: Running, first_run: dict[str, NoddWalRecord]) -> None:
    """A backfill of both days over every dataset, after the first run."""
    ui.open_job("ingest")
    ui.click("Materialize all")
    ui.choose_partitions(f"[{DAY}...{NEXT_DAY}]")
    ui.click("Launch backfill")
    ui.follow("Created backfill")
    expect(ui.page.get_by_text("100% completed")).to_be_visible()


@pytest.mark.clause("DAG-01")
def test_the_asset_graph_shows_the_whole_chain_of_every_dataset(
    ui: DagsterUi, contracts: ContractRegistry, tmp_path: Path
) -> None:
    groups = len(list(contracts))
    # Each dataset has a chain that begins with the queue; one more edge leads from the radar's metadata to its beams.
    drawn = Counter(ui.open_asset_graph(edges=1 + len(CHAIN) * groups, groups=groups))
    assert [drawn[noun] for noun in CHAIN] == [groups] * len(CHAIN)
    assert drawn["path_arrival"] == 1
    assert {slug(contract.id) for contract in contracts} <= drawn.keys()
    keep_picture(ui.screenshot(), "asset-graph.png", tmp_path)


@pytest.mark.clause("DAG-08")
def test_two_clicks_ingest_the_objects_of_a_day(first_run: dict[str, NoddWalRecord], running: Running) -> None:
    assert {record.dataset for record in first_run.values()} == {"nexrad-l2"}
    assert len(succeeded(first_run)) == len(first_run) == INTACT["nexrad-l2", DAY]
    for record in first_run.values():
        assert (running.catalog / str(record.stac_item_href)).is_file()


@pytest.mark.clause("DAG-05", "DAG-11")
def test_a_backfill_ingests_missing_objects_leaves_succeeded_units_unchanged_and_shows_empty_days(
    ui: DagsterUi, first_run: dict[str, NoddWalRecord], backfill: None, running: Running
) -> None:
    records = {day: running.ledger(partition=day) for day in (DAY, NEXT_DAY)}
    counts = {key: len(succeeded(running.ledger(dataset=key[0], partition=key[1]))) for key in INTACT}
    assert counts == INTACT
    assert {uri: records[DAY][uri] for uri in first_run} == first_run
    (failing,) = records[DAY].keys() - succeeded(records[DAY]).keys()
    assert records[DAY][failing].last_error_code == "truncated_object"
    # The other datasets have no objects; a day without materialisations would fail the backfill
    # (dagster-io/dagster#34219, since 1.13.22).
    with dg.DagsterInstance.from_config(str(running.deployment.dagster_home)) as instance:
        [ended] = until(lambda: [entry for entry in instance.get_backfills() if entry.status.value != "REQUESTED"])
        empty = instance.get_runs(dg.RunsFilter(tags={"kfm/empty.ocean": "yes", "dagster/backfill": ended.backfill_id}))
    assert ended.status.value == "COMPLETED_SUCCESS"
    assert {run.tags["dagster/partition"] for run in empty} == {DAY, NEXT_DAY}
    ui.open_partition("ocean", "ledger", NEXT_DAY)
    assert ui.shown("day") == "empty: nothing of this day is known"


@pytest.mark.clause("DAG-08")
def test_an_asset_s_page_shows_counts_failing_units_link_and_footprints(
    ui: DagsterUi, backfill: None, running: Running, tmp_path: Path
) -> None:
    ui.open_partition("goes_abi", "metadata", DAY)
    failing = ui.shown("failing_units")
    assert "truncated_object" in failing
    assert "ABI-L2-CMIPC" in failing
    assert int(ui.shown("run_failed")) == 1
    # The outcome comes first; the evidence comes last and is shown after a click. Each unit links to the console.
    assert ui.labels()[:3] == ["outcome", "day", "failing_units"]
    assert ui.labels()[-1] == "evidence"
    assert ui.shown("evidence") == "[Show Markdown]"
    records = running.ledger(dataset="goes-abi", partition=DAY)
    (broken,) = records.keys() - succeeded(records).keys()
    link = ui.page.get_by_role("link", name="truncated_object: OR_ABI-L2-CMIPC")
    assert link.get_attribute("href") == f"{DEMO_ENVIRONMENT['KFM_CONSOLE_URL']}/units/{records[broken].wal_id}"
    keep_picture(ui.screenshot(), "asset-page.png", tmp_path)

    ui.open_partition("goes_abi", "stac_items", NEXT_DAY)
    assert int(ui.shown("run_units")) == int(ui.shown("items_created")) == INTACT["goes-abi", NEXT_DAY]
    assert Path(ui.shown("catalog")) == running.catalog / "catalog.json"
    assert ui.show_picture("footprints").evaluate("image => image.naturalWidth") > 0
