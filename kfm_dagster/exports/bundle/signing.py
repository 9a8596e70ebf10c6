"""Keys and detached OpenPGP signatures (RFC 9580), in a canonical form.

The key is the file of `KFM_SIGNING_KEY` (or `--key`), else a key generated on first use in `KFM_HOME/keys`. The
certificate is never read from the bundle or a file beside it: an attacker of a bundle could change these files, too.

A signature that merely verifies is not enough here: ASCII armour has unchecked bytes (headers, checksum, padding), and
so has the signature itself (unhashed subpackets, and the first two octets of the digest, which Sequoia treats as a
hint). Each of them could change unnoticed. So a signature is accepted in its canonical form only: our armour, one
version 4 packet in its shortest encoding, no unhashed subpacket, and the digest's true first octets. The signature
covers every other byte. Does not belong here: the signed content.
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from kfm_dagster.errors import ConfigurationError
from kfm_dagster.exports.bundle.content import BundleFaultError
from kfm_dagster.redaction import redact
from kfm_dagster.settings import Settings
from kfm_dagster.storage.private import private_folder

if TYPE_CHECKING:
    from pysequoia import Cert, PySigner, Tsk
    from pysequoia.packet import Packet


USER_ID = "kfm release"
"""Name in a generated certificate; the fingerprint identifies its owner, the name does not."""
_KEY = "release.key"
_CERTIFICATE = "release.asc"
_BEGIN = b"-----BEGIN PGP SIGNATURE-----\n\n"
_END = b"-----END PGP SIGNATURE-----\n"
_LINE = 64
"""Characters of base64 on a line (RFC 9580, section 6.1: at most 76), as in gpg and Sequoia."""
_VERSION = 4
"""gpg 2.2 to 2.5 do not support version 6 (RFC 9580, section 5.2.3)."""
_BINARY = 0x00
"""Signature over the document's bytes; a text signature (0x01) ignores line ends (RFC 9580, section 5.2.1)."""
_DIGESTS = {8: "sha256", 9: "sha384", 10: "sha512"}
"""Names of the digests that Sequoia signs with, by id (RFC 9580, section 9.5)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Signed:
    """The signer (fingerprint in 40 capital hex digits), and the time by the signer's clock."""

    fingerprint: str
    at: datetime


def sign_detached(content: bytes, signer: PySigner) -> bytes:
    """Return an armoured signature. Raises BundleFaultError unless the key signs in version 4."""
    from pysequoia import SignatureMode, sign  # noqa: PLC0415, the extra `release`

    raw = sign(signer, content, mode=SignatureMode.DETACHED, armor=False)
    _packet_of(raw, content)
    return _armoured(raw)


def verify_detached(content: bytes, signature: bytes, certificates: Sequence[Cert]) -> Signed:
    """Return signer and time. Raises BundleFaultError for an invalid or non-canonical signature."""
    from pysequoia import Sig, verify  # noqa: PLC0415, the extra `release`

    raw = _dearmoured(signature)
    packet = _packet_of(raw, content)
    try:
        checked = verify(bytes=content, store=lambda _: list(certificates), signature=Sig.from_bytes(raw))
    except RuntimeError:
        # Sequoia's text is a backtrace without further facts.
        raise BundleFaultError(f"no valid signature by {' or '.join(map(fingerprint_of, certificates))}") from None
    at = packet.signature_created
    if at is None:
        raise BundleFaultError("no time of signing")
    return Signed(fingerprint=checked.valid_sigs[0].certificate.upper(), at=at)


def fingerprint_of(certificate: Cert) -> str:
    """Return the fingerprint in capital hex digits, as gpg shows it."""
    return certificate.fingerprint.upper()


def _armoured(raw: bytes) -> bytes:
    # Without a checksum line: by RFC 9580, section 6.1 writers omit it and readers ignore it.
    text = base64.b64encode(raw)
    lines = (text[start : start + _LINE] + b"\n" for start in range(0, len(text), _LINE))
    return _BEGIN + b"".join(lines) + _END


def _dearmoured(text: bytes) -> bytes:
    try:
        raw = base64.b64decode(text.removeprefix(_BEGIN).removesuffix(_END))
    except ValueError:
        raise BundleFaultError("not base64") from None
    if _armoured(raw) != text:
        raise BundleFaultError("armour of another form")
    return raw


