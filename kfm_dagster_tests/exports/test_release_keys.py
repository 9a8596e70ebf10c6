"""Signing keys: created once, or named by the user; errors are one line and never show a passphrase."""

from __future__ import annotations

import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pysequoia
import pysequoia.packet
import pytest

from kfm_dagster.errors import ConfigurationError
from kfm_dagster.exports.bundle.signing import open_signer, sign_detached, trusted_certificates, verify_detached
from kfm_dagster.settings import Settings
from kfm_dagster_tests.exports.conftest import Gpg

SECRET = "s3cr3t-word"


@pytest.fixture(scope="module")
def key() -> pysequoia.Tsk:
    return pysequoia.Tsk.generate("kfm tests")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.clause("PCS-19")
def test_a_key_is_created_once_and_readable_by_its_owner_only(home: Path) -> None:
    first = open_signer(Settings.load())
    assert first.created == home / "keys" / "release.key"
    assert [mode(home / "keys"), mode(first.created), mode(home / "keys" / "release.asc")] == [0o700, 0o600, 0o644]
    again = open_signer(Settings.load())
    assert (again.created, again.fingerprint) == (None, first.fingerprint)
    assert sorted(path.name for path in (home / "keys").iterdir()) == ["release.asc", "release.key"]
    signed = verify_detached(b"x", sign_detached(b"x", again.secret), trusted_certificates(Settings.load()))
    assert signed.fingerprint == first.fingerprint
    assert b"PRIVATE" not in (home / "keys" / "release.asc").read_bytes()
    # A lost certificate is created again from its key.
    (home / "keys" / "release.asc").unlink()
    assert open_signer(Settings.load()).fingerprint == first.fingerprint
    [certificate] = trusted_certificates(Settings.load())
    assert certificate.fingerprint.upper() == first.fingerprint


def test_concurrent_first_uses_create_one_key(home: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(lambda _: open_signer(Settings.load()), range(8)))
    assert len({signer.fingerprint for signer in opened}) == 1
    assert sum(signer.created is not None for signer in opened) == 1
    assert len(list((home / "keys").iterdir())) == 2


@pytest.mark.parametrize("armoured", [True, False])
@pytest.mark.parametrize("named", ["KFM_SIGNING_KEY", "--key"])
def test_a_named_key_signs_and_is_trusted(
    named: str, home: Path, tmp_path: Path, key: pysequoia.Tsk, monkeypatch: pytest.MonkeyPatch, *, armoured: bool
) -> None:
    file = tmp_path / "named.key"
    file.write_bytes(str(key).encode() if armoured else bytes(key))
    if named == "KFM_SIGNING_KEY":
        monkeypatch.setenv(named, str(file))
    signer = open_signer(Settings.load(), None if named == "KFM_SIGNING_KEY" else file)
    assert signer.fingerprint == key.extract_certificate().fingerprint.upper()
    assert signer.created is None
    assert not home.exists()
    if named == "KFM_SIGNING_KEY":
        assert verify_detached(b"x", sign_detached(b"x", signer.secret), trusted_certificates(Settings.load()))


def test_a_key_of_gpg_opens_with_its_passphrase_only(
    home: Path, tmp_path: Path, gpg: Gpg, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_passphrase = ("--pinentry-mode", "loopback", "--passphrase", SECRET)
    generated = gpg(*with_passphrase, "--quick-generate-key", "kfm tests <kfm@example.org>", "ed25519", "sign", "never")
    assert generated.returncode == 0, generated.stderr
    file, certificate = tmp_path / "gpg.key", tmp_path / "gpg.asc"
    assert gpg(*with_passphrase, "--armor", "--output", file, "--export-secret-keys").returncode == 0
    assert gpg("--armor", "--output", certificate, "--export").returncode == 0
    monkeypatch.setenv("KFM_SIGNING_KEY", str(file))
    for passphrase in (None, "", "wr0ng-word", SECRET.upper()):
        if passphrase is not None:
            monkeypatch.setenv("KFM_SIGNING_PASSPHRASE", passphrase)
        with pytest.raises(
            ConfigurationError, match=r"observed \w.*, with (no|a) passphrase; .*next: correct or unset KFM_SIGN"
        ) as refusal:
            open_signer(Settings.load())
        assert not passphrase or passphrase not in str(refusal.value)
    monkeypatch.setenv("KFM_SIGNING_PASSPHRASE", SECRET)
    settings = Settings.load()
    assert SECRET not in repr(settings)
    assert SECRET not in str(settings.model_dump())
    signature = sign_detached(b"manifest", open_signer(settings).secret)
    # A certificate needs no passphrase.
    monkeypatch.delenv("KFM_SIGNING_PASSPHRASE")
    for trusted in (trusted_certificates(Settings.load()), trusted_certificates(Settings.load(), certificate)):
        verify_detached(b"manifest", signature, trusted)
    (tmp_path / "manifest").write_bytes(b"manifest")
    (tmp_path / "signature").write_bytes(signature)
    assert gpg("--verify", tmp_path / "signature", tmp_path / "manifest").returncode == 0


def test_every_certificate_of_a_keyring_is_trusted_and_a_missing_keyring_is_refused(
    home: Path, tmp_path: Path, key: pysequoia.Tsk
) -> None:
    with pytest.raises(ConfigurationError, match=r"certificate to verify with is missing.*--certificate FILE"):
        trusted_certificates(Settings.load())
    assert not home.exists()
    ring = tmp_path / "ring.asc"
    other = pysequoia.Tsk.generate("the next key").extract_certificate()
    ring.write_text(f"{other}{key.extract_certificate()}")
    trusted = [certificate.fingerprint for certificate in trusted_certificates(Settings.load(), ring)]
    assert trusted == [other.fingerprint, key.extract_certificate().fingerprint]


@pytest.mark.parametrize("open_file", [open_signer, trusted_certificates])
def test_a_wrong_key_file_gives_a_short_error(
    open_file: Callable[[Settings, Path], object], home: Path, tmp_path: Path, key: pysequoia.Tsk
) -> None:
    kind, other = ("PRIVATE", key.extract_certificate()) if open_file is open_signer else ("PUBLIC", key)
    half = f"-----BEGIN PGP {kind} KEY BLOCK-----\n".encode()
    for content in (None, b"", b"junk", b"\xff" * 100, half, str(other).encode()):
        file = tmp_path / "wrong"
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(ConfigurationError) as refusal:
            open_file(Settings.load(), file)
        assert str(file) in str(refusal.value)
        assert len(str(refusal.value)) < 500
    assert not home.exists()


def test_a_passphrase_applies_to_the_named_key_only(
    home: Path, tmp_path: Path, key: pysequoia.Tsk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFM_SIGNING_PASSPHRASE", SECRET)
    assert open_signer(Settings.load())
    # A user who sets a passphrase expects an encrypted key; this key is not encrypted.
    (tmp_path / "named.key").write_text(str(key))
    with pytest.raises(ConfigurationError, match="secret key is not encrypted, with a passphrase") as refusal:
        open_signer(Settings.load(), tmp_path / "named.key")
    assert SECRET not in str(refusal.value)
