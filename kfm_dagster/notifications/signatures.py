"""SNS signatures: a message's signed text, its certificate's allowed URLs, verification.

Belongs here: the text that SNS signs, the URLs that a certificate may have, and the checks of chain, name, dates and
signature; the library `cryptography` does the cryptography. Pure: no request, no clock. Does not belong here: fetching
certificates and which messages must be signed (`authenticity.py`).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from kfm_dagster.notifications.fields import MessageError, require_text, require_time, shown

NOTIFICATION = "Notification"
SIGNED_FIELDS: Mapping[str, tuple[str, ...]] = {
    NOTIFICATION: ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"),
    "SubscriptionConfirmation": ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"),
    "UnsubscribeConfirmation": ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"),
}
"""Signed fields by type, in the order of signing (SNS developer guide, "Verifying the signatures of Amazon SNS
messages")."""

_OPTIONAL = "Subject"
_DIGESTS: Mapping[str, hashes.HashAlgorithm] = {"1": hashes.SHA1(), "2": hashes.SHA256()}  # noqa: S303, SNS's default
_TOPIC = re.compile(
    r"arn:aws(-cn|-us-gov)?:sns:([a-z]{2}(?:-[a-z]{1,16}){1,3}-[0-9]{1,2}):[0-9]{12}:[A-Za-z0-9_.-]{1,256}"
)
_FILE = r"/SimpleNotificationService-[0-9A-Za-z]{1,64}\.pem"
MAX_SIGNATURE_CHARACTERS = 1024
"""Base64 of a 4,096-bit RSA signature is 684 characters; SNS signs with 2,048 bits."""


class SignatureError(Exception):
    """A message has no valid signature of its topic; the text is the reason in a few words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedMessage:
    """An SNS message as received: signed text, time, signature with digest, and signer."""

    text: bytes
    at: datetime
    signature: bytes
    digest: hashes.HashAlgorithm
    url: str
    """URL of the signer's certificate."""
    names: tuple[str, ...]
    """Allowed names; the certificate must have at least one of them."""


def _signer(message: Mapping[str, Any], extra_url: str | None) -> tuple[str, tuple[str, ...]]:
    """Return URL and allowed names of a message's claimed certificate, by the topic's region.

    The URL must be on AWS's host of this region, `sns.<region>.amazonaws.com` (China: `.com.cn`), or below `extra_url`,
    without another scheme, port, user, path or query. AWS uses these names (aws-sdk-java-v2, sns-message-manager): the
    service's, the region's, and further names for opt-in regions, China and GovCloud.
    """
    topic = _TOPIC.fullmatch(_text(message, "TopicArn"))
    if topic is None:
        raise SignatureError(f"TopicArn {shown(_text(message, 'TopicArn'))} is not a topic of AWS")
    partition, region = topic[1], topic[2]
    domain = "amazonaws.com.cn" if partition == "-cn" else "amazonaws.com"
    url = _text(message, "SigningCertURL")
    bases = [f"https://sns.{region}.{domain}", *([] if extra_url is None else [extra_url.rstrip("/")])]
    if not any(re.fullmatch(re.escape(base) + _FILE, url) for base in bases):
        raise SignatureError(f"SigningCertURL {shown(url)} is not below {bases[0]}")
    names = [f"sns.{domain}", f"sns.{region}.{domain}", f"sns-signing.{region}.{domain}", f"sns-{region}.{domain}"]
    if partition == "-us-gov":
        names.append("sns-us-gov-west-1.amazonaws.com")
    return url, tuple(names)


def signed(message: Mapping[str, Any], *, extra_url: str | None = None) -> SignedMessage:
    """Return signed text and signer. Raises SignatureError for a wrong field, topic or URL."""
    lines: list[str] = []
    for name in SIGNED_FIELDS[_text(message, "Type")]:
        if name == _OPTIONAL and message.get(name) is None:
            continue
        value = message.get(name)
        if not isinstance(value, str):
            raise SignatureError(f"{name} is missing or of a wrong type")
        # With line breaks in fields, a signed text could be split into other fields. Only `Message` may have them.
        if name != "Message" and ("\n" in value or "\r" in value):
            raise SignatureError(f"{name} holds a line break")
        lines += [name, value]
    digest = _DIGESTS.get(_text(message, "SignatureVersion"))
    if digest is None:
        raise SignatureError(f"SignatureVersion {shown(_text(message, 'SignatureVersion'))} is neither 1 nor 2")
    encoded = _text(message, "Signature")
    url, names = _signer(message, extra_url)
    try:
        if len(encoded) > MAX_SIGNATURE_CHARACTERS:
            raise SignatureError(f"Signature is longer than {MAX_SIGNATURE_CHARACTERS} characters")
        return SignedMessage(
            text="".join(f"{line}\n" for line in lines).encode(),
            at=require_time(message, "Timestamp"),
            signature=base64.b64decode(encoded, validate=True),
            digest=digest,
            url=url,
            names=names,
        )
    except (binascii.Error, ValueError, MessageError):
        raise SignatureError("Signature is no base64, or Timestamp no time") from None


def verify(message: SignedMessage, chain: Sequence[x509.Certificate], *, anchors: Sequence[x509.Certificate]) -> None:
    """Check the chain to an anchor at the message's time, and the signature by the chain's leaf.

    The message's own time is used, because it is signed; so late and repeated messages stay valid. Raises
    SignatureError.
    """
    leaf = chain[0]
    issued_for = _dns_names(leaf)
    name = next((name for name in message.names if name in issued_for), None)
    if name is None:
        raise SignatureError(f"the certificate is of {shown(', '.join(issued_for))}, not of {message.names[0]}")
    if not leaf.not_valid_before_utc <= message.at <= leaf.not_valid_after_utc:
        raise SignatureError(
            f"the certificate was valid from {leaf.not_valid_before_utc.isoformat()} to "
            f"{leaf.not_valid_after_utc.isoformat()}, not at {message.at.isoformat()}"
        )
    policy = PolicyBuilder().store(Store(list(anchors))).time(message.at)
    try:
        policy.build_server_verifier(x509.DNSName(name)).verify(leaf, list(chain[1:]))
    except (VerificationError, ValueError):
        raise SignatureError("the certificate leads to no authority that is trusted") from None
    key = leaf.public_key()
    if not isinstance(key, rsa.RSAPublicKey):
        raise SignatureError("the certificate's key is not RSA")
    try:
        key.verify(message.signature, message.text, padding.PKCS1v15(), message.digest)
    except InvalidSignature:
        raise SignatureError("the signature is not of this message") from None


def _text(message: Mapping[str, Any], name: str) -> str:
    try:
        return require_text(message, name)
    except MessageError as error:
        raise SignatureError(str(error)) from None


def _dns_names(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    return names.get_values_for_type(x509.DNSName)
