"""`kfm dlq` and `kfm cloud`: output, refusals and exit codes."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.demo.cloud import EmbeddedCloud, aws_client
from kfm_dagster.errors import ExitCode
from kfm_dagster.notifications.sqs import Queue
from kfm_dagster.storage.roots import MARKER
from kfm_dagster_tests.commands import Call, caller
from kfm_dagster_tests.recovery.dlq_fixture import MALFORMED, DlqFixture, open_dlq_fixture
from kfm_dagster_tests.transactions import own_tx

WHY = ("--reason", "the feed was repaired", "--actor", "jane")


@pytest.fixture
def dlq_fixture(cloud: EmbeddedCloud, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DlqFixture]:
    """Queues, and a ledger at the path that this process's environment names."""
    fixture = open_dlq_fixture(cloud, home, "")
    # Use the database of KFM_HOME.
    for name, value in (fixture.environment() | {"KFM_WAL_DSN": ""}).items():
        monkeypatch.setenv(name, value)
    yield fixture
    fixture.pipeline.close()


@pytest.fixture
def call(dlq_fixture: DlqFixture, capfd: pytest.CaptureFixture[str]) -> Call:
    """Return a function that runs `kfm dlq ...` in this process."""
    return caller(capfd, "dlq")


def stored_state(dlq_fixture: DlqFixture) -> tuple[dict[str, Any], int]:
    return own_tx(dlq_fixture.pipeline.ledger).counts(), dlq_fixture.pipeline.dead_letters.depth().visible


def test_status_list_and_plan_show_the_dead_letters(dlq_fixture: DlqFixture, call: Call) -> None:
    dlq_fixture.bury([dlq_fixture.body(0), dlq_fixture.body(1), MALFORMED])
    assert call("status", "--json").document["visible"] == 3
    assert dlq_fixture.dlq in call("status").out
    [row] = call("list", "--class", "unreadable", "--json").rows
    assert (row["class"], row["error_code"], row["wal_ids"]) == ("unreadable", "malformed_json", [])
    assert "unknown" in call("list", "--dataset", "nexrad-l2").out
    groups = call("plan", "--json").document["groups"]
    assert [(group["class"], group["messages"]) for group in groups] == [("unreadable", 1), ("unknown", 2)]
    assert "2 selected" in call("plan", "--dataset", "nexrad-l2").out


@pytest.mark.clause("RPL-06")
def test_nothing_is_changed_without_confirmation(dlq_fixture: DlqFixture, call: Call) -> None:
    dlq_fixture.bury([dlq_fixture.body(0), MALFORMED])
    before = stored_state(dlq_fixture)
    for command in (("drain",), ("redrive",), ("discard", "some-id")):
        answer = call(*command, *WHY)
        assert (answer.code, answer.err.count("\n")) == (ExitCode.REFUSED, 1), command
        assert "--confirm" in answer.err
        assert f"{dlq_fixture.dlq}: 2 messages looked at" in answer.out
        dry = call(*command, "--confirm", "--dry-run", "--json")
        assert (dry.code, dry.document["plan"]["looked_at"], dry.document["report"]) == (ExitCode.DONE, 2, None)
        assert stored_state(dlq_fixture) == before


