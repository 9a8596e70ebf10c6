"""`kfm runs show`: the nodes of a run with their outcomes, and the reason of each skip."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from starlette.testclient import TestClient

from kfm_dagster.console.app import console_app
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import ExitCode
from kfm_dagster.exports.explanations.run_report import Window, node_account
from kfm_dagster.ingest.nodes import IntegrityCheck, MessageParse, Source, StacRegister, operators
from kfm_dagster.ingest.path_arrivals import PathArrivals
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.run_state.record import Outcome, RunState
from kfm_dagster.stages.audit import AuditEvent, AuditKind
from kfm_dagster.stages.batch import SkipCause
from kfm_dagster.stages.failure import StageFailedError
from kfm_dagster.stages.store import StageStore
from kfm_dagster_tests.commands import Call, state_of
from kfm_dagster_tests.databases import execute, migrated_sqlite
from kfm_dagster_tests.integration import chain
from kfm_dagster_tests.transactions import own_tx

pytestmark = [pytest.mark.one_database, pytest.mark.clause("RSP-12")]

DAY = chain.DAY.isoformat()
WORKED = "11111111-0000-4000-8000-000000000001"
AGAIN = "11111111-0000-4000-8000-000000000002"
FORCED = "22222222-0000-4000-8000-000000000003"
DIED = "33333333-0000-4000-8000-000000000004"
REEXECUTED = "44444444-0000-4000-8000-000000000005"
PATHS = "66666666-0000-4000-8000-000000000007"
WAITS = "55555555-0000-4000-8000-000000000006"
FINDING = {"rule": "anchors", "observed": "two without", "expected": "anchors", "units_at_fault": 2, "units": []}
NODES = [f"nexrad-l2.{operator}@{DAY}" for operator in operators()]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of one day: a successful run, a run without new objects, a forced run, a run that died."""
    folder = tmp_path_factory.mktemp("four-runs")
    objects = folder / "objects"
    chain.put(objects, chain.volumes(2))
    pipeline = chain.open_pipeline(folder / "home", objects, url=migrated_sqlite(folder / "kfm.db"))
    for run_id in (WORKED, AGAIN):
        chain.run_chain(pipeline, "nexrad-l2", DAY, run_id)
        pipeline.clock.forward(3600)
    force(pipeline, FORCED, reason="the reader was wrong")
    pipeline.clock.forward(3600)
    chain.put(objects, chain.volumes(3))
    failpoint = chain.Failpoint(operator=StacRegister.operator, point="committing")
    with pytest.raises(chain.CrashError):
        chain.run_chain(pipeline, "nexrad-l2", DAY, DIED, dies_at=failpoint)
    pipeline.close()
    return folder


@pytest.fixture
def deployment(
    recorded: Path, home: Path, tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Pipeline]:
    """A copy of the four runs, as the deployment that the environment names."""
    pipeline = chain.open_copy(recorded, tmp_path, url=database_url, seconds=3 * 3600)
    monkeypatch.setenv("KFM_WAL_DSN", database_url)
    yield pipeline
    pipeline.close()


@pytest.fixture
def dagster_runs(deployment: Pipeline, home: Path) -> None:
    """Record in Dagster's storage two re-executions of the successful run, the second still queued."""
    folder = home / "dagster"
    folder.mkdir()
    at = chain.START + timedelta(minutes=30)
    with dg.DagsterInstance.local_temp(str(folder)) as instance:
        for run_id in (REEXECUTED, WAITS):
            tags = {"dagster/root_run_id": WORKED, "dagster/parent_run_id": WORKED}
            instance.add_run(
                dg.DagsterRun(job_name="ingest", run_id=run_id, root_run_id=WORKED, parent_run_id=WORKED, tags=tags)
            )
    times = f"start_time = {at.timestamp()}, end_time = {at.timestamp() + 5}"
    execute(f"sqlite:///{folder / 'history' / 'runs.db'}", f"UPDATE runs SET {times} WHERE run_id = '{REEXECUTED}'")


