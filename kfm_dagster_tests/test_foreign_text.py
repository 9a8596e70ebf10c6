"""Text that somebody else wrote: the time that it costs grows with its length, whatever it repeats."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kfm_dagster.addresses import shown, without_secrets
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.ingest.evidence_bundle import redacted
from kfm_dagster.notifications import fields
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.operators.message_parse import parse_message
from kfm_dagster.redaction import error_text, redact
from kfm_dagster.storage.text import json_text, json_value, storable
from kfm_dagster_tests.integration.chain import StoredObject, announce, volumes

pytestmark = pytest.mark.clause("SEC-12")

SHORT, FACTOR = 1_250, 8
"""Characters, and how many times as many the long text has: where the work is quadratic it costs 64 times as much."""
ALLOWED, NOISE_SECONDS = 24, 0.010
"""The long text may take so many times as long, and a collection of garbage."""
TRIES, TRIES_OF_LONG = 4, 40
"""One of so many is enough: on a busy machine a process pays for what its neighbours leave of the caches."""

PIECES = [
    *("-a", "a.", "a-", "a=", "a@", "a@b", "a@b.c_", "@a.", "a:", "://a", "a://", "a://b?", "?a://", "b:/", ".//@"),
    *("x-amz-", "x-goog-", "x-amz-a=", "token", "token-", "token ", "token=", "secret_", 'pwd="', "sig='", "a_token:"),
    *("eyJ-", "eyJaaaaa", "eyJaaaaa.", "AKIA", "ghp_", "Aa1", "Aa1/", "AWS4-HMAC-SHA256", "basic ", "authorization "),
    *("-----BEGIN ", "-----BEGIN PRIVATE KEY ", "-----END ", 'File "", line ', 'File "", line 1\n', "at a(", "... 1\n"),
    *("\\", "\\\\u0000", '\\"', '"', "'", "[", "{", '{"a":'),
    *("%", "%2", "+", "/", "\n", " ", "\x00", "\ud800", "é", "1"),
]
"""What is repeated: beginnings of what the rules look for, and the marks between which they look."""

Reader = Callable[[str], Any]


def _parsed(text: str, *, registry: ContractRegistry, place: str) -> Any:
    [item] = volumes(1)
    if place == "key":
        item = StoredObject(bucket=item.bucket, key=text, stored=b"", announced=b"")
    message = announce([item.event()], registry=registry)
    body = json.loads(message.body)
    if place in body:
        body[place] = text
    body = text if place == "body" else json.dumps(body)
    return parse_message(SqsMessage(message_id="m", body=body), registry=registry, queue="q")


def _value(text: str) -> Any:
    try:
        return json_value(text)
    except (ValueError, RecursionError):
        return None


READERS: dict[str, Reader] = {
    "redact": redact,
    "error_text": lambda text: error_text(ValueError(text)),
    "redact the end of a trace": lambda text: redact(f"Traceback (most recent call last)\n{text}"),
    "redacted": redacted,
    "redacted names": lambda text: redacted({text: text}),
    "redacted JSON in JSON": lambda text: redacted(json.dumps({"Message": json.dumps({"Records": [text] * 3})})),
    "storable": storable,
    "json_text": lambda text: json_text({text: [text]}),
    "json_value": _value,
    "json_value of a text": lambda text: json_value(json.dumps(text)),
    "shown address": lambda text: shown(f"s3://{text}"),
    "without_secrets": lambda text: without_secrets(text, "postgresql://u:a-a@h/d?password=a"),
    "shown field": fields.shown,
}


def seconds(read: Reader, text: str) -> float:
    before = time.process_time()
    read(text)
    return time.process_time() - before


def grows_with_length(read: Reader, piece: str) -> bool:
    short, long = ((piece * (size // len(piece) + 1))[:size] for size in (SHORT, SHORT * FACTOR))
    least = min(seconds(read, short) for _ in range(TRIES))
    return any(seconds(read, long) <= ALLOWED * least + NOISE_SECONDS for _ in range(TRIES_OF_LONG))


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_time_grows_with_the_length(read: Reader) -> None:
    assert [piece for piece in PIECES if not grows_with_length(read, piece)] == []


@pytest.mark.parametrize("place", ["body", "key", "Message", "TopicArn", "Timestamp", "Type", "MessageId"])
def test_time_to_parse_grows_with_the_length(place: str, contracts: ContractRegistry) -> None:
    def read(text: str) -> Any:
        return _parsed(storable(text), registry=contracts, place=place)

    assert [piece for piece in PIECES if not grows_with_length(read, piece)] == []


@given(piece=st.lists(st.sampled_from(PIECES), min_size=2, max_size=3).map("".join))
@settings(max_examples=40, deadline=None)
@example(piece="-a")
def test_redaction_of_any_mixture_grows_with_the_length(piece: str) -> None:
    assert grows_with_length(redact, piece)
