"""Signatures are those of botocore, whatever is signed."""

from __future__ import annotations

from datetime import UTC, datetime
from unittest.mock import patch
from urllib.parse import quote, urlencode

import pytest
from botocore import auth
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials
from hypothesis import example, given
from hypothesis import strategies as st

from kfm_dagster.storage.signature import signed_headers

AT = st.datetimes(timezones=st.just(UTC))
ASCII = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=20)
QUERY = st.dictionaries(st.sampled_from(["list-type", "prefix", "start-after", "max-keys"]), st.text(max_size=10))


@pytest.mark.clause("SEC-06")
@given(
    secret=st.text(min_size=1, max_size=50),
    token=st.none() | ASCII.filter(str.strip),
    endpoint=st.sampled_from(["http://127.0.0.1:9000", "https://s3.us-east-1.amazonaws.com", "https://store:443"]),
    method=st.sampled_from(["GET", "HEAD", "PUT", "DELETE"]),
    key=st.text(min_size=1, max_size=40),
    query=QUERY,
    headers=st.dictionaries(st.sampled_from(["Range", "If-Match", "If-None-Match", "Content-Type"]), ASCII),
    body=st.binary(max_size=50),
    at=AT,
)
@example(
    secret="s",
    token=None,
    endpoint="http://store:80",
    method="GET",
    key="a b/%2F+ü~",
    query={"prefix": "a/b c"},
    headers={"Range": "bytes=0-1"},
    body=b"",
    at=datetime(2026, 1, 2, tzinfo=UTC),
)
def test_headers_and_signature_are_botocores(
    secret: str,
    token: str | None,
    endpoint: str,
    method: str,
    key: str,
    query: dict[str, str],
    headers: dict[str, str],
    body: bytes,
    at: datetime,
) -> None:
    credentials = ReadOnlyCredentials("AKIDEXAMPLE", secret, token)
    url = f"{endpoint}/bucket/{quote(key, safe='/~')}"
    if query:
        url += "?" + urlencode(query, quote_via=quote)
    request = AWSRequest(method=method, url=url, data=body, headers=dict(headers))
    with patch.object(auth, "get_current_datetime", lambda: at.replace(tzinfo=None)):
        S3SigV4Auth(credentials, "s3", "eu-west-1").add_auth(request)
    ours = signed_headers(credentials, "eu-west-1", method, url, headers, body, at)
    assert ours == dict(request.headers.items())
