"""What a person does in the Dagster UI, in a real browser: reads the graph, starts runs, backfills, reads results."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import expect

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.defs.chain import slug
from kfm_dagster.demo.run import DEMO_ENVIRONMENT
from kfm_dagster.demo.sample_day import SAMPLE_DAY
from kfm_dagster.ingest.nodes import chain
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster_tests.browser.conftest import Running
from kfm_dagster_tests.browser.dagster_ui import DagsterUi

pytestmark = [pytest.mark.browser, pytest.mark.deployment]

CHAIN = [node.asset for node in chain()]
DAY, NEXT_DAY = "2025-04-02", "2025-04-03"
"""The days of the sample objects."""
EMPTY_DAY = "2025-04-05"
WHOLE = {
    ("goes-abi", DAY): 8,
    ("goes-abi", NEXT_DAY): 4,
    ("hrrr", DAY): 6,
    ("hrrr", NEXT_DAY): 2,
    ("nexrad-l2", DAY): 4,
    ("nexrad-l2", NEXT_DAY): 4,
}
"""Whole objects in the buckets; beside them one GOES object of the first day is truncated."""
PICTURES = Path(__file__).resolve().parents[2] / "docs" / "images"


def succeeded(records: dict[str, NoddWalRecord]) -> dict[str, NoddWalRecord]:
    return {uri: record for uri, record in records.items() if record.status is Status.SUCCEEDED}


def draw(ui: DagsterUi, name: str, elsewhere: Path) -> None:
    """Make a picture of the documentation; in its place only where that is asked for."""
    picture = (PICTURES if os.environ.get("KFM_WRITE_PICTURE") == "1" else elsewhere) / name
    ui.screenshot(picture)
    assert picture.stat().st_size > 10_000


@pytest.fixture(scope="module")
def first_run_id(ui: DagsterUi, running: Running) -> str:
    """A run of the first day over NEXRAD, started by two clicks on a link's page."""
    ui.open_job("ingest_nexrad_l2", partition=DAY)
    expect(ui.page.get_by_text("Ingest what is missing of NEXRAD Level II")).to_be_visible()
    ui.click("Materialize all")
    ui.click("Launch 1 run")
    run_id = ui.follow("Launched run")
    ui.expect_success()
    return run_id


@pytest.fixture(scope="module")
def first_run(running: Running, first_run_id: str) -> dict[str, NoddWalRecord]:
    """The ledger of the first day after it."""
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
    expected = set()
    for contract in contracts:
        group = slug(contract.id)
        chain = [("queue", "queue"), *((group, noun) for noun in CHAIN)]
        expected |= set(pairwise(chain))
    expected.add((("nexrad_l2", "metadata"), ("nexrad_l2", "path_arrival")))
    groups = len(list(contracts))
    drawn = ui.open_asset_graph(assets=2 + len(CHAIN) * groups, groups=groups)
    assert drawn.edges == expected
    assert all(drawn.boxes[left].right < drawn.boxes[right].left for left, right in expected)
    draw(ui, "asset-graph.png", tmp_path)


@pytest.mark.clause("DAG-08")
def test_two_clicks_on_a_day_ingest_it(first_run: dict[str, NoddWalRecord], running: Running) -> None:
    assert {record.dataset for record in first_run.values()} == {"nexrad-l2"}
    assert len(succeeded(first_run)) == len(first_run) == WHOLE["nexrad-l2", DAY]
    for record in first_run.values():
        assert (running.catalog / str(record.stac_item_href)).is_file()


@pytest.mark.clause("DAG-07")
def test_a_re_execution_does_nothing_again_and_the_run_list_finds_it_by_what_it_skipped(
    ui: DagsterUi, running: Running, first_run_id: str, first_run: dict[str, NoddWalRecord]
) -> None:
    ui.open_run(first_run_id)
    again = ui.re_execute_all()
    assert again != first_run_id
    ui.expect_success()
    assert running.ledger(partition=DAY) == first_run
    ui.open_runs("kfm/skipped=yes", "kfm/dataset.nexrad-l2=yes")
    expect(ui.page.get_by_role("link", name=again[:8])).to_be_visible()
    expect(ui.page.get_by_text(f"kfm/skipped.nexrad-l2: {len(CHAIN)}")).to_be_visible()
    expect(ui.page.get_by_role("link", name=first_run_id[:8])).to_have_count(0)
    ui.open_partition("nexrad_l2", "ledger", DAY)
    assert ui.labels()[:3] == ["outcome", "cause", "day"]
    assert (ui.shown("outcome"), ui.shown("cause")) == ("skipped", "ALREADY_SUCCEEDED")


