"""Sign messages as SNS does, with a test authority instead of the public authorities.

As at AWS, the file at a certificate's URL does not have the issuer's certificate, which is at another URL.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import AuthorityInformationAccessOID, ExtendedKeyUsageOID, NameOID

from kfm_dagster.notifications.authenticity import CertificateUnavailableError
from kfm_dagster.notifications.messages import SqsMessage

AT = datetime(2025, 4, 2, 22, 11, 0, tzinfo=UTC)
URL = "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-0a1b2c3d4e5f60718293a4b5c6d7e8f9.pem"
ISSUER_URL = "http://crt.r2m01.amazontrust.com/r2m01.cer"
TOPIC = "arn:aws:sns:us-east-1:123901341784:NewGOES19Object"
DIGESTS: Mapping[str, hashes.HashAlgorithm] = {"1": hashes.SHA1(), "2": hashes.SHA256()}
FIELDS = {
    "Notification": ["Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"],
    "SubscriptionConfirmation": ["Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"],
    "UnsubscribeConfirmation": ["Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"],
}


@cache
def key(name: str) -> rsa.RSAPrivateKey:
    """Return the key of a name, cached because generating a key takes a tenth of a second."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@dataclass(frozen=True, kw_only=True)
class Issued:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: rsa.RSAPrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)


def issue(
    name: str,
    *,
    by: Issued | None = None,
    authority: bool = False,
    names: Sequence[str] = (),
    start: datetime = AT - timedelta(days=30),
    end: datetime = AT + timedelta(days=365),
    issuer_url: str | None = None,
) -> Issued:
    """Issue a certificate; without `by` it is self-signed."""
    own = key(name)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer = own if by is None else by.key
    others = "content_commitment key_encipherment data_encipherment key_agreement encipher_only decipher_only"
    usage = dict.fromkeys(others.split(), False)
    builder = (
        x509.CertificateBuilder(
            subject_name=subject,
            issuer_name=subject if by is None else by.certificate.subject,
            public_key=own.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=start,
            not_valid_after=end,
        )
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=not authority, key_cert_sign=authority, crl_sign=authority, **usage),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(own.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if names:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([x509.DNSName(entry) for entry in names]), critical=False
        ).add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    if issuer_url:
        access = x509.AccessDescription(
            AuthorityInformationAccessOID.CA_ISSUERS, x509.UniformResourceIdentifier(issuer_url)
        )
        builder = builder.add_extension(x509.AuthorityInformationAccess([access]), critical=False)
    return Issued(certificate=builder.sign(signer, hashes.SHA256()), key=own)


@cache
def root() -> Issued:
    return issue("root", authority=True, start=AT - timedelta(days=9000), end=AT + timedelta(days=9000))


@cache
def intermediate() -> Issued:
    return issue("intermediate", by=root(), authority=True, end=AT + timedelta(days=4000))


def signer(**changes: Any) -> Issued:
    """Return SNS's certificate, by default a valid one."""
    options = {"by": intermediate(), "names": ["sns.amazonaws.com"], "issuer_url": ISSUER_URL} | changes
    return issue("sns", **options)


def canonical(message: Mapping[str, Any]) -> bytes:
    """Return the text that SNS signs (SNS developer guide), built independently of the product."""
    lines = [f"{name}\n{message[name]}\n" for name in FIELDS[message["Type"]] if name in message]
    return "".join(lines).encode()


def sign(message: Mapping[str, Any], by: Issued, *, version: str = "1", url: str = URL) -> dict[str, Any]:
    signature = by.key.sign(canonical(message), padding.PKCS1v15(), DIGESTS[version])
    return {
        **message,
        "SignatureVersion": version,
        "Signature": base64.b64encode(signature).decode(),
        "SigningCertURL": url,
    }


def notification(**changes: Any) -> dict[str, Any]:
    return {
        "Type": "Notification",
        "MessageId": "11111111-2222-5333-8444-555555555555",
        "TopicArn": TOPIC,
        "Subject": "Amazon S3 Notification",
        "Message": '{"Records": []}\nwith a line break',
        "Timestamp": AT.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    } | changes


def delivered(body: Mapping[str, Any] | str, *, message_id: str = "sqs-1") -> SqsMessage:
    text = body if isinstance(body, str) else json.dumps(body)
    return SqsMessage(message_id=message_id, body=text, receipt_handle=f"{message_id}#1", receive_count=1)


@dataclass
class CertificateServer:
    """A server of certificates by URL; other URLs, and all URLs while it is down, do not answer."""

    files: dict[str, bytes]
    down: bool = False
    requests: list[str] = field(default_factory=list)

    def __call__(self, url: str, seconds: float) -> bytes:
        assert seconds > 0
        self.requests.append(url)
        if self.down or url not in self.files:
            raise CertificateUnavailableError(f"{url} does not answer")
        return self.files[url]


def server(**changes: Any) -> CertificateServer:
    """Return a server of AWS's URLs with the certificate of `signer(**changes)`."""
    return CertificateServer(files={URL: signer(**changes).pem, ISSUER_URL: intermediate().der})