def force(pipeline: Pipeline, run_id: str, *, reason: str) -> None:
    """Run the first node with a reason to compute it again, like a run that has the tag kfm/force."""
    node = MessageParse(
        pipeline=pipeline, dataset="nexrad-l2", partition=DAY, run_id=run_id, source=Source.LISTING, limit=chain.LIMIT
    )
    pipeline.stages.commit(pipeline.stages.run(node, run_id=run_id, upstream=None, force=reason))


def account_of(call: Call, run: str) -> dict[str, Any]:
    answer = call("explain", run, "--json")
    assert answer.code == ExitCode.DONE, answer.err
    return dict(answer.rows[0])


@pytest.mark.clause("IEN-17")
def test_a_run_is_shown_node_by_node_with_inputs_hashes_outcome_and_output(deployment: Pipeline, call: Call) -> None:
    account = account_of(call, WORKED)
    assert [node["node"] for node in account["nodes"]] == NODES
    assert {(node["fate"], node["why"]) for node in account["nodes"]} == {("ran", None)}
    assert [node["did"] for node in account["nodes"]] == [
        "claimed 2 units", "checked 2 objects", "read the headers of 2 objects", "registered 2 Items",
        "recorded the lineage of 2 units", "settled 2 units",
    ]  # fmt: skip
    assert account["units"]["nexrad-l2"] == {"claimed": 2, "succeeded": 2, "retrying": 0, "quarantined": 0, "lost": 0}
    before, node = account["nodes"][1:3]
    state = deployment.stages.run_states.get("nexrad-l2.metadata_extract", WORKED)
    [intent] = [row for row in deployment.nodes.intents.of_run(WORKED) if row.node == NODES[2]]
    assert node["inputs"] == [{"uri": before["output_uri"], "checksum": before["output_sha256"]}]
    assert (node["inputs_hash"], node["content_hash"]) == (state.inputs_hash, intent.content_hash)
    assert (node["intent"], node["outcome"], node["attempts"]) == ("APPLIED", "success", 1)
    assert node["validation_summary"] == {"checks": 2, "passed": 2, "failed": 0}
    assert (node["output_uri"], node["output_sha256"]) == (state.artifact_uri, state.artifact_sha256)
    took = node["took"]
    assert (took["rows_in"], took["rows_out"]) == (2, 2)
    assert min(took["bytes_in"], took["bytes_out"], took["seconds"], took["cpu_seconds"]) > 0
    for shown in account["nodes"]:
        assert {"energy_kwh", "carbon_gco2e"} < shown["took"].keys()
        assert shown["took"]["measured_by"].startswith("assumed: 3.5 W per busy core")
    assert node["started_at"] == node["applied_at"] == node["recorded_at"] == "2026-01-01T00:00:00.000000Z"


def test_a_skip_names_the_run_that_applied_the_content(deployment: Pipeline, call: Call) -> None:
    account, first = account_of(call, AGAIN), account_of(call, WORKED)
    assert [node["node"] for node in account["nodes"]] == NODES
    for node, applied in zip(account["nodes"], first["nodes"], strict=True):
        assert (node["fate"], node["cause"]) == ("skipped", SkipCause.CONTENT_APPLIED)
        assert (node["applied_by"], node["intent"], node["outcome"]) == (WORKED, "SKIPPED", "skipped")
        assert WORKED in node["why"]
        assert (node["content_hash"], node["output_uri"]) == (applied["content_hash"], applied["output_uri"])
    assert account["units"] == {}
    [node] = account_of(call, FORCED)["nodes"]
    assert (node["fate"], node["forced"], node["intent"]) == ("ran", "the reader was wrong", "APPLIED")
    assert "the reader was wrong" in call("explain", FORCED, "--full").out


@pytest.mark.clause("RSP-18")
def test_a_skip_under_another_contract_has_its_own_cause(deployment: Pipeline, dagster_runs: None, call: Call) -> None:
    clock = deployment.clock
    clock.now = chain.START + timedelta(minutes=30, seconds=2)
    deployment.registry = ContractRegistry.of(
        contract.model_copy(update={"retry": contract.retry.model_copy(update={"max_attempts": 1})})
        for contract in deployment.registry
    )
    chain.run_chain(deployment, "nexrad-l2", DAY, WORKED)
    account = account_of(call, REEXECUTED)
    assert {(node["fate"], node["cause"]) for node in account["nodes"]} == {("skipped", SkipCause.OTHER_INPUTS)}
    assert {node["fate"] for node in account_of(call, WORKED)["nodes"]} == {"ran"}