@pytest.mark.parametrize(("typed", "code"), [("y\n", ExitCode.DONE), ("n\n", 130)])
def test_at_a_terminal_the_user_is_asked_for_confirmation(
    typed: str, code: int, dlq_fixture: DlqFixture, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    dlq_fixture.bury([dlq_fixture.body(0)])
    terminal = io.StringIO(typed)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    answer = call("drain", *WHY)
    assert answer.code == code
    assert f"drain 1 message of {dlq_fixture.dlq}?" in answer.err
    assert bool(own_tx(dlq_fixture.pipeline.ledger).counts()) is (typed == "y\n")


def test_a_drain_states_how_many_of_the_selected_messages_are_within_its_limit(
    dlq_fixture: DlqFixture, call: Call
) -> None:
    dlq_fixture.bury([dlq_fixture.body(number) for number in range(4)])
    question = call("drain", *WHY, "--limit", "3")
    assert "observed drain 3 messages of" in question.err
    assert "4 messages looked at, 4 selected, 3 of them now\n" in question.out
    assert "4 messages looked at, 4 selected\n" in call("drain", *WHY, "--limit", "4").out
    outcome = call("drain", *WHY, "--limit", "3", "--confirm")
    assert outcome.code == ExitCode.DONE
    assert "beyond the limit" not in outcome.out


@pytest.mark.clause("RPL-06")
def test_a_drain_reports_the_outcome_of_each_message(dlq_fixture: DlqFixture, call: Call) -> None:
    dlq_fixture.bury([dlq_fixture.body(0), MALFORMED])
    answer = call("drain", *WHY, "--change-ref", "INC-7", "--confirm", "--json")
    assert answer.code == ExitCode.DONE
    report = answer.document["report"]
    assert report["outcomes"] == {"waits": 1, "kept": 1}
    assert report["units"] == {"created": 1, "requeued": 0, "quarantined": 0}
    assert answer.document["plan"]["selected"] == 2
    (entry,) = own_tx(dlq_fixture.pipeline.ledger.log).entries()
    assert (entry.actor, entry.reason, entry.change_ref) == ("jane", "the feed was repaired", "INC-7")
    dlq_fixture.dead_bodies()
    second = call("drain", *WHY, "--confirm")
    assert "malformed_json" in second.out
    assert "1 message kept until" in second.out


@pytest.mark.clause("RPL-06")
def test_a_drain_that_recurring_failures_stop_ends_with_exit_code_4(dlq_fixture: DlqFixture, call: Call) -> None:
    dlq_fixture.receive_and_let_die([dlq_fixture.body(number) for number in range(3)])
    for _ in range(2):
        dlq_fixture.bring_to("failed", range(3))
        dlq_fixture.dead_bodies()
        answer = call("drain", *WHY, "--confirm", "--stop-after", "3")
    assert answer.code == ExitCode.FINISHED_WITH_FAILURES
    assert "ended at recurrence: 3 drained units came back with missing_object" in answer.err
    assert call("drain", *WHY, "--confirm", "--stop-after", "0").code == ExitCode.DONE


@pytest.mark.clause("SEC-11")
def test_no_letter_is_drained_into_the_store_of_another_deployment(dlq_fixture: DlqFixture, call: Call) -> None:
    dlq_fixture.bury([dlq_fixture.body(0)])
    Path(dlq_fixture.pipeline.settings.storage, MARKER).write_text(f'{{"deployment_id": "{"1" * 32}"}}')
    refused = call("drain", *WHY, "--confirm")
    assert (refused.code, "is another deployment's" in refused.err) == (ExitCode.REFUSED, True)
    assert own_tx(dlq_fixture.pipeline.ledger).find() == []


def test_redrive_moves_a_letter_and_discard_refuses_a_readable_letter(dlq_fixture: DlqFixture, call: Call) -> None:
    dlq_fixture.bury([dlq_fixture.body(0), dlq_fixture.body(1), MALFORMED])
    moved = call("redrive", *WHY, "--limit", "1", "--confirm", "--json")
    assert (moved.code, moved.document["report"]["outcomes"]) == (ExitCode.DONE, {"moved": 1, "left": 2})
    rows = call("list", "--json").rows
    assert call("list", "--ids").out.split() == [row["message_id"] for row in rows]
    named = {row["class"]: row["message_id"] for row in rows}
    gone = call("discard", named["unreadable"], *WHY, "--confirm")
    assert (gone.code, stored_state(dlq_fixture)[1]) == (ExitCode.DONE, 1)
    refused = call("discard", named["unknown"], named["unreadable"], *WHY, "--confirm")
    assert refused.code == ExitCode.FINISHED_WITH_FAILURES
    assert named["unknown"] in refused.err
    assert named["unreadable"] in refused.err


def test_the_cloud_serves_until_a_signal_ends_the_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from kfm_dagster.cli.main import main; main()", "cloud", "--outage"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KFM_")}
    with subprocess.Popen(
        [*command, "--env-file", "cloud.env"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as served:
        lines = []
        while not lines or not lines[-1].startswith("export no_proxy"):
            lines.append(served.stdout.readline())
            assert lines[-1]
        assert (tmp_path / "cloud.env").read_text(encoding="utf-8") == "".join(lines)
        exported = dict(line.removeprefix("export ").strip().split("=", 1) for line in lines)
        client = aws_client("sqs", endpoint_url=exported["AWS_ENDPOINT_URL"])
        dead = Queue(client, name=exported["KFM_SQS_DLQ_QUEUE"], threads=4)
        waiting = Queue(client, name=exported["KFM_SQS_PRIMARY_QUEUE"], threads=4)
        assert dead.depth().visible == waiting.depth().visible > 20
        served.terminate()
        assert served.wait(30) == ExitCode.DONE
