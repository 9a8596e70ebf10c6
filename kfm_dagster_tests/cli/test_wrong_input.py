"""A wrong value of any parameter gives one error line and a stable exit code, and changes nothing."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import click
import pytest

from kfm_dagster.errors import ExitCode
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster_tests.cli.test_cli import DAY, SECRET, UNKNOWN_ID
from kfm_dagster_tests.commands import Call, parameters, state_of

WRONG: dict[str, str] = {
    **dict.fromkeys(("--from", "--to", "--first-day", "--last-day", "--partition"), "yesterday"),
    **dict.fromkeys(("--event-time-start", "--event-time-end", "--created-after", "--created-before"), "yesterday"),
    **dict.fromkeys(("dataset", "datasets", "dataset_id", "--dataset", "--dataset-in", "--like"), "no data set"),
    "--error-code": "no code",
    **dict.fromkeys(("wal_id", "wal_ids", "--wal-id", "replay_run_id", "backfill_id", "--message", "run"), UNKNOWN_ID),
    **dict.fromkeys(("--env-file", "--svg", "--save", "--html"), "no/folder"),
    **dict.fromkeys(("file", "--sample", "--objects", "--verify", "--certificate", "--key", "--parquet"), "no/file"),
    **dict.fromkeys(("--config", "--selection-file"), "no/file"),
    **dict.fromkeys(("--from-registry", "--registry", "folder"), "no/folder"),
    **dict.fromkeys(("--home", "--out"), "/proc/x"),
    **dict.fromkeys(("--reason", "--actor"), " "),
    **dict.fromkeys(("--role", "--retention-role", "--collection", "--place", "subscription"), "no such"),
    **dict.fromkeys(("--bbox", "--time", "--where", "--expires", "--fields", "--topic", "--bucket"), "no such"),
    **dict.fromkeys(("--replay-reason", "--reason-code"), "No Code"),
    "--text": "ü",
    "name": "no store",
}
"""A wrong value for each parameter that is neither a number nor a choice."""
REQUIRED = {
    **dict.fromkeys(("wal_id", "wal_ids", "replay_run_id", "backfill_id", "message_ids"), UNKNOWN_ID),
    "--reason": "a test", "--from": DAY, "--to": DAY, "--like": "hrrr", "--bucket": "my-bucket", "--dataset": "hrrr",
    "--reason-code": "a_test", "datasets": "hrrr", "dataset_id": "nam", "dataset": "hrrr", "alert_id": "1",
    "proposal_id": "1", "subscription": "s", "file": "one.yaml", "replay from-spec file": "selection.yaml",
    "run": "latest", "name": "G19_ABI-L1b-RadM1_C13", "target": "repository",
}  # fmt: skip
"""Correct values of the parameters that a command requires beside the tested one."""
SCOPE = ["--dataset", "nexrad-l2", "--first-day", DAY, "--last-day", DAY, "--status", "failed"]
BESIDES: dict[str, list[str]] = {
    **{f"replay {name}": SCOPE for name in ("select", "dry-run", "inspect", "run")},
    "dataset new": ["--bucket", "my-bucket"],
    "reconcile": ["--repair"],
    "retry": ["--dataset", "nexrad-l2", "--confirm"],
}
"""Options that a command needs before it checks its other parameters."""
ALONE = {"--selection-file", "wal_ids", "replay_run_id"}
"""Parameters that cannot be combined with BESIDES."""
ANY = {
    # Texts to record or compare, and a host to listen on.
    "--change-ref", "--host", "--key-prefix", "--name", "--incident", "--wal-id", "message_ids",
    "units cases --reason", "units ignored --bucket", "units ignored --message", "units rejected --message",
    *(f"dlq {name} --error-code" for name in ("drain", "list", "plan", "redrive")),
    *(f"replay {name} --error-code" for name in ("select", "dry-run", "inspect", "run")), "--error-code-in",
    # Checked only when there is work, or by a subcommand of the group.
    "export --out", "replay --config", "stac icechunk target", "replay intents --reason", "replay intents --actor",
}  # fmt: skip
"""Parameters that accept any text."""
OTHERWISE = {
    "dataset new --from-registry": (ExitCode.USAGE, "no entries of the open-data registry"),
    "init --role": (ExitCode.USAGE, "only PostgreSQL has roles"),
    "init --retention-role": (ExitCode.USAGE, "only PostgreSQL has roles"),
    "replay compare --dataset": (ExitCode.USAGE, "no run has ingested anything yet"),
    "resume dataset": (ExitCode.REFUSED, "the kill switch is not on; observed no data set"),
    "stac icechunk name": (ExitCode.USAGE, "there is no catalog here"),
    "stac check --collection": (ExitCode.USAGE, "there is no STAC API"),
}
"""Exit codes and texts of errors that name neither parameter nor value, or that are not usage errors."""


def name_of(parameter: click.Parameter) -> str:
    return parameter.opts[0] if isinstance(parameter, click.Option) else str(parameter.name)


def wrong_value(parameter: click.Parameter) -> str:
    if isinstance(parameter.type, click.IntRange | click.FloatRange):
        return "0x1"
    return "nonsense" if isinstance(parameter.type, click.Choice) else WRONG[name_of(parameter)]


def test_each_of_several_wrong_settings_gets_a_line(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFM_LIVE_SHARE", "half")
    monkeypatch.setenv("KFM_ENV", "production")
    monkeypatch.setenv("KFM_WAL_DSN", f"mysql://kfm:{SECRET}@host/db")
    for command in ("status", "doctor"):
        answer = call(command)
        first, *others = answer.err.splitlines()
        assert (answer.code, answer.out) == (ExitCode.USAGE, "")
        assert first == "kfm: 3 settings are wrong; next: correct or unset each of them"
        assert [line.split()[0] for line in others] == ["KFM_ENV", "KFM_WAL_DSN", "KFM_LIVE_SHARE"]
        assert SECRET not in answer.err


def test_a_wrong_value_of_any_parameter_gives_one_error_line_and_changes_nothing(
    call: Call, ledger: dict[str, NoddWalRecord], tmp_path: Path
) -> None:
    contract = resources.files("kfm_dagster.contracts") / "datasets" / "nexrad-l2.yaml"
    (tmp_path / "one.yaml").write_text(contract.read_text(encoding="utf-8"))
    assert call("replay", "select", *SCOPE, "--save", "selection.yaml").code == 0
    before, faults = state_of(tmp_path), {}
    for words_of_command, command, parameter in parameters():
        path, name = " ".join(words_of_command), name_of(parameter)
        line = f"{path} {name}"
        if not path or {name, line} & ANY or (isinstance(parameter, click.Option) and parameter.is_flag):
            continue
        value, words = wrong_value(parameter), path.split()
        for required in command.params:
            other = name_of(required)
            if required is parameter:
                words += [] if name.startswith("--") else [value]
            elif required.required:
                words += [other] if other.startswith("--") else []
                words.append(REQUIRED.get(f"{path} {other}") or REQUIRED[other])
        if name not in ALONE:
            words += BESIDES.get(path, [])
        if name != "--reason" and path in {"reconcile", "retry", "replay run", "replay from-spec"}:
            words += ["--reason", "a test"]
        # A repeated option replaces the earlier value.
        answer = call(*words, *([name, value] if name.startswith("--") else []))
        code, text = OTHERWISE.get(line, (ExitCode.USAGE, value.strip() or name))
        is_named = text in answer.err or name in answer.err
        is_one_line = answer.err.startswith("kfm: ") and answer.err.count("\n") == 1
        if (answer.code, answer.out) != (code, "") or not is_one_line or not is_named:
            faults[line] = answer
        if (after := state_of(tmp_path)) != before:
            faults[f"{line} changes {[path for path in after if after[path] != before.get(path)]}"] = answer
            before = after
    assert not faults, "\n".join(f"{line}: {answer}" for line, answer in faults.items())
