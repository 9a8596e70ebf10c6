"""Authenticity: whether a message was sent by the SNS topic that the message names.

Belongs here: which messages must be signed, the verdicts on a batch, and the certificates of SNS's signers. A bounded
request without redirects fetches a certificate, at most once per batch. The cache (memory and a folder) gets only valid
chains. Yet each use validates the chain again, because another process can put files into the folder. Does not belong
here: checking a signature (`signatures.py`) and storing the verdict (`ledger/`).
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any

import certifi
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.utils import CryptographyDeprecationWarning
from pyreqwest.client import SyncClientBuilder
from pyreqwest.exceptions import PyreqwestError

from kfm_dagster.errors import ConfigurationError
from kfm_dagster.notifications.fields import MessageError, json_object
from kfm_dagster.notifications.messages import UNCHECKED, VERIFIED, Authenticity, SenderVerdict, SqsMessage
from kfm_dagster.notifications.signatures import SIGNED_FIELDS, SignatureError, SignedMessage, signed, verify
from kfm_dagster.settings import Settings
from kfm_dagster.storage.private import private_folder

MAX_CERTIFICATE_BYTES = 64 * 1024
"""Limit of a response; a certificate has 2 kB."""
MAX_CHAIN = 4
"""Most certificates below the authority; today there are two, SNS's own and its issuer's."""
MAX_KEPT = 32
"""Most files of the folder; a region's certificate changes about once a year."""
CONNECT_SECONDS = 3.0

_ISSUER = re.compile(r"http://crt\.[a-z0-9]{1,20}\.amazontrust\.com/[a-z0-9]{1,20}\.cer")
"""URLs of Amazon Trust Services' issuing certificates; SNS's file has only SNS's own certificate. Plain HTTP is the
authority's choice (RFC 5280, 4.2.2.1). It is safe, because the response is trusted only as part of a valid chain."""
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)

Chain = tuple[x509.Certificate, ...]


class CertificateUnavailableError(Exception):
    """A certificate cannot be fetched now; the text has the URL and the reason."""


Fetch = Callable[[str, float], bytes]
"""Gets the bytes at a URL by one request, within these seconds. Raises CertificateUnavailableError."""


class Certificates:
    """The chains of signers, by URL."""

    def __init__(self, folder: Path, *, fetch: Fetch | None = None) -> None:
        self._folder = folder
        self._fetch = fetch or get
        self._kept: dict[str, Chain] = {}

    def known(self, url: str) -> Chain | None:
        """Return the chain of a URL if this or another process has validated it, or None."""
        if url not in self._kept:
            with suppress(OSError, ValueError):
                content = self._file(url).read_bytes()
                self._kept[url] = certificates_in(content)
        return self._kept.get(url)

    def fetch(self, url: str, *, within: float) -> Chain:
        """Fetch a certificate and its issuers below an authority, in at most `within` seconds.

        Raises CertificateUnavailableError.
        """
        end = time.monotonic() + within
        try:
            chain = list(certificates_in(self._fetch(url, within)))
            while len(chain) < MAX_CHAIN and (issuer := _issuer(chain[-1])) is not None:
                chain.append(x509.load_der_x509_certificate(self._fetch(issuer, end - time.monotonic())))
        except ValueError:
            raise CertificateUnavailableError(f"{url} answers with no certificate") from None
        return tuple(chain)

    def keep(self, url: str, chain: Chain) -> None:
        """Cache a valid chain; if the folder cannot be written, a later process fetches it again."""
        if self._kept.get(url) == chain:
            return
        self._kept[url] = chain
        with suppress(OSError):
            private_folder(self._folder)
            new = self._file(url).with_suffix(f".{os.getpid()}")
            new.write_bytes(b"".join(certificate.public_bytes(Encoding.PEM) for certificate in chain))
            new.replace(self._file(url))
            for old in sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)[MAX_KEPT:]:
                old.unlink()

    def _file(self, url: str) -> Path:
        return self._folder / f"{hashlib.sha256(url.encode()).hexdigest()}.pem"


def get(url: str, seconds: float) -> bytes:
    """Get a small file within `seconds`, by a single request without redirects and credentials."""
    off, content = False, bytearray()
    try:
        limit = timedelta(seconds=max(seconds, 0))
        client = SyncClientBuilder().follow_redirects(off).connect_timeout(timedelta(seconds=CONNECT_SECONDS))
        # The timeout covers the whole exchange, so that a server that sends single bytes cannot prolong it.
        with client.timeout(limit).build() as session, session.get(url).build_streamed() as response:
            status = response.status
            while len(content) <= MAX_CERTIFICATE_BYTES and (part := response.body_reader.read_chunk()) is not None:
                content += part
    except (PyreqwestError, OSError) as error:
        raise CertificateUnavailableError(f"{url} does not answer ({type(error).__name__})") from None
    if status != HTTPStatus.OK:
        raise CertificateUnavailableError(f"{url} answers {status}")
    if len(content) > MAX_CERTIFICATE_BYTES:
        raise CertificateUnavailableError(f"{url} answers with more than {MAX_CERTIFICATE_BYTES} bytes")
    return bytes(content)


@functools.cache
def public_authorities() -> Chain:
    """Return the authorities that browsers trust (certifi), except unreadable certificates."""
    return certificates_in(Path(certifi.where()).read_bytes())


def certificates_in(content: bytes) -> Chain:
    """Return the certificates of a PEM file. Raises ValueError if it has none."""
    certificates: list[x509.Certificate] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        for block in _PEM.findall(content):
            with suppress(ValueError):
                certificates.append(x509.load_pem_x509_certificate(block))
    if not certificates:
        raise ValueError("no certificate")
    return tuple(certificates)