def test_a_reexecution_skips_nodes_that_succeeded_in_the_root_run(
    deployment: Pipeline, dagster_runs: None, call: Call
) -> None:
    account = account_of(call, REEXECUTED[:8])
    assert (account["run_id"], account["root_run_id"]) == (REEXECUTED, WORKED)
    assert [node["node"] for node in account["nodes"]] == NODES
    assert {(node["fate"], node["cause"]) for node in account["nodes"]} == {("skipped", SkipCause.ALREADY_SUCCEEDED)}
    assert all(node["content_hash"] and node["output_uri"] for node in account["nodes"])
    assert account["units"] == {}
    root = account_of(call, WORKED)
    assert root["reexecutions"] == [REEXECUTED, WAITS]
    assert {node["fate"] for node in account_of(call, WAITS)["nodes"]} == {"skipped"}
    assert {node["fate"] for node in root["nodes"]} == {"ran"}
    compared = call("replay", "compare", REEXECUTED[:8], "--dataset", "goes-abi")
    compared.refused(f"{WORKED} has no stage of goes-abi", code=ExitCode.REFUSED)
    console = TestClient(console_app(deployment, hosts=["testserver"]), headers={"accept": "text/html"})
    assert f'href="/runs/{WORKED}"' in console.get(f"/runs/{REEXECUTED}").text
    assert f'href="/runs/{WAITS}"' in console.get(f"/runs/{WORKED}").text


