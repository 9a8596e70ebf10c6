"""message-parse: turn an SQS message into envelopes, ignored records, and rejections.

Belongs here: reading the body (SNS envelope or raw delivery, S3 event records or a NEXRAD chunk) by the dataset
contracts, and making the same envelope from a listed object. Pure: no clock, no request, no write. Does not belong
here: receiving (`notifications/sqs.py`), checking the sender (`notifications/authenticity.py`), and keeping rejections.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum, unique
from typing import Any, NamedTuple
from urllib.parse import unquote_plus

from kfm_dagster.contracts.envelope import Envelope, RawReference, WalId
from kfm_dagster.contracts.identity import DayWindow, wal_id
from kfm_dagster.contracts.issues import ParseIssue
from kfm_dagster.contracts.key_grammar import (
    InvalidKeyTimeError,
    KeyGrammarReader,
    KeyKind,
    KeyMatch,
)
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.contracts.source import MessageShape
from kfm_dagster.ledger.rejections import IgnoredRecord, Rejection
from kfm_dagster.notifications.fields import (
    ETAG,
    SEQUENCER,
    ChunkNotice,
    MessageError,
    json_object,
    missing,
    optional_size,
    optional_text,
    require_object,
    require_text,
    require_time,
    shown,
)
from kfm_dagster.notifications.messages import UNCHECKED, Authenticity, SenderVerdict, SqsMessage
from kfm_dagster.storage.objects import ListedObject

LISTING_SCHEMA_VERSION = "listing"
"""`schema_version` of a unit from a listing; such a unit has no message."""

MAX_REJECTIONS = 100
"""Maximum distinct rejections of a message. S3 sends one record per message, but 1 MiB can hold 500,000 records."""


@unique
class IgnoreReason(StrEnum):
    """Why a recognised notification is acknowledged without a unit."""

    TEST_EVENT = "test_event"
    """S3 sends a test event when a bucket's notifications are configured."""
    SUBSCRIPTION_NOTICE = "subscription_notice"
    """SNS asks for the confirmation of a subscription, or confirms its end."""
    SIDECAR = "sidecar"
    """The object is a sidecar; the object that it describes has a notification of its own."""
    KNOWN_NEIGHBOUR = "known_neighbour"
    """A contract excludes the key from ingest."""
    OBJECT_REMOVED = "object_removed"
    """The object was removed, and the dataset's contract ignores removals."""
    OUTSIDE_WINDOW = "outside_window"
    """The object is of a day that the deployment does not ingest: before its first day, or too far ahead."""
    DATASET_NOT_FOLLOWED = "dataset_not_followed"
    """KFM_DATASETS does not name the object's dataset."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ignored(IgnoredRecord):
    """An ignored record or message; `dataset` is None if bucket and topic do not determine it."""

    sidecar_version: str | None = None
    """ETag of a created sidecar, or an empty text if the event has no ETag; None for any other record."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedMessage:
    """A parsed message: each record, in order, is an envelope, ignored, or rejected.

    Two records of one version of an object give two envelopes with the same `wal_id`. `positions` has the record index
    of each envelope.
    """

    message_id: str
    verdict: SenderVerdict = UNCHECKED
    envelopes: tuple[Envelope, ...] = ()
    positions: tuple[int, ...] = ()
    ignored: tuple[Ignored, ...] = ()
    rejections: tuple[Rejection, ...] = ()

    def without(self, refused: Mapping[WalId, str]) -> ParsedMessage:
        """Return the message with a rejection in place of each unit that the database refused."""
        if not any(unit.wal_id in refused for unit in self.envelopes):
            return self
        accepted: list[tuple[Envelope, int]] = []
        rejections = _Rejections(self.message_id, self.rejections)
        for unit, index in zip(self.envelopes, self.positions, strict=True):
            if unit.wal_id in refused:
                rejections.add(MessageError(ParseIssue.DATABASE_REFUSED, refused[unit.wal_id]), index)
            else:
                accepted.append((unit, index))
        return replace(
            self,
            envelopes=tuple(unit for unit, _ in accepted),
            positions=tuple(index for _, index in accepted),
            rejections=rejections.records(),
        )


