"""Governing commands: each is executed and logged, or refused in one line without changes."""

from __future__ import annotations

import shlex
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.configs import own_folder
from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.defs.jobs import ReplayConfig, _started
from kfm_dagster.errors import ExitCode
from kfm_dagster.ingest.evidence import EvidenceCollector
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.cases import CaseState
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.recovery.replay.selection import selection_from
from kfm_dagster.stages.card import REPLAY_PLAN
from kfm_dagster_tests.commands import Call, words_of
from kfm_dagster_tests.databases import every_row
from kfm_dagster_tests.factories import PERSON, bring, envelope
from kfm_dagster_tests.governance.conftest import cases_of, release
from kfm_dagster_tests.integration.chain import good, put
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.one_database

UNKNOWN = "00000000-0000-8000-8000-000000000000"
STATES = ("pending", "in_progress", "succeeded", "failed", "quarantined", "discarded")
WHY = ["--reason", "seen by eye"]
CHANGE = ["--change-ref", "CHG-9"]


@pytest.fixture
def units(deployment: Pipeline) -> dict[str, Envelope]:
    """One unit in each state, by state; the discarded unit is quarantined, too."""
    units_by_state = {state: envelope(number) for number, state in enumerate(STATES)}
    for state in STATES[:4]:
        bring(deployment.ledger, state, [units_by_state[state]])
    bring(
        deployment.ledger,
        "quarantined",
        [units_by_state["quarantined"], units_by_state["discarded"]],
        code="looked_odd",
    )
    own_tx(cases_of(deployment)).discard({units_by_state["discarded"].wal_id: 2}, decision=PERSON)
    return units_by_state


REFUSED: dict[str, list[str]] = {
    # typed line ({state} is the unit in that state): text of the error line
    "retry {pending} {why} {change}": ["pending > pending"],
    "retry {in_progress} {why} {change}": ["in_progress > pending"],
    "retry {succeeded} {why} {change}": ["succeeded > pending"],
    "retry {failed} --version 9 {why}": ["at version 3", "expected version 9"],
    "retry --dataset nexrad-l2 {why} {change}": ["retry 2 units?", "--confirm"],
    "retry {discarded} {why} {change}": ["is discarded permanently"],
    "retry {quarantined} {succeeded} {why} {change}": ["succeeded > pending"],
    "retry {quarantined} --version 7 {why} {change}": ["at version 2", "expected version 7"],
    "discard {pending} {why}": ["pending > quarantined", "kfm units cases"],
    "discard {discarded} {why}": ["is discarded permanently"],
    "discard {quarantined} --version 3 {why}": ["at version 2"],
    "quarantine add {succeeded} --reason-code odd {why}": [
        "succeeded > quarantined", "expected succeeded > pending (a person has the unit ingested again); next:"
    ],
    "quarantine add {in_progress} --reason-code odd {why}": [
        "in_progress > quarantined", "expected in_progress > succeeded (every operator completed) or in_progress > f"
    ],
    "quarantine add {pending} {quarantined} --reason-code odd {why}": ["quarantined > quarantined"],
    "kill-switch on hrrr {why}": ["on already", "hrrr"],
    "kill-switch off nexrad-l2 {why}": ["is not on", "nexrad-l2"],
    "kill-switch off all {why}": ["is not on"],
    "kill-switch on all {why} --expires 2020-01-31T12:00:00Z": ["before it begins"],
    "kill-switch on all {why} --expires 0m": ["before it begins"],
}  # fmt: skip
UNUSABLE: dict[str, list[str]] = {
    "retry {unknown} {why} {change}": ["there is no such unit", UNKNOWN],
    "retry {quarantined} {discarded} --version 2 {why} {change}": ["single WAL_ID"],
    "discard {quarantined} {discarded} --version 2 {why}": ["single WAL_ID"],
    "retry {quarantined} --version 0 {why} {change}": ["--version"],
    "retry {quarantined} {why}": ["change reference"],
    "retry {failed} {quarantined} {why}": ["change reference"],
    "retry {quarantined} {failed} --replay-reason odd {why} {change}": ["vocabulary"],
    "retry {failed} --dataset nexrad-l2 {why}": ["by WAL_ID", "by a filter"],
    "retry --status succeeded {why}": ["neither failed nor"],
    "retry --dataset goes-xyz {why}": ["goes-xyz"],
    "retry {quarantined} {change}": ["--reason"],
    "retry {quarantined} --reason ' ' {change}": ["reason"],
    "retry {why} {change}": ["WAL_ID"],
    f"discard {{quarantined}} --reason {'x' * 1001}": ["1001 characters"],
    "quarantine add {pending} {unknown} --reason-code odd {why}": ["no such unit"],
    "quarantine add {pending} --reason-code 'Not a code' {why}": ["--reason-code"],
    "quarantine show {pending}": ["ever quarantined"],
    "quarantine show 00000000": ["no such unit", "expected the id of a unit", "next: kfm units list"],
    "quarantine list --dataset goes-xyz": ["goes-xyz"],
    "kill-switch on goes-xyz {why}": ["goes-xyz", "nexrad-l2"],
    "kill-switch on all {why} --expires soon": ["'soon' is neither"],
    "kill-switch on all {why} --expires 9999999d": ["--expires"],
    "kill-switch on all {why} --expires 2099-01-31T12:00:00": ["with its zone"],
    "governance log --action party": ["--action", "'party'"],
    "governance log --dataset nope": ["unknown dataset", "nope"],
}


