"""The resolved asset graph with its descriptions; the executors; `dg` in the checkout."""

from __future__ import annotations

import json
import socket
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kfm_dagster.contracts.loader import ContractRegistry, draft
from kfm_dagster.definitions import build_definitions, defs
from kfm_dagster.defs.celery_worker import worker_app
from kfm_dagster.defs.chain import dataset_of, slug
from kfm_dagster.defs.executors import BROKER, LEASES_UNTIL_REDELIVERY, step_executor
from kfm_dagster.errors import ConfigurationError, ExitCode
from kfm_dagster.ingest.pipeline import utc_now
from kfm_dagster.ingest.window import PartitionWindow
from kfm_dagster.settings import FeedKind, Settings
from kfm_dagster.stages.card import Card, CardError
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.databases import migrated_sqlite
from kfm_dagster_tests.programs import printed_by, run_program
from kfm_dagster_tests.transactions import own_tx

CHAIN = {
    "envelopes": "message_parse",
    "integrity": "integrity_check",
    "metadata": "metadata_extract",
    "stac_items": "stac_register",
    "provenance": "provenance_emit",
    "ledger": "settle",
}
QUEUE = ("queue",)
BRANCH = {("nexrad_l2", "path_arrival"): ("nexrad_l2", "metadata")}
"""Assets outside the chain; ingest runs do not include them."""


@pytest.fixture(scope="module")
def definitions() -> dg.Definitions:
    return build_definitions(Settings())


@pytest.fixture(scope="module")
def nodes(definitions: dg.Definitions) -> dict[tuple[str, ...], Any]:
    return {tuple(node.key.path): node for node in definitions.resolve_asset_graph().asset_nodes}


@pytest.mark.clause("DAG-01")
def test_every_dataset_has_the_whole_chain_after_the_queue(
    nodes: dict[tuple[str, ...], Any], contracts: ContractRegistry
) -> None:
    expected: dict[tuple[str, ...], set[tuple[str, ...]]] = {QUEUE: set()}
    for contract in contracts:
        upstream = QUEUE
        for noun in CHAIN:
            expected[slug(contract.id), noun] = {upstream}
            upstream = (slug(contract.id), noun)
    expected |= {key: {upstream} for key, upstream in BRANCH.items()}
    assert {key: {tuple(parent.path) for parent in node.parent_keys} for key, node in nodes.items()} == expected


@pytest.mark.clause("DAG-01")
def test_every_asset_is_built_from_its_dataset_s_op(nodes: dict[tuple[str, ...], Any]) -> None:
    ops = {key: node.assets_def.op.name for key, node in nodes.items() if key != QUEUE}
    assert ops == {(dataset, noun): f"{dataset}__{CHAIN.get(noun, noun)}" for dataset, noun in ops}


def test_every_asset_has_description_owners_tags_and_partitions(
    nodes: dict[tuple[str, ...], Any], contracts: ContractRegistry
) -> None:
    assert nodes[QUEUE].description
    for node in (node for key, node in nodes.items() if key != QUEUE):
        contract = contracts[dataset_of(node.key)]
        assert contract.metadata.title in node.description
        assert node.assets_def.op.description
        assert node.owners == contract.metadata.owners
        assert node.tags["kfm/dataset"] == contract.id
        assert node.kinds
        assert node.partitions_def == nodes["goes_abi", "envelopes"].partitions_def


@pytest.mark.clause("DAG-08")
def test_a_dataset_has_the_same_name_in_keys_groups_and_ops(
    definitions: dg.Definitions, nodes: dict[tuple[str, ...], Any], contracts: ContractRegistry
) -> None:
    spelt = {slug(contract.id) for contract in contracts}
    of_assets = [node for key, node in nodes.items() if key != QUEUE]
    assert {node.key.path[0] for node in of_assets} == spelt
    assert {dataset_of(node.key) for node in of_assets} == {contract.id for contract in contracts}
    for node in of_assets:
        assert node.group_name == node.key.path[0] == node.assets_def.op.name.partition("__")[0]


