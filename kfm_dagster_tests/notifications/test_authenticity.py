"""Authenticity of messages: signed messages are verified, and forged messages refused."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.contracts.issues import ParseIssue
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.notifications import authenticity
from kfm_dagster.notifications.authenticity import (
    MAX_FETCHES,
    MAX_KEPT,
    Certificates,
    CertificateUnavailableError,
    Signatures,
    get,
)
from kfm_dagster.notifications.messages import Authenticity, SenderVerdict, SqsMessage
from kfm_dagster.operators.message_parse import parse_message
from kfm_dagster.settings import Environment, Settings, environment
from kfm_dagster_tests.followers.announcements.web_server import WebAnswer, open_web_server
from kfm_dagster_tests.notifications import signing
from kfm_dagster_tests.notifications.signing import (
    AT,
    ISSUER_URL,
    URL,
    CertificateServer,
    delivered,
    notification,
    sign,
)

pytestmark = pytest.mark.clause("SEC-04")
LOOPBACK = "http://127.0.0.1:4566"


@pytest.fixture(autouse=True)
def _public_authorities_are_the_tests_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authenticity, "public_authorities", lambda: (signing.root().certificate,))


def verifier(folder: Path, fetch: CertificateServer, **settings: Any) -> Signatures:
    chosen = Settings(home=folder, sns_verify="require", **settings)
    return Signatures(chosen, certificates=Certificates(folder / "certificates", fetch=fetch))


def verdict(folder: Path, body: Any, fetch: CertificateServer | None = None, **settings: Any) -> SenderVerdict:
    [result] = verifier(folder, fetch or signing.server(), **settings).verdicts([delivered(body)])
    return result


def test_a_message_signed_by_its_topic_is_verified(tmp_path: Path) -> None:
    bare = {name: value for name, value in notification().items() if name != "Subject"}
    confirmation = bare | {"Token": "2336", "SubscribeURL": "https://sns.us-east-1.amazonaws.com/?x"}
    messages = [
        notification(),
        bare,
        notification(Subject="Prüfung ☂", Message="Subject\nx\nMessageId\ny\n"),
        *(confirmation | {"Type": kind} for kind in ("SubscriptionConfirmation", "UnsubscribeConfirmation")),
    ]
    # The certificate is valid only at the message's time, which is before this release.
    only_then = {"start": AT, "end": AT}
    for message, version in product(messages, ("1", "2")):
        body = sign(message, signing.signer(**only_then), version=version)
        # Fields outside the signature can have any value.
        for sent in (body, body | {"UnsubscribeURL": "https://evil.example/"}):
            assert verdict(tmp_path, sent, signing.server(**only_then)).authenticity is Authenticity.VERIFIED, sent


def test_a_forged_field_is_refused(tmp_path: Path) -> None:
    signed = sign(notification(), signing.signer())
    changes: list[dict[str, Any]] = [
        {"Message": '{"Records": [1]}'},
        {"MessageId": "another"},
        {"Subject": "another"},
        {"Subject": None},
        {"Timestamp": "2025-04-02T22:11:00.001Z"},
        {"TopicArn": "arn:aws:sns:us-east-1:123901341784:NewGOES18Object"},
        {"Type": "SubscriptionConfirmation", "Token": "1", "SubscribeURL": "https://sns.us-east-1.amazonaws.com/"},
        {"SignatureVersion": "2"},
        {"SignatureVersion": "3"},
        {"SignatureVersion": 1},
        {"SignatureVersion": None},
        {"Signature": ""},
        {"Signature": "elided"},
        {"Signature": "QUJD"},
        {"Signature": "QUJD" * 1000},
        {"Signature": 7},
        {"Message": None},
        {"Message": {"Records": []}},
        {"Timestamp": "yesterday"},
        {"TopicArn": "arn:aws:sns:us-east-1.evil.example/:123901341784:NewGOES19Object"},
        # The same signed text, divided into fields differently.
        {"MessageId": notification()["MessageId"] + "\nSubject\nAmazon S3 Notification", "Subject": None},
    ]
    for change in changes:
        body = {name: value for name, value in (signed | change).items() if value is not None}
        result = verdict(tmp_path, body)
        assert result.authenticity is Authenticity.INVALID, change
        assert 0 < len(result.detail) < 500


def test_a_certificate_from_another_url_is_not_fetched(tmp_path: Path) -> None:
    forger = signing.signer()
    urls: list[Any] = [
        URL.replace("https", "http"),
        URL.replace("us-east-1", "eu-west-1"),  # another region of AWS than the topic's
        URL.replace("sns.us-east-1", "sns.evil"),
        URL.replace(".com/", ".com.evil.com/"),
        URL.replace("https://", "https://sns.us-east-1.amazonaws.com@evil.com/"),
        URL.replace("https://", "https://evil.com#@"),
        URL.replace("https://", "https://user@"),
        URL.replace(".com/", ".com:8443/"),
        URL.replace(".com/", ".com./"),
        URL.replace(".com/", ".com\\@evil.com/"),
        URL.replace("sns.us-east-1.amazonaws.com", "s3.amazonaws.com/bucket"),
        URL.replace("sns.", "xsns."),
        URL.replace("sns.", "SNS."),
        URL.replace("sns.us", "sns-us"),
        URL.replace("/Simple", "/../Simple"),
        URL.replace(".pem", ".pem?x"),
        URL.replace(".pem", ".pem#x"),
        URL + "\n",
        " " + URL,
        "https://sns.us-east-1.amazonaws.com/other.pem",
        "https://sns.us-east-1.amazonaws.com.cn" + URL.partition(".com")[2],
        "http://127.0.0.1:4566" + URL.partition(".com")[2],
        "file:///etc/ssl/SimpleNotificationService-0.pem",
        "",
        7,
    ]
    for url in urls:
        fetch = CertificateServer(files={str(url): forger.pem, URL: forger.pem, ISSUER_URL: signing.intermediate().der})
        body = sign(notification(), forger, url=url)
        assert (verdict(tmp_path, body, fetch).authenticity, fetch.requests) == (Authenticity.INVALID, []), url


def test_a_certificate_that_is_not_valid_for_sns_or_at_the_message_s_time_is_refused(tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"end": AT - timedelta(seconds=1)}, "valid"),
        ({"start": AT + timedelta(seconds=1)}, "valid"),
        ({"names": ["sns.evil.com"]}, "sns.evil.com"),
        ({"names": ["s3.amazonaws.com"]}, "s3.amazonaws.com"),
        ({"names": ["*.amazonaws.com"]}, "amazonaws.com"),
        ({"names": ["sns.eu-west-1.amazonaws.com"]}, "eu-west-1"),
        ({"names": []}, "not of"),
        ({"by": None}, "no authority"),
        ({"by": signing.issue("other", authority=True)}, "no authority"),
        ({"by": signing.issue("leaf", by=signing.root(), names=["sns.amazonaws.com"])}, "no authority"),
    ]
    for changes, reason in wrong:
        own = signing.signer(**changes)
        issuer = changes.get("by") or signing.intermediate()
        fetch = CertificateServer(files={URL: own.pem, ISSUER_URL: issuer.der})
        result = verdict(tmp_path, sign(notification(), own), fetch)
        assert result.authenticity is Authenticity.INVALID, changes
        assert reason in result.detail
        assert not (tmp_path / "certificates").exists(), "only valid certificates are stored"


def test_the_certificate_names_of_all_regions_are_accepted(tmp_path: Path) -> None:
    for region, partition, name in (
        ("eu-west-1", "aws", "sns.amazonaws.com"),
        ("us-east-1", "aws", "sns.us-east-1.amazonaws.com"),
        ("af-south-1", "aws", "sns-signing.af-south-1.amazonaws.com"),
        ("cn-north-1", "aws-cn", "sns-cn-north-1.amazonaws.com.cn"),
        ("us-gov-east-1", "aws-us-gov", "sns-us-gov-west-1.amazonaws.com"),
    ):
        suffix = ".cn" if partition == "aws-cn" else ""
        url = f"https://sns.{region}.amazonaws.com{suffix}" + URL.partition(".com")[2]
        own = signing.signer(names=[name])
        fetch = CertificateServer(files={url: own.pem, ISSUER_URL: signing.intermediate().der})
        body = sign(notification(TopicArn=f"arn:{partition}:sns:{region}:123456789012:topic"), own, url=url)
        assert verdict(tmp_path, body, fetch).authenticity is Authenticity.VERIFIED, region


def test_an_extra_authority_is_trusted_for_its_url_only(tmp_path: Path) -> None:
    extra = signing.issue("extra", authority=True)
    file = tmp_path / "extra.pem"
    file.write_bytes(extra.pem)
    own, aws = signing.signer(by=extra, issuer_url=None), signing.signer()
    here = LOOPBACK + URL.partition(".com")[2]
    trust = {"sns_trusted_url": LOOPBACK, "sns_trusted_ca": file}

    def result(by: signing.Issued, url: str, **settings: Any) -> Authenticity:
        fetch = CertificateServer(files={url: by.pem, ISSUER_URL: signing.intermediate().der})
        return verdict(tmp_path / "home", sign(notification(), by, url=url), fetch, **settings).authenticity

    assert result(own, here) is Authenticity.INVALID, "loopback is trusted only by the settings"
    assert result(own, URL, **trust) is Authenticity.INVALID
    assert result(aws, here, **trust) is Authenticity.INVALID
    assert result(own, here.replace("4566/", "45660/"), **trust) is Authenticity.INVALID
    assert result(own, here, **trust) is Authenticity.VERIFIED
    assert result(aws, URL, **trust) is Authenticity.VERIFIED


def test_an_incomplete_or_unreadable_extra_authority_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    for settings in (
        {"sns_trusted_url": LOOPBACK},
        {"sns_trusted_ca": file},
        {"sns_trusted_url": LOOPBACK, "sns_trusted_ca": file},
        {"sns_trusted_url": LOOPBACK, "sns_trusted_ca": tmp_path / "missing"},
    ):
        with pytest.raises(ConfigurationError):
            verifier(tmp_path, signing.server(), **settings)


def test_a_certificate_is_fetched_once_for_all_messages_and_processes(tmp_path: Path) -> None:
    fetch = signing.server()
    body = sign(notification(), signing.signer())
    messages = [delivered(body, message_id=f"sqs-{number}") for number in range(50)]
    first = verifier(tmp_path, fetch)
    assert {verdict.authenticity for verdict in first.verdicts(messages)} == {Authenticity.VERIFIED}
    assert {verdict.authenticity for verdict in first.verdicts(messages)} == {Authenticity.VERIFIED}
    second = verifier(tmp_path, CertificateServer(files={}, down=True))
    assert {verdict.authenticity for verdict in second.verdicts(messages)} == {Authenticity.VERIFIED}
    assert fetch.requests == [URL, ISSUER_URL]
    assert ((tmp_path / "certificates").stat().st_mode & 0o777) == 0o700


def test_a_forged_certificate_in_the_cache_is_not_trusted(tmp_path: Path) -> None:
    forger = signing.signer(by=signing.issue("other", authority=True))
    verifier(tmp_path, signing.server()).verdicts([delivered(sign(notification(), signing.signer()))])
    [cached] = (tmp_path / "certificates").iterdir()
    cached.write_bytes(forger.pem + signing.issue("other", authority=True).pem)
    fetch = CertificateServer(files={}, down=True)
    assert verdict(tmp_path, sign(notification(), forger), fetch).authenticity is Authenticity.INVALID


def test_the_number_of_cached_certificates_is_bounded(tmp_path: Path) -> None:
    cached = Certificates(tmp_path / "certificates", fetch=signing.server())
    for number in range(MAX_KEPT + 5):
        cached.keep(f"{URL}{number}", (signing.root().certificate,))
    assert len(list((tmp_path / "certificates").iterdir())) == MAX_KEPT


def test_authenticity_is_unknown_while_the_certificate_cannot_be_fetched(tmp_path: Path) -> None:
    own = signing.signer()
    body = sign(notification(), own)
    fetch = CertificateServer(files={URL: own.pem, ISSUER_URL: signing.intermediate().der}, down=True)
    checked = verifier(tmp_path, fetch)
    assert checked.verdicts([delivered(body)])[0].authenticity is Authenticity.UNKNOWN
    fetch.down = False
    del fetch.files[ISSUER_URL]
    assert checked.verdicts([delivered(body)])[0].authenticity is Authenticity.UNKNOWN
    fetch.files = {URL: b"<html>sign in to the hotel's network</html>", ISSUER_URL: b"?"}
    assert checked.verdicts([delivered(body)])[0].authenticity is Authenticity.UNKNOWN
    fetch.files = {URL: own.pem, ISSUER_URL: signing.intermediate().der}
    assert checked.verdicts([delivered(body)])[0].authenticity is Authenticity.VERIFIED


def test_an_issuer_s_certificate_is_fetched_only_from_the_authority_s_hosts(tmp_path: Path) -> None:
    for url in (
        "http://169.254.169.254/latest",
        "http://crt.evil.com/r2m01.cer",
        "http://crt.a.amazontrust.com@e/x.cer",
    ):
        own = signing.signer(issuer_url=url)
        fetch = CertificateServer(files={URL: own.pem, url: signing.intermediate().der})
        assert verdict(tmp_path, sign(notification(), own), fetch).authenticity is Authenticity.INVALID
        assert fetch.requests == [URL]


def test_requests_for_forged_certificate_names_are_bounded(tmp_path: Path) -> None:
    fetch, own = signing.server(), signing.signer()
    forged = [
        delivered(sign(notification(), own, url=URL.replace("0a1b", f"{number:04x}")), message_id=f"forged-{number}")
        for number in range(40)
    ]
    good = [delivered(sign(notification(), own), message_id=f"good-{number}") for number in range(2)]
    results = verifier(tmp_path, fetch).verdicts([*forged, *good])
    assert [verdict.authenticity for verdict in results[-2:]] == [Authenticity.VERIFIED] * 2
    assert {verdict.authenticity for verdict in results[:-2]} == {Authenticity.UNKNOWN}
    assert len(fetch.requests) <= MAX_FETCHES + 1


def test_an_unsigned_message_gives_no_unit(tmp_path: Path, contracts: ContractRegistry) -> None:
    for body, code in (
        ('{"Records": []}', ParseIssue.SIGNATURE_INVALID),
        (json.dumps(notification()), ParseIssue.SIGNATURE_INVALID),
        ("{", ParseIssue.MALFORMED_JSON),
        ('{"Type": "Other"}', ParseIssue.UNSUPPORTED_SCHEMA_VERSION),
        ('{"Type": ["Notification"]}', ParseIssue.MISSING_REQUIRED_FIELD),
    ):
        parsed = parse_message(delivered(body), registry=contracts, queue="q", verdict=verdict(tmp_path, body))
        assert [entry.reason_code for entry in parsed.rejections] == [code]
        assert (parsed.envelopes, parsed.ignored) == ((), ())


def test_signatures_are_required_in_prod_and_with_aws_queues(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KFM_SNS_VERIFY", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SQS", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"):
        monkeypatch.delenv(name, raising=False)
    for env, endpoint, expected in (
        (Environment.DEV, None, True),
        (Environment.PROD, None, True),
        (Environment.DEV, LOOPBACK, False),
        (Environment.STAGE, LOOPBACK, False),
        (Environment.PROD, LOOPBACK, True),
        (Environment.DEV, "https://vpce-1.sqs.us-east-1.vpce.amazonaws.com", True),
        (Environment.DEV, "https://sqs.us-east-1.amazonaws.com.evil.com", False),
    ):
        with environment({"AWS_ENDPOINT_URL": endpoint} if endpoint else {}):
            assert Settings(home=tmp_path, env=env).verifies_signatures is expected, (env, endpoint)
            assert Settings(home=tmp_path, env=env, sns_verify="require").verifies_signatures
            assert not Settings(home=tmp_path, env=env, sns_verify="off").verifies_signatures
            with environment({"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}):
                assert Settings(home=tmp_path, env=env).verifies_signatures


def test_without_verification_messages_are_unchecked_and_earlier_verdicts_are_kept(tmp_path: Path) -> None:
    fetch = signing.server()
    checked = Signatures(Settings(home=tmp_path, sns_verify="off"), certificates=Certificates(tmp_path, fetch=fetch))
    messages = [SqsMessage(message_id="known", body="{}"), SqsMessage(message_id="new", body="{}")]
    results = checked.verdicts(messages, verified={"known"})
    assert [result.authenticity for result in results] == [Authenticity.VERIFIED, Authenticity.UNCHECKED]
    assert fetch.requests == []


@pytest.mark.clause("SEC-04", "SEC-06")
def test_a_fetch_follows_no_redirect_and_is_bounded_in_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login user password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    largest = b"x" * authenticity.MAX_CERTIFICATE_BYTES
    with open_web_server() as first, open_web_server() as second:
        wrong = {
            "302": WebAnswer(status=302, headers={"Location": second.url("certificate")}),
            "404": WebAnswer(status=404),
            "more than": WebAnswer(body=largest + b"x"),
        }
        first.answers = lambda _: WebAnswer(body=largest)
        assert get(first.url(), 60) == largest
        for reason, answer in wrong.items():
            first.answers = lambda _, answer=answer: answer
            with pytest.raises(CertificateUnavailableError, match=reason):
                get(first.url(), 60)
        assert second.requests == []
        assert not any("authorization" in request.headers for request in first.requests)
    with pytest.raises(CertificateUnavailableError, match="does not answer"):
        get(first.url(), 60)


@pytest.mark.clause("SEC-04")
def test_a_fetch_from_a_slow_server_ends_after_its_time_limit(tmp_path: Path) -> None:
    """The server sends single bytes without long pauses; only the total time is limited."""
    with open_web_server() as server:
        server.answers = lambda _: WebAnswer(dripping=True)
        begun = time.monotonic()
        with pytest.raises(CertificateUnavailableError, match="does not answer"):
            Certificates(tmp_path).fetch(server.url(), within=0.5)
        assert time.monotonic() - begun < 5
