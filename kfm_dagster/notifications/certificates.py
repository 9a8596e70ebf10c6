"""Certificates of SNS's signers, fetched once and cached, and their authorities.

Belongs here: bounded requests without redirects, and the cache in memory and a folder. Does not belong here:
validating a certificate (`signatures.py`). The cache stores valid chains only, and each use validates them again: a
file that somebody else puts into the folder is not trusted.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path

import certifi
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.utils import CryptographyDeprecationWarning
from pyreqwest.client import SyncClientBuilder
from pyreqwest.exceptions import PyreqwestError

from kfm_dagster.storage.private import private_folder

MAX_CERTIFICATE_BYTES = 64 * 1024
"""Limit of a response: a certificate has 2 kB."""
MAX_CHAIN = 4
"""Certificates below the authority: SNS's own and one issuer today."""
MAX_KEPT = 32
"""Limit of the folder's files; a region's certificate changes about once a year."""
CONNECT_SECONDS = 3.0

_ISSUER = re.compile(r"http://crt\.[a-z0-9]{1,20}\.amazontrust\.com/[a-z0-9]{1,20}\.cer")
"""URLs of Amazon Trust Services' issuing certificates; SNS's file holds only its own certificate. Plain HTTP is the
authority's choice (RFC 5280, 4.2.2.1): the response is trusted only as part of a valid chain."""
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)

Chain = tuple[x509.Certificate, ...]


class CertificateUnavailableError(Exception):
    """A certificate cannot be fetched now; the text says from where and why."""


Fetch = Callable[[str, float], bytes]
"""Gets the bytes at a URL by one request within a number of seconds. Raises CertificateUnavailableError."""


class Certificates:
    """The chains of signers, by URL."""

    def __init__(self, folder: Path, *, fetch: Fetch | None = None) -> None:
        self._folder = folder
        self._fetch = fetch or get
        self._kept: dict[str, Chain] = {}

    def known(self, url: str) -> Chain | None:
        """Return a chain that this or another process validated before."""
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
        """Cache a valid chain; if the folder cannot be written, later processes fetch it again."""
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
    """Get a small file by one request without redirects and credentials, in at most `seconds`."""
    off, content = False, bytearray()
    try:
        limit = timedelta(seconds=max(seconds, 0))
        client = SyncClientBuilder().follow_redirects(off).connect_timeout(timedelta(seconds=CONNECT_SECONDS))
        # The timeout covers the whole exchange: a server that sends single bytes cannot prolong it.
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
    """Return the authorities that browsers trust (certifi), but for those that the library cannot read."""
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