class _Opened(NamedTuple):
    """A message's payload without its SNS envelope; `published` is the SNS timestamp, if any."""

    payload: Mapping[str, Any]
    shape: MessageShape
    raw: RawReference
    published: datetime | None = None


class _Rejections:
    """Rejections of a message, bounded in number however many records the message has.

    Identical rejections are counted. After MAX_REJECTIONS distinct rejections, further rejections are only counted, by
    code.
    """

    def __init__(self, message_id: str, earlier: Iterable[Rejection] = ()) -> None:
        self._message_id = message_id
        self._first: dict[tuple[str, str | None], Rejection] = {
            (rejection.reason_code, rejection.detail): rejection for rejection in earlier
        }
        self._counts = Counter({key: rejection.records for key, rejection in self._first.items()})

    def add(self, error: MessageError, index: int) -> None:
        """Reject the record at `index`."""
        key: tuple[str, str | None] = (error.code, str(error))
        if key not in self._first and len(self._first) >= MAX_REJECTIONS:
            key = (error.code, None)
        self._counts[key] += 1
        if key not in self._first:
            self._first[key] = Rejection(
                message_id=self._message_id, record_index=index, reason_code=error.code.value, detail=str(error)
            )

    def records(self) -> tuple[Rejection, ...]:
        """Return the rejections in the order of their first records."""
        return tuple(replace(rejection, records=self._counts[key]) for key, rejection in self._first.items())


def parse_message(
    message: SqsMessage,
    *,
    registry: ContractRegistry,
    queue: str,
    days: DayWindow | None = None,
    verdict: SenderVerdict = UNCHECKED,
) -> ParsedMessage:
    """Parse a message; with `days`, units of other days are ignored.

    A message with an invalid signature is rejected. While the verdict on its sender is unknown, the result is empty.
    Never raises for a message's content; the same message, contracts, days and verdict give the same result.
    """
    if verdict.authenticity is Authenticity.UNKNOWN:
        return ParsedMessage(message_id=message.message_id, verdict=verdict)
    rejections = _Rejections(message.message_id)
    try:
        opened = _open(message, registry, verdict)
        if isinstance(opened, Ignored):
            return ParsedMessage(message_id=message.message_id, verdict=verdict, ignored=(opened,))
        records = _records(opened)
    except MessageError as error:
        rejections.add(error, 0)
        return ParsedMessage(message_id=message.message_id, verdict=verdict, rejections=rejections.records())
    envelopes: list[Envelope] = []
    ignored: list[Ignored] = []
    positions: list[int] = []
    parse_record = _chunk if opened.shape == "nexrad-chunk" else _unit
    for index, record in enumerate(records):
        try:
            parsed = parse_record(record, opened=opened, registry=registry, queue=queue)
            unit = _within(days, parsed, sent_at=message.sent_at)
        except MessageError as error:
            rejections.add(error, index)
        else:
            if isinstance(unit, Envelope):
                envelopes.append(unit)
                positions.append(index)
            else:
                ignored.append(replace(unit, record_index=index))
    return ParsedMessage(
        message_id=message.message_id,
        verdict=verdict,
        envelopes=tuple(envelopes),
        positions=tuple(positions),
        ignored=tuple(ignored),
        rejections=rejections.records(),
    )


def _within(days: DayWindow | None, unit: Envelope | Ignored, *, sent_at: datetime | None) -> Envelope | Ignored:
    if days is None or isinstance(unit, Ignored):
        return unit
    if days.holds(unit.time_range_start.date(), sent_at=sent_at):
        return unit
    return Ignored(reason=IgnoreReason.OUTSIDE_WINDOW, key=unit.key, bucket=unit.bucket, dataset=unit.dataset)