def _issuer(certificate: x509.Certificate) -> str | None:
    """Return the URL of a certificate's issuer, or None if an authority issued it."""
    if any(certificate.issuer == authority.subject for authority in public_authorities()):
        return None
    try:
        access = certificate.extensions.get_extension_for_class(x509.AuthorityInformationAccess).value
    except x509.ExtensionNotFound:
        return None
    published: Sequence[str] = [
        description.access_location.value
        for description in access
        if description.access_method == x509.oid.AuthorityInformationAccessOID.CA_ISSUERS
        and isinstance(description.access_location, x509.UniformResourceIdentifier)
    ]
    return next((url for url in published if _ISSUER.fullmatch(url)), None)


PERIOD_SECONDS = 60.0
MAX_FETCHES = 8
"""Most fetches in a period. A topic has 1 certificate, 2 during a change, but forged messages can name any URL."""
FETCH_SECONDS = 10.0
"""Most time for fetches in a period, even from slow servers, because a tick has a minute for all its work."""

RAW = "no SNS envelope, so it is unsigned; KFM_SNS_VERIFY=off accepts raw delivery"


class Signatures:
    """Verifies messages as the settings require. Never raises because of a message's content."""

    def __init__(self, settings: Settings, *, certificates: Certificates | None = None) -> None:
        self._required = settings.verifies_signatures
        self._extra_url = settings.sns_trusted_url or None
        self._extra_authorities = _extra_authorities(settings)
        self._certificates = certificates or Certificates(settings.home.absolute() / "certificates")
        self._period, self._fetches, self._spent = -math.inf, 0, 0.0

    def verdicts(self, messages: Sequence[SqsMessage], *, verified: Collection[str] = ()) -> list[SenderVerdict]:
        """Return a verdict on each message, in order; messages of `verified` are not verified again."""
        if not self._required:
            return [VERIFIED if message.message_id in verified else UNCHECKED for message in messages]
        pending: dict[int, SignedMessage] = {}
        verdicts: list[SenderVerdict] = []
        for index, message in enumerate(messages):
            if message.message_id in verified:
                verdicts.append(VERIFIED)
                continue
            try:
                signature = self._claimed(message)
            except SignatureError as error:
                verdicts.append(_invalid(error))
                continue
            verdicts.append(UNCHECKED)
            if signature is not None:
                pending[index] = signature
        chains = self._chains(Counter(signature.url for signature in pending.values()))
        for index, signature in pending.items():
            verdicts[index] = self._verdict(signature, chains[signature.url])
        return verdicts

    def _claimed(self, message: SqsMessage) -> SignedMessage | None:
        """Return the claimed signature; None for a body that gives no unit even if it is signed."""
        try:
            body: Mapping[str, Any] = json_object(message.body, "the body")
        except MessageError:
            return None
        if "Type" not in body:
            raise SignatureError(RAW)
        if not isinstance(body["Type"], str) or body["Type"] not in SIGNED_FIELDS:
            return None
        return signed(body, extra_url=self._extra_url)

    def _chains(self, urls: Counter[str]) -> dict[str, Chain | str]:
        """Return each URL's certificates or why there are none; URLs of most messages come first."""
        chains: dict[str, Chain | str] = {}
        for url, _ in urls.most_common():
            chain = self._certificates.known(url)
            chains[url] = self._fetched(url) if chain is None else chain
        return chains

    def _fetched(self, url: str) -> Chain | str:
        start = time.monotonic()
        if start - self._period >= PERIOD_SECONDS:
            self._period, self._fetches, self._spent = start, 0, 0.0
        if self._fetches >= MAX_FETCHES or self._spent >= FETCH_SECONDS:
            return "other certificates are fetched before the certificate of this message"
        self._fetches += 1
        try:
            return self._certificates.fetch(url, within=FETCH_SECONDS - self._spent)
        except CertificateUnavailableError as error:
            return str(error)
        finally:
            self._spent += time.monotonic() - start

    def _verdict(self, claim: SignedMessage, chain: Chain | str) -> SenderVerdict:
        if isinstance(chain, str):
            return SenderVerdict(authenticity=Authenticity.UNKNOWN, detail=chain)
        try:
            verify(claim, chain, anchors=self._anchors(claim.url))
        except SignatureError as error:
            return _invalid(error)
        self._certificates.keep(claim.url, chain)
        return VERIFIED

    def _anchors(self, url: str) -> Sequence[x509.Certificate]:
        """Return the extra authorities for a URL below the extra URL, otherwise the public ones."""
        if self._extra_url is not None and url.startswith(f"{self._extra_url.rstrip('/')}/"):
            return self._extra_authorities
        return public_authorities()


def _invalid(error: SignatureError) -> SenderVerdict:
    return SenderVerdict(authenticity=Authenticity.INVALID, detail=str(error))


def _extra_authorities(settings: Settings) -> Chain:
    if settings.sns_trusted_ca is None and not settings.sns_trusted_url:
        return ()
    if settings.sns_trusted_ca is None or not settings.sns_trusted_url:
        raise ConfigurationError(
            "one of KFM_SNS_TRUSTED_URL and KFM_SNS_TRUSTED_CA is missing",
            expected="both: the trusted authority, and the URL of its certificates",
            next_step="set the missing variable, or unset both",
        )
    try:
        return certificates_in(settings.sns_trusted_ca.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            "KFM_SNS_TRUSTED_CA holds no certificate",
            observed=f"{settings.sns_trusted_ca}: {type(error).__name__}",
            expected="a PEM file",
            next_step="correct the variable, or unset it and KFM_SNS_TRUSTED_URL",
        ) from None
