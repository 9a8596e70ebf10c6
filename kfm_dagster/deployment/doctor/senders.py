"""Senders: whether messages are verified, and whether the certificates that this needs can be had from here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.deployment.doctor.finding import Diagnosis, fault, ok, warning
from kfm_dagster.notifications.authenticity import Signatures
from kfm_dagster.settings import Environment, Settings
from kfm_dagster.telemetry.clock.server_dates import ask_date


def check_senders(
    settings: Settings,
    registry: ContractRegistry,
    *,
    answers: Callable[[str], bool] | None = None,
    now: datetime | None = None,
) -> Iterator[Diagnosis]:
    """Look whether certificates are kept here, else whether their hosts answer. Raises KfmError for a wrong setting."""
    if not settings.verifies_signatures:
        yield from _unverified(settings)
        return
    Signatures(settings)  # refuses one of KFM_SNS_TRUSTED_URL and KFM_SNS_TRUSTED_CA, and a CA file without any
    kept = _valid(settings.home.absolute() / "certificates", now or datetime.now(UTC))
    if kept:
        yield ok(f"{kept} certificates of senders are kept here and hold")
        return
    silent = [url for url in _hosts(settings, registry) if not (answers or _answers)(url)]
    if silent:
        yield fault(
            "certificates of senders cannot be had, so every message waits for its own",
            observed=f"no answer of {', '.join(silent)}, and none is kept in {settings.home / 'certificates'}",
            expected="an answer, or a certificate that was fetched before",
            next_step="let this machine reach these hosts by HTTPS, or set HTTPS_PROXY",
        )
    else:
        yield ok("hosts of senders' certificates answer")


def _unverified(settings: Settings) -> Iterator[Diagnosis]:
    facts = {
        "observed": "KFM_SNS_VERIFY off, or an AWS_ENDPOINT_URL outside AWS",
        "expected": "KFM_SNS_VERIFY=require",
        "next_step": "set it, unless the queue is a demo's or gets raw delivery",
    }
    what = "messages are not verified: everybody who can send one is believed"
    yield fault(what, **facts) if settings.env is Environment.PROD else warning(what, **facts)


def _valid(folder: Path, now: datetime) -> int:
    count = 0
    for file in sorted(folder.glob("*.pem")) if folder.is_dir() else ():
        try:
            certificate = x509.load_pem_x509_certificate(file.read_bytes())
        except (OSError, ValueError):
            continue  # the verifier passes over it, too
        count += certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc
    return count


def _hosts(settings: Settings, registry: ContractRegistry) -> list[str]:
    """Return where SNS of each topic's region has its certificates, and the embedded cloud its own."""
    if settings.sns_trusted_url:
        return [settings.sns_trusted_url]
    return [f"https://sns.{region}.amazonaws.com/" for region in sorted({arn.split(":")[3] for arn in registry.topics})]


def _answers(url: str) -> bool:
    return ask_date(url, clock=lambda: datetime.now(UTC)) is not None
