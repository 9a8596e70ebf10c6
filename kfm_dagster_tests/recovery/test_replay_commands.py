"""`kfm replay` and `nodd-replay`: one line per refusal, exit codes, and read-only commands."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from rich.console import Console

from kfm_dagster.cli.main import main
from kfm_dagster.cli.replay import commands
from kfm_dagster.cli.replay.commands import IDLE_SECONDS, follow, replay
from kfm_dagster.governance.log import GovernanceAction
from kfm_dagster.recovery.backfill.progress import day_progress
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.recovery.replay.runs import ReplayState
from kfm_dagster_tests.commands import Call, caller, state_of
from kfm_dagster_tests.databases import every_row
from kfm_dagster_tests.factories import failed, finished
from kfm_dagster_tests.recovery.dlq_fixture import DlqFixture
from kfm_dagster_tests.recovery.replays import (
    PERSON,
    UNAPPROVED,
    Stand,
    another_result,
    document,
    open_stand,
    repair,
    selection,
)
from kfm_dagster_tests.transactions import own_tx

pytestmark = [pytest.mark.clause("RPL-01"), pytest.mark.one_database]

SCOPE = [
    "--dataset", "nexrad-l2", "--status", "failed",
    "--event-time-start", "2025-12-03", "--event-time-end", "2025-12-04",
]  # fmt: skip
DAYS = ["--dataset", "hrrr", "--event-time-start", "2025-12-01", "--event-time-end", "2025-12-03"]
START = ["--reason", "reader fixed", "--confirm"]


@pytest.fixture
def stand(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    monkeypatch.setenv("KFM_SNS_VERIFY", "off")  # these tests build unsigned messages
    stand_ = open_stand(home, "")
    # Commands and workers use the real clock; the stand's records must be in their past.
    stand_.clock.now = datetime.now(UTC) - timedelta(hours=1)
    yield stand_
    stand_.pipeline.close()


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run `kfm replay ...` in this process without a terminal."""
    monkeypatch.setattr("sys.stdin", StringIO())

    return caller(capfd, "replay")


