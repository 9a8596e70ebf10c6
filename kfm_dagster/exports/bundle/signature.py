"""Detached OpenPGP signatures (RFC 9580), in one canonical form.

A signature that merely verifies is not enough here: ASCII armour has unchecked bytes (headers, checksum, padding), and
so has the signature itself (unhashed subpackets, and the first two octets of the digest, which Sequoia treats as a
hint). Each of them could change unnoticed. So a signature is accepted in its canonical form only: our armour, one
version 4 packet in its shortest encoding, no unhashed subpacket, and the digest's true first octets. The key vouches
for every other byte.

Belongs here: armour, signing, verifying. Does not belong here: the keys and their places (`keys.py`).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from kfm_dagster.exports.bundle.content import BundleFaultError

if TYPE_CHECKING:
    from pysequoia import Cert, PySigner
    from pysequoia.packet import Packet

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
    """Return who signed. Raises BundleFaultError unless valid and in canonical form."""
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