def parse_listed(grammar: KeyGrammarReader, listed: ListedObject) -> Envelope | None:
    """Return a listed object's envelope; None if its key names no data object of the contract.

    ETag and size are those of the listing, and the event time is `last_modified`. The ETag is left out if the dataset's
    messages have none, so that listing and message give the same unit.
    """
    contract = grammar.contract
    bucket, _, key = listed.uri.removeprefix("s3://").partition("/")
    try:
        match = grammar.match(key, listed.last_modified)
    except InvalidKeyTimeError:
        return None
    if match is None or bucket not in contract.storage.buckets:
        return None
    return _envelope(
        contract,
        match,
        uri=listed.uri,
        queue=contract.queue.name,
        event_time=listed.last_modified,
        schema_version=LISTING_SCHEMA_VERSION,
        version=listed.etag if contract.notifications.names_versions else None,
        size=listed.size,
        raw=RawReference(),
    )


def _open(message: SqsMessage, registry: ContractRegistry, verdict: SenderVerdict) -> _Opened | Ignored:
    """Return the payload of the SNS envelope, or the body itself with raw message delivery."""
    outer = json_object(message.body, "the body")
    if verdict.authenticity is Authenticity.INVALID:
        raise MessageError(ParseIssue.SIGNATURE_INVALID, verdict.detail)
    if "Type" not in outer:
        # With raw delivery, only the fields show the shape.
        shape: MessageShape = "nexrad-chunk" if "S3Bucket" in outer and "Records" not in outer else "s3-event"
        raw = RawReference(sqs_message_id=message.message_id)
        return _test_event(outer, registry) or _Opened(payload=outer, shape=shape, raw=raw)
    kind = require_text(outer, "Type")
    if kind in {"SubscriptionConfirmation", "UnsubscribeConfirmation"}:
        topic = outer.get("TopicArn")
        dataset = _only(registry.every.topics.get(topic, ())) if isinstance(topic, str) else None
        return Ignored(reason=IgnoreReason.SUBSCRIPTION_NOTICE, dataset=dataset)
    if kind != "Notification":
        raise MessageError(ParseIssue.UNSUPPORTED_SCHEMA_VERSION, f"SNS type {shown(kind)} is unknown")
    topic = require_text(outer, "TopicArn")
    if topic not in registry.every.topics:
        raise MessageError(ParseIssue.UNROUTABLE_TOPIC, f"no contract names topic {shown(topic)}")
    published = require_time(outer, "Timestamp") if "Timestamp" in outer else None
    subject = outer.get("Subject")
    raw = RawReference(
        sqs_message_id=message.message_id,
        sns_message_id=require_text(outer, "MessageId"),
        topic_arn=topic,
        subject=subject if isinstance(subject, str) else None,
    )
    payload = json_object(require_text(outer, "Message"), "Message")
    shape = registry.every.shapes[topic]
    return _test_event(payload, registry) or _Opened(payload=payload, shape=shape, raw=raw, published=published)


def _test_event(payload: Mapping[str, Any], registry: ContractRegistry) -> Ignored | None:
    if payload.get("Event") != "s3:TestEvent" or "Records" in payload:
        return None
    name = payload.get("Bucket")
    # The name of a bucket without a contract is not recorded, because no search would use it.
    bucket = name if isinstance(name, str) and name in registry.every.buckets else None
    dataset = _only(registry.every.buckets.get(bucket or "", ()))
    return Ignored(reason=IgnoreReason.TEST_EVENT, bucket=bucket, dataset=dataset)


def _only(contracts: Sequence[DatasetContract]) -> str | None:
    """Return the dataset if there is exactly one contract, else None."""
    return contracts[0].id if len(contracts) == 1 else None


def _records(opened: _Opened) -> list[Any]:
    if opened.shape == "nexrad-chunk":
        return [opened.payload]
    records = opened.payload.get("Records")
    if not isinstance(records, list) or not records:
        missing("Records")
    return records