@pytest.mark.clause("RPL-04")
def test_read_only_commands_change_no_table_queue_or_file(
    dlq_fixture: DlqFixture, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    dlq_fixture.receive_and_let_die([dlq_fixture.body(number) for number in range(6)])
    dlq_fixture.bring_to("failed", [0, 1, 2], code="size_mismatch")
    dlq_fixture.bring_to("succeeded", [3])
    dlq_fixture.pipeline.queue.send([dlq_fixture.body(9)])
    for name, value in dlq_fixture.environment().items():
        monkeypatch.setenv(name, value)
    engine = ReplayEngine(pipeline=dlq_fixture.pipeline)
    spec = document(filters={"event_time": {"start": "2025-04-01T00:00:00Z", "end": "2025-05-01T00:00:00Z"}})
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    monkeypatch.chdir(tmp_path)

    def everything() -> tuple[Any, ...]:
        files = {name: content for name, content in state_of(tmp_path).items() if not name.endswith("kfm.db")}
        depths = (dlq_fixture.pipeline.queue.depth(), dlq_fixture.pipeline.dead_letters.depth())
        return (
            every_row(dlq_fixture.pipeline.database),
            depths,
            files,
            own_tx(dlq_fixture.pipeline.ledger.log).entries(),
        )

    before = everything()
    for format_ in ("table", "json", "yaml"):
        for command in ("select", "dry-run"):
            answer = call(command, "--selection-file", "spec.yaml", "--output", format_)
            assert (answer.code, answer.err) == (0, "")
        for arguments in (["from-spec", "spec.yaml", "--dry-run"], ["status"], ["inspect", "--mismatches"]):
            assert call(*arguments, "--output", format_).code == 0
    assert call("inspect", "--selection-file", "spec.yaml", "--json").document[0]["last_error_code"] == "size_mismatch"
    assert call("select", "--selection-file", "spec.yaml", "--json").document["records"] == 3
    assert call("dry-run", "--selection-file", "spec.yaml", "--env", "prod").code == 3
    assert len(engine.plan(selection(filters=spec["spec"]["filters"])).units) == 3
    assert everything() == before


def test_a_selection_is_counted_grouped_shown_and_saved_in_every_format(stand: Stand, call: Call) -> None:
    stand.bring("failed", 7)
    answer = call("select", *SCOPE, "--batch-size", "3", "--save", "mine.yaml", "--json")
    assert answer.code == 0
    document_ = answer.document
    assert (document_["records"], document_["batches"], len(document_["examples"])) == (7, 3, 5)
    assert document_["breakdown"] == [
        {"dataset": "nexrad-l2", "status": "failed", "error_code": "missing_object", "units": 7}
    ]
    second = call("dry-run", "--selection-file", "mine.yaml", "--output", "yaml")
    assert list(yaml.safe_load(second.out)) == list(document_)
    assert yaml.safe_load(second.out) == document_
    table = call("select", "--selection-file", "mine.yaml").out
    assert "missing_object" in table
    assert document_["examples"][0]["wal_id"] in table


@contextmanager
def working(stand: Stand, *, ending: Callable[..., Any] = finished) -> Iterator[None]:
    """Process pending units in another thread within the context, as a deployment does."""
    done = threading.Event()
    other_stand = open_stand(stand.pipeline.settings.home, "")
    other_stand.clock.now = datetime.now(UTC)

    def work() -> None:
        while not done.wait(0.02):
            other_stand.work(ending, run_id="worker")

    with closing(other_stand.pipeline), ThreadPoolExecutor(1) as pool:
        worker = pool.submit(work)
        try:
            yield
        finally:
            done.set()
        worker.result()


@pytest.mark.clause("RPL-05")
def test_run_follows_a_replay_to_its_end_and_prints_the_outcome(
    stand: Stand, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "POLL_SECONDS", 0.02)
    stand.bring("failed", 5)
    with working(stand):
        answer = call("run", *SCOPE, "--batch-size", "2", "--change-ref", "INC-1", *START, "--json")
    assert (answer.code, answer.document["state"], answer.document["outcomes"]["succeeded"]) == (0, "finished", 5)
    assert "nothing is selected; these datasets and times have 5 succeeded; next: " in call("run", *SCOPE, *START).out
    [entry] = own_tx(stand.pipeline.ledger.log).entries(action=GovernanceAction.REPLAY_STARTED)
    assert (entry.reason, entry.change_ref, bool(entry.actor)) == ("reader fixed", "INC-1", True)
    shown = call("status", answer.document["replay_run_id"]).out
    assert "5 succeeded" in shown
    assert "held by" not in shown
    rows = call("inspect", answer.document["replay_run_id"], "--fields", "position,outcome", "--json").document
    assert rows == [{"position": number, "outcome": "succeeded"} for number in range(1, 6)]
    # A failure without further attempts is quarantined at once.
    stand.bring("failed", 1, first=10)
    with working(stand, ending=partial(failed, code="governance_hard_fail")):
        answer = call("run", *SCOPE, *START, "--json")
    assert (answer.code, answer.document["outcomes"]["quarantined"]) == (4, 1)


def test_a_replays_differences_are_shown_even_if_a_later_replay_has_differences(stand: Stand, call: Call) -> None:
    started = []
    for first in (0, 10):
        [unit] = stand.bring("succeeded", 1, first=first)
        selected = repair(options={"must_match": True}, filters={"wal_ids": [unit.wal_id]})
        run = stand.engine.start(selected, PERSON)
        stand.clock.forward(60)
        assert stand.engine.advance(run.replay_run_id).admitted is not None
        stand.work(another_result, run_id=f"run-{first}")
        started.append((run.replay_run_id, unit.wal_id))
    for replay_run_id, wal_id in started:
        rows = call("inspect", replay_run_id, "--mismatches", "--rows", "1", "--json").document
        assert [(row["replay_run_id"], row["wal_id"]) for row in rows] == [(replay_run_id, wal_id)]
    [newest] = call("inspect", "--mismatches", "--rows", "1", "--json").document
    assert newest["wal_id"] == started[-1][1]


@pytest.mark.clause("RPL-05")
def test_a_detached_replay_is_paused_resumed_and_stopped_by_its_id(stand: Stand, call: Call) -> None:
    stand.bring("failed", 2)
    started = call("run", *SCOPE, *START, "--detach", "--json")
    assert (started.code, started.document["state"]) == (0, "running")
    name = started.document["replay_run_id"]
    for command, state in (("pause", "paused"), ("resume", "running"), ("stop", "stopped")):
        answer = call(command, name, "--reason", "for the test", "--actor", "jane", "--json")
        assert (answer.code, answer.document["state"]) == (0, state)
    assert call("pause", name, "--reason", "too late").code == 3
    assert [row["state"] for row in call("status", "--json").document] == ["stopped"]
    assert call("status", "--ids").out.split() == [row["replay_run_id"] for row in call("status", "--json").document]
    assert "--ids lists the replays" in call("status", "--ids", "--json").err
    assert {
        entry.actor for entry in own_tx(stand.pipeline.ledger.log).entries(action=GovernanceAction.REPLAY_PAUSED)
    } == {"jane"}


REFUSED: dict[str, tuple[list[str], dict[str, str], int, list[str]]] = {
    # name: arguments, environment, exit code, parts of the line
    "no scope": (["select", "--status", "failed"], {}, 3, ["guard scope", "no dataset"]),
    "a file and options": (
        ["run", "--selection-file", "s.yaml", "--dataset", "hrrr", *START], {}, 2, ["--dataset", "one of the two"],
    ),
    "no such file": (["dry-run", "--selection-file", "none.yaml"], {}, 2, ["none.yaml", "cannot be read"]),
    "a wrong file": (["from-spec", "wrong.yaml", *START], {}, 2, ["wrong.yaml line 1", "apiVersion"]),
    "no confirmation": (["run", *SCOPE, "--reason", "x"], {}, 3, ["--confirm"]),
    "no reason": (["run", *SCOPE, "--confirm"], {}, 2, ["--reason"]),
    "an empty reason": (["run", *SCOPE, "--confirm", "--reason", " "], {}, 2, ["reason"]),
    "an unknown dataset": (["select", *SCOPE, "--dataset", "goes-xyz"], {}, 2, ["goes-xyz", "nexrad-l2"]),
    "a status that is not replayed": (["select", *SCOPE, "--status", "pending"], {}, 2, ["pending"]),
    "an invalid time": (["select", *SCOPE, "--created-after", "yesterday"], {}, 2, ["yesterday"]),
    "a time without a zone": (["select", *SCOPE, "--created-after", "2025-12-03T00:00:00"], {}, 2, ["with its zone"]),
    "an unknown replay reason": (["select", *SCOPE, "--replay-reason", "why-not"], {}, 2, ["why-not", "incident"]),
    "a repair without approval": (["run", *SCOPE, "--mode", "repair-and-replace", *START], {}, 3, ["guard approval"]),
    "prod without a reference": (["run", *SCOPE, *START], {"KFM_ENV": "prod"}, 3, ["change or incident reference"]),
    "prod by the option": (["run", *SCOPE, *START, "--env", "prod"], {"KFM_ENV": "dev"}, 3, ["reference"]),
    "another environment": (["dry-run", "--selection-file", "s.yaml"], {"KFM_ENV": "stage"}, 3, ["guard environment"]),
    "a file for a dry run": (["run", "--selection-file", "dry.yaml", *START], {}, 2, ["options.dry_run", "dry-run"]),
    "a backfill with a limit": (
        ["run", "--mode", "backfill", *DAYS, "--limit", "5", *START], {}, 2, ["a backfill with limits"],
    ),
    "a file in a folder that is not there": (["select", *SCOPE, "--save", "no/x.yaml"], {}, 2, ["--save", "no folder"]),
    "a replay and a selection": (["inspect", "nope", *SCOPE], {}, 2, ["--dataset, --status", "leave out"]),
    "differences of a selection": (["inspect", "--mismatches", *SCOPE], {}, 2, ["--mismatches", "leave out"]),
    "an environment that is wrong": (
        ["status", "--env", "dev"], {"KFM_LIVE_SHARE": "2"}, 2, ["KFM_LIVE_SHARE is wrong", "observed '2'"],
    ),
    "a replay that is not there": (["status", "nope"], {}, 2, ["unknown replay", "nope"]),
    "a field that is not there": (["inspect", *SCOPE, "--fields", "wal_id,colour"], {}, 2, ["colour", "wal_id"]),
    "a config that is not there": (["status", "--config", "none.yaml"], {}, 2, ["--config", "none.yaml"]),
    "a config that is wrong": (
        ["status", "--config", "dsn.yaml"], {}, 2, ["setting wal_dsn is wrong", "not shown", "sqlite:///"],
    ),
    "a config with an unknown key": (["status", "--config", "odd.yaml"], {}, 2, ["odd.yaml", "colour"]),
    "a database that is down": (
        ["status"], {"KFM_WAL_DSN": "postgresql://kfm:secret@127.0.0.1:1/kfm"}, 5, ["127.0.0.1:1"],
    ),
    "no ledger": (["status"], {"KFM_HOME": "elsewhere"}, 2, ["there is no ledger"]),
}  # fmt: skip


@pytest.mark.clause("RPL-03")
def test_a_refusal_is_one_line_with_its_exit_code_and_changes_nothing(
    stand: Stand, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand.bring("failed", 2)
    files = {
        "s.yaml": document(), "wrong.yaml": {"apiVersion": "v0"}, "odd.yaml": {"colour": 1},
        "dry.yaml": document(options={"dry_run": True}), "dsn.yaml": {"wal_dsn": "mysql://kfm:secret@db"},
    }  # fmt: skip
    for file, content in files.items():
        (tmp_path / file).write_text(yaml.safe_dump(content))
    before = (every_row(stand.pipeline.database), sorted(path.name for path in tmp_path.iterdir()))
    for name, (arguments, environment, code, parts) in REFUSED.items():
        with monkeypatch.context() as patched:
            for variable, value in environment.items():
                patched.setenv(variable, value)
            answer = call(*arguments)
        answer.refused(*parts, code=code)
        assert "secret" not in answer.err, name
        assert (every_row(stand.pipeline.database), sorted(path.name for path in tmp_path.iterdir())) == before, name


def test_options_override_the_environment_which_overrides_the_config_file(
    stand: Stand, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"home": str(tmp_path / "home"), "env": "stage"}))
    stand.bring("failed", 1)
    arguments = ["select", *SCOPE, "--json", "--config", "config.yaml"]
    monkeypatch.delenv("KFM_HOME")
    assert call(*arguments).document["env"] == "stage"
    monkeypatch.setenv("KFM_ENV", "prod")
    assert call(*arguments).document["env"] == "prod"
    assert call("--env", "dev", *arguments).document["env"] == "dev"
    assert call(*arguments, "--env", "dev").document["env"] == "dev"


