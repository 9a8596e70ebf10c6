"""Signing of the embedded cloud: an authority and a certificate, generated at every start.

The private keys never leave the process. A deployment that must trust this cloud gets the authority's certificate
(KFM_SNS_TRUSTED_CA) and the server's address (KFM_SNS_TRUSTED_URL). Does not belong here: verifying
(`notifications/signatures.py`), which also describes the signed text.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from kfm_dagster.notifications.signatures import SIGNED_FIELDS

CERTIFICATE_PATH = "/SimpleNotificationService-0123456789abcdef0123456789abcdef.pem"
AUTHORITY_PATH = "/sns-authority.pem"
NAME = "sns.amazonaws.com"
"""Subject of AWS's own certificate, except in regions with a certificate of their own."""
VALID = timedelta(days=30)
"""Validity before and after the start; no embedded cloud runs longer. The certificate must be valid at the time of each
message that it signs, and this time may be on another day."""


class SnsSigner:
    """Signs messages as SNS does: SignatureVersion 1, SNS's default and NODD's."""

    def __init__(self) -> None:
        now = datetime.now(UTC)
        authority_key, self._key = _new_key(), _new_key()
        issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "embedded SNS authority")])
        authority = (
            _builder(issuer, issuer, authority_key.public_key(), now)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(authority=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
            .sign(authority_key, hashes.SHA256())
        )
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
        certificate = (
            _builder(subject, issuer, self._key.public_key(), now)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
            )
            .sign(authority_key, hashes.SHA256())
        )
        self.files: Mapping[str, bytes] = {
            CERTIFICATE_PATH: certificate.public_bytes(Encoding.PEM),
            AUTHORITY_PATH: authority.public_bytes(Encoding.PEM),
        }
        """Files that the server returns, by path."""

    def signed(self, message: Mapping[str, str], *, base_url: str) -> dict[str, str]:
        """Return an SNS message with its signature; the certificate is below `base_url`."""
        lines = [line for name in SIGNED_FIELDS[message["Type"]] if name in message for line in (name, message[name])]
        text = "".join(f"{line}\n" for line in lines).encode()
        signature = self._key.sign(text, padding.PKCS1v15(), hashes.SHA1())  # noqa: S303, as SNS does
        return {
            **message,
            "SignatureVersion": "1",
            "Signature": base64.b64encode(signature).decode(),
            "SigningCertURL": base_url + CERTIFICATE_PATH,
        }


def _new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _builder(subject: x509.Name, issuer: x509.Name, key: rsa.RSAPublicKey, now: datetime) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(
        subject_name=subject,
        issuer_name=issuer,
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=now - VALID,
        not_valid_after=now + VALID,
    )


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