def _unit(record: Any, *, opened: _Opened, registry: ContractRegistry, queue: str) -> Envelope | Ignored:
    """Parse an S3 event record. Raises MessageError."""
    if not isinstance(record, dict):
        missing("Records[]")
    s3 = require_object(record, "s3")
    bucket = require_text(require_object(s3, "bucket", path="s3.bucket"), "name", path="s3.bucket.name")
    s3_object = require_object(s3, "object", path="s3.object")
    encoded = require_text(s3_object, "key", path="s3.object.key")
    key = _decoded(encoded)
    contract = _route(bucket, key, opened=opened, registry=registry)
    if isinstance(contract, Ignored):
        return replace(contract, sidecar_version=_sidecar_version(contract, record, s3_object))
    if _is_accepted_removal(record, contract):
        return Ignored(reason=IgnoreReason.OBJECT_REMOVED, key=key, bucket=bucket, dataset=contract.id)
    event_time = require_time(record, "eventTime")
    return _envelope(
        contract,
        _understood(key, event_time, registry.grammars[contract.id]),
        uri=f"s3://{bucket}/{key}",
        queue=queue,
        event_time=event_time,
        schema_version=record["eventVersion"],
        version=optional_text(s3_object, "eTag", ETAG, path="s3.object.eTag"),
        size=optional_size(s3_object, "size", path="s3.object.size (bytes)"),
        sequencer=optional_text(s3_object, "sequencer", SEQUENCER, path="s3.object.sequencer"),
        raw=opened.raw,
    )


def _chunk(record: Any, *, opened: _Opened, registry: ContractRegistry, queue: str) -> Envelope | Ignored:
    """Parse a NEXRAD chunk message. Raises MessageError.

    The event time is the time of the notification. The message has only the volume's start, which may be 10 minutes
    earlier.
    """
    bucket = require_text(record, "S3Bucket")
    key = require_text(record, "Key")
    notice = ChunkNotice.of(record)
    contract = _route(bucket, key, opened=opened, registry=registry)
    if isinstance(contract, Ignored):
        return contract
    _check_version(contract, "L2Version", notice.layout)
    event_time = opened.published or notice.start
    match = _understood(key, event_time, registry.grammars[contract.id])
    notice.check_key(key, version=match.groups.get("version"))
    return _envelope(
        contract,
        match,
        uri=f"s3://{bucket}/{key}",
        queue=queue,
        event_time=event_time,
        schema_version=notice.layout,
        raw=opened.raw,
    )


def _decoded(encoded: str) -> str:
    """Decode an S3 event's key: `+` is a space (S3 user guide, "Event message structure")."""
    if "%" not in encoded and "+" not in encoded:
        return encoded
    try:
        return unquote_plus(encoded, errors="strict")
    except UnicodeDecodeError:
        raise MessageError(ParseIssue.KEY_GRAMMAR_MISMATCH, f"key {shown(encoded)} is not UTF-8") from None


def _route(bucket: str, key: str, *, opened: _Opened, registry: ContractRegistry) -> DatasetContract | Ignored:
    """Route a record by bucket and key, because `configurationId` may name another satellite."""
    topic = opened.raw.topic_arn
    announced = registry.every.announced.get((topic, bucket))
    if announced is None:
        where = "" if topic is None else f" of topic {topic}"
        raise MessageError(ParseIssue.UNKNOWN_BUCKET, f"no contract{where} names bucket {shown(bucket)}")
    route = registry.every.route(bucket=bucket, key=key)
    if route.kind is KeyKind.IGNORED:
        dataset = route.contract.id if route.contract else None
        return Ignored(reason=IgnoreReason.KNOWN_NEIGHBOUR, key=key, bucket=bucket, dataset=dataset)
    if route.kind is KeyKind.FOREIGN or route.contract is None:
        raise MessageError(ParseIssue.KEY_GRAMMAR_MISMATCH, f"key {shown(key)} matches no contract of {bucket}")
    if route.contract.id in registry.unfollowed:
        return Ignored(reason=IgnoreReason.DATASET_NOT_FOLLOWED, key=key, bucket=bucket, dataset=route.contract.id)
    if route.contract.id not in announced:
        raise MessageError(ParseIssue.UNROUTABLE_TOPIC, f"topic {topic} is not a topic of {route.contract.id}")
    if opened.shape not in route.contract.notifications.shapes:
        text = f"{route.contract.id} is not announced by messages of the shape {opened.shape}"
        raise MessageError(ParseIssue.UNSUPPORTED_SCHEMA_VERSION, text)
    if route.kind is KeyKind.SIDECAR:
        return Ignored(reason=IgnoreReason.SIDECAR, key=key, bucket=bucket, dataset=route.contract.id)
    return route.contract