def test_a_retried_step_shows_its_number_of_attempts(
    deployment: Pipeline, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain.put(tmp_path / "objects", chain.volumes(4))
    with monkeypatch.context() as patch:
        patch.setattr(IntegrityCheck, "transform", lambda _: 1 / 0)
        with pytest.raises(StageFailedError):
            chain.run_chain(deployment, "nexrad-l2", DAY, PATHS)
    assert account_of(call, PATHS)["nodes"][-1]["did"] == "failed"
    chain.run_chain(deployment, "nexrad-l2", DAY, PATHS)
    deeds = [node["did"] for node in account_of(call, PATHS)["nodes"]]
    assert deeds[:3] == ["claimed 1 unit", "checked 1 object, in 2 attempts", "read the headers of 1 object"]


def test_a_step_whose_units_all_failed_is_described_differently_from_a_failed_step() -> None:
    for operator, checks, failed, revoked, did in (
        ("settle", 1, 1, False, "settled 1 unit, 1 failed"),
        ("integrity_check", 0, 0, False, "failed"),
        ("stac_register", 2, 0, True, "registered 2 Items, rolled back because of nexrad-l2.settle"),
    ):
        state = RunState(
            dataset_id=f"nexrad-l2.{operator}",
            run_id=WORKED,
            lakefs_branch="main",
            inputs_hash=f"sha256:{'a' * 64}",
            validation_summary={"checks": checks, "passed": checks - failed, "failed": failed},
            outcome=Outcome.FAILED,
            recorded_at=chain.START,
        )
        if revoked:
            state = state.revoked(by="nexrad-l2.settle", at=chain.START)
        assert node_account(state.dataset_id, state, [], Window()).did == did


def test_a_run_that_died_shows_its_last_node_and_unsettled_units(deployment: Pipeline, call: Call) -> None:
    account = account_of(call, "latest")
    assert account["run_id"] == DIED
    assert [node["fate"] for node in account["nodes"]] == ["ran", "ran", "ran", "unfinished"]
    assert (account["nodes"][-1]["intent"], account["nodes"][-1]["outcome"]) == ("PENDING", None)
    assert account["units"]["nexrad-l2"] == {"claimed": 1, "unsettled": 1}

    deployment.nodes.intents.fail_runs([DIED])
    assert account_of(call, DIED)["nodes"][-1]["fate"] == "unfinished"
    own_tx(deployment.ledger).release_lost(run_ids=[DIED])
    chain.work_until_done(deployment)
    deployment.nodes.intents.give_up_overtaken()
    assert account_of(call, DIED)["nodes"][-1]["fate"] == "overtaken"


def test_the_table_is_readable_in_eighty_columns(
    deployment: Pipeline,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", call("explain", AGAIN).out)
    table = [line for line in shown.splitlines() if line.startswith(" nexrad-l2.")]
    assert max(map(len, table)) <= 80
    overview = [line.split() for line in table]
    assert [row[:4] for row in overview] == [
        [f"nexrad-l2.{operator}", "was", "skipped", "skipped"] for operator in operators()
    ]
    assert AGAIN in shown
    assert "sha256:" not in shown
    full = re.sub(r"\x1b\[[0-9;]*m", "", call("explain", AGAIN, "--full").out)
    assert full.startswith(shown)
    for text in (WORKED, "CONTENT_APPLIED", "sha256:", *NODES):
        assert text in full
    # Full output does not repeat the fields of the overview.
    fields = {line.split()[0] for line in full.removeprefix(shown).splitlines() if line.strip()}
    assert {"input", "attempts"} <= fields
    assert fields.isdisjoint({"node", "fate", "did", "why", "outcome", "inputs", "took"})


@pytest.mark.clause("RSP-09")
def test_a_unit_or_item_id_selects_its_run_and_latest_the_newest_ingest(deployment: Pipeline, call: Call) -> None:
    record = own_tx(deployment.ledger).find(dataset="nexrad-l2", status=Status.SUCCEEDED)[0]
    for name in (record.wal_id, record.stac_item_id):
        assert account_of(call, str(name))["run_id"] == WORKED
    # A later run outside the chain is not an ingest.
    deployment.clock.forward(3600)
    paths = PathArrivals(pipeline=deployment, dataset="nexrad-l2", partition=DAY, run_id=PATHS)
    deployment.stages.commit(deployment.stages.run(paths, run_id=PATHS, upstream=None))
    assert [node["did"] for node in account_of(call, PATHS)["nodes"]] == ["worked on 3 units"]
    assert account_of(call, "latest")["run_id"] == DIED


def test_gates_that_did_not_pass_are_shown_first(deployment: Pipeline, call: Call) -> None:
    stage = "nexrad-l2.metadata_extract"
    audit = own_tx(StageStore(deployment.database, clock=deployment.clock).audit)
    facts: dict[str, Any] = {"run_id": WORKED, "stage": stage, "attempt": 1, "kind": AuditKind.GATE, "event": "G2"}
    audit.append(AuditEvent(**facts, details={**FINDING, "outcome": end}) for end in ("passed", "fail_units"))
    [gate] = [failing for failing in account_of(call, WORKED)["failing_gates"] if failing["stage"] == stage]
    assert (gate["outcome"], gate["units"], gate["observed"]) == ("fail_units", 2, "two without")
    shown = call("explain", WORKED).out
    assert shown.index("two without") < shown.index("nodes of")


REFUSED = {
    "unknown": ("99999999", ["nothing is recorded of such a run", "99999999"]),
    "a complete id that is unknown": ("99999999-0000-4000-8000-000000000009", ["nothing is recorded of such a run"]),
    "empty": ("", ["nothing is recorded of such a run"]),
    "ambiguous": ("11111111-", ["several ids", WORKED, AGAIN]),
    "too short": ("2222222", ["abbreviated too far", FORCED]),
    "a wildcard of LIKE": ("%", ["nothing is recorded of such a run"]),
}


def test_showing_a_run_changes_nothing(deployment: Pipeline, dagster_runs: None, call: Call, tmp_path: Path) -> None:
    with deployment.database.snapshot() as tx:
        before = tx.run("explanation.intents", run_id=AGAIN).all()
    deployment.close()
    files = state_of(tmp_path)
    for run in (WORKED, AGAIN, REEXECUTED, WAITS, "latest"):
        assert call("explain", run).code == ExitCode.DONE
    for run, expected in REFUSED.values():
        call("explain", run).refused(*expected)
    assert state_of(tmp_path) == files
    with deployment.database.snapshot() as tx:
        assert tx.run("explanation.intents", run_id=AGAIN).all() == before
