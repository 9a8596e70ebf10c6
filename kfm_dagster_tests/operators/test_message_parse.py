"""message-parse: messages that become units, are ignored, or are rejected with a reason."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.contracts.envelope import Priority, RawReference
from kfm_dagster.contracts.identity import EARLIEST, LATEST, rfc3339, wal_id
from kfm_dagster.contracts.issues import ParseIssue
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.notifications.fields import MAX_BODY_BYTES
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.operators.message_parse import IgnoreReason, ParsedMessage, parse_listed, parse_message
from kfm_dagster.storage.objects import ListedObject
from kfm_dagster_tests.factories import with_section

REGISTRY = ContractRegistry.load()
GOES_TOPIC = "arn:aws:sns:us-east-1:123901341784:NewGOES19Object"
HRRR_TOPIC = "arn:aws:sns:us-east-1:123901341784:NewHRRRObject"
GOES_KEY = "ABI-L1b-RadC/2025/337/00/OR_ABI-L1b-RadC-M6C13_G19_s20253370001174_e20253370003558_c20253370004004.nc"
HRRR_KEY = "hrrr.20251203/conus/hrrr.t00z.wrfsfcf06.grib2"


def record(*, bucket: str = "noaa-goes19", key: str = GOES_KEY, **changes: Any) -> dict[str, Any]:
    described = {"key": key, "size": 1000, "eTag": "0123456789abcdef0123456789abcdef", "sequencer": "00692F7D2A"}
    described |= changes.pop("described", {})
    return {
        "eventVersion": "2.1",
        "eventTime": "2025-12-03T00:04:20.123Z",
        "eventName": "ObjectCreated:Put",
        "s3": {"configurationId": "goes18-log-notify", "bucket": {"name": bucket}, "object": described},
    } | changes


def raw(*records: Any) -> str:
    return json.dumps({"Records": list(records)})


def sns(message: str, *, topic: str = GOES_TOPIC, **changes: Any) -> str:
    envelope = {"Type": "Notification", "MessageId": "sns-1", "TopicArn": topic, "Subject": "S3", "Message": message}
    return json.dumps(envelope | changes)


def parse(body: str, registry: ContractRegistry = REGISTRY) -> ParsedMessage:
    return parse_message(SqsMessage(message_id="sqs-1", body=body), registry=registry, queue="kfm-nodd-primary")


def code_of(body: str) -> ParseIssue:
    parsed = parse(body)
    assert parsed.envelopes == ()
    assert parsed.ignored == ()
    (rejection,) = parsed.rejections
    assert 0 < len(rejection.detail) < 800
    return ParseIssue(rejection.reason_code)


@pytest.mark.clause("OPR-01")
def test_sns_notification_becomes_the_canonical_envelope() -> None:
    (unit,) = parse(sns(raw(record()))).envelopes
    assert unit.dataset == "goes-abi"
    assert unit.object_uri == f"s3://noaa-goes19/{GOES_KEY}"
    assert (unit.provider, unit.queue, unit.priority) == ("aws", "kfm-nodd-primary", Priority.HIGH)
    assert unit.event_time == datetime(2025, 12, 3, 0, 4, 20, 123000, tzinfo=UTC)
    assert unit.time_range_start == datetime(2025, 12, 3, 0, 1, 17, 400000, tzinfo=UTC)
    assert unit.time_range_end == datetime(2025, 12, 3, 0, 3, 55, 800000, tzinfo=UTC)
    assert unit.schema_version == "2.1"
    assert unit.object_version == "0123456789abcdef0123456789abcdef"
    assert (unit.object_size, unit.sequencer) == (1000, "00692F7D2A")
    assert unit.raw == RawReference(sqs_message_id="sqs-1", sns_message_id="sns-1", topic_arn=GOES_TOPIC, subject="S3")
    assert (unit.integrity, unit.metadata, unit.attempt) == (None, None, 0)


@pytest.mark.clause("OPR-01")
def test_raw_delivery_gives_the_same_unit_as_the_sns_envelope() -> None:
    (wrapped,) = parse(sns(raw(record()))).envelopes
    (bare,) = parse(raw(record())).envelopes
    assert bare == wrapped.evolve(raw=RawReference(sqs_message_id="sqs-1"))
    assert parse(raw(record())) == parse(raw(record()))
    # An absent version, size and sequencer stay absent.
    absent = record()
    absent["s3"]["object"] = {"key": GOES_KEY}
    (unit,) = parse(raw(absent)).envelopes
    assert (unit.object_version, unit.object_size, unit.sequencer) == (None, None, None)


@pytest.mark.clause("OPR-01")
def test_keys_are_decoded_as_form_data() -> None:
    pattern = r"data/(?P<name>x y)/(?P<date>\d{8})_(?P<time>\d\d:\d\d)=a\+b\.nc"
    hrrr = REGISTRY["hrrr"]
    start = hrrr.storage.key_grammar.start.model_copy(update={"value": "{date}{time}", "format": "%Y%m%d%H:%M"})
    grammar = hrrr.storage.key_grammar.model_copy(update={"pattern": pattern, "end_offset_hours": None, "start": start})
    stored = with_section(hrrr, "storage", key_grammar=grammar, prefixes=["data/"])
    registry = ContractRegistry.of([with_section(stored, "stac", item_id="{date}")])
    body = raw(record(bucket="noaa-hrrr-bdp-pds", key="data/x+y/20210823_00%3A30%3Da%2Bb.nc"))
    (unit,) = parse(body, registry).envelopes
    assert unit.key == "data/x y/20210823_00:30=a+b.nc"
    assert unit.time_range_start == datetime(2021, 8, 23, 0, 30, tzinfo=UTC)


@pytest.mark.clause("OPR-01")
def test_captured_messages_of_goes_become_units(shared_data: Path) -> None:
    (unit,) = parse((shared_data / "messages" / "goes17_sqs_body_2019.json").read_text()).envelopes
    assert unit.object_uri == (
        "s3://noaa-goes17/ABI-L1b-RadM/2019/218/01/"
        "OR_ABI-L1b-RadM2-M6C03_G17_s20192180138575_e20192180139033_c20192180139080.nc"
    )
    assert unit.raw.sns_message_id == "191c04d9-d428-5417-b457-511b08af29c6"
    assert unit.object_version == "7239138a465f83a247851a1a64ac8927"
    assert unit.object_size == 1063054
    (multipart,) = parse((shared_data / "messages" / "goes17_s3event_multipart_2019.json").read_text()).envelopes
    assert multipart.object_version == "92917931abf93d1adfe0f1d8dce3b293-3"
    assert multipart.raw == RawReference(sqs_message_id="sqs-1")


@pytest.mark.clause("OPR-02")
def test_captured_messages_of_foreign_topics_are_rejected(shared_data: Path) -> None:
    for name in (
        "nexrad_archive_sns_envelope_2015.json",  # an account retired in 2025
        "nexrad_chunk_old_topic_sns_envelope_2015.json",
        "ofs_sns_envelope_2023.json",
    ):
        assert code_of((shared_data / "messages" / name).read_text()) is ParseIssue.UNROUTABLE_TOPIC


@pytest.mark.clause("OPR-02")
def test_wrong_messages_are_rejected_with_a_code_and_give_no_unit() -> None:
    for body, code in (
        ("", ParseIssue.MALFORMED_JSON),
        ("{", ParseIssue.MALFORMED_JSON),
        ("[]", ParseIssue.MALFORMED_JSON),
        ("NaN", ParseIssue.MALFORMED_JSON),
        ("[" * 100_000, ParseIssue.MALFORMED_JSON),
        ('{"Records":' + "[" * 5000 + "]" * 5000 + "}", ParseIssue.MALFORMED_JSON),
        (sns("no json"), ParseIssue.MALFORMED_JSON),
        (" " * (MAX_BODY_BYTES + 1), ParseIssue.MESSAGE_TOO_LARGE),
        (json.dumps("é" * MAX_BODY_BYTES, ensure_ascii=False), ParseIssue.MESSAGE_TOO_LARGE),
        ("{}", ParseIssue.MISSING_REQUIRED_FIELD),
        (raw(), ParseIssue.MISSING_REQUIRED_FIELD),
        (json.dumps({"Records": {}}), ParseIssue.MISSING_REQUIRED_FIELD),
        (json.dumps({"Type": []}), ParseIssue.MISSING_REQUIRED_FIELD),
        (json.dumps({"Type": "Other"}), ParseIssue.UNSUPPORTED_SCHEMA_VERSION),
        (sns(raw(record()), TopicArn=None), ParseIssue.MISSING_REQUIRED_FIELD),
        (sns(raw(record()), MessageId=7), ParseIssue.MISSING_REQUIRED_FIELD),
        (sns(raw(record()), Message={"Records": []}), ParseIssue.MISSING_REQUIRED_FIELD),
        (sns(raw(record()), topic=GOES_TOPIC + "X"), ParseIssue.UNROUTABLE_TOPIC),
        # A contract's topic must not announce objects of another dataset's bucket.
        (sns(raw(record()), topic=HRRR_TOPIC), ParseIssue.UNKNOWN_BUCKET),
        (sns(raw(record(bucket="elsewhere"))), ParseIssue.UNKNOWN_BUCKET),
        (raw(record(bucket="elsewhere")), ParseIssue.UNKNOWN_BUCKET),
        (raw("text"), ParseIssue.MISSING_REQUIRED_FIELD),
        (raw(record(s3=None)), ParseIssue.MISSING_REQUIRED_FIELD),
        (raw(record(s3={"bucket": {}, "object": {"key": GOES_KEY}})), ParseIssue.MISSING_REQUIRED_FIELD),
        (raw(record(key="")), ParseIssue.MISSING_REQUIRED_FIELD),
        (raw(record(eventVersion="9.9")), ParseIssue.UNSUPPORTED_SCHEMA_VERSION),
        (raw(record(eventVersion=2.1)), ParseIssue.MISSING_REQUIRED_FIELD),
        (raw(record(eventName="ObjectTagging:Put")), ParseIssue.UNSUPPORTED_SCHEMA_VERSION),
        (raw(record(eventName=None)), ParseIssue.MISSING_REQUIRED_FIELD),
        (raw(record(eventTime="2025-12-03T00:04:20")), ParseIssue.MISSING_REQUIRED_FIELD),
        (raw(record(eventTime="0001-01-01T00:00:00+23:00")), ParseIssue.INVALID_TIME_RANGE),
        (raw(record(eventTime="yesterday")), ParseIssue.MISSING_REQUIRED_FIELD),
        (raw(record(described={"size": -1})), ParseIssue.MISSING_REQUIRED_FIELD),
        (raw(record(described={"size": 2**63})), ParseIssue.MISSING_REQUIRED_FIELD),
        (raw(record(described={"size": True})), ParseIssue.MISSING_REQUIRED_FIELD),
        (raw(record(described={"size": "1000"})), ParseIssue.MISSING_REQUIRED_FIELD),
        (raw(record(described={"eTag": ""})), ParseIssue.MISSING_REQUIRED_FIELD),
        (raw(record(described={"eTag": "a b"})), ParseIssue.MISSING_REQUIRED_FIELD),
        (raw(record(described={"sequencer": "xyz"})), ParseIssue.MISSING_REQUIRED_FIELD),
    ):
        assert code_of(body) is code


@pytest.mark.clause("OPR-01", "OPR-02")
def test_a_topic_announces_only_its_own_dataset() -> None:
    # A dataset without a topic can be announced by raw delivery.
    stations = record(bucket="noaa-isd-pds", key="data/2020/720538-00164-2020.gz")
    (unit,) = parse(raw(stations)).envelopes
    assert unit.dataset == "surface-obs"
    assert code_of(sns(raw(stations))) is ParseIssue.UNKNOWN_BUCKET
    # Two datasets in one bucket.
    hrrr, goes = REGISTRY["hrrr"], REGISTRY["goes-abi"]
    registry = ContractRegistry.of([goes, with_section(hrrr, "storage", buckets=["noaa-goes19"])])
    assert parse(sns(raw(record()), topic=GOES_TOPIC), registry).rejections == ()
    (rejection,) = parse(sns(raw(record()), topic=HRRR_TOPIC), registry).rejections
    assert rejection.reason_code == ParseIssue.UNROUTABLE_TOPIC


FIELDS = (
    "eventVersion", "eventName", "eventTime", "s3", "s3.bucket", "s3.bucket.name", "s3.object", "s3.object.key",
    "s3.object.eTag", "s3.object.size (bytes)", "s3.object.sequencer",
)  # fmt: skip


@pytest.mark.clause("OPR-02")
def test_a_field_of_a_wrong_type_is_named_by_its_path() -> None:
    for path in FIELDS:
        *parents, name = path.partition(" ")[0].split(".")
        body = record()
        parent_object = body
        for parent in parents:
            parent_object = parent_object[parent]
        parent_object[name] = [1]
        (rejection,) = parse(raw(body)).rejections
        assert rejection.reason_code == ParseIssue.MISSING_REQUIRED_FIELD
        assert rejection.detail.startswith(f"{path} is missing or of a wrong type")


@pytest.mark.clause("OPR-02")
def test_a_sender_s_long_text_is_shortened_in_every_reason() -> None:
    for body in (sns("{}", topic="t" * 9000), raw(record(bucket="b" * 9000)), raw(record(key="ABI-L1b-Rad" * 900))):
        (rejection,) = parse(body).rejections
        assert len(rejection.detail) < 500


@pytest.mark.clause("SEC-01")
def test_keys_outside_the_declared_patterns_are_refused() -> None:
    for key in (
        "../../etc/passwd",
        "/etc/passwd",
        "ABI-L1b-RadC/../../secret.nc",
        GOES_KEY + "%00",
        GOES_KEY + "%0A",
        GOES_KEY + "%2F..%2F..%2Fx",
        GOES_KEY.replace("/", "\\"),
        GOES_KEY.replace("/00/", "//00/"),
        "%FF%FE" + GOES_KEY,
        "ABI-Flood/../../x",  # an ignore pattern would match
        "ABI-L1b-RadC/" + "x" * 1100,
        GOES_KEY.replace("2025/", "٢٠٢٥/"),
        "http://elsewhere.example/" + GOES_KEY,
        "ABI-L9-New/2025/337/00/x.nc",  # an unknown product is rejected, not ignored
    ):
        assert code_of(raw(record(key=key))) is ParseIssue.KEY_GRAMMAR_MISMATCH


@pytest.mark.clause("OPR-02")
def test_an_impossible_time_in_a_key_is_an_invalid_time_range() -> None:
    for key in (
        GOES_KEY.replace("s2025337000", "s2025380000"),  # day 380 of a year
        GOES_KEY.replace("s20253370001174", "s20253372501174"),  # hour 25
        GOES_KEY.replace("s2025337", "s2025366"),  # no leap year
        GOES_KEY.replace("e20253370003558", "e20253370001173"),  # ends before it starts
    ):
        assert code_of(raw(record(key=key))) is ParseIssue.INVALID_TIME_RANGE


@pytest.mark.clause("OPR-02", "OPR-27", "SEC-05")
def test_a_time_of_an_implausible_year_is_an_invalid_time_range() -> None:
    for day, plausible in (
        ("00010101", False),
        ("09991231", False),
        ("15821231", False),
        ("15830101", True),
        ("20140729", True),
        ("20140730", True),
        ("25001231", True),
        ("25010101", False),
        ("99991231", False),
    ):
        key = HRRR_KEY.replace("20251203", day)
        parsed = parse(raw(record(bucket="noaa-hrrr-bdp-pds", key=key.replace("f06", "f00"))))
        within = plausible and day >= "20140730"  # the beginning of the dataset
        assert [rejection.reason_code for rejection in parsed.rejections] == (
            [] if within else [ParseIssue.INVALID_TIME_RANGE]
        )
        # A forecast from the last plausible day ends after it.
        late = parse(raw(record(bucket="noaa-hrrr-bdp-pds", key=key.replace("t00z", "t23z"))))
        assert bool(late.envelopes) is (within and day != "25001231")
        time = f"{day[:4]}-{day[4:6]}-{day[6:]}T00:00:00Z"
        for body in (raw(record(eventTime=time)), sns(raw(record()), Timestamp=time)):
            parsed = parse(body)
            assert [rejection.reason_code for rejection in parsed.rejections] == (
                [] if plausible else [ParseIssue.INVALID_TIME_RANGE]
            )


@given(st.datetimes(timezones=st.just(UTC)))
def test_the_text_form_of_times_sorts_by_time(value: datetime) -> None:
    text = rfc3339(value)
    assert len(text) == len("2025-12-03T00:00:00.000000Z")
    assert datetime.fromisoformat(text) == value
    assert (text < rfc3339(LATEST)) is (value < LATEST)
    assert (text < rfc3339(EARLIEST)) is (value < EARLIEST)


def test_a_time_outside_the_years_of_utc_is_refused() -> None:
    for offset in (14, -12):
        zone = timezone(timedelta(hours=offset))
        value = datetime(1, 1, 1, tzinfo=zone) if offset > 0 else datetime(9999, 12, 31, 23, tzinfo=zone)
        with pytest.raises(ValueError, match="no year of UTC"):
            rfc3339(value)


EVENT, NOTICE, REMOVED = IgnoreReason.TEST_EVENT, IgnoreReason.SUBSCRIPTION_NOTICE, IgnoreReason.OBJECT_REMOVED
SUVI_KEY, HRRR_BUCKET = "SUVI-L1b-Fe094/x.nc", "noaa-hrrr-bdp-pds"
HRRR_INDEX = {"bucket": HRRR_BUCKET, "key": HRRR_KEY + ".idx"}


@pytest.mark.clause("OPR-03", "OPR-19")
def test_a_record_without_a_unit_is_ignored_with_its_reason_key_bucket_and_dataset() -> None:
    for body, reason, key, bucket, dataset in (
        (f'{{"Event":"s3:TestEvent","Bucket":"{HRRR_BUCKET}"}}', EVENT, None, HRRR_BUCKET, "hrrr"),
        ('{"Event":"s3:TestEvent","Bucket":"another-s"}', EVENT, None, None, None),
        ('{"Event":"s3:TestEvent","Bucket":["b"]}', EVENT, None, None, None),
        (sns('{"Service":"Amazon S3","Event":"s3:TestEvent"}'), EVENT, None, None, None),
        ('{"Type":"SubscriptionConfirmation"}', NOTICE, None, None, None),
        ('{"Type":"UnsubscribeConfirmation"}', NOTICE, None, None, None),
        (f'{{"Type":"SubscriptionConfirmation","TopicArn":"{HRRR_TOPIC}"}}', NOTICE, None, None, "hrrr"),
        ('{"Type":"SubscriptionConfirmation","TopicArn":7}', NOTICE, None, None, None),
        (raw(record(**HRRR_INDEX)), IgnoreReason.SIDECAR, HRRR_KEY + ".idx", HRRR_BUCKET, "hrrr"),
        (raw(record(key=SUVI_KEY)), IgnoreReason.KNOWN_NEIGHBOUR, SUVI_KEY, "noaa-goes19", "goes-abi"),
        (raw(record(eventName="ObjectRemoved:Delete")), REMOVED, GOES_KEY, "noaa-goes19", "goes-abi"),
        (raw(record(eventName="LifecycleExpiration:Delete")), REMOVED, GOES_KEY, "noaa-goes19", "goes-abi"),
    ):
        parsed = parse(body)
        [ignored] = parsed.ignored
        assert (ignored.reason, ignored.key) == (reason, key), body
        assert (ignored.bucket, ignored.dataset, ignored.record_index) == (bucket, dataset, 0), body
        assert (parsed.envelopes, parsed.rejections) == ((), ())


@pytest.mark.clause("OPR-03")
def test_messages_of_a_dataset_that_is_not_followed_are_ignored() -> None:
    followed = REGISTRY.only(["goes-abi"])
    name = "OR_GLM-L2-LCFA_G19_s20253370000000_e20253370000200_c20253370000217.nc"
    lightning = record(key=f"GLM-L2-LCFA/2025/337/00/{name}")
    for body in (sns(raw(record(bucket="noaa-hrrr-bdp-pds", key=HRRR_KEY)), topic=HRRR_TOPIC), sns(raw(lightning))):
        parsed = parse(body, followed)
        assert (parsed.envelopes, parsed.rejections) == ((), ())
        assert [ignored.reason for ignored in parsed.ignored] == [IgnoreReason.DATASET_NOT_FOLLOWED]
    mixed = parse(sns(raw(record(), lightning, record(key="unknown"))), followed)
    assert [unit.dataset for unit in mixed.envelopes] == ["goes-abi"]
    assert [(ignored.dataset, ignored.record_index) for ignored in mixed.ignored] == [("goes-glm", 1)]
    assert len(mixed.rejections) == 1


@pytest.mark.clause("OPR-03")
def test_the_contract_decides_whether_the_event_of_a_removed_object_is_rejected() -> None:
    strict = with_section(REGISTRY["goes-abi"], "notifications", object_removed="reject")
    (rejection,) = parse(raw(record(eventName="ObjectRemoved:Delete")), ContractRegistry.of([strict])).rejections
    assert rejection.reason_code == ParseIssue.UNSUPPORTED_SCHEMA_VERSION
    assert "goes-abi" in rejection.detail


@pytest.mark.clause("BEY-08", "OPR-01")
def test_a_bad_record_does_not_affect_other_records() -> None:
    other = GOES_KEY.replace("C13", "C14")
    parsed = parse(raw(record(), None, record(key="unknown"), record(**HRRR_INDEX), record(key=other)))
    assert [unit.key for unit in parsed.envelopes] == [GOES_KEY, other]
    rejected = [(rejection.message_id, rejection.record_index) for rejection in parsed.rejections]
    assert rejected == [("sqs-1", 1), ("sqs-1", 2)]
    assert [(ignored.reason, ignored.record_index) for ignored in parsed.ignored] == [(IgnoreReason.SIDECAR, 3)]


def reference_wal_id(*fields: str | None) -> str:
    """Compute the identity independently, by RFC 9562, section 5.8."""
    text = "[" + ",".join("null" if field is None else '"' + field + '"' for field in fields) + "]"
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big")
    number = number & ~(0xF << 76) | (8 << 76)
    number = number & ~(0x3 << 62) | (2 << 62)
    return str(uuid.UUID(int=number))


@pytest.mark.clause("WAL-03")
def test_the_wal_id_of_a_unit_is_the_same_in_every_release() -> None:
    uri = (
        "s3://noaa-goes17/ABI-L1b-RadM/2019/218/01/"
        "OR_ABI-L1b-RadM2-M6C03_G17_s20192180138575_e20192180139033_c20192180139080.nc"
    )
    start = datetime(2019, 8, 6, 1, 38, 57, 500000, tzinfo=UTC)
    for version, golden in (
        ("7239138a465f83a247851a1a64ac8927", "cc00e86e-86a0-8e11-b346-92fc44652b5c"),
        (None, "eec556b5-3259-8c34-89b3-011d0f497b1e"),
    ):
        identity = wal_id(dataset="goes-abi", object_uri=uri, time_range_start=start, object_version=version)
        assert identity == golden
        assert identity == reference_wal_id("goes-abi", uri, "2019-08-06T01:38:57.500000Z", version)
        body = record(bucket="noaa-goes17", key=uri.removeprefix("s3://noaa-goes17/"), described={"eTag": version})
        (unit,) = parse(raw(body)).envelopes
        assert unit.wal_id == golden


@pytest.mark.clause("WAL-03")
def test_each_identity_field_changes_the_wal_id() -> None:
    later = GOES_KEY.replace("s20253370001174", "s20253370001175")
    changes = (
        {},
        {"bucket": "noaa-goes18"},
        {"key": later},
        *({"described": {"eTag": tag}} for tag in ("f" * 32, None)),
    )
    bodies = [record(**change) for change in changes]
    assert len({parse(raw(body)).envelopes[0].wal_id for body in bodies}) == len(bodies)
    redelivered = record(eventTime="2026-01-01T00:00:00Z", described={"sequencer": "FF"})
    assert parse(raw(redelivered)).envelopes[0].wal_id == parse(raw(record())).envelopes[0].wal_id


def test_a_listed_object_is_the_unit_that_its_message_announced() -> None:
    (announced,) = parse(raw(record())).envelopes
    modified = datetime(2025, 12, 3, 0, 4, 20, tzinfo=UTC)
    listed = ListedObject(
        uri=announced.object_uri, size=1000, etag="0123456789abcdef0123456789abcdef", last_modified=modified
    )
    unit = parse_listed(REGISTRY.grammars["goes-abi"], listed)
    assert unit.wal_id == announced.wal_id
    assert (unit.event_time, unit.schema_version, unit.raw) == (modified, "listing", RawReference())
    assert unit.partition == date(2025, 12, 3).isoformat()
    assert parse_listed(REGISTRY.grammars["hrrr"], listed) is None
    elsewhere = ListedObject(uri=f"s3://elsewhere/{announced.key}", size=1, etag=listed.etag, last_modified=modified)
    assert parse_listed(REGISTRY.grammars["goes-abi"], elsewhere) is None


@pytest.mark.clause("WAL-04", "OPR-13")
def test_an_object_without_a_time_in_its_key_has_the_day_of_its_event() -> None:
    described = {"bucket": "noaa-ndfd-pds", "key": "opnl/AR.conus/VP.001-003/ds.maxt.bin"}
    (first,) = parse(raw(record(**described, eventTime="2025-12-03T23:59:58.250Z"))).envelopes
    written = datetime(2025, 12, 3, 23, 59, 57, tzinfo=UTC)
    listed = ListedObject(uri=first.object_uri, size=1000, etag=first.object_version, last_modified=written)
    assert parse_listed(REGISTRY.grammars["ndfd"], listed).wal_id == first.wal_id
    assert (first.partition, first.time_range_end) == ("2025-12-03", first.event_time)
    (again,) = parse(raw(record(**described, eventTime="2025-12-04T00:00:01Z"))).envelopes
    assert (again.partition, again.wal_id == first.wal_id) == ("2025-12-04", False)
    assert code_of(raw(record(**described, eventTime="2019-12-31T00:00:00Z"))) is ParseIssue.INVALID_TIME_RANGE


NAMES = ("Type", "Message", "TopicArn", "Records", "s3", "bucket", "object", "key", "name", "eTag")


def json_values(names: Sequence[str]) -> st.SearchStrategy[Any]:
    """Return any JSON value, with these names of objects' members."""
    return st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(names), inner, max_size=8),
        max_leaves=30,
    )


@pytest.mark.clause("OPR-02")
@given(json_values(NAMES))
def test_arbitrary_json_never_raises(value: Any) -> None:
    for body in (json.dumps(value), sns(json.dumps(value)), raw(value), raw(record(s3=value))):
        parsed = parse(body)
        assert len(parsed.envelopes) + len(parsed.ignored) + len(parsed.rejections) >= 1


@pytest.mark.clause("OPR-02")
@given(st.text() | st.binary().map(lambda data: data.decode("latin-1")))
def test_arbitrary_text_never_raises(body: str) -> None:
    assert parse(body).envelopes == ()
    assert parse(raw(record(key=body))).envelopes == ()
