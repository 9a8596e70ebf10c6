"""Keys: the secret key that signs releases, and the trusted certificates that verify them.

The key is the file of `KFM_SIGNING_KEY` (or `--key`), else a key generated on first use in `KFM_HOME/keys`. A bundle's
certificate is never taken from the bundle or its folder: an attacker who can change the one can change the other.
Belongs here: reading, generating and naming keys. Does not belong here: the signed content.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kfm_dagster.errors import ConfigurationError
from kfm_dagster.exports.bundle.signature import fingerprint_of
from kfm_dagster.redaction import redact
from kfm_dagster.settings import Settings
from kfm_dagster.storage.private import private_folder

if TYPE_CHECKING:
    from pysequoia import Cert, PySigner, Tsk

USER_ID = "kfm release"
"""Name in a generated certificate; the fingerprint identifies its owner, the name does not."""
_KEY = "release.key"
_CERTIFICATE = "release.asc"


@dataclass(frozen=True, kw_only=True)
class BundleSigner:
    """An unlocked secret key and its certificate."""

    secret: PySigner
    certificate: Cert
    made: Path | None = None
    """The key's file if it was generated just now."""

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the certificate: 40 capital hex digits."""
        return fingerprint_of(self.certificate)


def open_signer(settings: Settings, key: Path | None = None) -> BundleSigner:
    """Open `key`, else the settings' key, else KFM_HOME's, which is generated if missing.

    Raises ConfigurationError for a file without a key that can sign, or with a key of another passphrase.
    """
    passphrase = settings.signing_passphrase.get_secret_value() if settings.signing_passphrase else None
    if file := key or settings.signing_key:
        return _signer(file, passphrase, made=False)
    created = _make_key(settings.home / "keys")
    return _signer(settings.home / "keys" / _KEY, None, made=created)


def trusted_certificates(settings: Settings, file: Path | None = None) -> Sequence[Cert]:
    """Return certificates of `file` (one or a keyring), else the settings' key, else KFM_HOME.

    Raises ConfigurationError without any certificate.
    """
    if file is None and settings.signing_key is not None:
        return [_secret_key(settings.signing_key).extract_certificate()]
    path = file or settings.home / "keys" / _CERTIFICATE
    if file is None and not path.exists():
        raise ConfigurationError(
            "there is no certificate to verify with",
            observed=f"no {path}",
            expected="the signer's certificate, from a place that you trust",
            next_step="name it with --certificate FILE, or correct KFM_HOME",
        )
    return _certificates(path)


def _signer(file: Path, passphrase: str | None, *, made: bool) -> BundleSigner:
    key = _secret_key(file)
    certificate = key.extract_certificate()
    if certificate.is_revoked:
        # Sequoia would sign with a revoked key, but every verifier would refuse the signature.
        raise _cannot_sign(file, "a revoked key")
    try:
        secret = key.signer(passphrase)
    except RuntimeError as error:
        raise _cannot_sign(file, f"{_why(error)}, with {'no' if passphrase is None else 'a'} passphrase") from None
    return BundleSigner(secret=secret, certificate=certificate, made=file if made else None)


def _cannot_sign(file: Path, observed: str) -> ConfigurationError:
    return ConfigurationError(
        f"the key in {file} cannot sign",
        observed=observed,
        expected="a key that may sign, neither expired nor revoked, with KFM_SIGNING_PASSPHRASE set if it has one",
        next_step="correct or unset KFM_SIGNING_PASSPHRASE, or name another key with --key or KFM_SIGNING_KEY",
    )


def _secret_key(file: Path) -> Tsk:
    from pysequoia import Tsk  # noqa: PLC0415, the extra `release`

    try:
        return Tsk.from_bytes(_content(file))
    except RuntimeError as error:
        raise ConfigurationError(
            f"{file} holds no OpenPGP secret key",
            observed=_why(error),
            expected="one key, ASCII-armoured or binary",
            next_step="gpg --armor --export-secret-keys KEY > FILE",
        ) from None


def _certificates(file: Path) -> Sequence[Cert]:
    from pysequoia import Cert  # noqa: PLC0415, the extra `release`
    from pysequoia.packet import PacketPile, Tag  # noqa: PLC0415

    expected = {"expected": "an OpenPGP certificate (gpg --armor --export KEY)", "next_step": "name another file"}
    content = _content(file)
    try:
        if any(packet.tag in (Tag.SecretKey, Tag.SecretSubkey) for packet in PacketPile.from_bytes(content)):
            raise ConfigurationError(f"{file} holds a secret key", **expected)
        certificates = Cert.split_bytes(content)
    except RuntimeError as error:
        raise ConfigurationError(f"{file} holds no OpenPGP certificate", observed=_why(error), **expected) from None
    if not certificates:
        raise ConfigurationError(f"{file} holds no OpenPGP certificate", observed="nothing", **expected)
    return certificates


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            "a key cannot be read", observed=f"{file}: {error.strerror or error}", expected="an OpenPGP file"
        ) from None


def _make_key(folder: Path) -> bool:
    """Generate missing key and certificate; return whether the key was generated."""
    from pysequoia import Tsk  # noqa: PLC0415, the extra `release`

    try:
        private_folder(folder)
        created = not (folder / _KEY).exists() and _put(folder / _KEY, str(Tsk.generate(USER_ID)), mode=0o600)
        if not (folder / _CERTIFICATE).exists():
            # From the file: another process may have been first, or may have died between the two.
            certificate = _secret_key(folder / _KEY).extract_certificate()
            _put(folder / _CERTIFICATE, str(certificate), mode=0o644)
    except OSError as error:
        raise ConfigurationError(
            "a signing key cannot be made",
            observed=f"{folder}: {error.strerror or error}",
            next_step="name a key with --key or KFM_SIGNING_KEY, or correct KFM_HOME",
        ) from error
    return created


def _put(path: Path, text: str, *, mode: int) -> bool:
    """Create a whole file unless it exists; return whether it was created."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # Unlike a rename, a link replaces nothing: one of two processes is first, and both use its key.
        path.hardlink_to(part)
    except FileExistsError:
        return False
    finally:
        part.unlink(missing_ok=True)
    return True


def _why(error: RuntimeError) -> str:
    # A backtrace follows, and a parser's quotes are not for a terminal.
    return redact(str(error).partition("\n")[0]).rstrip(".")
