"""`kfm export` writes and verifies a signed bundle; a refusal is one line and an exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kfm_dagster.errors import ExitCode
from kfm_dagster.exports.bundle.content import LAYOUT
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.settings import Settings
from kfm_dagster_tests.commands import Call, state_of
from kfm_dagster_tests.exports import bundle_sample

Ledger = dict[str, NoddWalRecord]


@pytest.fixture
def recorded(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger with records to release."""
    monkeypatch.setattr("kfm_dagster.cli.export.gather_release", lambda _: bundle_sample.release())


@pytest.fixture
def bundle(recorded: None, call: Call, home: Path) -> Path:
    """A bundle in the default folder, signed by a newly created key."""
    assert call("export").code == ExitCode.DONE
    return home / "exports" / "PTN_EXPORT"


@pytest.mark.clause("PCS-19")
def test_a_bundle_is_written_below_kfm_home_and_a_new_key_is_reported_once(
    recorded: None, call: Call, home: Path, tmp_path: Path
) -> None:
    answer = call("export")
    assert answer.out.splitlines()[0] == str(home / "exports" / "PTN_EXPORT")
    assert (answer.err.count("\n"), str(home / "keys" / "release.key") in answer.err) == (1, True)
    answer = call("export", "--out", str(tmp_path / "there"), "--json")
    assert answer.err == ""
    printed = json.loads(answer.out)
    assert (printed["folder"], sorted(printed["files"])) == (str(tmp_path / "there" / "PTN_EXPORT"), sorted(LAYOUT))
    assert Path(printed["certificate"]).read_bytes() == (home / "keys" / "release.asc").read_bytes()


@pytest.mark.clause("PCS-12", "PCS-19")
@pytest.mark.parametrize(("opened", "code", "why"), [(False, 2, "no ledger yet"), (True, 3, "no quantity was checked")])
def test_an_unpublishable_release_leaves_neither_key_nor_bundle(
    call: Call, home: Path, tmp_path: Path, *, opened: bool, code: int, why: str
) -> None:
    if opened:
        Pipeline.open(Settings.load()).close()
    before = state_of(tmp_path)
    call("export").refused(why, code=code)
    assert state_of(tmp_path) == before
    assert opened or not home.exists()


def test_no_key_is_created_for_an_unwritable_bundle(recorded: None, call: Call, home: Path, tmp_path: Path) -> None:
    (tmp_path / "there" / "PTN_EXPORT").mkdir(parents=True)
    (tmp_path / "there" / "PTN_EXPORT" / "mine.txt").touch()
    before = state_of(tmp_path)
    for out, code in (("/proc/x", ExitCode.USAGE), (str(tmp_path / "there"), ExitCode.REFUSED)):
        call("export", "--out", out).refused("; next: ", code=code)
        assert state_of(tmp_path) == before


@pytest.mark.clause("PCS-19")
def test_verifying_prints_signer_and_time_and_changes_nothing(
    bundle: Path, call: Call, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = state_of(tmp_path)
    answer = call("export", "--verify", str(bundle))
    assert (answer.code, answer.err) == (ExitCode.DONE, "")
    printed = json.loads(call("export", "--verify", str(bundle), "--json").out)
    assert (
        f"7 files, {printed['bytes']} bytes, as {printed['signed_by']} signed them at {printed['signed_at']}"
        in answer.out
    )
    # If the argument is the folder of --out, the command verifies the bundle in it and prints the bundle's path.
    assert answer.out.startswith(f"{bundle}: ")
    assert printed["folder"] == str(bundle)
    assert call("export", "--verify", str(bundle.parent)) == answer
    # With another KFM_HOME, the user names the certificate that came with the bundle.
    monkeypatch.setenv("KFM_HOME", str(tmp_path / "elsewhere"))
    certificate = str(bundle.with_name("PTN_EXPORT.cert.asc"))
    assert call("export", "--verify", str(bundle), "--certificate", certificate).out == answer.out
    assert state_of(tmp_path) == before


@pytest.mark.clause("PCS-19")
def test_a_failed_verification_gives_one_error_line_and_an_exit_code(
    bundle: Path, call: Call, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = bundle / "audit.jsonl"
    content = audit.read_bytes()
    audit.write_bytes(content.replace(b"failed", b"FAILED"))
    (tmp_path / "note").write_text("")
    cases = {
        ("export", "--verify", str(bundle)): (ExitCode.REFUSED, "audit.jsonl has another SHA-256"),
        ("export", "--verify", str(tmp_path / "none")): (ExitCode.USAGE, "does not exist"),
        ("export", "--verify", str(tmp_path / "note")): (ExitCode.USAGE, "is a file"),
        ("export", "--verify", str(bundle), "--certificate", "none"): (ExitCode.USAGE, "does not exist"),
        ("export", "--verify", str(bundle), "--certificate", "note"): (ExitCode.USAGE, "no OpenPGP certificate"),
        ("export", "--verify", str(bundle), "graph"): (ExitCode.USAGE, "cannot be combined with graph"),
    }
    for arguments, (code, expected) in cases.items():
        call(*arguments).refused(expected, code=code)
    audit.write_bytes(content)
    (bundle / "PTN_EXPORT").mkdir()
    call("export", "--verify", str(bundle)).refused("'PTN_EXPORT' does not belong there", code=ExitCode.REFUSED)
    (bundle / "PTN_EXPORT").rmdir()
    monkeypatch.setenv("KFM_HOME", str(tmp_path / "elsewhere"))
    call("export", "--verify", str(bundle)).refused("the certificate to verify with is missing")


FILES = {"dcat": ["catalog.jsonld"], "graph": ["schema.cypher", "graph.cypher", "nodes.csv", "edges.csv"]}


def test_an_export_is_written_below_kfm_home_or_to_out_and_can_be_repeated(
    call: Call, ledger: Ledger, home: Path, tmp_path: Path
) -> None:
    database = (home / "kfm.db").read_bytes()
    for kind, names in FILES.items():
        target = tmp_path / kind
        for folder, options in ((home / "exports" / kind, []), (target, ["--out", str(target)])):
            for _ in range(2):
                answer = call("export", kind, *options, "--json")
                assert answer.code == ExitCode.DONE, answer.err
                assert json.loads(answer.out)["files"] == [str(folder / name) for name in names]
                assert sorted(path.name for path in folder.iterdir()) == sorted(names)
        assert call("export", kind).out.startswith(str(home / "exports" / kind / names[0]))
    assert (home / "kfm.db").read_bytes() == database


def test_an_export_keeps_files_that_it_did_not_write(call: Call, ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file\n")
    for kind, names in FILES.items():
        for name in names:
            (tmp_path / name).mkdir()
            (tmp_path / name / name).write_text("mine\n")
        before = state_of(tmp_path)
        refusals = {name: (ExitCode.REFUSED, f"{name}/{name}") for name in names}
        for out, (code, expected) in {**refusals, "file": (ExitCode.USAGE, "the export cannot be written")}.items():
            call("export", kind, "--out", out).refused(expected, code=code)
            assert state_of(tmp_path) == before
