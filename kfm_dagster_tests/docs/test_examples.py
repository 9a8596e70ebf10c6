"""The examples and their guides: atmo_window's node, run-state, governance."""

from __future__ import annotations

import ast
import json
import shutil
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import pyarrow.parquet as pq
import pytest

from docs.examples.atmo_window import definitions
from docs.examples.atmo_window.running import SAMPLE, Workspace, open_workspace
from docs.examples.atmo_window.window import Window
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.governance.log import GovernanceAction
from kfm_dagster.idempotent_node.wal import IntentStatus
from kfm_dagster.ingest.nodes import Source
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.commands import state_of
from kfm_dagster_tests.docs.console import commands, script, shell, transcript
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import DAY, Clock, StoredObject, good, open_pipeline, put, run_chain, volumes
from kfm_dagster_tests.programs import printed_by
from kfm_dagster_tests.timeouts import HANG_SECONDS
from kfm_dagster_tests.transactions import own_tx

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "idempotent-node.md"
EXAMPLE = ROOT / "docs" / "examples" / "atmo_window"
SALT = "0123456789abcdef0123456789abcdef"
NOON = Window.named("2026-03-01T12")
RUNS = [f"{number}f0e0d0c-0b0a-4908-8706-050403020100" for number in range(8)]


@dataclass(kw_only=True)
class Ticking:
    """A clock that advances by one second with each reading."""

    at: datetime = datetime(2026, 3, 1, 14, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.at += timedelta(seconds=1)
        return self.at


@pytest.fixture
def weather(tmp_path: Path) -> Path:
    """Copy the example's deliveries into a folder that a test can change."""
    shutil.copytree(SAMPLE, tmp_path / "weather")
    return tmp_path / "weather"


@pytest.fixture
def workspace(weather: Path, tmp_path: Path, database_url: str) -> Iterator[Workspace]:
    """Open a workspace, on both databases."""
    with open_workspace(
        home=tmp_path / "home", weather=weather, database_url=database_url, salt=SALT, clock=Ticking()
    ) as opened:
        yield opened


def files(home: Path) -> dict[str, bytes]:
    """Return the files of a workspace's home, except the database."""
    return {path: content for path, content in state_of(home).items() if not path.startswith("atmo.db")}


RECORDED = {
    "etl_wal": "run_id, node, step, payload, content_hash, status",
    "node_output": "content_hash, record, lineage, valid_to IS NULL",
    "etl_checkpoint": "node, last_applied_hash",
    "run_state": "dataset_id, run_id, inputs_hash, outcome, validation_summary, artifact_uri, artifact_sha256",
    "governance_log": "details, actor, action, dataset, reason, change_ref",
}


def story(database: Database) -> str:
    """Return all records without their times, as text that is the same for both databases."""

    def plain(value: Any) -> Any:
        if isinstance(value, str) and value.startswith("{"):
            return json.loads(value)
        return value if isinstance(value, int | dict | None) else str(value)

    parts = {}
    with database.snapshot() as tx:
        for table, columns in RECORDED.items():
            rows = tx.connection.exec_driver_sql(f"SELECT {columns} FROM {table}").all()
            parts[table] = sorted(json.dumps([plain(value) for value in row], sort_keys=True) for row in rows)
    # PostgreSQL has booleans, SQLite has 0 and 1.
    return json.dumps(parts).replace("true", "1").replace("false", "0")


@pytest.mark.clause("IEN-13", "IEN-10")
def test_two_clean_runs_leave_the_same_bytes(weather: Path, tmp_path: Path) -> None:
    stories = []
    for number in range(2):
        home = tmp_path / str(number)
        with open_workspace(home=home, weather=weather, salt=SALT, clock=Ticking()) as workspace:
            assert workspace.run(NOON, run_id=RUNS[0]).status is IntentStatus.APPLIED
            stories.append((files(home), story(workspace.database)))
        # The second run reads the same rows from another file, in another order, and as Parquet.
        spring = weather / "observations" / "spring.csv"
        if spring.exists():
            duckdb.connect().sql(f"COPY (FROM '{spring}' ORDER BY observed_at DESC) TO '{spring}.parquet'")
            spring.unlink()
    assert stories[0] == stories[1]


@pytest.mark.clause("IEN-13")
def test_a_window_has_the_statistics_of_the_observations(workspace: Workspace, tmp_path: Path) -> None:
    artifact = workspace.run(NOON, run_id=RUNS[0]).output.record["artifact"]
    by_place = {row["place"]: row for row in pq.read_table(tmp_path / "home" / artifact["uri"]).to_pylist()}
    observed = [line.split(",") for line in (SAMPLE / "observations" / "airports.csv").read_text().splitlines()[1:]]
    temperatures = [float(row[3]) for row in observed if row[0] == "KICT" and "T12:" in row[1]]
    assert by_place["KICT"]["observations"] == len(temperatures) == 6
    assert by_place["KICT"]["temperature_c_mean"] == pytest.approx(sum(temperatures) / 6, abs=5e-4)
    assert float(by_place["KICT"]["temperature_c_min"]) == min(temperatures)
    assert float(by_place["KICT"]["temperature_c_max"]) == max(temperatures)
    # Two sensitive stations in one cell are one row.
    assert sorted(row["observations"] for row in by_place.values()) == [6, 6, 6, 12]
    assert {place.partition(":")[0] for place in by_place} == {"KICT", "KMHK", "h3", "donut"}


@pytest.mark.clause("IEN-12")
def test_moving_a_sensitive_station_within_its_mask_changes_nothing(
    workspace: Workspace, weather: Path, tmp_path: Path
) -> None:
    stations = weather / "stations.csv"
    first = workspace.run(NOON, run_id=RUNS[0])
    before = files(tmp_path / "home")
    sensitive = [line.split(",") for line in stations.read_text().splitlines() if line.endswith(("h3", "donut"))]
    for _, latitude, longitude, _ in sensitive:
        moved = f"{float(latitude) + 0.0002:.5f},{float(longitude) - 0.0002:.5f}"
        stations.write_text(stations.read_text().replace(f"{latitude},{longitude}", moved))
    again = workspace.run(NOON, run_id=RUNS[1])
    assert (again.status, again.output) == (IntentStatus.SKIPPED, first.output)
    assert files(tmp_path / "home") == before
    everything = b"".join(before.values()) + story(workspace.database).encode() + "".join(before).encode()
    for name, latitude, longitude, _ in sensitive:
        for secret in (name, latitude, longitude, latitude[:6], SALT):
            assert secret.encode() not in everything
    # The content changes if a station moves to another cell.
    stations.write_text(stations.read_text().replace(",38.7", ",38.2"))
    assert workspace.run(NOON, run_id=RUNS[2]).status is IntentStatus.APPLIED


@pytest.mark.clause("IEN-12")
def test_a_mask_s_actor_and_reason_are_in_lineage_and_governance_log(workspace: Workspace) -> None:
    output = workspace.run(NOON, run_id=RUNS[0]).output
    nodes = {node["id"]: node for node in output.lineage["prov"]}
    derived = next(node for node in nodes.values() if "kfm:AtmoWindow" in node["type"])["wasDerivedFrom"]
    masked = [uri for uri in derived if uri.startswith("urn:kfm:masked:")]
    assert len(masked) == 2
    for uri in masked:
        masking = nodes[nodes[uri]["wasGeneratedBy"]]
        assert masking["kfm:change_ref"] == "CARE-2026-014"
        assert nodes[masking["wasAssociatedWith"][0]]["kfm:name"] == "heritage-steward@example.org"
    entries = own_tx(workspace.tools.log).entries(action=GovernanceAction.MASK, dataset="atmo")
    assert {entry.details["method"] for entry in entries} == {"h3", "donut"}
    assert {entry.details["output_sha256"] for entry in entries} == {output.record["artifact"]["sha256"]}


@pytest.mark.clause("IEN-12")
@pytest.mark.parametrize("wrong", ["38.7x342", "138.71342", ""])
def test_a_refused_location_is_not_shown(wrong: str, workspace: Workspace, weather: Path) -> None:
    stations = weather / "stations.csv"
    stations.write_text(stations.read_text().replace("38.71342", wrong))
    with pytest.raises(ConfigurationError) as refused:
        workspace.run(NOON, run_id=RUNS[0])
    shown = "".join(traceback.format_exception(refused.value))
    assert "MOUND" not in shown
    assert not wrong or wrong not in shown


@pytest.mark.clause("IEN-13")
def test_the_asset_runs_skips_and_is_forced_in_dagster(weather: Path, tmp_path: Path) -> None:
    atmo = definitions.AtmoResource(home=str(tmp_path / "home"), weather=str(weather), salt=SALT)

    def materialized(force: str = "") -> dict[str, Any]:
        done = dg.materialize(
            [definitions.atmo_window],
            partition_key="2026-03-01-12:00",
            resources={"atmo": atmo},
            run_config={"ops": {"atmo_window": {"config": {"force": force}}}},
        )
        (event,) = done.asset_materializations_for_node("atmo_window")
        return {name: value.value for name, value in event.metadata.items()} | {"run": done.run_id}

    first, again, forced = materialized(), materialized(), materialized("an auditor wants to see it")
    assert (first["status"], first["applied_by"]) == ("APPLIED", first["run"])
    assert (again["status"], again["applied_by"], again["content_hash"]) == (
        "SKIPPED",
        first["run"],
        first["content_hash"],
    )
    assert (forced["status"], forced["artifact"]) == ("APPLIED", first["artifact"])


@pytest.mark.clause("IEN-13")
def test_the_example_imports_only_the_public_libraries() -> None:
    packages = ("kfm_dagster.idempotent_node", "kfm_dagster.run_state")  # not the modules below them
    allowed = (
        "kfm_dagster.governance.",
        "kfm_dagster.storage.",
        "kfm_dagster.telemetry.measures",
        "kfm_dagster.contracts.identity",
        "kfm_dagster.contracts.stewardship",
        "kfm_dagster.errors",
    )
    for file in EXAMPLE.glob("*.py"):
        imported = [
            name
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            for name in _imported(node)
            if name.startswith(("kfm_dagster", "dagster"))
        ]
        wrong = [name for name in imported if name not in packages and not name.startswith(allowed)]
        assert wrong == (["dagster"] if file.name == "definitions.py" else []), file.name


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [str(node.module)]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


@pytest.mark.clause("IEN-13", "IEN-09")
@pytest.mark.timeout(HANG_SECONDS + 60)
def test_every_command_of_the_guide_exits_as_documented(forks: dict[str, str], tmp_path: Path) -> None:
    listed = list(commands(GUIDE.read_text(encoding="utf-8")))
    variables = forks | {"CHECKOUT": str(ROOT), "PYTHONPATH": str(ROOT)}
    done = shell(script(listed), tmp_path, seconds=HANG_SECONDS, variables=variables)
    assert len(listed) > 30
    assert done.returncode == 0, transcript(listed, done.stdout)


GOVERNANCE_GUIDE = Path(__file__).resolve().parents[2] / "docs" / "governance.md"
DATASET = "council-radars"


@pytest.mark.clause("SEC-03")
def test_every_command_of_the_guide_to_governance_exits_as_documented(forks: dict[str, str], tmp_path: Path) -> None:
    listed = list(commands(GOVERNANCE_GUIDE.read_text(encoding="utf-8")))
    declared = next(number for number, command in enumerate(listed) if "kfm units cases" in command.text)
    done = shell(script(listed[:declared]), tmp_path, seconds=HANG_SECONDS, variables=forks)
    assert done.returncode == 0, transcript(listed, done.stdout)
    assert "council-radars: the contract is in order" in done.stdout
    assert "indigenous_data_flag needs consent" in done.stdout

    embargoed, shown = ingest(tmp_path)
    later = [command for command in listed[declared:] if command.text]
    variables = forks | {"KFM_CONTRACTS_DIR": str(tmp_path / "contracts")}
    done = shell(script(later), tmp_path, seconds=HANG_SECONDS, variables=variables)
    assert done.returncode == 0, transcript(later, done.stdout)
    # The table wraps long reasons, such as the embargo's.
    for line in (
        "embargo: embargoed until",
        " 2025-05-02T",
        f"{embargoed}: quarantined > pending",
        "the sites are sacred",
    ):
        assert line in done.stdout
    assert shown not in done.stdout


def ingest(folder: Path) -> tuple[str, str]:
    """Ingest one volume under embargo and another after the embargo; return their unit ids."""
    pipeline = open_pipeline(folder / ".kfm", folder / "objects")
    pipeline.registry = ContractRegistry.load(folder / "contracts")
    assert isinstance(pipeline.clock, Clock)
    items = [_moved(item) for item in volumes(2)]
    for item, now in zip(items, (datetime(2025, 4, 10, tzinfo=UTC), pipeline.clock.now), strict=True):
        pipeline.clock.now = now
        put(folder / "objects", [item])
        run_chain(pipeline, DATASET, DAY.isoformat(), f"run-{now:%Y}", Source.LISTING)
    records = traces.records(pipeline)
    assert list(traces.items(Path(pipeline.settings.catalog))) == [items[1].uri]
    pipeline.close()
    return records[items[0].uri].wal_id, records[items[1].uri].wal_id


def _moved(item: StoredObject) -> StoredObject:
    name = item.key.rpartition("/")[2]
    return good("council-radars", f"volumes/{DAY:%Y/%m/%d}/{name}", item.announced)


LENGTHS = Path(__file__).resolve().parents[2] / "docs" / "examples" / "run_state" / "lengths.py"


@pytest.mark.clause("RSP-03")
@pytest.mark.parametrize("store", ["", "records"], ids=["database", "objects"])
def test_the_function_runs_again_only_after_a_change(forks: dict[str, str], tmp_path: Path, store: str) -> None:
    def run(run_id: str = "run-1", branch: str = "main") -> str:
        variables = {**forks, "KFM_HOME": "home", "KFM_RUN_STATE": store, "KFM_LAKEFS_BRANCH": branch}
        return printed_by("python", LENGTHS, run_id, "out.json", "a", "b", folder=tmp_path, **variables)

    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "b").write_bytes(b"de")
    assert run() == "executed: success\n"
    assert run().startswith("skipped: ")
    assert run("run-2") == "executed: success\n"
    (tmp_path / "b").write_bytes(b"")
    assert [run(), run()] == ["executed: partial\n"] * 2
    if store:
        (tmp_path / "b").write_bytes(b"de")
        # Each branch has its own records.
        assert run("run-2", "release").startswith("executed")
        assert run("run-2").startswith("skipped")
