"""Authenticity: whether the SNS topic that a message names has sent it.

Belongs here: which messages must be signed, and the verdicts on a batch; each certificate is fetched at most once per
batch. Does not belong here: checking a signature (`signatures.py`) and storing the verdict (`ledger/`).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from cryptography import x509

from kfm_dagster.errors import ConfigurationError
from kfm_dagster.notifications.certificates import (
    Certificates,
    CertificateUnavailableError,
    Chain,
    certificates_in,
    public_authorities,
)
from kfm_dagster.notifications.fields import MessageError, json_object
from kfm_dagster.notifications.messages import UNCHECKED, VERIFIED, Authenticity, SenderVerdict, SqsMessage
from kfm_dagster.notifications.signatures import SIGNED_FIELDS, SignatureError, SignedMessage, signed, verify
from kfm_dagster.settings import Settings

PERIOD_SECONDS = 60.0
MAX_FETCHES = 8
"""Limit of fetches in a period: a topic has one certificate, two during a change; forged messages can name any URL."""
FETCH_SECONDS = 10.0
"""Limit of the time spent fetching in a period, even from slow servers: a tick has a minute for everything."""

RAW = "no SNS envelope, so nobody signed it; KFM_SNS_VERIFY=off accepts raw delivery"


class Signatures:
    """Verifies messages under the settings. No content of a message makes it raise."""

    def __init__(self, settings: Settings, *, certificates: Certificates | None = None) -> None:
        self._required = settings.verifies_signatures
        self._extra_url = settings.sns_trusted_url or None
        self._extra_authorities = _extra_authorities(settings)
        self._certificates = certificates or Certificates(settings.home.absolute() / "certificates")
        self._period, self._fetches, self._spent = -math.inf, 0, 0.0

    def verdicts(self, messages: Sequence[SqsMessage], *, verified: Collection[str] = ()) -> list[SenderVerdict]:
        """Return a verdict on each message, in their order; `verified` ids are not verified again."""
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
        """Return the claimed signature; None for a body that gives no unit, signed or not."""
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
        """Return each certificate, or why it is unavailable; URLs of most messages come first."""
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
            return "other certificates are asked for before its own"
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
        """Return the authorities of a URL: the extra ones below the extra URL, else the public."""
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
            expected="both: whose certificates are trusted, and where these are",
            next_step="set the other one, or unset both",
        )
    try:
        return certificates_in(settings.sns_trusted_ca.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            "KFM_SNS_TRUSTED_CA holds no certificate",
            observed=f"{settings.sns_trusted_ca}: {type(error).__name__}",
            expected="a PEM file",
            next_step="correct it, or unset it and KFM_SNS_TRUSTED_URL",
        ) from None