def _sidecar_version(ignored: Ignored, record: Mapping[str, Any], described: Mapping[str, Any]) -> str | None:
    """Return a created sidecar's ETag, '' without a valid ETag; None for any other event."""
    name = record.get("eventName")
    if ignored.reason is not IgnoreReason.SIDECAR or not isinstance(name, str):
        return None
    if not name.removeprefix("s3:").startswith("ObjectCreated"):
        return None
    version = described.get("eTag")
    return version if isinstance(version, str) and ETAG.fullmatch(version) else ""


def _is_accepted_removal(record: Mapping[str, Any], contract: DatasetContract) -> bool:
    """Return True for a removal that the contract ignores, and False for a creation.

    Raises MessageError for any other event.
    """
    _check_version(contract, "eventVersion", require_text(record, "eventVersion"))
    name = require_text(record, "eventName")  # S3 user guide, "Supported event types"
    kind = name.removeprefix("s3:").partition(":")[0]
    if kind == "ObjectCreated":
        return False
    if kind not in {"ObjectRemoved", "LifecycleExpiration"}:
        raise MessageError(ParseIssue.UNSUPPORTED_SCHEMA_VERSION, f"event {shown(name)} is unknown")
    if contract.notifications.object_removed == "reject":
        raise MessageError(ParseIssue.UNSUPPORTED_SCHEMA_VERSION, f"{contract.id} rejects {shown(name)} events")
    return True


def _check_version(contract: DatasetContract, name: str, version: str) -> None:
    if version not in contract.notifications.schema_versions:
        raise MessageError(ParseIssue.UNSUPPORTED_SCHEMA_VERSION, f"{name} {shown(version)} is not accepted")


def _understood(key: str, event_time: datetime, grammar: KeyGrammarReader) -> KeyMatch:
    try:
        match = grammar.match(key, event_time)
    except InvalidKeyTimeError as error:
        raise MessageError(ParseIssue.INVALID_TIME_RANGE, str(error)) from None
    if match is None:  # not expected, because the route has matched the same pattern
        text = f"key {shown(key)} is not a data key of {grammar.contract.id}"
        raise MessageError(ParseIssue.KEY_GRAMMAR_MISMATCH, text)
    return match


def _envelope(
    contract: DatasetContract,
    match: KeyMatch,
    *,
    uri: str,
    queue: str,
    event_time: datetime,
    schema_version: str,
    version: str | None = None,
    size: int | None = None,
    sequencer: str | None = None,
    raw: RawReference,
) -> Envelope:
    return Envelope(
        wal_id=wal_id(dataset=contract.id, object_uri=uri, time_range_start=match.start, object_version=version),
        dataset=contract.id,
        object_uri=uri,
        provider=contract.storage.provider,
        queue=queue,
        event_time=event_time,
        time_range_start=match.start,
        time_range_end=match.end,
        priority=contract.notifications.priority,
        schema_version=schema_version,
        object_version=version,
        object_size=size,
        sequencer=sequencer,
        raw=raw,
    )
