"""What every run-state store guarantees (databases, objects, Delta); an environment has only one store."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.errors import ConfigurationError, DependencyUnavailableError
from kfm_dagster.failpoints import Failpoint
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.run_state import delta_store
from kfm_dagster.run_state.choice import looked_up_states
from kfm_dagster.run_state.delta_store import DeltaRunState
from kfm_dagster.run_state.object_store import ObjectRunState
from kfm_dagster.run_state.record import Outcome, RunState, RunStateError, run_state_schema
from kfm_dagster.run_state.store import RelationalRunState
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.moments import meanwhile
from kfm_dagster_tests.run_state.conftest import NOW, Setup

PUBLISHED = Path(__file__).resolve().parents[2] / "docs" / "spec" / "run-state.schema.json"
SECOND = timedelta(seconds=1)


def record(number: int = 0, **changes: Any) -> RunState:
    """Return the success of a node in a run; the number changes hash and time."""
    values: dict[str, Any] = {
        "dataset_id": "goes-abi.integrity_check",
        "run_id": "8a1c1a52-6b8f-4e56-9d5c-000000000001",
        "lakefs_branch": "release/v11.2",
        "inputs_hash": f"sha256:{number:064x}",
        "validation_summary": {"checks": 18, "passed": 18, "failed": 0, "note": "Größe 'quoted' ☂", "deep": {"a": [1]}},
        "outcome": Outcome.SUCCESS,
        "recorded_at": NOW + number * SECOND,
        "artifact_uri": "artifacts/ab/x.parquet",
        "artifact_sha256": f"{number:064x}",
    }
    return RunState(**(values | changes))


@pytest.fixture(scope="module")
def reader() -> InMemoryMetricReader:
    """Install a metric reader; the counter can exist already."""
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider(metric_readers=[reader]))
    return reader


def writes(reader: InMemoryMetricReader) -> dict[str, int]:
    """Return the counter `kfm.run_state.writes` by outcome."""
    data = reader.get_metrics_data()
    points = [
        point
        for resource in (data.resource_metrics if data else [])
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "kfm.run_state.writes"
        for point in metric.data.data_points
    ]
    return {str(dict(point.attributes or {})["outcome"]): int(getattr(point, "value", 0)) for point in points}


@pytest.mark.clause("RSP-01")
def test_the_published_schema_equals_the_schema_that_validates_writes() -> None:
    assert json.loads(PUBLISHED.read_text(encoding="utf-8")) == run_state_schema()


@pytest.mark.clause("RSP-01", "RSP-07")
def test_a_record_is_returned_as_written(setup: Setup) -> None:
    records = [
        record(),
        record(run_id="scheduled/2026-01-01 00:00 %2F ..", outcome=Outcome.PARTIAL),
        record(run_id=".."),
        record(run_id="it's"),
        record(run_id="failed", outcome=Outcome.FAILED, artifact_uri=None, artifact_sha256=None),
        record(run_id="west", recorded_at=NOW.replace(microsecond=7).astimezone(timezone(timedelta(hours=-6)))),
    ]
    setup.put(*records)
    store = setup.open()
    for put in records:
        assert store.get(put.dataset_id, put.run_id) == put
        assert store.of_run(put.run_id) == [put]
        assert store.get("goes-abi.settle", put.run_id) is None
    assert store.get(records[0].dataset_id, "another run") is None
    assert store.of_run("another run") == []


@pytest.mark.clause("RSP-05", "RSP-07")
def test_a_success_with_other_inputs_replaces_any_earlier_record(setup: Setup) -> None:
    for first in Outcome:
        last = record(2, run_id=first.value, outcome=Outcome.SUCCESS)
        setup.put(record(1, run_id=first.value, outcome=first), last)
        assert setup.open().of_run(first.value) == [last]


@pytest.mark.clause("RSP-04")
def test_a_skip_does_not_replace_a_success_and_is_not_counted(setup: Setup, reader: InMemoryMetricReader) -> None:
    success = record(1)
    setup.put(success)
    before = writes(reader)
    setup.put(record(2, outcome=Outcome.SKIPPED), record(3, outcome=Outcome.SKIPPED))
    assert setup.open().of_run(success.run_id) == [success]
    assert writes(reader) == before
    failed = record(1, run_id="other", outcome=Outcome.FAILED)
    skipped = record(2, run_id="other", outcome=Outcome.SKIPPED)
    setup.put(failed, skipped)
    assert setup.open().of_run("other") == [skipped]


@pytest.mark.clause("SEC-07", "RSP-05")
def test_late_records_do_not_overwrite_a_success_or_a_revocation(setup: Setup, reader: InMemoryMetricReader) -> None:
    success = record(1)
    failed = replace(success, outcome=Outcome.FAILED, recorded_at=NOW + SECOND, artifact_uri=None, artifact_sha256=None)
    late = [failed, replace(success, outcome=Outcome.PARTIAL), replace(success, recorded_at=NOW + 9 * SECOND)]
    setup.put(success)
    before = writes(reader)
    setup.put(*late)
    assert setup.open().of_run(success.run_id) == [success]
    revoked = success.revoked(by="goes-abi.settle", at=NOW + SECOND)
    revoked_again = success.revoked(by="a replay", at=NOW + 2 * SECOND)
    setup.put(revoked, *late, replace(success, inputs_hash=record(7).inputs_hash))
    assert setup.open().of_run(success.run_id) == [revoked]
    setup.put(revoked_again)
    assert setup.open().of_run(success.run_id) == [revoked_again]
    assert writes(reader).get("failed", 0) - before.get("failed", 0) == 2


@pytest.mark.clause("RSP-15")
def test_every_write_is_counted_by_outcome_and_the_store_counts_current_records(
    setup: Setup, reader: InMemoryMetricReader
) -> None:
    assert setup.open().counts() == dict.fromkeys(Outcome, 0)
    before = writes(reader)
    ends = [Outcome.FAILED, Outcome.PARTIAL, Outcome.SUCCESS, Outcome.SUCCESS, Outcome.SKIPPED]
    setup.put(*(record(number, run_id=str(number), outcome=end) for number, end in enumerate(ends)))
    setup.put(record(9, run_id="0"))  # replaces the failure of run 0
    counted = {outcome: count - before.get(outcome, 0) for outcome, count in writes(reader).items()}
    assert counted == {"failed": 1, "partial": 1, "success": 3, "skipped": 1}
    assert setup.open().counts() == {
        Outcome.FAILED: 0,
        Outcome.PARTIAL: 1,
        Outcome.SUCCESS: 3,
        Outcome.SKIPPED: 1,
    }


@pytest.mark.clause("RSP-01", "RSP-07")
def test_an_invalid_record_is_refused_and_its_transaction_rolled_back(setup: Setup) -> None:
    for wrong in [
        {"dataset_id": ""},
        {"dataset_id": "Not A Node"},
        {"dataset_id": "../escape"},
        {"run_id": ""},
        {"lakefs_branch": ""},
        {"inputs_hash": "sha256:short"},
        {"validation_summary": {"checks": 1}},
        {"validation_summary": {"checks": -1, "passed": 0, "failed": 0}},
        {"artifact_sha256": None},
    ]:
        with pytest.raises(RunStateError, match=r"run-state\.schema\.json"):
            setup.put(record(**wrong))
    assert setup.open().counts() == dict.fromkeys(Outcome, 0)


@pytest.mark.clause("RSP-07")
def test_a_rolled_back_record_is_not_stored_or_counted(setup: Setup, reader: InMemoryMetricReader) -> None:
    store = setup.open()
    before = writes(reader)

    def put_and_fail() -> None:
        with setup.database.transaction() as tx:
            store.put(record(), tx)
            raise InterruptedError

    with pytest.raises(InterruptedError):
        put_and_fail()
    assert store.of_run(record().run_id) == []
    assert writes(reader) == before


@pytest.mark.clause("RSP-04", "RSP-07")
def test_concurrent_writes_lose_no_record_and_no_success_and_are_read_in_order_of_time(setup: Setup) -> None:
    nodes = [record(number, dataset_id=f"goes-abi.node-{9 - number}") for number in range(3)]
    skips = [replace(node, outcome=Outcome.SKIPPED) for node in nodes]
    setup.open()
    with ThreadPoolExecutor(6) as workers:
        list(workers.map(setup.put, [*reversed(nodes), *skips]))
    setup.put(*skips)
    # Success and skip of a node are written concurrently; the success stays.
    assert setup.open().of_run(nodes[0].run_id) == nodes


@pytest.mark.parametrize("setup", ["delta"], indirect=True)
def test_a_delta_table_is_compacted_and_can_still_be_restored(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalake import DeltaTable

    monkeypatch.setattr(delta_store, "COMPACT_EVERY", 3)
    records = [record(number, run_id=str(number)) for number in range(7)]
    setup.put(*records)
    table = DeltaTable(tmp_path / "runs" / setup.branch / "_run_state")
    assert len(table.file_uris()) < 4
    assert [state for number in range(7) for state in setup.open().of_run(str(number))] == records
    table.restore(4)
    assert [state for number in range(7) for state in setup.open().of_run(str(number))] == records[:3]


@pytest.mark.clause("RSP-01", "RSP-07")
@pytest.mark.parametrize("setup", ["folder", "s3"], indirect=True)
def test_an_object_s_key_has_its_branch_node_and_run(cloud: EmbeddedCloud, setup: Setup) -> None:
    put = record(run_id="a/b")
    setup.put(put)
    key = "release/v11.2/_run_state/goes-abi.integrity_check/a%2Fb.json"
    if setup.configured.startswith("s3://"):
        bucket, base = setup.configured.removeprefix("s3://").split("/")
        content = cloud.client("s3").get_object(Bucket=bucket, Key=f"{base}/{key}")["Body"].read()
    else:
        # File names in a folder escape "%".
        [path] = Path(setup.configured).rglob("*.json")
        assert path.relative_to(setup.configured).parent.as_posix() == key.rpartition("/")[0]
        content = path.read_bytes()
    assert json.loads(content) == put.as_json()


@pytest.mark.clause("RSP-07")
@pytest.mark.parametrize("setup", ["folder", "delta"], indirect=True)
def test_each_branch_has_its_own_run_state(setup: Setup) -> None:
    setup.put(record())
    other = replace(setup, branch="hotfix/atmo-123")
    assert other.open().of_run(record().run_id) == []
    with pytest.raises(RunStateError, match="hotfix/atmo-123"):
        other.put(record())


@pytest.mark.parametrize("setup", ["folder"], indirect=True)
def test_an_invalid_object_is_named_in_the_error(tmp_path: Path, setup: Setup) -> None:
    setup.put(record())
    [path] = (tmp_path / "runs").rglob("*.json")
    for content in (b"", b"[]", b'{"outcome": "success"}', b"\xff"):
        path.write_bytes(content)
        with pytest.raises(RunStateError, match=r"not a run-state record; .*\.json: .*delete the object"):
            setup.open().get(record().dataset_id, record().run_id)


@pytest.mark.one_database
@pytest.mark.parametrize("kind", ["", "delta+"])
def test_a_missing_bucket_is_an_error(database: Database, bucket: str, kind: str) -> None:
    with pytest.raises(DependencyUnavailableError, match=r"cannot be used; .*no such bucket; .*correct KFM_RUN_STATE"):
        Setup(database, f"{kind}s3://{bucket}-gone").put(record())


TABLE = "the table run_state of KFM_WAL_DSN"


@pytest.mark.clause("RSP-07")
@pytest.mark.parametrize(
    ("variable", "kind"),
    [("", RelationalRunState), ("{0}/runs", ObjectRunState), ("delta+{0}/runs", DeltaRunState)],
)
def test_a_pipeline_has_the_store_that_its_settings_choose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, kind: type
) -> None:
    monkeypatch.setenv("KFM_HOME", str(tmp_path))
    monkeypatch.setenv("KFM_RUN_STATE", variable.format(tmp_path))
    pipeline = Pipeline.open(Settings.load())
    assert isinstance(pipeline.stages.run_states, kind)
    pipeline.close()


@pytest.mark.clause("RSP-07")
def test_two_stores_in_the_variable_are_refused_with_both_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ["s3://a/b,delta+s3://c/d", "/a;/b", "delta+delta+/a", "s3://a s3://b", "delta+/a delta+/b"]:
        monkeypatch.setenv("KFM_RUN_STATE", value)
        with pytest.raises(ConfigurationError, match=r"KFM_RUN_STATE is wrong; .*one store per environment") as refusal:
            Settings.load()
        assert value in str(refusal.value)


@pytest.mark.clause("RSP-07")
@pytest.mark.one_database
@pytest.mark.parametrize("second", ["", "folder", "delta", "other folder"])
@pytest.mark.parametrize("first", ["", "folder", "delta"])
def test_a_second_store_of_one_environment_is_refused_with_both_names(
    database: Database, tmp_path: Path, first: str, second: str
) -> None:
    configurations = {
        "": "",
        "folder": f"{tmp_path}/a",
        "delta": f"delta+{tmp_path}/a",
        "other folder": f"{tmp_path}/b",
    }
    setup = Setup(database, configurations[first])
    setup.put(record())
    other = replace(setup, configured=configurations[second])
    if first == second:
        other.put(record(1))
        return
    for _ in range(2):  # a refusal changes nothing
        with pytest.raises(ConfigurationError, match="two run-state stores") as refusal:
            other.open()
        line = str(refusal.value)
        assert f"chooses {configurations[second] or TABLE}, " in line
        assert f"already in {configurations[first] or TABLE}; " in line
    assert setup.open().get(record().dataset_id, record().run_id) == record()


@pytest.mark.one_database
@pytest.mark.parametrize("spelling", ["{0}/runs/", "../{1}/runs"])
def test_a_store_is_the_same_under_another_spelling_of_its_path(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for configured in (f"{tmp_path}/runs", spelling.format(tmp_path, tmp_path.name)):
        Setup(database, configured).put(record())


@pytest.mark.clause("RSP-07")
def test_a_lakefs_url_and_the_url_of_its_s3_gateway_name_the_same_store(database: Database, bucket: str) -> None:
    mine = replace(record(), lakefs_branch="main")
    Setup(database, f"lakefs://{bucket}/main", branch="main").put(mine)
    # The same store under two names.
    for other in (f"s3://{bucket}", f"s3://{bucket}/"):
        assert Setup(database, other, branch="main").open().get(mine.dataset_id, mine.run_id) == mine


@pytest.mark.clause("RSP-07")
@pytest.mark.one_database
def test_of_two_stores_chosen_concurrently_one_is_refused(database: Database, tmp_path: Path) -> None:
    first, second = (Setup(database, f"{tmp_path}/{name}") for name in ("first", "second"))
    # `second` has looked twice for a chosen store, without one; `first` is chosen before `second` writes its choice.
    with (
        meanwhile(Failpoint.DATABASE_BEGIN, first.open, nth=3),
        pytest.raises(ConfigurationError, match="two run-state stores"),
    ):
        second.open()
    first.put(record())


@pytest.mark.one_database
def test_looking_up_states_does_not_choose_a_store(database: Database, tmp_path: Path) -> None:
    looked_up_states(database, Settings.load(home=tmp_path, run_state=f"{tmp_path}/runs"))
    assert not (tmp_path / "runs").exists()
    mine = record()
    Setup(database, f"{tmp_path}/others").put(mine)
    chosen = looked_up_states(
        database, Settings.load(home=tmp_path, run_state=f"{tmp_path}/others", lakefs_branch=mine.lakefs_branch)
    )
    assert chosen.get(mine.dataset_id, mine.run_id) == mine


@pytest.mark.clause("RSP-07")
@pytest.mark.one_database
def test_a_delta_table_without_the_package_is_an_error_with_the_next_step(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(
        ConfigurationError, match=r"deltalake is not installed; next: pip install 'kfm-dagster\[delta\]'"
    ):
        Setup(database, f"delta+{tmp_path}/runs").open()
    assert Setup(database, "").open().counts(), "the refusal does not choose a store"
