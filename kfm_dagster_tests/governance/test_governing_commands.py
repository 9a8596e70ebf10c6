"""The governing commands: each decision is carried out whole and logged, or refused in one line and nothing changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.configs import own_folder
from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.defs.jobs import ReplayConfig, _started
from kfm_dagster.errors import ExitCode
from kfm_dagster.governance.log import Decision
from kfm_dagster.ingest.evidence import EvidenceCollector
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.cases import CaseState
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.stages.card import REPLAY_PLAN, STATE_MACHINE
from kfm_dagster_tests.commands import Call
from kfm_dagster_tests.databases import every_row
from kfm_dagster_tests.factories import envelope, failed, finished
from kfm_dagster_tests.governance.conftest import cases_of, release
from kfm_dagster_tests.transactions import own_tx

DAY = "2025-12-03"
PERSON = Decision(actor="person", reason="looked at it", change_ref="CHG-1")
NOBODY = "00000000-0000-8000-8000-000000000000"
STATES = ("pending", "in_progress", "succeeded", "failed", "quarantined", "discarded")
WHY = ["--reason", "seen by eye"]
CHANGE = ["--change-ref", "CHG-9"]


@pytest.fixture
def units(deployment: Pipeline) -> dict[str, Envelope]:
    """One unit of each state, by its name; two are quarantined, one of them discarded."""
    ledger = deployment.ledger
    found = {state: envelope(number) for number, state in enumerate(STATES)}
    own_tx(ledger).ensure(found.values())
    working = [found[state].wal_id for state in ("in_progress", "succeeded", "failed")]
    claimed = own_tx(ledger).claim(dataset="nexrad-l2", partition=DAY, run_id="run-1", limit=9, wal_ids=working)
    ends = {found["succeeded"].wal_id: finished, found["failed"].wal_id: failed}
    own_tx(ledger).settle([ends[unit.wal_id](unit) for unit in claimed if unit.wal_id in ends], run_id="run-1")
    out = [found["quarantined"].wal_id, found["discarded"].wal_id]
    own_tx(ledger).quarantine(out, reason_code="looked_odd", decision=PERSON)
    own_tx(cases_of(deployment)).discard({found["discarded"].wal_id: 2}, decision=PERSON)
    return found


REFUSED: dict[str, tuple[list[str], ExitCode, list[str]]] = {
    # name: arguments ({state} is the unit of that state), exit code, what the line says
    "retry: pending": (["retry", "{pending}", *WHY, *CHANGE], ExitCode.REFUSED, ["pending > pending"]),
    "retry: in progress": (["retry", "{in_progress}", *WHY, *CHANGE], ExitCode.REFUSED, ["in_progress > pending"]),
    "retry: succeeded": (["retry", "{succeeded}", *WHY, *CHANGE], ExitCode.REFUSED, ["succeeded > pending"]),
    "retry: failed, another version": (
        ["retry", "{failed}", "--version", "9", *WHY], ExitCode.REFUSED, ["at version 3", "expected version 9"],
    ),
    "retry: failed, no such reason": (
        ["retry", "{quarantined}", "{failed}", "--replay-reason", "odd", *WHY, *CHANGE], ExitCode.USAGE, ["vocabulary"],
    ),
    "retry: without a change, beside a failed unit": (
        ["retry", "{failed}", "{quarantined}", *WHY], ExitCode.USAGE, ["change reference"],
    ),
    "retry: units and a filter": (
        ["retry", "{failed}", "--dataset", "nexrad-l2", *WHY], ExitCode.USAGE, ["by WAL_ID", "by a filter"],
    ),
    "retry: succeeded by a filter": (["retry", "--status", "succeeded", *WHY], ExitCode.USAGE, ["neither failed nor"]),
    "retry: unknown dataset": (["retry", "--dataset", "goes-xyz", *WHY], ExitCode.USAGE, ["goes-xyz"]),
    "retry: not confirmed": (
        ["retry", "--dataset", "nexrad-l2", *WHY, *CHANGE], ExitCode.REFUSED, ["retry 2 units?", "--confirm"],
    ),
    "retry: discarded": (["retry", "{discarded}", *WHY, *CHANGE], ExitCode.REFUSED, ["was discarded", "for good"]),
    "retry: unknown": (["retry", NOBODY, *WHY, *CHANGE], ExitCode.USAGE, ["there is no such record", NOBODY]),
    "retry: one of two is wrong": (
        ["retry", "{quarantined}", "{succeeded}", *WHY, *CHANGE], ExitCode.REFUSED, ["succeeded > pending"],
    ),
    "retry: another version": (
        ["retry", "{quarantined}", "--version", "7", *WHY, *CHANGE],
        ExitCode.REFUSED, ["at version 2", "expected version 7"],
    ),
    "retry: one version for two": (
        ["retry", "{quarantined}", "{discarded}", "--version", "2", *WHY, *CHANGE], ExitCode.USAGE, ["one WAL_ID"],
    ),
    "retry: version 0": (
        ["retry", "{quarantined}", "--version", "0", *WHY, *CHANGE], ExitCode.USAGE, ["--version"],
    ),
    "retry: no change": (["retry", "{quarantined}", *WHY], ExitCode.USAGE, ["change reference"]),
    "retry: no reason": (["retry", "{quarantined}", *CHANGE], ExitCode.USAGE, ["--reason"]),
    "retry: empty reason": (["retry", "{quarantined}", "--reason", " ", *CHANGE], ExitCode.USAGE, ["reason"]),
    "retry: no unit": (["retry", *WHY, *CHANGE], ExitCode.USAGE, ["WAL_ID"]),
    "discard: pending": (
        ["discard", "{pending}", *WHY], ExitCode.REFUSED, ["pending > quarantined", "kfm quarantine list"],
    ),
    "discard: again": (["discard", "{discarded}", *WHY], ExitCode.REFUSED, ["was discarded"]),
    "discard: another version": (
        ["discard", "{quarantined}", "--version", "3", *WHY], ExitCode.REFUSED, ["at version 2"],
    ),
    "discard: long reason": (["discard", "{quarantined}", "--reason", "x" * 1001], ExitCode.USAGE, ["1001 characters"]),
    "quarantine: succeeded": (
        ["quarantine", "add", "{succeeded}", "--reason-code", "odd", *WHY],
        ExitCode.REFUSED,
        ["succeeded > quarantined", "expected succeeded > pending (a person has the unit done again); next:"],
    ),
    "quarantine: in progress": (
        ["quarantine", "add", "{in_progress}", "--reason-code", "odd", *WHY],
        ExitCode.REFUSED,
        ["in_progress > quarantined", "expected in_progress > succeeded (every operator completed) or in_progress > f"],
    ),
    "quarantine: twice": (
        ["quarantine", "add", "{pending}", "{quarantined}", "--reason-code", "odd", *WHY],
        ExitCode.REFUSED, ["quarantined > quarantined"],
    ),
    "quarantine: unknown": (
        ["quarantine", "add", "{pending}", NOBODY, "--reason-code", "odd", *WHY], ExitCode.USAGE, ["no such record"],
    ),
    "quarantine: no code": (
        ["quarantine", "add", "{pending}", "--reason-code", "Not a code", *WHY], ExitCode.USAGE, ["--reason-code"],
    ),
    "quarantine show: never": (["quarantine", "show", "{pending}"], ExitCode.USAGE, ["ever quarantined"]),
    "quarantine show: unknown": (
        ["quarantine", "show", "00000000"],
        ExitCode.USAGE, ["no such record", "expected the id of a unit", "next: kfm wal list"],
    ),
    "quarantine list: dataset": (["quarantine", "list", "--dataset", "goes-xyz"], ExitCode.USAGE, ["goes-xyz"]),
    "switch: unknown dataset": (["kill-switch", "on", "goes-xyz", *WHY], ExitCode.USAGE, ["goes-xyz", "nexrad-l2"]),
    "switch: on already": (["kill-switch", "on", "hrrr", *WHY], ExitCode.REFUSED, ["on already", "hrrr"]),
    "switch: not on": (["kill-switch", "off", "nexrad-l2", *WHY], ExitCode.REFUSED, ["is not on", "nexrad-l2"]),
    "switch: off nothing": (["kill-switch", "off", "all", *WHY], ExitCode.REFUSED, ["is not on"]),
    "switch: no time": (["kill-switch", "on", "all", *WHY, "--expires", "soon"], ExitCode.USAGE, ["'soon' is neither"]),
    "switch: endless": (["kill-switch", "on", "all", *WHY, "--expires", "9999999d"], ExitCode.USAGE, ["--expires"]),
    "switch: no zone": (
        ["kill-switch", "on", "all", *WHY, "--expires", "2099-01-31T12:00:00"], ExitCode.USAGE, ["with its zone"],
    ),
    "switch: over": (
        ["kill-switch", "on", "all", *WHY, "--expires", "2020-01-31T12:00:00Z"], ExitCode.REFUSED, ["before it begins"],
    ),
    "switch: at once over": (
        ["kill-switch", "on", "all", *WHY, "--expires", "0m"], ExitCode.REFUSED, ["before it begins"],
    ),
    "log: unknown action": (["governance", "log", "--action", "party"], ExitCode.USAGE, ["--action", "'party'"]),
    "log: unknown dataset": (["governance", "log", "--dataset", "nope"], ExitCode.USAGE, ["unknown dataset", "nope"]),
}  # fmt: skip


@pytest.mark.clause("WSM-16", "SEC-02", "BEY-06", "WAL-10")
def test_a_refused_decision_is_one_line_and_changes_no_row(
    call: Call, deployment: Pipeline, units: dict[str, Envelope]
) -> None:
    deployment.ledger.switches.engage("hrrr", PERSON)
    before = every_row(deployment.database)
    ids = {state: unit.wal_id for state, unit in units.items()}
    for name, (arguments, code, said) in REFUSED.items():
        answer = call(*(argument.format(**ids) for argument in arguments))
        assert (answer.code, answer.out) == (code, ""), (name, answer)
        assert answer.err.startswith("kfm: "), name
        assert answer.err.count("\n") == 1, name
        for text in said:
            assert text in answer.err, name
    assert every_row(deployment.database) == before


NEEDS_A_CHANGE = {
    "release": ["release", "{quarantined}"],
    "discard": ["discard", "{quarantined}"],
    "quarantine add": ["quarantine", "add", "{pending}", "--reason-code", "odd"],
    "kill-switch on": ["kill-switch", "on", "nexrad-l2"],
    "kill-switch off": ["kill-switch", "off", "hrrr"],
}


@pytest.mark.clause("SEC-02")
def test_in_production_every_decision_needs_a_change_reference(
    call: Call, deployment: Pipeline, units: dict[str, Envelope], monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment.ledger.switches.engage("hrrr", PERSON)
    monkeypatch.setenv("KFM_ENV", "prod")
    ids = {state: unit.wal_id for state, unit in units.items()}
    before = every_row(deployment.database)
    for name, arguments in NEEDS_A_CHANGE.items():
        answer = call(*(argument.format(**ids) for argument in arguments), *WHY)
        assert (answer.code, answer.out) == (ExitCode.USAGE, ""), name
        assert "--change-ref" in answer.err, name
    assert every_row(deployment.database) == before
    for name, arguments in reversed(NEEDS_A_CHANGE.items()):
        if name != "discard":  # of the same unit as release
            done = call(*(argument.format(**ids) for argument in arguments), *WHY, *CHANGE)
            assert done.code == (ExitCode.WAITS_FOR_APPROVAL if name == "release" else ExitCode.DONE), name
    assert {entry.change_ref for entry in own_tx(deployment.ledger.log).entries(limit=4)} == {"CHG-9"}


@pytest.mark.clause("WSM-16", "BEY-06", "SEC-02")
def test_a_release_lets_the_unit_in_closes_its_case_and_stands_in_the_log(
    call: Call, deployment: Pipeline, units: dict[str, Envelope]
) -> None:
    wal_id = units["quarantined"].wal_id
    # The dry run needs no reason, says the same, and has left the unit as it was.
    for options, last in ((["--dry-run"], "dry run: no unit is retried\n"), ([*WHY, *CHANGE], "")):
        answer = call("release", wal_id, wal_id, "--json", *options)
        assert answer.err.endswith(last)
        assert bool(answer.err) == bool(last)
        assert answer.code == ExitCode.DONE
        assert answer.rows == [{"wal_id": wal_id, "from": "quarantined", "to": "pending", "seen_version": 2}]
    record = own_tx(deployment.ledger).get(wal_id)
    assert record is not None
    assert (record.status, record.version, record.changed_by) == (Status.PENDING, 3, "jane")
    [case] = own_tx(cases_of(deployment)).of(wal_id)
    assert (case.state, case.closed_by) == (CaseState.RELEASED, "jane")
    assert (case.closing_reason, case.change_ref) == ("seen by eye", "CHG-9")
    [row] = call("governance", "log", "--action", "release", "--json").rows
    assert (row["wal_id"], row["change_ref"]) == (wal_id, "CHG-9")
    assert row["change"] == "quarantined > pending (version 3)"


@pytest.mark.clause("WSM-16", "BEY-06", "SEC-02")
def test_a_retry_by_a_filter_replays_failed_and_releases_quarantined_units_but_no_discarded_unit(
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
    monkeypatch.setenv("KFM_ENV", "prod")
    answer = call("retry", "--dataset", "nexrad-l2", *WHY, *CHANGE, "--confirm", "--json")
    retried, proposed = answer.rows
    assert (answer.code, retried["from"], proposed["units"]) == (ExitCode.WAITS_FOR_APPROVAL, "failed", 1)
    approved = call("governance", "approve", str(proposed["proposal_id"]), *WHY, *CHANGE, "--actor", "bob")
    assert approved.code == ExitCode.DONE
    with opened_pipeline() as pipeline:
        ReplayEngine(pipeline=pipeline).advance_all(say=print)
    records = {state: own_tx(deployment.ledger).get(units[state].wal_id) for state in (*both.values(), "discarded")}
    assert {state: record.status for state, record in records.items() if record} == {
        "failed": Status.PENDING, "quarantined": Status.PENDING, "discarded": Status.QUARANTINED,
    }  # fmt: skip
    assert call("retry", "--dataset", "nexrad-l2", *WHY, *CHANGE, "--json").rows == []


@pytest.mark.clause("WSM-21")
def test_a_reason_of_the_configuration_is_one_for_every_command_that_lets_units_in(
    call: Call, deployment: Pipeline, units: dict[str, Envelope], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason, configs = ["--replay-reason", "reprocess-2025"], tmp_path / "configs"
    released = ["release", units["quarantined"].wal_id, *WHY, *CHANGE, *reason]
    replayed = ["replay", "run", "--wal-id", units["failed"].wal_id, *WHY, *CHANGE, *reason, "--confirm", "--detach"]
    before = every_row(deployment.database)
    for command in (released, replayed):
        refused = call(*command)
        assert (refused.code, refused.err.count("\n")) == (ExitCode.USAGE, 1)
        assert "in no vocabulary; observed reprocess-2025; expected backfill or dlq-drain or" in refused.err
    assert every_row(deployment.database) == before
    configs.mkdir()
    for name in (STATE_MACHINE, REPLAY_PLAN):
        (configs / name).write_bytes((own_folder() / name).read_bytes())
    with (configs / REPLAY_PLAN).open("a") as plan:
        plan.write("reasons: {reprocess-2025: the yearly one}\n")
    monkeypatch.setenv("KFM_CONFIGS_DIR", str(configs))
    assert call(*released).code == call(*replayed).code == ExitCode.DONE
    with opened_pipeline() as pipeline:
        config = ReplayConfig(wal_ids=[units["failed"].wal_id], replay_reason="reprocess-2025")
        assert _started(ReplayEngine(pipeline=pipeline), config, run_id="run-2")["records"] == 1
        ReplayEngine(pipeline=pipeline).advance_all(say=print)
        record = {name: own_tx(pipeline.ledger).get(units[name].wal_id) for name in ("quarantined", "failed")}
    assert {(found.status, found.replay_reason) for found in record.values() if found} == {
        (Status.PENDING, "reprocess-2025")
    }
    # The meaning stays where the word was used.
    assert own_tx(deployment.ledger).replay_reasons()["reprocess-2025"] == "the yearly one"


@pytest.mark.clause("BEY-06", "SEC-02")
def test_a_discarded_unit_stays_out_of_every_later_release(
    call: Call, deployment: Pipeline, units: dict[str, Envelope]
) -> None:
    wal_id = units["quarantined"].wal_id
    assert call("discard", wal_id, *WHY).code == ExitCode.DONE
    assert [row["wal_id"] for row in call("quarantine", "list", "--json").rows] == []
    discarded = call("quarantine", "list", "--state", "discarded", "--json").rows
    assert {row["wal_id"] for row in discarded} == {wal_id, units["discarded"].wal_id}
    record = own_tx(deployment.ledger).get(wal_id)
    assert record is not None
    assert release(deployment, wal_id, record.version, PERSON) == frozenset()
    assert own_tx(deployment.ledger).get(wal_id) == record
    [entry] = call("governance", "log", "--wal-id", wal_id, "--action", "discard", "--json").rows
    assert (entry["actor"], entry["details"]) == ("jane", {"quarantined_version": 2})


@pytest.mark.clause("WSM-08", "SEC-02")
def test_a_person_quarantines_what_waits_and_what_failed(
    call: Call, deployment: Pipeline, units: dict[str, Envelope]
) -> None:
    pending, broken = units["pending"].wal_id, units["failed"].wal_id
    answer = call("quarantine", "add", pending, broken, "--reason-code", "bad_site", *WHY, "--actor", "john")
    assert answer.code == ExitCode.DONE
    assert answer.out.splitlines() == [
        f"{pending}: pending > quarantined (version 1 > 2)",
        f"{broken}: failed > quarantined (version 3 > 4)",
    ]
    found = own_tx(deployment.ledger).get(broken)
    assert found is not None
    assert found.version == 4
    rows = call("quarantine", "list", "--reason", "bad_site", "--json").rows
    assert {row["wal_id"]: row["error_code"] for row in rows} == {pending: "bad_site", broken: "missing_object"}
    entries = call("governance", "log", "--action", "quarantine", "--limit", "2", "--json").rows
    assert {(entry["wal_id"], entry["actor"], entry["to_status"]) for entry in entries} == {
        (pending, "john", "quarantined"),
        (broken, "john", "quarantined"),
    }


@pytest.mark.clause("WAL-10", "SEC-02")
def test_a_switch_is_on_until_it_is_taken_back_or_expires(call: Call, deployment: Pipeline) -> None:
    assert call("kill-switch", "list", "--json").out == ""
    before = datetime.now(UTC)
    assert call("kill-switch", "on", "nexrad-l2", *WHY, "--expires", "90m").code == ExitCode.DONE
    assert call("kill-switch", "on", "all", *WHY, *CHANGE).code == ExitCode.DONE
    everything, one = call("kill-switch", "list", "--json").rows
    assert (everything["dataset"], everything["expires_at"], everything["change_ref"]) == ("all", None, "CHG-9")
    assert (one["dataset"], one["engaged_by"], one["reason"]) == ("nexrad-l2", "jane", "seen by eye")
    lasting = datetime.fromisoformat(one["expires_at"]) - before
    assert timedelta(minutes=90) <= lasting < timedelta(minutes=95)
    assert own_tx(deployment.ledger.switches).off(["goes-abi"]) == {"goes-abi"}

    off = call("kill-switch", "off", "nexrad-l2", *WHY)
    assert (off.code, "the switch for all datasets is still on" in off.out) == (ExitCode.DONE, True)
    assert call("kill-switch", "off", "all", *WHY).code == ExitCode.DONE
    assert own_tx(deployment.ledger.switches).engaged() == {}
    actions = [row["action"] for row in call("governance", "log", "--json").rows]
    assert actions == ["kill_switch_off", "kill_switch_off", "kill_switch_on", "kill_switch_on"]
    changes = [row["change"] for row in call("governance", "log", "--json").rows]
    assert changes == [None, None, "until it is released", f"until {one['expires_at']}"]


@pytest.mark.clause("BEY-06")
def test_quarantine_show_tells_the_evidence_to_people_and_to_scripts(
    call: Call, deployment: Pipeline, units: dict[str, Envelope], tmp_path: Path
) -> None:
    unit = units["quarantined"]
    path = tmp_path / "objects" / unit.bucket / unit.key
    path.parent.mkdir(parents=True)
    path.write_bytes(b"AR2V0006." + bytes(range(256)) * 8)
    assert "not collected yet" in call("quarantine", "show", unit.wal_id).out
    EvidenceCollector(deployment).collect()
    [document] = call("quarantine", "show", unit.wal_id, "--json").rows
    [case] = document["cases"]
    assert (case["state"], case["reason"], case["evidence"]["found"]["size"]) == ("open", "looked_odd", 2057)
    text = call("quarantine", "show", unit.wal_id).out
    for shown in ("looked_odd", unit.object_uri, "2057", "41 52 32 56 30 30 30 36", "AR2V0006.", "000007c9"):
        assert shown in text
    for file in (tmp_path / "home" / "storage" / "evidence").rglob("*.json"):
        file.unlink()
    assert "evidence: lost" in call("quarantine", "show", unit.wal_id).out


def test_wal_show_tells_the_whole_story_of_a_unit(
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
    [working] = call("wal", "show", units["in_progress"].wal_id, "--json").rows
    assert [lease["run_id"] for lease in working["lease"]] == ["run-1"]
    text = call("wal", "show", units["quarantined"].wal_id).out
    for shown in ("looked_odd", newer.wal_id, "lease: none", "governance", "looked at it"):
        assert shown in text


def test_a_table_cuts_nothing_and_takes_nothing_for_markup(
    call: Call, deployment: Pipeline, units: dict[str, Envelope]
) -> None:
    reason = "[red]see https://noaa.gov/" + "x" * 300 + "[/red]"
    call("kill-switch", "on", "hrrr", "--reason", reason)
    assert reason in call("kill-switch", "list").out
    assert units["failed"].object_uri in call("wal", "list").out