@pytest.mark.clause("DAG-08")
def test_freshness_policies_follow_the_contracts_and_a_sample_feed_has_none(
    contracts: ContractRegistry, tmp_path: Path
) -> None:
    def policies(settings: Settings) -> dict[str, Any]:
        assets = build_definitions(settings).resolve_asset_graph().asset_nodes
        with_policy = {node.key.path[0]: node for node in assets if node.freshness_policy is not None}
        assert {node.key.path[-1] for node in with_policy.values()} <= {"stac_items"}
        return {dataset: node.freshness_policy for dataset, node in with_policy.items()}

    listed = draft(dataset="listed", like="surface-obs", bucket="listed", topic=None)
    (tmp_path / "listed.yaml").write_text(listed, encoding="utf-8")
    whole = policies(Settings(scheduled_listings=True, contracts_dir=tmp_path))
    # A station's objects have no usual age, and a retired dataset has no new objects.
    fresh = {slug(contract.id) for contract in contracts if contract.freshness and not contract.metadata.retired}
    scheduled = {slug(contract.id) for contract in contracts if contract.storage.scheduled_listing}
    assert whole.keys() == fresh | scheduled - {"surface_obs"} | {"listed"}
    # Fail and warn after four and two times the budget: 15 minutes for GOES, the listing's interval for `listed`.
    assert whole["goes_abi"] == dg.FreshnessPolicy.time_window(timedelta(hours=1), timedelta(minutes=30))
    assert whole["listed"].warn_window.to_timedelta() == timedelta(days=2)
    assert policies(Settings(scheduled_listings=False, contracts_dir=tmp_path)).keys() == fresh
    assert policies(Settings(feed=FeedKind.SAMPLE)) == {}


@pytest.mark.clause("DAG-08")
def test_every_announced_dataset_has_a_schedule_for_its_last_complete_day(
    definitions: dg.Definitions, contracts: ContractRegistry
) -> None:
    repository = definitions.get_repository_def()
    listing = {item.name: item for item in repository.schedule_defs if item.name.startswith("nodd_list_")}
    announced = {contract.id for contract in contracts if contract.storage.scheduled_listing is None}
    assert listing.keys() == {f"nodd_list_{slug(dataset)}" for dataset in announced}
    for schedule in listing.values():
        assert schedule.default_status is dg.DefaultScheduleStatus.STOPPED
        assert schedule.job_name == "ingest"

    def tick(name: str, at: datetime) -> Any:
        context = dg.build_schedule_context(scheduled_execution_time=at, repository_def=repository)
        return listing[name].evaluate_tick(context)

    at = datetime(2025, 12, 4, 6, 40, tzinfo=UTC)
    [goes] = tick("nodd_list_goes_abi", at).run_requests
    assert (goes.partition_key, goes.run_key) == ("2025-12-03", "2025-12-03")
    assert goes.asset_selection == [dg.AssetKey(["goes_abi", noun]) for noun in CHAIN]
    assert goes.tags["kfm/dataset.goes-abi"] == "yes"
    # An object of the dataset ocean is expected three days after its day.
    [ocean] = tick("nodd_list_ocean", at).run_requests
    assert ocean.partition_key == "2025-11-30"
    early = tick("nodd_list_goes_abi", datetime(1995, 1, 1, tzinfo=UTC))
    assert (early.run_requests, "kfm backfill" in early.skip_message) == ([], True)


@pytest.mark.clause("DAG-08")
def test_jobs_schedules_sensors_and_checks_have_descriptions(definitions: dg.Definitions) -> None:
    repository = definitions.get_repository_def()
    named = [
        *(job for job in repository.get_all_jobs() if not job.name.startswith("__")),
        *repository.schedule_defs,
        *repository.sensor_defs,
        *(check for checks in definitions.asset_checks or [] for check in checks.check_specs),
    ]
    assert {"ingest", "nodd_messages", "every_unit_succeeded"} <= {item.name for item in named}
    assert [item.name for item in named if not item.description] == []


def test_an_ingest_does_not_include_assets_outside_of_the_chain(definitions: dg.Definitions) -> None:
    jobs = ("ingest", "path_arrival", "feed_gaps")
    selected = {name: definitions.resolve_job_def(name).asset_layer.selected_asset_keys for name in jobs}
    branch = {dg.AssetKey(list(key)) for key in BRANCH}
    assert selected["ingest"] & branch == set()
    assert definitions.resolve_job_def("ingest").tags["kfm/lane"] == "bulk"
    assert selected["path_arrival"] == branch
    assert selected["feed_gaps"] == set()


def test_a_wrong_card_is_refused_with_file_and_line(tmp_path: Path) -> None:
    for name, text in Card.load().files.items():
        (tmp_path / name).write_bytes(text.replace(b"unlocked: restrict", b"unlocked: ignore"))
    with pytest.raises(CardError, match=r"state_machine.yaml line \d+: clock.unlocked is wrong"):
        build_definitions(Settings(configs_dir=tmp_path))


LOAD = "import sys, kfm_dagster.definitions as code; code.defs(); print(*sys.modules)"
MAX_MODULES = 2_200
"""Dagster imports 880 modules, and 460 more for its storages."""


