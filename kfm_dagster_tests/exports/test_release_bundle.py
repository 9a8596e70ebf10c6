"""The release bundle: its layout, reproducible bytes, and the refusal of any change."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pysequoia
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kfm_dagster import __version__
from kfm_dagster.errors import ConfigurationError, ExitCode, KfmError, RefusedError
from kfm_dagster.exports.atomic_files import ForeignFileError
from kfm_dagster.exports.bundle.content import FOLDERS, LAYOUT, MANIFEST, OPENING, SIGNATURE, SUMMED, Recorded
from kfm_dagster.exports.bundle.folder import verify_release, write_release
from kfm_dagster.exports.bundle.signing import BundleSigner, sign_detached
from kfm_dagster_tests.commands import state_of
from kfm_dagster_tests.exports import bundle_sample
from kfm_dagster_tests.exports.conftest import Gpg
from kfm_dagster_tests.programs import printed_by, run_program

BEGIN, END = b"-----BEGIN PGP SIGNATURE-----\n\n", b"-----END PGP SIGNATURE-----\n"
FLIPS = st.tuples(st.sampled_from(LAYOUT), st.floats(0, 1, exclude_max=True), st.integers(0, 7))


def new_signer(**options: object) -> BundleSigner:
    key = pysequoia.Tsk.generate("kfm tests", **options)  # type: ignore[arg-type]
    return BundleSigner(secret=key.signer(), certificate=key.extract_certificate())


@dataclass(frozen=True, kw_only=True)
class Written:
    """A valid bundle, whose files a test may change and restore."""

    folder: Path
    signer: BundleSigner
    contents: dict[str, bytes]

    def refusal(self) -> str:
        with pytest.raises(RefusedError) as refused:
            verify_release(self.folder, [self.signer.certificate])
        line = str(refused.value)
        assert "\n" not in line
        assert self.signer.fingerprint in line
        assert refused.value.exit_code is ExitCode.REFUSED
        return line

    def put(self, path: str, content: bytes) -> None:
        (self.folder / path).write_bytes(content)

    def sign_again(self, manifest: bytes) -> None:
        self.put(MANIFEST, manifest)
        self.put(SIGNATURE, sign_detached(manifest, self.signer.secret))

    def restore(self) -> None:
        shutil.rmtree(self.folder)
        for path, content in self.contents.items():
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            self.put(path, content)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("bundle") / "PTN_EXPORT"
    signer = new_signer()
    write_release(bundle_sample.release(), folder, signer)
    return Written(folder=folder, signer=signer, contents={path: (folder / path).read_bytes() for path in LAYOUT})


@pytest.fixture
def bundle(original: Written) -> Iterator[Written]:
    yield original
    original.restore()
    verify_release(original.folder, [original.signer.certificate])


@pytest.mark.clause("PCS-19")
@settings(max_examples=60, deadline=None)
@given(flip=FLIPS)
def test_a_bundle_with_a_flipped_bit_is_refused_with_the_name_of_the_file(
    original: Written, flip: tuple[str, float, int]
) -> None:
    path, share, bit = flip
    content = bytearray(original.contents[path])
    content[int(share * len(content))] ^= 1 << bit
    original.put(path, bytes(content))
    try:
        assert path in original.refusal()
    finally:
        original.put(path, original.contents[path])
    assert verify_release(original.folder, [original.signer.certificate])[0].fingerprint == original.signer.fingerprint


def armoured(raw: bytes, *, width: int = 64, headers: bytes = b"", end: bytes = b"\n") -> bytes:
    text = base64.b64encode(raw)
    lines = b"".join(text[start : start + width] + end for start in range(0, len(text), width))
    return BEGIN.removesuffix(b"\n").replace(b"\n", end) + headers + end + lines + END.replace(b"\n", end)


def packet(body: bytes) -> bytes:
    # Lengths of one octet and of two (RFC 9580, section 4.2.1).
    length = bytes((len(body),)) if len(body) < 192 else (len(body) - 192 + 0xC000).to_bytes(2)
    return b"\xc2" + length + body


def with_unhashed_subpacket(raw: bytes) -> bytes:
    body = raw[2:]
    hashed = 6 + int.from_bytes(body[4:6])
    # Subpacket 16, the issuer's key id (RFC 9580, 5.2.3.12), where gpg puts it; the signature does not cover it.
    return packet(body[:hashed] + bytes((0, 10, 9, 16)) + bytes(8) + body[hashed + 2 :])


def with_other_digest_octets(raw: bytes) -> bytes:
    at = 2 + 6 + int.from_bytes(raw[6:8]) + 2
    return raw[:at] + bytes((raw[at] ^ 0xFF, raw[at + 1])) + raw[at + 2 :]


SAME_SIGNATURE: dict[str, Callable[[bytes], bytes]] = {
    "a comment": lambda raw: armoured(raw, headers=b"Comment: see https://example.org\n"),
    "line ends of another system": lambda raw: armoured(raw, end=b"\r\n"),
    "longer lines": lambda raw: armoured(raw, width=76),
    "text before": lambda raw: b"\n" + armoured(raw),
    "text after": lambda raw: armoured(raw) + b"\n",
    "no last line end": lambda raw: armoured(raw)[:-1],
    "a blank in the middle": lambda raw: armoured(raw).replace(b"\n-----END", b" \n-----END"),
    "no armour": lambda raw: raw,
    "what gpg and Sequoia write": lambda raw: pysequoia.armor(raw, pysequoia.ArmorKind.Signature).encode(),
    "a packet header of the old format": lambda raw: armoured(bytes((0x88,)) + raw[1:]),
    "a longer packet length": lambda raw: armoured(bytes((0xC2, 0xFF)) + (len(raw) - 2).to_bytes(4) + raw[2:]),
    "a second packet": lambda raw: armoured(raw + raw),
    "an unhashed subpacket": lambda raw: armoured(with_unhashed_subpacket(raw)),
    "other octets of the digest": lambda raw: armoured(with_other_digest_octets(raw)),
}


@pytest.mark.clause("PCS-19")
def test_a_valid_signature_in_another_form_is_refused(bundle: Written) -> None:
    raw = bytes(pysequoia.Sig.from_bytes(bundle.contents[SIGNATURE]))
    reasons = {"an unhashed subpacket": "unhashed subpackets; ", "other octets of the digest": "another digest; "}
    for form, change in SAME_SIGNATURE.items():
        result = pysequoia.verify(
            bytes=bundle.contents[MANIFEST],
            store=lambda _: [bundle.signer.certificate],
            signature=pysequoia.Sig.from_bytes(change(raw)),
        )
        assert result.valid_sigs[0].certificate.upper() == bundle.signer.fingerprint, form
        bundle.put(SIGNATURE, change(raw))
        assert f"observed {SIGNATURE} is not valid for {MANIFEST}: {reasons.get(form, '')}" in bundle.refusal(), form


@pytest.mark.clause("PCS-19")
def test_a_missing_or_replaced_file_is_named(bundle: Written, tmp_path: Path) -> None:
    moved = tmp_path / "kept"
    changes: dict[str, tuple[Callable[[Path], object], str]] = {
        "nothing": (lambda file: file.rename(moved), " is missing"),
        "a link to it": (lambda file: file.rename(moved) and file.symlink_to(moved), " is not a regular file"),
        "a folder": (lambda file: file.rename(moved) and file.mkdir(), " is not a regular file"),
        "a pipe": (lambda file: file.rename(moved) and os.mkfifo(file), " is not a regular file"),
        "more": (lambda file: file.write_bytes(file.read_bytes() + b"\n"), ""),
        "less": (lambda file: file.write_bytes(file.read_bytes()[:-1]), ""),
        "no bytes": (lambda file: file.write_bytes(b""), ""),
    }
    for path in LAYOUT:
        for replacement, (change, text) in changes.items():
            change(bundle.folder / path)
            assert f"{path}{text}" in bundle.refusal(), (path, replacement)
            bundle.restore()


@pytest.mark.clause("PCS-19")
def test_an_extra_file_or_folder_is_named(bundle: Written) -> None:
    files = ("extra", ".hidden", "configs/extra.yaml", "figs/.DS_Store", "a\n\x1b[2Jb", "AUDIT.jsonl")
    for path in (*files, "other/", "reports/more/"):
        if path.endswith("/"):
            (bundle.folder / path).mkdir()
        else:
            bundle.put(path, b"")
        line = bundle.refusal()
        assert f"observed {path.rstrip('/')!a} does not belong there; " in line
        assert line.isprintable()
        bundle.restore()


def test_a_folder_that_is_a_link_is_not_followed(bundle: Written, tmp_path: Path) -> None:
    for name in FOLDERS:
        (bundle.folder / name).rename(tmp_path / name)
        (bundle.folder / name).symlink_to(tmp_path / name)
        assert f"{name} is not a folder" in bundle.refusal()
        bundle.restore()


def test_every_fault_is_counted_and_the_line_stays_short(bundle: Written) -> None:
    for number in range(1000):
        bundle.put(f"extra-{number:04}", b"")
    line = bundle.refusal()
    assert "and 995 more" in line
    assert len(line) < 600


@pytest.mark.clause("PCS-19")
def test_a_signature_by_another_key_is_refused(bundle: Written) -> None:
    other = new_signer()
    bundle.put(SIGNATURE, sign_detached(bundle.contents[MANIFEST], other.secret))
    assert SIGNATURE in bundle.refusal()
    with pytest.raises(RefusedError, match=f"{SIGNATURE} is of {other.fingerprint}, but {MANIFEST} names"):
        verify_release(bundle.folder, [bundle.signer.certificate, other.certificate])
    bundle.restore()
    with pytest.raises(RefusedError, match=SIGNATURE):
        verify_release(bundle.folder, [other.certificate])
    assert verify_release(bundle.folder, [other.certificate, bundle.signer.certificate])
    bundle.sign_again(bundle.contents[MANIFEST].replace(bundle.signer.fingerprint.encode(), other.fingerprint.encode()))
    expected = f"{SIGNATURE} is of {bundle.signer.fingerprint}, but {MANIFEST} names {other.fingerprint}"
    assert expected in bundle.refusal()


def changed(manifest: bytes, change: Callable[[dict[str, object]], object]) -> bytes:
    document = yaml.safe_load(manifest)
    change(document)
    return OPENING + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120).encode()


def renamed(path: str) -> Callable[[bytes], bytes]:
    return lambda manifest: changed(manifest, lambda document: document["files"][4].update(path=path))  # type: ignore[index]


HOSTILE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a path out of the bundle": (renamed("../audit.jsonl"), "it names '../audit.jsonl'"),
    "a path with an escape": (renamed("audit\x1b[2J.jsonl"), r"it names 'audit\x1b[2J.jsonl'"),
    "a file twice": (renamed(SUMMED[0]), f"it names '{SUMMED[0]}'"),
    "one file less": (lambda m: changed(m, lambda d: d["files"].pop()), f"it names no {SUMMED[-1]}"),  # type: ignore[attr-defined]
    "no file": (lambda m: changed(m, lambda d: d.update(files=[])), f"it names no {SUMMED[0]}"),
    "another order": (lambda m: changed(m, lambda d: d["files"].reverse()), "files in another order"),  # type: ignore[attr-defined]
    "one key more": (lambda m: changed(m, lambda d: d.update(run="rm")), "run: Extra inputs"),
    "an invalid size": (lambda m: changed(m, lambda d: d["files"][0].update(size=-1)), "files.0.size"),  # type: ignore[index]
    "an invalid digest": (lambda m: changed(m, lambda d: d["files"][0].update(sha256="")), "files.0.sha256"),  # type: ignore[index]
    "a key twice": (lambda m: m + m.splitlines(keepends=True)[1], "not in the form that an export writes"),
    "a list": (lambda _: OPENING + b"[]\n", "the document: Input should be a valid dictionary"),
    "not YAML": (lambda _: b"{", "not YAML"),
    "an object of Python": (lambda _: b"!!python/object/apply:os.getpid []\n", "not YAML"),
}


def test_a_signed_manifest_in_another_form_is_refused(bundle: Written) -> None:
    for fault, (change, expected) in HOSTILE.items():
        bundle.sign_again(change(bundle.contents[MANIFEST]))
        assert f"observed {MANIFEST} is not a bundle's manifest: {expected}" in bundle.refusal(), fault


def test_a_huge_file_is_refused_without_being_read_completely(bundle: Written) -> None:
    too_long = "has more than 1048576 bytes"
    instead = f"has {1 << 40} bytes instead of {len(bundle.contents['audit.jsonl'])}"
    for path, text in ((MANIFEST, too_long), (SIGNATURE, too_long), ("audit.jsonl", instead)):
        with (bundle.folder / path).open("r+b") as file:
            file.truncate(1 << 40)
        assert f"{path} {text}" in bundle.refusal()
        bundle.restore()


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


@pytest.mark.clause("PCS-19")
def test_a_bundle_has_the_card_s_layout_and_the_release_s_content(bundle: Written) -> None:
    import matplotlib as mpl

    sample = bundle_sample.release()
    files = state_of(bundle.folder)
    assert files.keys() - FOLDERS == set(LAYOUT) == {
        "configs/state_machine.yaml", "configs/replay_plan.yaml", "reports/check_dim_report.json",
        "reports/validate_report.json", "audit.jsonl", "figs/state_transitions.svg", "figs/retry_replay_timeline.pdf",
        "report_manifest.yaml", "SIGNATURE.asc", "SHA256SUMS",
    }  # fmt: skip
    assert files["configs/state_machine.yaml"] == sample.card.files["state_machine.yaml"]
    assert files["configs/replay_plan.yaml"] == sample.card.files["replay_plan.yaml"]
    assert json.loads(files["reports/check_dim_report.json"]) == sample.dim_report
    assert json.loads(files["reports/validate_report.json"]) == sample.validate_report
    assert files["audit.jsonl"] == b"".join(sample.audit_lines)
    assert files["figs/state_transitions.svg"].startswith(b"<?xml")
    assert files["figs/retry_replay_timeline.pdf"].startswith(b"%PDF-")
    assert sorted(path.name for path in bundle.folder.parent.iterdir()) == ["PTN_EXPORT", "PTN_EXPORT.cert.asc"]
    manifest = yaml.safe_load(files[MANIFEST])
    assert [(file["path"], file["size"], file["sha256"]) for file in manifest.pop("files")] == [
        (path, len(files[path]), hashlib.sha256(files[path]).hexdigest()) for path in SUMMED
    ]
    assert manifest == {
        "version": 1,
        "versions": {
            "kfm_dagster": __version__, "state_machine": "1.0.0", "replay_plan": "1.0.0", "matplotlib": mpl.__version__
        },
        "code": {"sha": "5efb3d1" + "0" * 33, "lockfile": "ab" * 32},
        "recorded": {
            "transitions": len(sample.transitions), "retries": 3, "replays": 1, "audit_events": len(sample.transitions),
            "first": "2025-12-03T06:00:00.000250Z", "last": "2025-12-03T09:10:00.000250Z",
        },
        "signed_by": bundle.signer.fingerprint,
    }  # fmt: skip


@pytest.mark.clause("PCS-19")
def test_gpg_verifies_the_signature_and_refuses_another_manifest(bundle: Written, gpg: Gpg) -> None:
    folder = bundle.folder
    assert gpg("--import", folder.with_name("PTN_EXPORT.cert.asc")).returncode == 0
    checked = gpg("--status-fd", "1", "--verify", folder / SIGNATURE, folder / MANIFEST)
    assert checked.returncode == 0, checked.stderr
    [valid] = [line.split() for line in checked.stdout.splitlines() if line.startswith("[GNUPG:] VALIDSIG ")]
    assert valid[-1] == bundle.signer.fingerprint
    bundle.put(MANIFEST, bundle.contents[MANIFEST] + b"#")
    assert gpg("--verify", folder / SIGNATURE, folder / MANIFEST).returncode == 1


@pytest.mark.clause("PCS-19")
def test_sha256sum_accepts_a_bundle_and_refuses_a_changed_bundle(bundle: Written) -> None:
    if (sha256sum := shutil.which("sha256sum")) is None:
        pytest.skip("no sha256sum on the PATH")

    def check() -> subprocess.CompletedProcess[str]:
        return run_program(sha256sum, "--check", "--strict", "SHA256SUMS", folder=bundle.folder)

    checked = check()
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.splitlines() == [f"{path}: OK" for path in (*SUMMED, MANIFEST)]
    for path in (*SUMMED, MANIFEST):
        bundle.put(path, bundle.contents[path] + b" ")
        assert check().returncode == 1, path
        bundle.put(path, bundle.contents[path])


def test_the_same_data_give_the_same_bytes_in_any_environment(
    tmp_path: Path, signer: BundleSigner, monkeypatch: pytest.MonkeyPatch
) -> None:
    import matplotlib as mpl

    write_release(bundle_sample.release(), tmp_path / "first", signer)
    first = state_of(tmp_path / "first")
    with mpl.rc_context({"font.size": 30, "svg.hashsalt": None, "timezone": "Asia/Tokyo", "pdf.compression": 0}):
        write_release(bundle_sample.release(), tmp_path / "again", signer)
        again = state_of(tmp_path / "again")
        assert mpl.rcParams["font.size"] == 30
    # A signature has its own time and salt.
    assert first.pop(SIGNATURE) != again.pop(SIGNATURE)
    assert first == again
    digests = printed_by(sys.executable, "-c", DIGESTS, PYTHONHASHSEED="12345", TZ="Asia/Tokyo", LC_ALL="C")
    figures = [first[path] for path in ("figs/state_transitions.svg", "figs/retry_replay_timeline.pdf")]
    assert digests.split() == [hashlib.sha256(figure).hexdigest() for figure in figures]


def test_a_later_bundle_replaces_a_damaged_bundle_without_runs(tmp_path: Path, signer: BundleSigner) -> None:
    folder = tmp_path / "deep" / "PTN_EXPORT"
    write_release(bundle_sample.empty_release(), folder, signer)
    _, manifest = verify_release(folder, [signer.certificate])
    assert manifest.recorded == Recorded(transitions=0, retries=0, replays=0, audit_events=0, first=None, last=None)
    assert (folder / "audit.jsonl").read_bytes() == b""
    (folder / "audit.jsonl").unlink()
    (folder / SIGNATURE).write_bytes(b"")
    other = new_signer()
    certificate = write_release(bundle_sample.release(), folder, other)
    assert verify_release(folder, [other.certificate])[1].recorded.transitions
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
def test_files_that_no_export_wrote_are_kept(files: dict[str, bytes], tmp_path: Path, signer: BundleSigner) -> None:
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    if not files:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "PTN_EXPORT").symlink_to(tmp_path / "elsewhere")
    before = state_of(tmp_path)
    with pytest.raises(ForeignFileError) as refusal:
        write_release(bundle_sample.release(), tmp_path / "PTN_EXPORT", signer)
    assert "PTN_EXPORT" in str(refusal.value)
    assert refusal.value.exit_code is ExitCode.REFUSED
    assert state_of(tmp_path) == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


class Interrupted(list[bytes]):
    """Lines whose iteration raises KeyboardInterrupt."""

    def __iter__(self) -> Iterator[bytes]:
        yield b"{}"
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"audit_lines": Interrupted()}, KeyboardInterrupt, "^$"),
        ({"dim_report": {"p_dim": float("nan")}}, ValueError, "NaN|nan|JSON"),
    ],
)  # fmt: skip
def test_if_writing_a_bundle_fails_only_the_earlier_bundle_remains(
    changes: dict[str, object], error: type[BaseException], message: str, tmp_path: Path, signer: BundleSigner
) -> None:
    write_release(bundle_sample.empty_release(), tmp_path / "PTN_EXPORT", signer)
    before = state_of(tmp_path)
    with pytest.raises(error, match=message):
        write_release(replace(bundle_sample.release(), **changes), tmp_path / "PTN_EXPORT", signer)
    assert state_of(tmp_path) == before
    assert len(list(tmp_path.iterdir())) == 2


def test_if_a_bundle_cannot_be_moved_to_its_folder_the_earlier_bundle_remains(
    tmp_path: Path, signer: BundleSigner, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "PTN_EXPORT"
    write_release(bundle_sample.empty_release(), folder, signer)
    before = state_of(folder)
    rename = Path.rename

    def refused(path: Path, target: Path) -> Path:
        if target == folder and (path / "audit.jsonl").read_bytes():
            raise PermissionError(13, "Permission denied")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(ConfigurationError, match=r"cannot be written; observed .*Permission denied"):
        write_release(bundle_sample.release(), folder, signer)
    assert state_of(folder) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["PTN_EXPORT", "PTN_EXPORT.cert.asc"]


def test_a_signing_key_of_a_version_that_gpg_does_not_know_is_refused(tmp_path: Path) -> None:
    import pysequoia

    with pytest.raises(KfmError, match=r"makes no signature that gpg verifies.*version 4"):
        write_release(bundle_sample.release(), tmp_path / "PTN_EXPORT", new_signer(profile=pysequoia.Profile.RFC9580))
    assert not list(tmp_path.iterdir())
