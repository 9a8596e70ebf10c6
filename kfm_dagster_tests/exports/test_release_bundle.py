"""The release bundle: the card's layout, the same bytes for the same data, gpg's approval, and never half of it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from kfm_dagster import __version__
from kfm_dagster.errors import ConfigurationError, ExitCode, KfmError
from kfm_dagster.exports.atomic_files import ForeignFileError
from kfm_dagster.exports.bundle.content import LAYOUT, MANIFEST, OPENING, SIGNATURE, SUMMED
from kfm_dagster.exports.bundle.folder import verify_release, write_release
from kfm_dagster.exports.bundle.signing import BundleSigner
from kfm_dagster_tests.exports import bundle_sample
from kfm_dagster_tests.exports.gpg import Gpg
from kfm_dagster_tests.exports.test_release_tampering import new_signer

DIGESTS = """
import hashlib
from pathlib import Path
from kfm_dagster_tests.exports import bundle_sample
from kfm_dagster.exports.bundle.figures import state_transitions_svg, timeline_pdf
release = bundle_sample.release()
svg = state_transitions_svg(release.card.machine, release.transitions)
pdf = timeline_pdf(release.transitions, release.attempts)
print(hashlib.sha256(svg).hexdigest(), hashlib.sha256(pdf).hexdigest())
"""


@pytest.fixture(scope="module")
def signer() -> BundleSigner:
    return new_signer()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, signer: BundleSigner) -> Path:
    """A bundle of the sample, which no test changes."""
    folder = tmp_path_factory.mktemp("written") / "PTN_EXPORT"
    write_release(bundle_sample.release(), folder, signer)
    return folder


@pytest.mark.clause("PCS-19")
def test_a_bundle_has_the_cards_layout_and_every_part_as_it_was_given(written: Path, signer: BundleSigner) -> None:
    import matplotlib as mpl

    given = bundle_sample.release()
    found = contents(written)
    assert set(found) == set(LAYOUT) == {
        "configs/state_machine.yaml", "configs/replay_plan.yaml", "reports/check_dim_report.json",
        "reports/validate_report.json", "audit.jsonl", "figs/state_transitions.svg", "figs/retry_replay_timeline.pdf",
        "report_manifest.yaml", "SIGNATURE.asc", "SHA256SUMS",
    }  # fmt: skip
    assert found["configs/state_machine.yaml"] == given.card.files["state_machine.yaml"]
    assert found["configs/replay_plan.yaml"] == given.card.files["replay_plan.yaml"]
    assert json.loads(found["reports/check_dim_report.json"]) == given.dim_report
    assert json.loads(found["reports/validate_report.json"]) == given.validate_report
    assert found["audit.jsonl"] == b"".join(given.audit_lines)
    assert found["figs/state_transitions.svg"].startswith(b"<?xml")
    assert found["figs/retry_replay_timeline.pdf"].startswith(b"%PDF-")
    assert sorted(path.name for path in written.parent.iterdir()) == ["PTN_EXPORT", "PTN_EXPORT.cert.asc"]
    assert verify_release(written, [signer.certificate]).signed.fingerprint == signer.fingerprint
    manifest = yaml.safe_load(found[MANIFEST])
    assert [(file["path"], file["size"], file["sha256"]) for file in manifest.pop("files")] == [
        (path, len(found[path]), hashlib.sha256(found[path]).hexdigest()) for path in SUMMED
    ]
    assert manifest == {
        "version": 1,
        "versions": {
            "kfm_dagster": __version__, "state_machine": "1.0.0", "replay_plan": "1.0.0", "matplotlib": mpl.__version__
        },
        "code": {"sha": "5efb3d1" + "0" * 33, "lockfile": "ab" * 32},
        "recorded": {
            "transitions": len(given.transitions), "retries": 3, "replays": 1, "audit_events": len(given.transitions),
            "first": "2025-12-03T06:00:00.000250Z", "last": "2025-12-03T09:10:00.000250Z",
        },
        "signed_by": signer.fingerprint,
    }  # fmt: skip


@pytest.mark.clause("PCS-19")
def test_gpg_verifies_the_signature_and_refuses_another_manifest(
    tmp_path: Path, signer: BundleSigner, gpg: Gpg
) -> None:
    folder = tmp_path / "PTN_EXPORT"
    assert gpg("--import", write_release(bundle_sample.release(), folder, signer)).returncode == 0
    checked = gpg("--status-fd", "1", "--verify", folder / SIGNATURE, folder / MANIFEST)
    assert checked.returncode == 0, checked.stderr
    [valid] = [line.split() for line in checked.stdout.splitlines() if line.startswith("[GNUPG:] VALIDSIG ")]
    assert valid[-1] == signer.fingerprint
    with (folder / MANIFEST).open("ab") as file:
        file.write(b"#")
    assert gpg("--verify", folder / SIGNATURE, folder / MANIFEST).returncode == 1


@pytest.mark.clause("PCS-19")
def test_sha256sum_accepts_a_bundle_and_refuses_a_changed_one(tmp_path: Path, signer: BundleSigner) -> None:
    if (sha256sum := shutil.which("sha256sum")) is None:
        pytest.skip("no sha256sum on the PATH")
    folder = tmp_path / "PTN_EXPORT"
    write_release(bundle_sample.release(), folder, signer)

    def check() -> subprocess.CompletedProcess[str]:
        command = [sha256sum, "--check", "--strict", "SHA256SUMS"]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)

    checked = check()
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.splitlines() == [f"{path}: OK" for path in (*SUMMED, MANIFEST)]
    for path in (*SUMMED, MANIFEST):
        content = (folder / path).read_bytes()
        (folder / path).write_bytes(content + b" ")
        assert check().returncode == 1, path
        (folder / path).write_bytes(content)


def test_the_same_data_give_the_same_bytes_whatever_the_users_style(
    tmp_path: Path, signer: BundleSigner, monkeypatch: pytest.MonkeyPatch
) -> None:
    import matplotlib as mpl

    write_release(bundle_sample.release(), tmp_path / "first", signer)
    first = contents(tmp_path / "first")
    with mpl.rc_context({"font.size": 30, "svg.hashsalt": None, "timezone": "Asia/Tokyo", "pdf.compression": 0}):
        write_release(bundle_sample.release(), tmp_path / "again", signer)
        again = contents(tmp_path / "again")
        assert mpl.rcParams["font.size"] == 30
    # A signature has its own time and salt.
    assert first.pop(SIGNATURE) != again.pop(SIGNATURE)
    assert first == again
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    elsewhere = subprocess.run([sys.executable, "-c", DIGESTS], env=environment, capture_output=True, check=True)
    figures = [first[path] for path in ("figs/state_transitions.svg", "figs/retry_replay_timeline.pdf")]
    assert elsewhere.stdout.decode().split() == [hashlib.sha256(figure).hexdigest() for figure in figures]


def test_nothing_recorded_makes_a_bundle_that_says_so_and_that_a_later_one_replaces_even_damaged(
    tmp_path: Path, signer: BundleSigner
) -> None:
    folder = tmp_path / "deep" / "PTN_EXPORT"
    write_release(bundle_sample.nothing(), folder, signer)
    recorded = verify_release(folder, [signer.certificate]).manifest.recorded
    assert recorded.model_dump() == {
        "transitions": 0, "retries": 0, "replays": 0, "audit_events": 0, "first": None, "last": None
    }  # fmt: skip
    assert (folder / "audit.jsonl").read_bytes() == b""
    (folder / "audit.jsonl").unlink()
    (folder / SIGNATURE).write_bytes(b"")
    other = new_signer()
    certificate = write_release(bundle_sample.release(), folder, other)
    assert verify_release(folder, [other.certificate]).manifest.recorded.transitions > 0
    assert sorted(path.name for path in folder.parent.iterdir()) == ["PTN_EXPORT", "PTN_EXPORT.cert.asc"]
    assert certificate.read_text() == str(other.certificate)


@pytest.mark.parametrize(
    "files",
    [
        {"PTN_EXPORT": b"mine"},
        {"PTN_EXPORT/audit.jsonl": b"mine"},
        {f"PTN_EXPORT/{MANIFEST}": b"version: 1\n"},
        {f"PTN_EXPORT/{MANIFEST}": OPENING, "PTN_EXPORT/figs/note.txt": b"mine"},
        {"PTN_EXPORT.cert.asc": b"mine"},
        {},
    ],
    ids=["a file", "another folder", "another manifest", "a note", "a certificate", "a link"],
)
def test_what_no_export_wrote_is_kept(files: dict[str, bytes], tmp_path: Path, signer: BundleSigner) -> None:
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    if not files:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "PTN_EXPORT").symlink_to(tmp_path / "elsewhere")
    before = contents(tmp_path)
    with pytest.raises(ForeignFileError) as refusal:
        write_release(bundle_sample.release(), tmp_path / "PTN_EXPORT", signer)
    assert "PTN_EXPORT" in str(refusal.value)
    assert refusal.value.exit_code is ExitCode.REFUSED
    assert contents(tmp_path) == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


class Interrupted(list[bytes]):
    """Lines that end in an interruption."""

    def __iter__(self) -> Iterator[bytes]:
        yield b"{}"
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"audit_lines": Interrupted()}, KeyboardInterrupt, "^$"),
        ({"dim_report": {"p_dim": float("nan")}}, ValueError, "NaN|nan|JSON"),
    ],
)  # fmt: skip
def test_a_bundle_that_cannot_be_finished_leaves_the_earlier_one_and_nothing_else(
    changes: dict[str, object], error: type[BaseException], said: str, tmp_path: Path, signer: BundleSigner
) -> None:
    write_release(bundle_sample.nothing(), tmp_path / "PTN_EXPORT", signer)
    before = contents(tmp_path)
    with pytest.raises(error, match=said):
        write_release(replace(bundle_sample.release(), **changes), tmp_path / "PTN_EXPORT", signer)
    assert contents(tmp_path) == before
    assert len(list(tmp_path.iterdir())) == 2


def test_a_bundle_that_cannot_take_its_place_leaves_the_earlier_one(
    tmp_path: Path, signer: BundleSigner, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "PTN_EXPORT"
    write_release(bundle_sample.nothing(), folder, signer)
    before = contents(folder)
    rename = Path.rename

    def refused(path: Path, target: Path) -> Path:
        if target == folder and (path / "audit.jsonl").read_bytes():
            raise PermissionError(13, "Permission denied")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(ConfigurationError, match=r"cannot be written; observed .*Permission denied"):
        write_release(bundle_sample.release(), folder, signer)
    assert contents(folder) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["PTN_EXPORT", "PTN_EXPORT.cert.asc"]


def test_a_key_that_gpg_does_not_know_is_refused(tmp_path: Path) -> None:
    import pysequoia

    with pytest.raises(KfmError, match=r"makes no signature that gpg verifies.*version 4"):
        write_release(bundle_sample.release(), tmp_path / "PTN_EXPORT", new_signer(profile=pysequoia.Profile.RFC9580))
    assert not list(tmp_path.iterdir())
