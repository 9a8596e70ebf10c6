"""Authenticity: whether a message was sent by the SNS topic that it names.

Belongs here: which messages have to be signed, and the verdict on a batch of them, for which each certificate is
fetched once at most. Does not belong here: what a signature is (`signatures.py`) and keeping the verdict (`ledger/`).
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
"""Certificates that are asked for in a period: a topic has one, two while it changes; forged messages can name any."""
FETCH_SECONDS = 10.0
"""What asking may last in a period, however slowly a server answers: a tick has a minute for everything."""

RAW = "no SNS envelope, so nobody signed it; KFM_SNS_VERIFY=off accepts raw delivery"


class Signatures:
    """Verifies messages under the settings. Never raises for what a message holds."""

    def __init__(self, settings: Settings, *, certificates: Certificates | None = None) -> None:
        self._required = settings.verifies_signatures
        self._extra_url = settings.sns_trusted_url or None
        self._extra_authorities = _extra_authorities(settings)
        self._certificates = certificates or Certificates(settings.home.absolute() / "certificates")
        self._period, self._fetches, self._spent = -math.inf, 0, 0.0

    def verdicts(self, messages: Sequence[SqsMessage], *, verified: Collection[str] = ()) -> list[SenderVerdict]:
        """Return a verdict on each message, in their order; those of ids that were `verified` before stay so."""
        if not self._required:
            return [VERIFIED if message.message_id in verified else UNCHECKED for message in messages]
        pending: dict[int, SignedMessage] = {}
        found: list[SenderVerdict] = []
        for index, message in enumerate(messages):
            if message.message_id in verified:
                found.append(VERIFIED)
                continue
            try:
                claim = self._claimed(message)
            except SignatureError as error:
                found.append(_invalid(error))
                continue
            found.append(UNCHECKED)
            if claim is not None:
                pending[index] = claim
        chains = self._chains(Counter(claim.url for claim in pending.values()))
        for index, claim in pending.items():
            found[index] = self._verdict(claim, chains[claim.url])
        return found

    def _claimed(self, message: SqsMessage) -> SignedMessage | None:
        """Return what is said to be signed, and by whom; None for a body that is no unit, no matter who sent it."""
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
        """Return each certificate, or why it cannot be had now; those that most messages name are fetched first."""
        chains: dict[str, Chain | str] = {}
        for url, _ in urls.most_common():
            known = self._certificates.known(url)
            chains[url] = self._fetched(url) if known is None else known
        return chains

    def _fetched(self, url: str) -> Chain | str:
        begun = time.monotonic()
        if begun - self._period >= PERIOD_SECONDS:
            self._period, self._fetches, self._spent = begun, 0, 0.0
        if self._fetches >= MAX_FETCHES or self._spent >= FETCH_SECONDS:
            return "other certificates are asked for before its own"
        self._fetches += 1
        try:
            return self._certificates.fetch(url, within=FETCH_SECONDS - self._spent)
        except CertificateUnavailableError as error:
            return str(error)
        finally:
            self._spent += time.monotonic() - begun

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
        """Return who vouches for the certificate at a URL: neither kind of authority does for the other's."""
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