@pytest.mark.clause("DAG-08")
def test_a_day_without_objects_succeeds(ui: DagsterUi, running: Running) -> None:
    ui.open_job("ingest_hrrr")
    ui.click("Materialize all")
    ui.click("Latest")
    ui.click("Launch 1 run")
    ui.follow("Launched run")
    ui.expect_success()
    today = datetime.now(UTC).date()
    assert today > SAMPLE_DAY
    assert running.ledger(partition=today.isoformat()) == {}


@pytest.mark.clause("PCS-09")
def test_a_gate_that_stops_a_batch_shows_as_a_failed_check_that_blocks(ui: DagsterUi, running: Running) -> None:
    with running.card("G6: {on_failure: restrict", "G6: {on_failure: stop"):
        ui.open_job("ingest_hrrr", partition=EMPTY_DAY)
        ui.click("Materialize all")
        ui.click("Launch 1 run")
        ui.follow("Launched run")
        ui.expect_failure()
    ui.open_check("hrrr", "ledger", "G6_coverage")
    for shown in ("the batch is stopped", "coverage of each product >= 0.9", "0 of 14 products covered"):
        expect(ui.page.get_by_text(shown).first).to_be_visible()
    expect(ui.page.get_by_text("This is a blocking asset check")).to_be_visible()
    expect(ui.page.get_by_text("Failed", exact=True).first).to_be_visible()


def test_a_backfill_ingests_what_is_missing_and_leaves_what_succeeded(
    first_run: dict[str, NoddWalRecord], backfill: None, running: Running
) -> None:
    records = {day: running.ledger(partition=day) for day in (DAY, NEXT_DAY)}
    found = {key: len(succeeded(running.ledger(dataset=key[0], partition=key[1]))) for key in WHOLE}
    assert found == WHOLE
    assert {uri: records[DAY][uri] for uri in first_run} == first_run
    (failing,) = records[DAY].keys() - succeeded(records[DAY]).keys()
    assert records[DAY][failing].last_error_code == "truncated_object"


@pytest.mark.clause("DAG-08")
def test_an_asset_s_page_shows_counts_failing_units_link_and_footprints(
    ui: DagsterUi, backfill: None, running: Running, tmp_path: Path
) -> None:
    ui.open_partition("goes_abi", "metadata", DAY)
    failing = ui.shown("failing_units")
    assert "truncated_object" in failing
    assert "ABI-L2-CMIPC" in failing
    assert int(ui.shown("run_failed")) == 1
    # What became of it first, what only an inquiry needs last and behind a click; each unit leads to the console.
    assert ui.labels()[:3] == ["outcome", "day", "failing_units"]
    assert ui.labels()[-1] == "evidence"
    assert ui.shown("evidence") == "[Show Markdown]"
    records = running.ledger(dataset="goes-abi", partition=DAY)
    (broken,) = records.keys() - succeeded(records).keys()
    link = ui.page.get_by_role("link", name="truncated_object: OR_ABI-L2-CMIPC")
    assert link.get_attribute("href") == f"{DEMO_ENVIRONMENT['KFM_CONSOLE_URL']}/units/{records[broken].wal_id}"
    draw(ui, "asset-page.png", tmp_path)

    ui.open_partition("goes_abi", "stac_items", NEXT_DAY)
    assert int(ui.shown("run_units")) == int(ui.shown("items_created")) == WHOLE["goes-abi", NEXT_DAY]
    assert Path(ui.shown("catalog")) == running.catalog / "catalog.json"
    assert ui.show_picture("footprints").evaluate("image => image.naturalWidth") > 0


@pytest.mark.clause("DAG-08")
def test_an_asset_s_page_says_when_its_dataset_is_late_and_which_schedule_lists_it(
    ui: DagsterUi, running: Running
) -> None:
    ui.open_asset("goes_abi", "stac_items")
    expect(ui.page.get_by_text("Warns if more than 30 minutes since last materialization")).to_be_visible()
    expect(ui.page.get_by_text("Fails if more than an hour since last materialization")).to_be_visible()
    expect(ui.page.get_by_role("link", name="At 06:40 AM UTC")).to_be_visible()