def typed(line: str, units: dict[str, Envelope]) -> list[str]:
    """Return the words of a line of the tables."""
    ids = {state: unit.wal_id for state, unit in units.items()}
    return words_of(line.format(**ids, unknown=UNKNOWN, why=shlex.join(WHY), change=shlex.join(CHANGE)))[1]


@pytest.mark.clause("WSM-16", "SEC-02", "BEY-06", "WAL-10")
def test_a_refused_decision_prints_one_line_and_changes_no_row(
    call: Call, deployment: Pipeline, units: dict[str, Envelope]
) -> None:
    deployment.ledger.switches.engage("hrrr", PERSON)
    before = every_row(deployment.database)
    for line, expected in (REFUSED | UNUSABLE).items():
        code = ExitCode.REFUSED if line in REFUSED else ExitCode.USAGE
        call(*typed(line, units)).refused(*expected, code=code)
    assert every_row(deployment.database) == before


NEEDS_A_CHANGE = (
    "kill-switch off hrrr", "quarantine add {pending} --reason-code odd", "release {quarantined}",
    "discard {quarantined}", "replay run --wal-id {failed} --confirm --detach", "kill-switch on nexrad-l2",
)  # fmt: skip


@pytest.mark.clause("SEC-02", "WSM-21")
def test_in_production_every_decision_needs_a_change_reference_and_a_release_also_a_second_person(
    call: Call, deployment: Pipeline, units: dict[str, Envelope], monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment.ledger.switches.engage("hrrr", PERSON)
    monkeypatch.setenv("KFM_ENV", "prod")
    before = every_row(deployment.database)
    for line in NEEDS_A_CHANGE:
        code = ExitCode.REFUSED if line.startswith("replay") else ExitCode.USAGE
        call(*typed(line, units), *WHY).refused("--change-ref", code=code)
    assert every_row(deployment.database) == before
    for line in NEEDS_A_CHANGE:
        code = ExitCode.WAITS_FOR_APPROVAL if line.startswith("release") else ExitCode.DONE
        assert call(*typed(line, units), *WHY, *CHANGE).code == code, line
    entries = own_tx(deployment.ledger.log).entries(limit=len(NEEDS_A_CHANGE))
    assert {entry.change_ref for entry in entries} == {"CHG-9"}


@pytest.mark.clause("WSM-16", "BEY-06", "SEC-02", "WSM-21")
def test_a_release_outside_prod_readmits_the_unit_closes_its_case_and_is_logged(
    call: Call, deployment: Pipeline, units: dict[str, Envelope], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFM_ENV", "stage")
    wal_id = units["quarantined"].wal_id
    # The dry run needs no reason, prints the same lines and leaves the unit unchanged.
    for options, last in ((["--dry-run"], "dry run: no unit is retried\n"), ([*WHY, *CHANGE], "")):
        answer = call("release", wal_id, wal_id, "--json", *options)
        assert answer.err.endswith(last)
        assert bool(answer.err) == bool(last)
        assert answer.code == ExitCode.DONE
        assert answer.rows == [{"wal_id": wal_id, "from": "quarantined", "to": "pending", "seen_version": 2}]
    record = own_tx(deployment.ledger).get(wal_id)
    assert (record.status, record.version, record.changed_by) == (Status.PENDING, 3, "jane")
    [case] = own_tx(cases_of(deployment)).of(wal_id)
    assert (case.state, case.closed_by) == (CaseState.RELEASED, "jane")
    assert (case.closing_reason, case.change_ref) == ("seen by eye", "CHG-9")
    [row] = call("governance", "log", "--action", "release", "--json").rows
    assert (row["wal_id"], row["change_ref"], row["approved_by"]) == (wal_id, "CHG-9", None)
    assert row["change"] == "quarantined > pending (version 3)"


@pytest.mark.clause("WSM-16", "BEY-06", "SEC-02")
def test_a_retry_by_a_filter_replays_failed_and_releases_quarantined_but_not_discarded_units(
    call: Call, deployment: Pipeline, units: dict[str, Envelope], monkeypatch: pytest.MonkeyPatch
) -> None:
    both = {units[state].wal_id: state for state in ("failed", "quarantined")}
    before = every_row(deployment.database)
    for options, chosen in (
        ([], both),
        (["--status", "failed"], {units["failed"].wal_id: "failed"}),
        (["--status", "quarantined"], {units["quarantined"].wal_id: "quarantined"}),
    ):
        dry = call("retry", "--dataset", "nexrad-l2", *options, "--dry-run", "--json")
        assert {row["wal_id"]: row["from"] for row in dry.rows} == chosen
    assert every_row(deployment.database) == before
    with monkeypatch.context() as smaller:
        smaller.setattr("kfm_dagster.cli.quarantine.MOST_UNITS", 1)
        call("retry", "--dataset", "nexrad-l2", "--dry-run").refused("more than 1; expected a narrower filter")
        assert len(call("retry", "--dataset", "nexrad-l2", "--status", "failed", "--dry-run", "--json").rows) == 1
    monkeypatch.setenv("KFM_ENV", "prod")
    answer = call("retry", "--dataset", "nexrad-l2", *WHY, *CHANGE, "--confirm", "--json")
    retried, proposed = answer.rows
    assert (answer.code, retried["from"], proposed["units"]) == (ExitCode.WAITS_FOR_APPROVAL, "failed", 1)
    approved = call("governance", "approve", str(proposed["proposal_id"]), *WHY, *CHANGE, "--actor", "bob")
    assert approved.code == ExitCode.DONE
    with opened_pipeline() as pipeline:
        ReplayEngine(pipeline=pipeline).advance_all(report=print)
    records = {state: own_tx(deployment.ledger).get(units[state].wal_id) for state in (*both.values(), "discarded")}
    assert {state: record.status for state, record in records.items() if record} == {
        "failed": Status.PENDING, "quarantined": Status.PENDING, "discarded": Status.QUARANTINED,
    }  # fmt: skip
    assert call("retry", "--dataset", "nexrad-l2", *WHY, *CHANGE, "--json").rows == []


@pytest.mark.clause("WSM-21")
def test_a_configured_reason_is_valid_for_every_command_that_readmits_units(
    call: Call, deployment: Pipeline, units: dict[str, Envelope], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason, configs = ["--replay-reason", "reprocess-2025"], tmp_path / "configs"
    released = ["release", units["quarantined"].wal_id, *WHY, *CHANGE, *reason]
    replayed = ["replay", "run", "--wal-id", units["failed"].wal_id, *WHY, *CHANGE, *reason, "--confirm", "--detach"]
    before = every_row(deployment.database)
    for command in (released, replayed):
        call(*command).refused("in no vocabulary; observed reprocess-2025; expected backfill or dlq-drain or")
    assert every_row(deployment.database) == before
    shutil.copytree(own_folder(), configs)
    with (configs / REPLAY_PLAN).open("a") as plan:
        plan.write("reasons: {reprocess-2025: the yearly one}\n")
    monkeypatch.setenv("KFM_CONFIGS_DIR", str(configs))
    # A dry run neither needs nor stores the reason in the database.
    assert call("replay", "dry-run", "--wal-id", units["failed"].wal_id, *reason).code == ExitCode.DONE
    assert every_row(deployment.database) == before
    assert call(*released).code == call(*replayed).code == ExitCode.DONE
    with opened_pipeline() as pipeline:
        parts = {"wal_ids": [units["failed"].wal_id], "replay_reason": "reprocess-2025"}
        config = ReplayConfig(selection=selection_from(pipeline.settings.env, "test", **parts).as_json())
        assert _started(ReplayEngine(pipeline=pipeline), config, run_id="run-2")["records"] == 1
        ReplayEngine(pipeline=pipeline).advance_all(report=print)
        record = {name: own_tx(pipeline.ledger).get(units[name].wal_id) for name in ("quarantined", "failed")}
    assert {(entry.status, entry.replay_reason) for entry in record.values() if entry} == {
        (Status.PENDING, "reprocess-2025")
    }
    # The first use of the reason stores the reason with its meaning.
    assert own_tx(deployment.ledger).replay_reasons()["reprocess-2025"] == "the yearly one"


@pytest.mark.clause("BEY-06", "SEC-02")
def test_a_discarded_unit_is_excluded_from_every_later_release(
    call: Call, deployment: Pipeline, units: dict[str, Envelope]
) -> None:
    wal_id = units["quarantined"].wal_id
    assert call("discard", wal_id, *WHY).code == ExitCode.DONE
    assert [row["wal_id"] for row in call("quarantine", "list", "--json").rows] == []
    discarded = call("quarantine", "list", "--state", "discarded", "--json").rows
    assert {row["wal_id"] for row in discarded} == {wal_id, units["discarded"].wal_id}
    record = own_tx(deployment.ledger).get(wal_id)
    assert release(deployment, wal_id, record.version, PERSON) == frozenset()
    assert own_tx(deployment.ledger).get(wal_id) == record
    [entry] = call("governance", "log", "--wal-id", wal_id, "--action", "discard", "--json").rows
    assert (entry["actor"], entry["details"]) == ("jane", {"quarantined_version": 2})


@pytest.mark.clause("WSM-08", "SEC-02")
def test_a_person_quarantines_pending_and_failed_units(
    call: Call, deployment: Pipeline, units: dict[str, Envelope]
) -> None:
    pending, broken = units["pending"].wal_id, units["failed"].wal_id
    answer = call("quarantine", "add", pending, broken, "--reason-code", "bad_site", *WHY, "--actor", "john")
    assert answer.code == ExitCode.DONE
    assert answer.out.splitlines() == [
        f"{pending}: pending > quarantined (version 1 > 2)",
        f"{broken}: failed > quarantined (version 3 > 4)",
    ]
    record = own_tx(deployment.ledger).get(broken)
    assert record.version == 4
    rows = call("quarantine", "list", "--reason", "bad_site", "--json").rows
    assert {row["wal_id"]: row["error_code"] for row in rows} == {pending: "bad_site", broken: "missing_object"}
    entries = call("governance", "log", "--action", "quarantine", "--limit", "2", "--json").rows
    assert {(entry["wal_id"], entry["actor"], entry["to_status"]) for entry in entries} == {
        (pending, "john", "quarantined"),
        (broken, "john", "quarantined"),
    }


@pytest.mark.clause("WAL-10", "SEC-02")
def test_a_kill_switch_is_on_until_it_is_released_or_expires(call: Call, deployment: Pipeline) -> None:
    assert call("kill-switch", "list", "--json").out == ""
    before = datetime.now(UTC)
    assert call("kill-switch", "on", "nexrad-l2", *WHY, "--expires", "90m").code == ExitCode.DONE
    assert call("kill-switch", "on", "all", *WHY, *CHANGE).code == ExitCode.DONE
    everything, single = call("kill-switch", "list", "--json").rows
    assert (everything["dataset"], everything["expires_at"], everything["change_ref"]) == ("all", None, "CHG-9")
    assert (single["dataset"], single["engaged_by"], single["reason"]) == ("nexrad-l2", "jane", "seen by eye")
    lasting = datetime.fromisoformat(single["expires_at"]) - before
    assert timedelta(minutes=90) <= lasting < timedelta(minutes=95)
    assert own_tx(deployment.ledger.switches).off(["goes-abi"]) == {"goes-abi"}

    off = call("kill-switch", "off", "nexrad-l2", *WHY)
    assert (off.code, "the switch for all datasets is still on" in off.out) == (ExitCode.DONE, True)
    assert call("kill-switch", "off", "all", *WHY).code == ExitCode.DONE
    assert own_tx(deployment.ledger.switches).engaged() == {}
    actions = [row["action"] for row in call("governance", "log", "--json").rows]
    assert actions == ["kill_switch_off", "kill_switch_off", "kill_switch_on", "kill_switch_on"]
    changes = [row["change"] for row in call("governance", "log", "--json").rows]
    assert changes == [None, None, "until it is released", f"until {single['expires_at']}"]


@pytest.mark.clause("BEY-06")
def test_quarantine_show_prints_the_evidence_as_text_and_json(
    call: Call, deployment: Pipeline, units: dict[str, Envelope], tmp_path: Path
) -> None:
    unit = units["quarantined"]
    put(tmp_path / "objects", [good(unit.bucket, unit.key, b"AR2V0006." + bytes(range(256)) * 8)])
    assert "not collected yet" in call("quarantine", "show", unit.wal_id).out
    EvidenceCollector(deployment).collect()
    [document] = call("quarantine", "show", unit.wal_id, "--json").rows
    [case] = document["cases"]
    assert (case["state"], case["reason"], case["evidence"]["found"]["size"]) == ("open", "looked_odd", 2057)
    text = call("quarantine", "show", unit.wal_id).out
    for shown in ("looked_odd", unit.object_uri, "2057", "41 52 32 56 30 30 30 36", "AR2V0006.", "000007c9"):
        assert shown in text
    assert text.endswith(f"\nnext: kfm retry {unit.wal_id} --reason ... --change-ref ...\n")
    assert "next: kfm units evidence WAL_ID, then kfm retry WAL_ID" in call("units", "cases").err
    for file in (tmp_path / "home" / "storage" / "evidence").rglob("*.json"):
        file.unlink()
    assert "evidence: lost" in call("quarantine", "show", unit.wal_id).out


def test_wal_show_prints_a_unit_s_full_history(
    call: Call, deployment: Pipeline, units: dict[str, Envelope], monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = units["quarantined"].evolve(
        wal_id="00000000-0000-8000-8000-00000000000a",
        object_version="newer",
        event_time=units["quarantined"].event_time + timedelta(hours=1),
    )
    own_tx(deployment.ledger).ensure([newer])
    [story] = call("wal", "show", units["quarantined"].wal_id, "--json").rows
    assert (story["status"], story["lane"], story["lease"]) == ("quarantined", "live", [])
    assert [version["superseded_by"] for version in story["versions"]] == [newer.wal_id, None]
    assert [case["state"] for case in story["cases"]] == ["open"]
    assert [entry["action"] for entry in story["governance"]] == ["quarantine"]
    assert [entry["to_status"] for entry in story["history"]] == ["pending", "quarantined"]
    for state, runs in [("in_progress", ["run-1"]), ("succeeded", [])]:
        [shown] = call("wal", "show", units[state].wal_id, "--json").rows
        assert (shown["ingest_run_id"], [lease["run_id"] for lease in shown["lease"]]) == ("run-1", runs)
    text = call("wal", "show", units["quarantined"].wal_id).out
    for part in ("looked_odd", newer.wal_id, "lease: none", "governance", "looked at it"):
        assert part in text