def _packet_of(raw: bytes, content: bytes) -> Packet:
    """Return the only packet of a signature in canonical form."""
    from pysequoia.packet import PacketPile, Tag  # noqa: PLC0415, the extra `release`

    try:
        packets: list[Packet] = list(PacketPile.from_bytes(raw))
        encoded = b"".join(bytes(packet) for packet in packets)
    except RuntimeError:
        raise BundleFaultError("no OpenPGP packet") from None
    if len(packets) != 1 or packets[0].tag != Tag.Signature or encoded != raw:
        raise BundleFaultError("not one signature packet in its shortest encoding")
    packet = packets[0]
    if packet.body[:2] != bytes((_VERSION, _BINARY)):
        raise BundleFaultError("not a version 4 signature over a binary document")
    _refuse_unsigned_octets(packet.body, content)
    return packet


def _refuse_unsigned_octets(body: bytes, content: bytes) -> None:
    """Check the octets that the signature does not cover (RFC 9580, sections 5.2.3 and 5.2.4)."""
    hashed = body[: 6 + int.from_bytes(body[4:6])]
    unhashed, first = body[len(hashed) : len(hashed) + 2], body[len(hashed) + 2 : len(hashed) + 4]
    if any(unhashed):
        raise BundleFaultError("unhashed subpackets")
    digest = _DIGESTS.get(body[3])
    if digest is None:
        raise BundleFaultError("a digest other than SHA-2 with 256 bits or more")
    trailer = bytes((_VERSION, 0xFF)) + len(hashed).to_bytes(4)
    if hashlib.new(digest, content + hashed + trailer).digest()[:2] != first:
        raise BundleFaultError("another digest")


@dataclass(frozen=True, kw_only=True)
class BundleSigner:
    """An unlocked secret key and its certificate."""

    secret: PySigner
    certificate: Cert
    created: Path | None = None
    """The key's file if it was generated just now."""

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the certificate: 40 capital hex digits."""
        return fingerprint_of(self.certificate)


def open_signer(settings: Settings, key: Path | None = None) -> BundleSigner:
    """Open `key`, else the settings' key, else the key in KFM_HOME, generated if missing.

    Raises ConfigurationError for a file without a key that can sign, or with a key of another passphrase.
    """
    passphrase = settings.signing_passphrase.get_secret_value() if settings.signing_passphrase else None
    if file := key or settings.signing_key:
        return _signer(file, passphrase, created=False)
    created = _make_key(settings.home / "keys")
    return _signer(settings.home / "keys" / _KEY, None, created=created)


def trusted_certificates(settings: Settings, file: Path | None = None) -> Sequence[Cert]:
    """Return the certificates of `file`, else of the settings' key, else of KFM_HOME.

    `file` is a certificate or a keyring. Raises ConfigurationError without any certificate.
    """
    if file is None and settings.signing_key is not None:
        return [_secret_key(settings.signing_key).extract_certificate()]
    path = file or settings.home / "keys" / _CERTIFICATE
    if file is None and not path.exists():
        raise ConfigurationError(
            "the certificate to verify with is missing",
            observed=f"no {path}",
            expected="the signer's certificate, from a place that you trust",
            next_step="name the certificate with --certificate FILE, or correct KFM_HOME",
        )
    return _certificates(path)


def _signer(file: Path, passphrase: str | None, *, created: bool) -> BundleSigner:
    key = _secret_key(file)
    certificate = key.extract_certificate()
    if certificate.is_revoked:
        # Sequoia would sign with a revoked key, but every verifier would refuse the signature.
        raise _cannot_sign(file, "a revoked key")
    try:
        secret = key.signer(passphrase)
    except RuntimeError as error:
        raise _cannot_sign(file, f"{_why(error)}, with {'no' if passphrase is None else 'a'} passphrase") from None
    return BundleSigner(secret=secret, certificate=certificate, created=file if created else None)


def _cannot_sign(file: Path, observed: str) -> ConfigurationError:
    return ConfigurationError(
        f"the key in {file} cannot sign",
        observed=observed,
        expected="a key that may sign, neither expired nor revoked, and its passphrase in KFM_SIGNING_PASSPHRASE",
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
            # Read from the file: another process may have written the key, or died between key and certificate.
            certificate = _secret_key(folder / _KEY).extract_certificate()
            _put(folder / _CERTIFICATE, str(certificate), mode=0o644)
    except OSError as error:
        raise ConfigurationError(
            "a signing key cannot be created",
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
        # Unlike a rename, a link replaces nothing: two processes both use the key of the first.
        path.hardlink_to(part)
    except FileExistsError:
        return False
    finally:
        part.unlink(missing_ok=True)
    return True


def _why(error: RuntimeError) -> str:
    # Only the first line, before the backtrace; redacted, because a parser quotes its input.
    return redact(str(error).partition("\n")[0]).rstrip(".")