def test_loading_the_definitions_does_not_import_libraries_that_only_few_runs_need() -> None:
    modules = set(printed_by(sys.executable, "-c", LOAD).split())
    assert not {"dask", "duckdb", "jinja2", "matplotlib", "pandas", "pint", "pystac"} & modules
    assert len(modules) < MAX_MODULES


def test_definitions_are_rebuilt_only_after_an_input_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contracts, home = tmp_path / "contracts", tmp_path / "home"
    contracts.mkdir()
    monkeypatch.setenv("KFM_CONTRACTS_DIR", str(contracts))
    monkeypatch.setenv("KFM_HOME", str(home))
    built = [defs()]
    migrated_sqlite(home / "kfm.db")
    database = Database.open(Settings.load().database_url)

    def add_contract() -> None:
        topic = "arn:aws:sns:us-east-1:123456789012:Ours"
        text = draft(dataset="hrrr-ours", like="hrrr", bucket="ours", topic=topic)
        (contracts / "ours.yaml").write_text(text, encoding="utf-8")

    def lower_first_day() -> None:
        window = PartitionWindow(database=database, settings=Settings.load(), clock=utc_now)
        assert own_tx(window).lower(date(2020, 1, 1), actor="test", reason="an old backfill")

    for change in (
        add_contract,
        lower_first_day,
        lambda: monkeypatch.setenv("KFM_SENSOR_INTERVAL_SECONDS", "9"),
        lambda: monkeypatch.setenv("KFM_DATASETS", "hrrr, goes-abi"),
    ):
        assert defs() is built[-1]
        change()
        built.append(defs())
        assert built[-1] not in built[:-1], change
    groups = {node.group_name for node in built[-1].resolve_asset_graph().asset_nodes}
    assert groups == {"queue", "hrrr", "goes_abi"}
    database.dispose()


def test_building_definitions_opens_no_connection_and_writes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError(f"connects to {arguments[1:]}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KFM_HOME", raising=False)
    build_definitions(Settings()).resolve_asset_graph()
    assert list(tmp_path.iterdir()) == []


ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.clause("DAG-08")
def test_dg_lists_every_definition(
    contracts: ContractRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    variables = {"KFM_HOME": str(tmp_path / "home"), "DAGSTER_DISABLE_TELEMETRY": "1"}

    command = [Path(sys.executable).parent / "dg", "list", "defs", "--json"]
    listed = json.loads(printed_by(*command, folder=ROOT, **variables))
    assert {asset["group_name"] for asset in listed["assets"]} == {
        "queue",
        *(slug(contract.id) for contract in contracts),
    }
    assert {"ingest", "replay", "retention"} <= {job["name"] for job in listed["jobs"]}
    assert {"nodd_messages", "nodd_ledger"} <= {sensor["name"] for sensor in listed["sensors"]}


ADDRESS = "redis://:s3cr3t-word@broker.example:6379/0"


def test_steps_run_in_process_unless_a_broker_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert step_executor(Settings.load()) is dg.in_process_executor
    monkeypatch.setenv(BROKER, ADDRESS)
    jobs = build_definitions(Settings.load()).get_repository_def().get_all_jobs()
    assert {job.executor_def.name for job in jobs} == {"celery"}


@pytest.mark.clause("DAG-09")
def test_executor_and_workers_agree_and_the_executor_shows_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BROKER, ADDRESS)
    monkeypatch.setenv("KFM_LEASE_SECONDS", "100")
    settings = Settings.load()
    chosen = step_executor(settings).apply_config_mapping({"config": {}}).value["config"]
    ours = worker_app(settings).conf
    assert chosen["broker"] == chosen["backend"] == ours.broker_url == ours.result_backend == ADDRESS
    agreed = chosen["config_source"]
    assert agreed == {name: ours[name] for name in agreed}
    assert agreed["task_acks_late"] is agreed["task_reject_on_worker_lost"] is True
    assert agreed["broker_transport_options"] == {"visibility_timeout": LEASES_UNTIL_REDELIVERY * 100}
    assert "s3cr3t" not in repr(settings)


def test_a_worker_without_a_broker_ends_with_a_one_line_error() -> None:
    ended = run_program(sys.executable, "-m", "kfm_dagster.defs.celery_worker")
    assert ended.returncode == ExitCode.USAGE
    assert ended.stderr.splitlines() == [
        f"no broker is configured; observed {BROKER} is not set; next: export {BROKER}=..."
    ]


def test_a_broker_without_the_extra_gives_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BROKER, ADDRESS)
    for module in ("dagster_celery", "dagster_celery.executor"):
        monkeypatch.setitem(sys.modules, module, None)
    for chosen in (step_executor, worker_app):
        with pytest.raises(ConfigurationError, match=r"dagster-celery is not installed; next: pip install"):
            chosen(Settings.load())
