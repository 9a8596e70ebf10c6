"""Verification: whatever is changed in a bundle, it is refused in one line that names the file at fault."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pysequoia
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kfm_dagster.errors import ExitCode, RefusedError
from kfm_dagster.exports.bundle.content import FOLDERS, LAYOUT, MANIFEST, OPENING, SIGNATURE, SUMMED
from kfm_dagster.exports.bundle.folder import verify_release, write_release
from kfm_dagster.exports.bundle.signing import BundleSigner, sign_detached
from kfm_dagster_tests.exports import bundle_sample

BEGIN, END = b"-----BEGIN PGP SIGNATURE-----\n\n", b"-----END PGP SIGNATURE-----\n"
FLIPS = st.tuples(st.sampled_from(LAYOUT), st.floats(0, 1, exclude_max=True), st.integers(0, 7))


def new_signer(**options: object) -> BundleSigner:
    key = pysequoia.Tsk.generate("kfm tests", **options)  # type: ignore[arg-type]
    return BundleSigner(secret=key.signer(), certificate=key.extract_certificate())


@dataclass(frozen=True, kw_only=True)
class Written:
    """A bundle that verifies, whose files a test may change; they are put back."""

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
def made(tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("bundle") / "PTN_EXPORT"
    signer = new_signer()
    write_release(bundle_sample.release(), folder, signer)
    return Written(folder=folder, signer=signer, contents={path: (folder / path).read_bytes() for path in LAYOUT})


@pytest.fixture
def bundle(made: Written) -> Iterator[Written]:
    yield made
    made.restore()
    verify_release(made.folder, [made.signer.certificate])


@pytest.mark.clause("PCS-19")
@settings(max_examples=300, deadline=None)
@given(flip=FLIPS)
def test_a_flipped_bit_anywhere_is_refused_by_the_name_of_its_file(made: Written, flip: tuple[str, float, int]) -> None:
    path, share, bit = flip
    content = bytearray(made.contents[path])
    content[int(share * len(content))] ^= 1 << bit
    made.put(path, bytes(content))
    try:
        assert path in made.refusal()
    finally:
        made.put(path, made.contents[path])
    assert verify_release(made.folder, [made.signer.certificate]).signed.fingerprint == made.signer.fingerprint


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
    # Subpacket 16, the issuer's key id (RFC 9580, section 5.2.3.12): where gpg puts it, and no one vouches for it.
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
def test_a_signature_in_another_form_is_refused_though_it_is_one(bundle: Written) -> None:
    raw = bytes(pysequoia.Sig.from_bytes(bundle.contents[SIGNATURE]))
    why = {"an unhashed subpacket": "unhashed subpackets; ", "other octets of the digest": "another digest; "}
    for form, change in SAME_SIGNATURE.items():
        found = pysequoia.verify(
            bytes=bundle.contents[MANIFEST],
            store=lambda _: [bundle.signer.certificate],
            signature=pysequoia.Sig.from_bytes(change(raw)),
        )
        assert found.valid_sigs[0].certificate.upper() == bundle.signer.fingerprint, form
        bundle.put(SIGNATURE, change(raw))
        assert f"observed {SIGNATURE} does not hold for {MANIFEST}: {why.get(form, '')}" in bundle.refusal(), form


@pytest.mark.clause("PCS-19")
def test_a_file_that_is_replaced_is_named(bundle: Written, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    changes: dict[str, tuple[Callable[[Path], object], str]] = {
        "nothing": (lambda file: file.rename(kept), " is missing"),
        "a link to it": (lambda file: file.rename(kept) and file.symlink_to(kept), " is not a regular file"),
        "a folder": (lambda file: file.rename(kept) and file.mkdir(), " is not a regular file"),
        "a pipe": (lambda file: file.rename(kept) and os.mkfifo(file), " is not a regular file"),
        "more": (lambda file: file.write_bytes(file.read_bytes() + b"\n"), ""),
        "less": (lambda file: file.write_bytes(file.read_bytes()[:-1]), ""),
        "no bytes": (lambda file: file.write_bytes(b""), ""),
    }
    for path in LAYOUT:
        for by, (change, said) in changes.items():
            change(bundle.folder / path)
            assert f"{path}{said}" in bundle.refusal(), (path, by)
            bundle.restore()


@pytest.mark.clause("PCS-19")
def test_what_does_not_belong_there_is_named(bundle: Written) -> None:
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
def test_another_key_vouches_for_nothing(bundle: Written) -> None:
    other = new_signer()
    bundle.put(SIGNATURE, sign_detached(bundle.contents[MANIFEST], other.secret))
    assert SIGNATURE in bundle.refusal()
    with pytest.raises(RefusedError, match=f"{SIGNATURE} is of {other.fingerprint}, and {MANIFEST} names"):
        verify_release(bundle.folder, [bundle.signer.certificate, other.certificate])
    bundle.restore()
    with pytest.raises(RefusedError, match=SIGNATURE):
        verify_release(bundle.folder, [other.certificate])
    assert verify_release(bundle.folder, [other.certificate, bundle.signer.certificate])
    bundle.sign_again(bundle.contents[MANIFEST].replace(bundle.signer.fingerprint.encode(), other.fingerprint.encode()))
    said = f"{SIGNATURE} is of {bundle.signer.fingerprint}, and {MANIFEST} names {other.fingerprint}"
    assert said in bundle.refusal()


def lines_of(manifest: bytes) -> list[str]:
    return manifest.decode().splitlines(keepends=True)


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
    "a file less": (lambda m: changed(m, lambda d: d["files"].pop()), f"it names no {SUMMED[-1]}"),  # type: ignore[attr-defined]
    "no file": (lambda m: changed(m, lambda d: d.update(files=[])), f"it names no {SUMMED[0]}"),
    "another order": (lambda m: changed(m, lambda d: d["files"].reverse()), "files in another order"),  # type: ignore[attr-defined]
    "a key more": (lambda m: changed(m, lambda d: d.update(run="rm")), "run: Extra inputs"),
    "a size that is none": (lambda m: changed(m, lambda d: d["files"][0].update(size=-1)), "files.0.size"),  # type: ignore[index]
    "a sum that is none": (lambda m: changed(m, lambda d: d["files"][0].update(sha256="")), "files.0.sha256"),  # type: ignore[index]
    "a key twice": (lambda m: m + lines_of(m)[1].encode(), "not in the form that an export writes"),
    "a list": (lambda _: OPENING + b"[]\n", "the document: Input should be a valid dictionary"),
    "no YAML": (lambda _: b"{", "not YAML"),
    "an object of Python": (lambda _: b"!!python/object/apply:os.getpid []\n", "not YAML"),
}


def test_a_manifest_that_no_export_wrote_is_refused_though_it_is_signed(bundle: Written) -> None:
    for case, (change, expected) in HOSTILE.items():
        bundle.sign_again(change(bundle.contents[MANIFEST]))
        assert f"observed {MANIFEST} is none of a bundle: {expected}" in bundle.refusal(), case


def test_a_huge_file_is_not_read_whole(bundle: Written) -> None:
    too_long = "has more than 1048576 bytes"
    instead = f"has {1 << 40} bytes instead of {len(bundle.contents['audit.jsonl'])}"
    for path, said in ((MANIFEST, too_long), (SIGNATURE, too_long), ("audit.jsonl", instead)):
        with (bundle.folder / path).open("r+b") as file:
            file.truncate(1 << 40)
        assert f"{path} {said}" in bundle.refusal()
        bundle.restore()


def test_a_folder_that_is_empty_is_no_bundle(bundle: Written, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=f"{SIGNATURE} is missing"):
        verify_release(tmp_path, [bundle.signer.certificate])
