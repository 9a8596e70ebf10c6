"""The command line: bad input gives one error line and an exit code; lists show the records."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from importlib import resources
from pathlib import Path

import click
import pytest

from kfm_dagster import __version__
from kfm_dagster.cli.demo import MAX_SKIPPED_SHOWN, show_result
from kfm_dagster.cli.main import ALIASES, COMMANDS, SHOWN, kfm
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.deployment.drain import DrainResult
from kfm_dagster.deployment.local import Deployment
from kfm_dagster.errors import ExitCode
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.deliveries import Delivery, DeliveryState
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.rejections import IgnoredRecord, Rejection
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.settings import Settings, environment
from kfm_dagster.stages.card import REPLAY_PLAN, Card
from kfm_dagster.storage import database
from kfm_dagster.storage.statements import Migration, migrations
from kfm_dagster.typed_numbers import LARGEST
from kfm_dagster_tests.commands import Call, commands, parameters, state_of, words_of
from kfm_dagster_tests.programs import run_program
from kfm_dagster_tests.transactions import own_tx

SECRET = "s3cr3t-word"
UNKNOWN_ID = "00000000-0000-8000-8000-000000000000"
DOWN = f"postgresql://kfm:{SECRET}@127.0.0.1:1/kfm"
NO_QUEUE = (
    f"AWS_ENDPOINT_URL=http://127.0.0.1:1 AWS_ACCESS_KEY_ID=testing AWS_SECRET_ACCESS_KEY={SECRET} "
    "AWS_DEFAULT_REGION=us-east-1"
)
DAY = "2025-12-03"
CHECKED = "the contract is in order; no object was read: add --sample OBJECT"
TOPIC = "arn:aws:sns:us-east-1:123901341784:NewGFSObject"


def test_every_command_has_help_with_an_example(call: Call) -> None:
    faults = []
    for path, _ in commands():
        shown, command = call(*path, "--help"), " ".join(("kfm", *path))
        examples = [line for line in shown.out.splitlines() if line.strip().startswith("Example: ")]
        if shown.code != ExitCode.DONE or f"Usage: {command}" not in shown.out:
            faults.append(f"{command} --help ends with {shown.code}")
        if len(examples) != 1 or command not in examples[0]:
            faults.append(f"{command} has the examples {examples}")
    assert not faults


def test_every_numeric_parameter_has_an_upper_bound() -> None:
    numbers = [
        parameter.type
        for _, _, parameter in parameters()
        if parameter.type.name in {"integer", "integer range", "float", "float range"}
    ]
    assert len(numbers) > 30
    for number in numbers:
        assert isinstance(number, click.IntRange | click.FloatRange)
        assert number.max <= LARGEST


def test_the_help_has_four_groups_with_a_line_per_command_and_only_names_the_other_commands(call: Call) -> None:
    lines = call("--help").out.splitlines()
    assert len(lines) <= 45
    assert [line for line in lines if re.fullmatch("[A-Z][a-z]+:", line)] == ["Options:"] + [
        f"{name}:" for name in SHOWN
    ]
    others = ", ".join(sorted(COMMANDS.keys() - set().union(*SHOWN.values())))
    assert f"  More commands, in the guides: {others}." in lines
    listed = dict(line.split(maxsplit=1) for line in lines[lines.index("Try:") :] if line.startswith("  "))
    assert len(listed) <= 26
    assert set(listed) == set().union(*SHOWN.values())
    for name, command in kfm.commands.items():
        summary = " ".join((command.help or "").split("\n\n")[0].split())
        assert COMMANDS[name].summary() == summary
        assert listed.get(name, summary) == summary
    for name in ALIASES:
        assert call(name, "--help").out.startswith(f"Usage: kfm {name} ")


STAGES = ["dagster", "boto3", "numpy", "pyarrow", "shapely", "pyproj", "duckdb", "h5py", "jsonschema", "pystac"]
STAGES += ["kfm_dagster.ingest.node", "kfm_dagster.readers", "kfm_dagster.lineage.store", "kfm_dagster.catalog.store"]
"""Modules of the stages, which a command that only reads the database must not import."""
OTHERS = ["kfm_dagster.demo", "kfm_dagster.deployment", "kfm_dagster.recovery", "kfm_dagster.cli.dlq"]
MOST_MODULES = {"doctor": 270, "wal": 645}
"""Command > its maximum number of modules, half of them from Python itself and SQLAlchemy."""


@pytest.mark.parametrize(
    "commands",
    [
        [
            (["--help"], ["sqlalchemy", "boto3", "kfm_dagster.ingest", "kfm_dagster.demo", "kfm_dagster.deployment"]),
            (["doctor", "--help"], ["sqlalchemy", *STAGES]),
        ],
        [
            (["wal", "list"], [*STAGES, *OTHERS, "pydantic_settings"]),
            (["alerts", "list"], STAGES),
            (["status"], STAGES),
            (["explain", "--help"], ["dagster"]),
            (["drain", "--help"], ["kfm_dagster.demo", "h5py", "moto"]),
        ],
    ],
    ids=["without a database", "with a database"],
)
@pytest.mark.usefixtures("home")
def test_a_command_does_not_import_the_modules_of_other_commands(commands: list[tuple[list[str], list[str]]]) -> None:
    """The commands run in one process, so the imports of a command include those of the commands before it."""
    Pipeline.open(Settings.load()).close()
    code = f"""
