"""Any text can be stored: unstorable characters are replaced in parameters and in batches."""

from __future__ import annotations

import json
import re
from datetime import date, datetime, timedelta, timezone
from types import MappingProxyType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.ledger.rows import MAX_TEXT
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.text import json_text, json_value, parameter, storable
from kfm_dagster_tests.factories import START

ANY_TEXT = st.text(st.characters(exclude_categories=()) | st.sampled_from('\0\\u0\ud800\udfff"'))


def _cleaned(text: str) -> str:
    return re.sub("[\0\ud800-\udfff]", "\ufffd", text)


@given(ANY_TEXT)
@example("a\udfffb")
@example("0" * 101)
def test_only_unstorable_characters_are_replaced(text: str) -> None:
    assert storable(text) == _cleaned(text)
    message = SqsMessage(message_id=text, body=text)
    assert (message.message_id, message.body) == (storable(text, 100), _cleaned(text))


@given(st.recursive(ANY_TEXT | st.none(), lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner)))
def test_json_of_any_texts_is_storable_and_keeps_texts_that_are_storable(value: object) -> None:
    written = json_text([value])
    assert not re.search(r"(?<!\\)(?:\\\\)*\\u0000", written)
    assert not re.search("\0|[\ud800-\udfff]", json.dumps(json.loads(written), ensure_ascii=False))
    if value == _plain(value):
        assert json.loads(written) == [value]


def _plain(value: object) -> object:
    return json.loads(re.sub(r"(?<!\\)((?:\\\\)*)\\u(?:0000|d[89a-f]..)", r"\1\\ufffd", json.dumps(value)))


@given(st.recursive(ANY_TEXT | st.integers() | st.floats(allow_nan=False) | st.none(), st.lists))
@example([2**64, -(2**63) - 1, 1e300])
def test_json_is_parsed_as_by_python(value: object) -> None:
    assert json_value(json.dumps(value)) == value


def test_a_text_over_its_limit_is_truncated_and_marked() -> None:
    for length, kept in [(4, "abcd"), (3, "ab…")]:
        assert storable("abcd", length) == kept


def test_a_parameter_is_passed_unchanged_or_is_encoded_once_as_text() -> None:
    for value, encoded in (
        (None, None),
        (True, True),
        (b"\0", b"\0"),
        (START.astimezone(timezone(timedelta(hours=-5))), "2025-12-03T00:06:24.000000Z"),
        (date(2025, 12, 3), "2025-12-03"),
        (Lane.BULK, "bulk"),
        ({"b": START, "a": (Lane.BULK, None)}, '{"a":["bulk",null],"b":"2025-12-03T00:06:24.000000Z"}'),
        ({"b", "a"}, '["a","b"]'),
        (("\0" for _ in range(2)), '["\ufffd","\ufffd"]'),
        (MappingProxyType({"a": "\ud800"}), '{"a":"\ufffd"}'),
        ({"a": 1}.values(), "[1]"),
    ):
        assert parameter(value) == encoded


def test_values_without_a_database_type_are_refused() -> None:
    for value in (datetime(2025, 12, 3), [datetime(2025, 12, 3)], [object()]):  # noqa: DTZ001
        with pytest.raises((ValueError, TypeError)):
            parameter(value)


@pytest.mark.clause("SEC-05")
def test_every_parameter_is_storable_as_a_single_value_and_in_a_batch(database: Database) -> None:
    odd = "a\0b\ud800c"
    at = rfc3339(START)
    delivery = {
        "message_id": odd, "queue": odd, "receipt_handle": odd, "receives": 1, "landing_sha256": "x",
        "sns_message_id": odd * (MAX_TEXT // len(odd)), "topic_arn": None, "state": "in_flight",
    }  # fmt: skip
    with database.transaction() as tx:
        tx.run("deliveries.record", batch=[delivery], at=at)
        tx.run("deliveries.dead_letter", message_ids=[odd], queue=odd + "\0", at=at)
        rows = tx.run("deliveries.states", message_ids=[odd]).all()
    assert [(row.message_id, row.state) for row in rows] == [("a\ufffdb\ufffdc", "dead_lettered")]
