"""message-parse: messages of NEXRAD chunks, which are not S3 events."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.contracts.envelope import Priority, RawReference
from kfm_dagster.contracts.issues import ParseIssue
from kfm_dagster.demo.feed import ObjectEvent, chunk_notification
from kfm_dagster.operators.message_parse import IgnoreReason, parse_listed
from kfm_dagster.storage.objects import ListedObject
from kfm_dagster_tests.operators.test_message_parse import REGISTRY, code_of, json_values, parse

TOPIC = "arn:aws:sns:us-east-1:684042711724:NewNEXRADLevel2ObjectFilterable"
ARCHIVE_TOPIC = "arn:aws:sns:us-east-1:684042711724:NewNEXRADLevel2Archive"
BUCKET = "unidata-nexrad-level2-chunks"
KEY = "KTLX/399/20261009-043037-048-I"
CAPTURED: dict[str, Any] = {
    "S3Bucket": BUCKET,
    "Key": KEY,
    "SiteID": "KTLX",
    "DateTime": "2026-10-09T04:30:37",
    "VolumeID": 399,
    "ChunkID": 48,
    "ChunkType": "I",
    "L2Version": "V06",
}


def sns(content: Any, *, topic: str = TOPIC, **changes: Any) -> str:
    envelope = {"Type": "Notification", "MessageId": "sns-1", "TopicArn": topic, "Message": json.dumps(content)}
    return json.dumps(envelope | changes)


def message(**changes: Any) -> dict[str, Any]:
    """Return the captured message with changed fields; None removes a field."""
    return {name: value for name, value in (CAPTURED | changes).items() if value is not None}


# --- valid messages


@pytest.mark.clause("OPR-01")
def test_the_captured_message_becomes_a_unit_without_version_size_and_sequencer(shared_data: Path) -> None:
    (unit,) = parse((shared_data / "messages" / "nexrad_chunk_filterable_sns_envelope_2026.json").read_text()).envelopes
    assert (unit.dataset, unit.object_uri) == ("nexrad-l2-chunks", f"s3://{BUCKET}/{KEY}")
    assert (unit.object_version, unit.object_size, unit.sequencer) == (None, None, None)
    assert unit.time_range_start == unit.time_range_end == datetime(2026, 10, 9, 4, 30, 37, tzinfo=UTC)
    # The event time is the notification's, six minutes after the volume began.
    assert unit.event_time == datetime(2026, 10, 9, 4, 36, 44, 969_000, tzinfo=UTC)
    assert (unit.schema_version, unit.priority) == ("V06", Priority.HIGH)
    assert unit.raw == RawReference(
        sqs_message_id="sqs-1", sns_message_id="32e4ee51-fd7a-5d65-a74f-8d138ce6e928", topic_arn=TOPIC
    )


@pytest.mark.clause("OPR-02")
def test_a_message_without_sns_must_have_the_form_of_its_dataset_s_topics(shared_data: Path) -> None:
    retired = (shared_data / "messages" / "nexrad_chunk_old_topic_sns_envelope_2015.json").read_text()
    assert code_of(retired) is ParseIssue.UNROUTABLE_TOPIC
    for case, body in {
        "the captured event of the retired topic": json.loads(retired)["Message"],
        "an event of S3": json.dumps({"Records": [{"s3": {"bucket": {"name": BUCKET}, "object": {"key": KEY}}}]}),
        "a chunk's message": json.dumps(
            CAPTURED | {"S3Bucket": "noaa-hrrr-bdp-pds", "Key": "hrrr.20251203/conus/hrrr.t00z.wrfsfcf06.grib2"}
        ),
    }.items():
        (rejection,) = parse(body).rejections
        assert rejection.reason_code == ParseIssue.UNSUPPORTED_SCHEMA_VERSION, case
        assert "is not announced by messages of the shape" in rejection.detail, case


@pytest.mark.clause("OPR-01")
def test_numbers_as_texts_and_extra_fields_are_accepted() -> None:
    for changes in (
        {"VolumeID": "399", "ChunkID": "48"},
        {"ChunkID": "048"},
        {"DateTime": "2026-10-09T04:30:37Z"},
        {"Extra": ["more", "than", "is", "known"]},
    ):
        assert parse(sns(message(**changes))) == parse(sns(CAPTURED))
    assert len(parse(sns(CAPTURED)).envelopes) == 1


@pytest.mark.clause("OPR-25")
def test_a_message_must_have_the_format_version_of_its_radar() -> None:
    for site, version, code in (
        ("TMCI", "V08", None),
        ("KTLX", "V06", None),
        ("TMCI", "V06", ParseIssue.KEY_GRAMMAR_MISMATCH),
        ("KTLX", "V08", ParseIssue.KEY_GRAMMAR_MISMATCH),
        ("TMCI", "V09", ParseIssue.UNSUPPORTED_SCHEMA_VERSION),
    ):
        body = sns(message(SiteID=site, Key=KEY.replace("KTLX", site), L2Version=version))
        if code is None:
            (unit,) = parse(body).envelopes
            assert (unit.key[:4], unit.schema_version) == (site, version)
        else:
            assert code_of(body) is code


@pytest.mark.clause("OPR-01")
def test_raw_delivery_gives_the_same_unit_with_the_time_of_its_volume_as_event_time() -> None:
    (wrapped,) = parse(sns(CAPTURED)).envelopes
    (bare,) = parse(json.dumps(CAPTURED)).envelopes
    assert bare == wrapped.evolve(raw=RawReference(sqs_message_id="sqs-1"))
    (published,) = parse(sns(CAPTURED, Timestamp="2026-10-09T04:36:44.969Z")).envelopes
    assert published.wal_id == bare.wal_id
    assert (bare.event_time, published.event_time.minute) == (datetime(2026, 10, 9, 4, 30, 37, tzinfo=UTC), 36)


@pytest.mark.clause("WAL-03")
def test_a_listed_chunk_is_the_unit_that_its_message_announced() -> None:
    (announced,) = parse(sns(CAPTURED)).envelopes
    modified = datetime(2026, 10, 9, 4, 36, 44, tzinfo=UTC)
    listed = ListedObject(uri=announced.object_uri, size=5, etag="0" * 32, last_modified=modified)
    unit = parse_listed(REGISTRY.grammars["nexrad-l2-chunks"], listed)
    assert (unit.wal_id, unit.object_version, unit.object_size) == (announced.wal_id, None, 5)


@pytest.mark.clause("OPR-03")
def test_a_test_event_is_ignored_and_the_demo_announces_chunks_in_the_captured_form() -> None:
    [ignored] = parse(sns({"Event": "s3:TestEvent", "Bucket": BUCKET})).ignored
    assert (ignored.reason, ignored.dataset) == (IgnoreReason.TEST_EVENT, "nexrad-l2-chunks")
    event = ObjectEvent(bucket=BUCKET, key=KEY, size=1, etag="0" * 32, event_time=datetime(2026, 10, 9, tzinfo=UTC))
    assert json.loads(chunk_notification(event)) == CAPTURED


# --- rejected messages

ALIEN = ["", None, 7, True, 1.5, [], {}, "x" * 5000]


@pytest.mark.clause("OPR-02")
def test_wrong_chunk_messages_are_rejected_with_a_code_and_give_no_unit() -> None:
    for body, code in (
        (sns({}), ParseIssue.MISSING_REQUIRED_FIELD),
        (sns([]), ParseIssue.MALFORMED_JSON),
        (sns({"Records": [CAPTURED]}), ParseIssue.MISSING_REQUIRED_FIELD),
        (sns(message(VolumeID=-1)), ParseIssue.MISSING_REQUIRED_FIELD),
        (sns(message(VolumeID=1000)), ParseIssue.MISSING_REQUIRED_FIELD),
        (sns(message(ChunkID="0048")), ParseIssue.MISSING_REQUIRED_FIELD),
        (sns(message(ChunkID="٤٨")), ParseIssue.MISSING_REQUIRED_FIELD),
        (sns(message(ChunkID="+48")), ParseIssue.MISSING_REQUIRED_FIELD),
        # An impossible time, equal in key and field.
        (sns(message(Key=KEY.replace("20261009", "20261309"), DateTime="2026-13-09T04:30:37")),
         ParseIssue.MISSING_REQUIRED_FIELD),
        (sns(message(DateTime="yesterday")), ParseIssue.MISSING_REQUIRED_FIELD),
        (sns(message(DateTime="0001-01-01T00:00:00+23:00")), ParseIssue.INVALID_TIME_RANGE),
        (sns(message(DateTime="9999-12-31T23:59:59-23:00")), ParseIssue.INVALID_TIME_RANGE),
        (sns(CAPTURED, Timestamp="0001-01-01T00:00:00+23:00"), ParseIssue.INVALID_TIME_RANGE),
        (sns(message(S3Bucket="elsewhere")), ParseIssue.UNKNOWN_BUCKET),
        # Each topic announces only its own bucket, in its own form.
        (sns(message(S3Bucket="unidata-nexrad-level2")), ParseIssue.UNKNOWN_BUCKET),
        (sns(CAPTURED, topic=ARCHIVE_TOPIC), ParseIssue.MISSING_REQUIRED_FIELD),
        (sns(CAPTURED, topic=TOPIC + "X"), ParseIssue.UNROUTABLE_TOPIC),
        (json.dumps(message(S3Bucket="noaa-goes19")), ParseIssue.KEY_GRAMMAR_MISMATCH),
        # The fields name another chunk than the key.
        (sns(message(SiteID="KICT")), ParseIssue.KEY_GRAMMAR_MISMATCH),
        (sns(message(VolumeID=398)), ParseIssue.KEY_GRAMMAR_MISMATCH),
        (sns(message(ChunkID=47)), ParseIssue.KEY_GRAMMAR_MISMATCH),
        (sns(message(ChunkType="E")), ParseIssue.KEY_GRAMMAR_MISMATCH),
        (sns(message(DateTime="2026-10-09T04:30:38")), ParseIssue.KEY_GRAMMAR_MISMATCH),
        (sns(message(DateTime="2026-10-09")), ParseIssue.KEY_GRAMMAR_MISMATCH),
        (sns(message(DateTime="2026-10-09T04:30:37+01:00")), ParseIssue.KEY_GRAMMAR_MISMATCH),
    ):  # fmt: skip
        assert code_of(body) is code
    (rejection,) = parse(sns(message(ChunkID=47))).rejections
    assert "KTLX/399/20261009-043037-047-I" in rejection.detail


@pytest.mark.clause("OPR-02")
def test_a_message_with_a_missing_field_or_a_field_of_another_type_is_rejected() -> None:
    for name, value in product(CAPTURED, ALIEN):
        code = code_of(sns(CAPTURED | {name: value}))
        # A valid number or text can be rejected because it names another chunk.
        is_of_kind = (name in {"VolumeID", "ChunkID"} and value == 7) or (isinstance(value, str) and value)
        assert code is ParseIssue.MISSING_REQUIRED_FIELD or (is_of_kind and value is not True), (name, value)


@pytest.mark.clause("SEC-01")
def test_keys_outside_the_grammar_are_refused() -> None:
    for key in (
        f"x/{KEY}",
        KEY.replace("/399/", "/../"),
        KEY.replace("399", "٣٩٩"),
        KEY.replace("399", "1399"),
        # Keys in these messages are not URL-encoded.
        KEY.replace("/", "%2F"),
        KEY.replace("-048-I", "-048-X"),
        KEY.replace("-048-I", "-000-I"),
        KEY.replace("-048-I", "-48-I"),
        "K" * 5000,
    ):
        assert code_of(sns(message(Key=key))) is ParseIssue.KEY_GRAMMAR_MISMATCH


@pytest.mark.clause("OPR-02")
@given(
    changes=st.dictionaries(st.sampled_from([*CAPTURED]), json_values([*CAPTURED, "Records"]), max_size=8),
    topic=st.sampled_from([TOPIC, None]),
)
def test_any_message_gives_the_unit_of_its_key_or_is_rejected(changes: dict[str, Any], topic: str | None) -> None:
    changed = CAPTURED | changes
    parsed = parse(json.dumps(changed) if topic is None else sns(changed))
    assert len(parsed.envelopes) + len(parsed.rejections) == 1
    for unit in parsed.envelopes:
        site, volume, name = unit.key.split("/")
        fields = (changed["SiteID"], int(changed["VolumeID"]), int(changed["ChunkID"]), changed["ChunkType"])
        assert fields == (site, int(volume), int(name[16:19]), name[20:])
        assert unit.bucket == changed["S3Bucket"] == BUCKET
        assert unit.key == changed["Key"]