import sys
from kfm_dagster.cli.main import main
for arguments, spared in {commands!r}:
    try:
        main(arguments)
    except SystemExit as ended:
        print(ended.code, *sorted(set(spared) & set(sys.modules)), file=sys.stderr)
    assert len(sys.modules) < {MOST_MODULES}.get(arguments[0], 2000), arguments
"""
    done = run_program(sys.executable, "-c", code)
    assert (done.returncode, done.stderr.split("\n")) == (0, [*["0"] * len(commands), ""])


def test_only_commands_that_need_contracts_load_them(
    call: Call, ledger: dict[str, NoddWalRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFM_CONTRACTS_DIR", "nowhere")
    for command in (["wal", "list", "--dataset", "hrrr"], ["console", "--port", "39872"], ["mcp"]):
        assert "KFM_CONTRACTS_DIR" in call(*command).err
    for command in (["status"], ["wal", "list"]):
        assert "KFM_CONTRACTS_DIR" not in call(*command).err


def test_the_help_of_a_group_has_the_whole_summary_of_each_command(call: Call) -> None:
    for path, command in commands():
        *group, name = path or ("",)
        if group:
            summary = " ".join((command.help or "").split("\n\n")[0].split())
            listed = " ".join(call(*group, "--help").out.split())
            assert f" {name} {summary}" in listed, path


def test_a_group_called_without_a_command_prints_the_help_of_the_group(call: Call) -> None:
    for group in ((), ("wal",), ("replay",)):
        answer = call(*group)
        assert (answer.code, answer.out) == (ExitCode.USAGE, "")
        assert answer.err == call(*group, "--help").out


BAD_INPUT: dict[str, list[str]] = {
    # the command line as typed, with variables: texts that its error line must contain
    "ingset": ["No such command 'ingset'"],
    "wal lsit": ["No such command 'lsit'"],
    "wal show": ["Missing argument 'WAL_ID'"],
    "wal list --colour": ["No such option", "--colour"],
    "units list --limit 0": ["1<=x<=10000", "next: kfm units list --help"],
    "wal list --dataset goes-xyz": ["goes-xyz", "nexrad-l2", "next: kfm dataset list"],
    "units list --from tomorrow": ["--from 'tomorrow'", "a day or a moment"],
    "units list --ids --json": ["--ids and --json"],
    "wal history ff": ["there is no"],
    "wal rejected --body": ["--message ID"],
    "KFM_ENV=production wal list": ["KFM_ENV", "'production'"],
    f"KFM_WAL_DSN=oracle://{SECRET}@x wal list": ["KFM_WAL_DSN"],
    "KFM_WAL_DSN=sqlite:///elsewhere/new.db wal list": ["no ledger yet", "elsewhere/new.db"],
    **{
        f"demo --objects {folder}": [
            "no object of any dataset", f"observed {folder}: {files} looked at", "expected DIR/<bucket>/<key>", "next: "
        ]
        for folder, files in (("empty", "0 files"), ("latin", "1 file"))
    },
    "dataset check wrong.yaml": ["wrong.yaml", "apiVersion"],
    "dataset check broken.yaml": ["broken.yaml line 2 is not valid YAML"],
    "dataset check clash.yaml": ["observed nexrad-l2 and nexrad-again"],
    "dataset check latin/one.yaml": ["latin/one.yaml line 1 is no UTF-8 text"],
    "KFM_CONTRACTS_DIR=latin dataset list": ["latin/one.yaml line 1 is no UTF-8 text"],
    **{
        f"{command} {place}": [command.split()[-1], expected]
        for command in ("cloud --env-file", "replay select --dataset goes-abi --save", "validate --html")
        for place, expected in (
            ("/proc/x", "/proc/x cannot be written (No such file"),
            ("/proc/version", "/proc/version cannot be written"),
            ("no/x", "there is no folder no"),
        )
    },
    **{
        f"{command} wrong.yaml": [
            "may have been edited; observed wrong.yaml; expected a new file; next: move it away", command.split()[-1]
        ]
        for command in (
            f"dataset new gfs --like hrrr --bucket abc --topic {TOPIC} --out", "replay select --dataset goes-abi --save"
        )
    },
    **{
        f"KFM_HOME={place} {command}": ["the data root cannot be written to", f"{place}: ", "KFM_HOME"]
        for command, place in (
            ("demo", "/proc/x/y"), ("ui --port 39871", "/proc/x"), ("drain", "wrong.yaml/home"),
            ("worker", "wrong.yaml/home"),
        )
    },
    **{
        f"dataset new {dataset} --bucket my-bucket --out new.yaml {options}": [expected]
        for dataset, options, expected in (
            ("My_Data", f"--like hrrr --topic {TOPIC}", "malformed dataset id"),
            ("my-data", f"--like sref --topic {TOPIC}", "no built-in contract has this id"),
            ("hrrr", f"--like hrrr --topic {TOPIC}", "has this id already"),
            ("my-data", f"--like hrrr --bucket My_Bucket --topic {TOPIC}", "name of a bucket; observed My_Bucket"),
            ("my-data", "--like hrrr --topic NewGFS", "not an ARN of SNS; observed NewGFS; expected arn:aws:sns:"),
            ("my-data", f"--like surface-obs --topic {TOPIC}", "announced by no topic; observed --topic arn:aws:sns:"),
        )
    },
    "init --role kfm_deployment": ["only PostgreSQL has roles; observed sqlite"],
    # Neither the empty home nor the home with a ledger has a catalog.
    "items search --time 2025-12-03/2025-12-01": ["ends before it begins"],
    **{
        f"items search --bbox {box}": ["not a box in degrees"] for box in ("1,2,3", "0,50,10,40", "-190,0,10,40")
    },
    **{
        f"items search{options}": ["home/catalog", "KFM_HOME"]
        for options in ("", " --json", " --where platform=x", " --parquet x.parquet")
    },
    "reconcile --from 2999-01-01 --to 2999-01-02": ["; next: "],
    # If the run is unknown, the folder of run-state is not created.
    "KFM_RUN_STATE=run-state replay compare latest": ["; next: "],
}  # fmt: skip
ONE_DAY = f"--from {DAY} --to {DAY} --reason outage"
OF_A_LEDGER: dict[str, list[str]] = {
    # As BAD_INPUT, for commands that need a ledger.
    f"backfill run nexrad-l2 --from {DAY} --to 2025-12-02 --reason outage": ["the window cannot be backfilled"],
    "backfill run nexrad-l2 --from 1990-01-01 --to 1990-01-01 --reason outage": ["1991-06-01"],
    "backfill run nexrad-l2 --from 2999-01-01 --to 2999-01-01 --reason outage": ["the window cannot be backfilled"],
    f"backfill run goes-xyz {ONE_DAY}": ["goes-xyz"],
    f"backfill run {ONE_DAY}": ["DATASET"],
    **{
        f"KFM_DATASETS=nexrad-l2 backfill run hrrr {ONE_DAY}{option}": [
            "does not follow this dataset; observed hrrr; expected one of nexrad-l2", "KFM_DATASETS"
        ]
        for option in ("", " --dry-run")
    },
    "backfill status bf-1": ["unknown backfill"],
    "backfill status --follow": ["--follow"],
    # TEST-NET-1 (RFC 5737): no machine has this address.
    "console --host 192.0.2.1 --port 39873": ["observed 192.0.2.1 port"],
    **{f"stac {command}": ["KFM_STAC_API_DSN"] for command in ("status", "check", "rebuild")},
}  # fmt: skip
AWAY: dict[str, list[str]] = {
    f"KFM_WAL_DSN={DOWN} wal list": ["127.0.0.1:1"],
    f"{NO_QUEUE} drain": ["queue kfm-nodd-primary does not answer"],
    f"{NO_QUEUE} worker": ["queue kfm-nodd-primary does not answer"],
    **{
        f"KFM_WAL_DSN=sqlite:///garbage.db {command}": [
            "the file is damaged, or not a database", "garbage.db", "next: correct KFM_HOME or KFM_WAL_DSN"
        ]
        for command in ("validate", "wal list", "explain latest", "export graph")
    },
}  # fmt: skip


@pytest.mark.parametrize("place", ["an empty home", "a home with a ledger"])
def test_bad_input_gives_one_error_line_and_changes_nothing(
    place: str, call: Call, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    lines = BAD_INPUT | AWAY
    if place == "a home with a ledger":
        request.getfixturevalue("ledger")
        lines |= OF_A_LEDGER
    (tmp_path / "wrong.yaml").write_text("kind: NoddDatasetContract\n")
    (tmp_path / "broken.yaml").write_text("a: [")
    text = (resources.files("kfm_dagster.contracts") / "datasets" / "nexrad-l2.yaml").read_text(encoding="utf-8")
    (tmp_path / "clash.yaml").write_text(text.replace("  id: nexrad-l2", "  id: nexrad-again"))
    (tmp_path / "garbage.db").write_text("garbage\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "latin").mkdir()
    (tmp_path / "latin" / "one.yaml").write_bytes("title: Mühle\n".encode("latin-1"))
    before = state_of(tmp_path)
    faults = {}
    for line, expected in lines.items():
        variables, words = words_of(line)
        with environment(variables):
            answer = call(*words)
        is_one_line = answer.err.startswith("kfm: ") and answer.err.count("\n") == 1 and SECRET not in answer.err
        code = ExitCode.DEPENDENCY_UNAVAILABLE if line in AWAY else ExitCode.USAGE
        if (
            (answer.code, answer.out) != (code, "")
            or not is_one_line
            or not all(text in answer.err for text in expected)
        ):
            faults[line] = answer
        assert state_of(tmp_path) == before, line
    assert not faults


WRONG = {
    "KFM_CONFIGS_DIR=nowhere": "KFM_CONFIGS_DIR has no pipeline card; observed no file nowhere/state_machine.yaml",
    "KFM_CONFIGS_DIR=half": "KFM_CONFIGS_DIR has no pipeline card; observed no file half/state_machine.yaml",
    "KFM_CONFIGS_DIR=wrong": "retry_policy.max_retries is wrong; observed -3",
    "KFM_CONTRACTS_DIR=nowhere": "KFM_CONTRACTS_DIR",
    "KFM_ENERGY_GRID=ZZZ": "KFM_ENERGY_GRID",
}


@pytest.mark.clause("PCS-14")
def test_with_a_wrong_configuration_a_command_prints_one_error_line_and_starts_and_creates_nothing(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError(f"starts {arguments}")

    monkeypatch.setattr(EmbeddedCloud, "__enter__", refuse)
    monkeypatch.setattr(Deployment, "__enter__", refuse)
    files = Card.load().files
    for folder, texts in (("half", {REPLAY_PLAN: files[REPLAY_PLAN]}), ("wrong", files)):
        (tmp_path / folder).mkdir()
        for file, text in texts.items():
            (tmp_path / folder / file).write_bytes(text.replace(b"max_retries: 3", b"max_retries: -3"))
    before = state_of(tmp_path)
    for variable, expected in WRONG.items():
        for command in ("demo", "ui --port 39871", "drain", "worker"):
            with environment(words_of(variable)[0]):
                call(*command.split()).refused(expected)
            assert state_of(tmp_path) == before, (variable, command)


READ_ONLY = [
    *(f"wal {words}" for words in ("list", f"show {UNKNOWN_ID}", f"history {UNKNOWN_ID}", "ignored", "rejected")),
    *(f"quarantine {words}" for words in ("list", f"show {UNKNOWN_ID}")),
    *(f"replay {words}" for words in ("status", "compare latest")),
    *(f"replay {words} --dataset goes-abi" for words in ("inspect", "dry-run")),
    *(f"dlq {words}" for words in ("status", "list", "plan")),
    *(f"export {words}" for words in ("dcat", "graph", "--out public")),
    *("kill-switch list", "backfill status", "governance log", "alerts list"),
    *("explain latest", "validate", "clock", "clock --ask"),
]
"""Commands that neither create nor migrate a ledger; `clock --ask` adds readings to an existing ledger."""


def test_read_only_commands_do_not_migrate_an_older_ledger(
    call: Call, ledger: dict[str, NoddWalRecord], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Migration(
        number=2, name="of_a_later_release", statements=("CREATE TABLE second_things (thing_id integer)",)
    )
    monkeypatch.setattr(database, "migrations", lambda dialect: (*migrations(dialect), later))
    before = state_of(home)
    for command in READ_ONLY:
        older = "kfm: the database has an older schema than this release needs; "
        call(*command.split()).refused(older, code=ExitCode.REFUSED)
        assert state_of(home) == before, command


def test_a_database_of_another_application_gets_no_ledger(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite3.connect(tmp_path / "another.db")) as another:
        another.execute("CREATE TABLE theirs (a)")
    monkeypatch.setenv("KFM_WAL_DSN", f"sqlite:///{tmp_path / 'another.db'}")
    for command in (*READ_ONLY, "kill-switch on goes-abi --reason test --expires 2h"):
        refusal = "kfm: there is no ledger yet; observed a database without a ledger; expected "
        call(*command.split()).refused(refusal)
    with closing(sqlite3.connect(tmp_path / "another.db")) as another:
        assert another.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]


def test_wal_list_prints_an_object_for_each_record_that_matches_its_options(
    call: Call, ledger: dict[str, NoddWalRecord]
) -> None:
    listed = call("wal", "list", "--json")
    assert (listed.code, listed.err) == (ExitCode.DONE, "")
    newest_first = sorted(ledger.values(), key=lambda record: record.event_time, reverse=True)
    assert listed.rows == [record.model_dump(mode="json") for record in newest_first]
    assert {row["status"] for row in listed.rows} == {"pending", "succeeded", "failed"}
    for options, statuses in {
        "--status failed": [Status.FAILED],
        "--error-code missing_object": [Status.FAILED],
        f"--dataset nexrad-l2 --partition {DAY} --status pending": [Status.PENDING],
        "--dataset goes-abi": [],
        "--partition 2025-12-04": [],
        "--suspect --status failed": [],
        "--operator integrity_check": [Status.FAILED],
        "--text no-such-part --to 2999-01-01": [],
        "--from 2999-01-01": [],
        "--status quarantined": [],
    }.items():
        named = [row["wal_id"] for row in call("wal", "list", "--json", *options.split()).rows]
        assert named == [ledger[status].wal_id for status in statuses], options
        assert call("units", "list", "--ids", *options.split()).out.splitlines() == named, options
    few, all_of_them = (call("wal", "list", "--json", "--limit", str(limit)) for limit in (2, 100))
    assert (len(few.rows), few.err) == (2, "the first 2 rows; more: --limit, or a narrower filter\n")
    assert (len(all_of_them.rows), all_of_them.err) == (len(ledger), "")


@pytest.mark.clause("OPR-19")
def test_the_demo_names_skipped_objects_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    why = {f"noaa-goes17/[{number:02}].nc": "its key matches no contract" for number in range(MAX_SKIPPED_SHOWN + 2)}
    result = DrainResult(
        datasets={}, rejected=0, messages=0, seconds=1, database="d", catalog="c", lineage="l", skipped=why
    )
    show_result(result)
    shown = capsys.readouterr().out
    assert "  skipped noaa-goes17/[00].nc: its key matches no contract\n" in shown
    assert shown.count("  skipped ") == MAX_SKIPPED_SHOWN
    assert "and 2 more files were skipped" in shown
    assert result.as_json()["skipped"] == why


@pytest.mark.clause("OPR-19")
def test_the_demo_names_unexpected_outcomes_and_ends_with_exit_code_4(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"received": 2, "succeeded": 1, "failed": 0, "quarantined": 1, "duplicates": 0}
    nothing = dict.fromkeys(counts, 0)
    fine = DrainResult(
        datasets={"goes-abi": counts, "hrrr": nothing},
        rejected=0, messages=2, seconds=1, database="d", catalog="c", lineage="l", published=2,
    )  # fmt: skip
    line = "s3://b/k: quarantined (missing_object); expected succeeded"
    for result, code in ((fine, 0), (replace(fine, unexpected=(line,)), ExitCode.FINISHED_WITH_FAILURES)):
        monkeypatch.setattr("kfm_dagster.cli.demo.run_demo", lambda *_, result=result, **__: result)
        shown, as_json = (call("demo", "--home", str(tmp_path / "h"), *more) for more in ([], ["--json"]))
        assert shown.code == as_json.code == code
        assert ("NOT as expected, of 2 objects" in shown.out, f"  {line}\n" in shown.out) == (bool(code), bool(code))
        assert ("as expected: each of 2 objects" in shown.out) is not bool(code)
        assert json.loads(as_json.out)["unexpected"] == list(result.unexpected)
        # A dataset without messages has no row.
        assert ("goes-abi" in shown.out, "hrrr" in shown.out) == (True, False)
        assert max(map(len, shown.out.splitlines()[:4])) <= 80


@pytest.fixture
def ignored(home: Path) -> None:
    """A ledger with three messages that gave no unit."""
    pipeline = Pipeline.open(Settings.load())
    for number, (reason, dataset, key) in enumerate(
        [("sidecar", "hrrr", "hrrr.a/1.idx"), ("sidecar", "hrrr", "hrrr.b/2.idx"), ("test_event", None, None)]
    ):
        record = IgnoredRecord(record_index=0, reason=reason, dataset=dataset, bucket=key and "b", key=key)
        own_tx(pipeline.deliveries).record(
            [
                Delivery(
                    message_id=f"m{number}",
                    queue="q",
                    receipt_handle="r",
                    landing_sha256="a" * 64,
                    ignored=(record,),
                    state=DeliveryState.IGNORED,
                )
            ]
        )
    pipeline.close()


@pytest.mark.clause("OPR-19")
def test_wal_ignored_filters_by_its_options_and_counts_by_dataset_and_reason(call: Call, ignored: None) -> None:
    for options, messages in {
        "": ["m2", "m1", "m0"],
        "--dataset hrrr": ["m1", "m0"],
        "--reason test_event": ["m2"],
        "--bucket b --key-prefix hrrr.b/": ["m1"],
        "--message m0": ["m0"],
        "--limit 1": ["m2"],
        "--key-prefix hrrr%": [],
    }.items():
        listed = [row["message_id"] for row in call("wal", "ignored", "--json", *options.split()).rows]
        assert listed == messages, options
    counts = call("wal", "ignored", "--counts", "--json").rows
    assert [(row["dataset"], row["reason"], row["records"], row["messages"]) for row in counts] == [
        (None, "test_event", 1, 1),
        ("hrrr", "sidecar", 2, 2),
    ]
    shown = call("wal", "ignored").out
    assert "by dataset and reason" in shown
    [newest] = [line.split() for line in shown.splitlines() if "hrrr.b/2.idx" in line]
    assert newest[1:3] == ["hrrr", "sidecar"]
    assert "hrrr.b/2.idx" not in call("wal", "ignored", "--counts").out
    assert call("wal", "ignored", "--dataset", "goes-abi").out == "by dataset and reason: none\n"


@pytest.fixture
def rejected(home: Path) -> None:
    """A ledger with two rejected messages, one of them for two reasons."""
    pipeline = Pipeline.open(Settings.load())
    for number, reasons in enumerate([("malformed_json",), ("unknown_bucket", "key_grammar_mismatch")]):
        message = SqsMessage(message_id=f"rejected-{number}", body=f"{{{number}")
        landed = pipeline.landing.land([message, SqsMessage(message_id="another", body="{}")])
        delivery = Delivery(message_id=message.message_id, queue="q", receipt_handle="r", landing_sha256=landed)
        own_tx(pipeline.deliveries).record([delivery])
        own_tx(pipeline.deliveries).reject(
            Rejection(message_id=delivery.message_id, record_index=index, reason_code=reason, detail="d")
            for index, reason in enumerate(reasons)
        )
    pipeline.close()


@pytest.mark.clause("SEC-05")
def test_wal_rejected_filters_by_its_options_and_prints_the_original_message(call: Call, rejected: None) -> None:
    for options, reasons in {
        "": ["key_grammar_mismatch", "malformed_json", "unknown_bucket"],
        "--reason unknown_bucket": ["unknown_bucket"],
        "--message rejected-1": ["key_grammar_mismatch", "unknown_bucket"],
        "--message rejected": ["key_grammar_mismatch", "malformed_json", "unknown_bucket"],
        "--message rejected-1 --limit 1": ["unknown_bucket"],
        "--message %": [],
    }.items():
        rows = call("wal", "rejected", "--json", *options.split()).rows
        assert sorted(row["reason_code"] for row in rows) == reasons, options
        shown = call("wal", "rejected", *options.split()).out
        assert all(row["message_id"] in shown for row in rows if row["message_id"])
    assert call("wal", "rejected", "--message", "rejected-1", "--body").out == "{1\n"
    for argument, expected in {"rejected": "rejected-0, rejected-1", "m0123456789": "no message of that id"}.items():
        call("wal", "rejected", "--message", argument, "--body").refused(expected)


NOT_HERE = {
    "alerts test", "announcements failing", "announcements list", "dlq list", "export verify", "reconcile",
    "stac check", "stac rebuild", "stac status", "retention run",
}  # fmt: skip
"""`retention run` is an action; the other commands need a channel, receiver, bundle, queue, bucket or API."""
EMPTY = {"alerts list", "gaps", "governance pending", "items search", "replay list", "replay intents", "retention plan"}
"""Lists that are empty for this ledger."""


@pytest.mark.parametrize("width", [80, 120])
def test_every_list_prints_one_line_per_row_within_the_width_and_the_same_rows_as_json_and_ids(
    width: int,
    call: Call,
    ledger: dict[str, NoddWalRecord],
    ignored: None,
    rejected: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing = ledger[Status.FAILED].wal_id
    assert (
        call("units", "quarantine", failing, "--reason-code", "operator_request", "--reason", "a review of errors").code
        == 0
    )
    days = ("--from", DAY, "--to", DAY, "--reason", "the first fill of the catalog")
    assert call("backfill", "run", "nexrad-l2", *days).code == 0
    assert call("pause", "all", "--reason", "the catalog is being moved, in several steps of one day each").code == 0
    words = {"units history": [failing], "units ignored": ["--counts"]}
    monkeypatch.setenv("COLUMNS", str(width))
    lists, with_ids, faults = set(), set(), {}
    for path, command in commands():
        is_list = any(
            isinstance(option, click.Option) and (option.help or "").startswith("One JSON object per line")
            for option in command.params
        )
        line = " ".join(path)
        is_action = line not in words and any(parameter.required for parameter in command.params)
        if not is_list or is_action or line in NOT_HERE:
            continue
        lists.add(line)
        shown, as_json = call(*path, *words.get(line, [])), call(*path, *words.get(line, []), "--json")
        table = shown.out.splitlines()
        rule = [number for number, text in enumerate(table) if set(text.strip()) == {"─"}]
        body = [text for text in table[rule[0] + 1 :] if text.strip()] if rule else []
        if max(map(len, table), default=0) > width or len(body) != len(as_json.rows) or bool(body) is (line in EMPTY):
            faults[line] = (shown, as_json)
        if any("--ids" in option.opts for option in command.params):
            rows, ids = call(*path, "--json").rows, call(*path, "--ids").out.splitlines()
            if not all(any(name in map(str, row.values()) for row in rows) for name in ids) or bool(ids) != bool(rows):
                faults[f"{line} --ids"] = (rows, ids)
            assert "exclude each other" in call(*path, "--ids", "--json").err
            with_ids.add(line)
    assert not faults
    assert {"units rejected", "units ignored", "dataset list", "governance pending", "backfill status"} <= with_ids
    assert len(lists) > 12


def test_wal_show_has_the_fields_of_the_list_and_the_history_has_every_transition_oldest_first(
    call: Call, ledger: dict[str, NoddWalRecord]
) -> None:
    record = ledger[Status.FAILED]
    [row] = call("wal", "show", record.wal_id, "--json").rows
    assert row | record.model_dump(mode="json") == row
    assert set(row) - set(record.model_dump()) == {"issues", "versions", "lease", "cases", "governance", "history"}
    table = call("wal", "show", record.wal_id).out
    for name in ("wal_id", "last_error_code", "missing_object"):
        assert name in table
    rows = call("wal", "history", ledger[Status.SUCCEEDED].wal_id, "--json").rows
    assert [(row["version"], row["from_status"], row["to_status"]) for row in rows] == [
        (1, None, "pending"),
        (2, "pending", "in_progress"),
        (3, "in_progress", "succeeded"),
    ]
    assert "in_progress" in call("wal", "history", ledger[Status.SUCCEEDED].wal_id).out
    for command in ("show", "history"):
        assert f"no such unit; observed {UNKNOWN_ID!r}; expected the id" in call("wal", command, UNKNOWN_ID).err


def test_dataset_list_shows_every_contract(call: Call, contracts: ContractRegistry) -> None:
    rows = call("dataset", "list", "--json").rows
    assert [(row["id"], row["buckets"]) for row in rows] == [
        (contract.id, contract.storage.buckets) for contract in contracts
    ]
    table = call("dataset", "list").out
    assert all(contract.id in table for contract in contracts)


def test_ctrl_c_ends_without_a_traceback(
    call: Call, ledger: dict[str, NoddWalRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kfm_dagster.ledger.queries.LedgerQueries.find", interrupted)
    answer = call("wal", "list")
    assert answer.code == 130
    # click starts a new line after the terminal's ^C.
    assert answer.err == "\nkfm: interrupted; nothing is lost, run the command again to go on\n"


def test_the_printed_version_is_the_version_of_the_package(call: Call) -> None:
    assert call("--version").out == f"kfm, version {__version__}\n"


PREFIXED = (
    ("wal", "show"),
    ("wal", "history"),
    ("quarantine", "add", "--reason-code", "bad", "--reason", "moved radar"),
    ("governance", "log", "--wal-id"),
    ("replay", "select", "--wal-id"),
)


def test_a_unit_is_selected_by_a_prefix_of_its_id(call: Call, ledger: dict[str, NoddWalRecord]) -> None:
    wal_id = ledger["pending"].wal_id
    for command in PREFIXED:
        assert call(*command, wal_id[:8]).code == ExitCode.DONE, command
        call(*command, wal_id[:3]).refused(f"{wal_id[:3]}: {wal_id}")


def _in_a_shell(script: str) -> subprocess.CompletedProcess[str]:
    return run_program("/bin/bash", "-c", f"set -o pipefail; {script}", KFM=f"{Path(sys.executable).parent / 'kfm'}")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_an_output_that_cannot_be_written_gives_one_error_line(ledger: dict[str, NoddWalRecord]) -> None:
    done = _in_a_shell("$KFM wal list --json > /dev/full")
    assert done.returncode == ExitCode.DEPENDENCY_UNAVAILABLE
    assert done.stderr == (
        "kfm: the answer cannot be written; observed No space left on device; next: look where the output goes\n"
    )


def test_a_closed_pipe_ends_a_command_without_an_error_line(ledger: dict[str, NoddWalRecord]) -> None:
    done = _in_a_shell("$KFM wal list --json | true")
    assert done.returncode in {1, ExitCode.DONE}  # click's code for a closed pipe, or the reader closed it too late
    assert done.stderr == ""