def test_nodd_replay_has_the_same_commands(stand: Stand, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["select", "--status", "failed"], command=replay, name="nodd-replay")
    assert ended.value.code == 3
    assert capfd.readouterr().err.startswith("nodd-replay: guard scope refused")


@pytest.mark.clause("RPL-05")
def test_following_a_replay_prints_once_that_no_process_works_and_keeps_waiting(stand: Stand) -> None:
    stand.bring("failed", 1)
    run = stand.engine.start(selection(), PERSON)
    seconds = iter(range(0, 10_000, int(IDLE_SECONDS)))
    shown = StringIO()
    looks = 0

    def wait(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 6:
            stand.engine.pause(run.replay_run_id, UNAPPROVED)
        if looks == 12:
            stand.engine.stop(run.replay_run_id, UNAPPROVED)

    report = follow(
        stand.engine,
        run.replay_run_id,
        console=Console(file=shown, width=200),
        wait=wait,
        now=lambda: float(next(seconds)),
    )
    assert report.run.state is ReplayState.STOPPED
    assert shown.getvalue().count("start kfm drain or kfm ui") == 1


@pytest.mark.clause("RPL-05")
def test_ctrl_c_leaves_the_replay_running_and_names_the_stop_command(stand: Stand) -> None:
    stand.bring("failed", 1)
    run = stand.engine.start(selection(), PERSON)
    shown, interrupted = StringIO(), Mock(side_effect=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        follow(stand.engine, run.replay_run_id, console=Console(file=shown, width=200), wait=interrupted)
    assert f"kfm replay stop {run.replay_run_id}" in shown.getvalue()
    assert stand.engine.report(run.replay_run_id).run.state is ReplayState.RUNNING


def test_mode_backfill_starts_a_backfill_and_its_dry_run_starts_nothing(stand: Stand, call: Call) -> None:
    arguments = ["--mode", "backfill", *DAYS]
    assert call("dry-run", *arguments, "--json").document["listings"] == 2
    assert every_row(stand.pipeline.database)["replay_runs"] == []
    answer = call("run", *arguments, *START, "--json")
    assert answer.code == 0
    [row] = [json.loads(text) for text in every_row(stand.pipeline.database)["replay_runs"]]
    assert (row["replay_run_id"], row["mode"]) == (answer.document["replay_run_id"], "backfill")
    assert {day.day.isoformat() for day in day_progress(stand.pipeline.database, row["replay_run_id"])} == {
        "2025-12-01",
        "2025-12-02",
    }
