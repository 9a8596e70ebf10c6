"""The feed: stores objects in the embedded cloud and announces them by SNS, as NOAA does.

Belongs here: the S3 event record, the chunk feed's message, the publishing, a folder as a feed, and deliveries that go
wrong. Does not belong here: which sample objects there are (`sample_day.py`), or anything of the pipeline that reads
the queue.

Events are made here, because moto's bucket notifications have the present time and, unlike S3, escape the slashes of a
key. Everything in an event follows from the object and its key, so a repeated announcement has the same ETag, time and
sequencer. Only the event of a key without a time has the present time.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum, unique
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote_plus

from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.contracts.key_grammar import InvalidKeyTimeError, KeyKind
from kfm_dagster.contracts.loader import ContractRegistry, Route
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.demo.cloud import REGION, EmbeddedCloud
from kfm_dagster.errors import ConfigurationError, QueueUnavailableError
from kfm_dagster.plural import counted
from kfm_dagster.readers.nexrad_radar import TDWR, kind_of

if TYPE_CHECKING:
    from mypy_boto3_sns import SNSClient

BATCH = 10
"""Maximum number of entries of an SNS PublishBatch."""
SUBJECT = "Amazon S3 Notification"
_CHUNK_KEY = re.compile(
    r"(?P<site>\w{4})/(?P<volume>\d{1,3})/(?P<year>\d{4})(?P<month>\d\d)(?P<day>\d\d)"
    r"-(?P<hour>\d\d)(?P<minute>\d\d)(?P<second>\d\d)-(?P<chunk>\d{3})-(?P<kind>[SIE])"
)
OBSERVATION_DELAY = timedelta(seconds=30)
"""Time from the end of a scan to its event: 18 to 35 s for GOES-19."""
FORECAST_DELAY = timedelta(hours=1)
"""Time from a model run to its events; HRRR files arrive in the hour after the run."""


@unique
class StoredAs(StrEnum):
    """Part of an announced object that the bucket holds."""

    WHOLE = "whole"
    TRUNCATED = "truncated"
    """The first half of the object; the announcement has the size and ETag of the whole."""
    MISSING = "missing"


@dataclass(frozen=True, kw_only=True, slots=True)
class FeedObject:
    """An object to publish."""

    bucket: str
    key: str
    content: bytes
    content_type: str | None = None
    delivery: StoredAs = StoredAs.WHOLE


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectEvent:
    """S3's event of a new object. size in bytes, etag without quotes, event_time aware."""

    bucket: str
    key: str
    size: int
    etag: str
    event_time: datetime

    @property
    def sequencer(self) -> str:
        """Hexadecimal text of seconds and nanoseconds, which grows with time like S3's."""
        moment = self.event_time.astimezone(UTC)
        return f"{int(moment.timestamp()):010X}{moment.microsecond * 1000:08X}"

    def record(self) -> dict[str, Any]:
        """Return S3's event record, version 2.1 (S3 User Guide, "Event message structure")."""
        digest = hashlib.sha256(f"{self.bucket}/{self.key}/{self.etag}".encode()).hexdigest()
        return {
            "eventVersion": "2.1",
            "eventSource": "aws:s3",
            "awsRegion": REGION,
            "eventTime": rfc3339(self.event_time, timespec="milliseconds"),
            "eventName": "ObjectCreated:Put",
            "userIdentity": {"principalId": "AWS:EMBEDDED"},
            "requestParameters": {"sourceIPAddress": "127.0.0.1"},
            "responseElements": {"x-amz-request-id": digest[:16].upper(), "x-amz-id-2": digest},
            "s3": {
                "s3SchemaVersion": "1.0",
                "configurationId": "embedded-feed",
                "bucket": {
                    "name": self.bucket,
                    "ownerIdentity": {"principalId": "EMBEDDED"},
                    "arn": f"arn:aws:s3:::{self.bucket}",
                },
                "object": {
                    # S3 leaves slashes and asterisks as they are.
                    "key": quote_plus(self.key, safe="/*"),
                    "size": self.size,
                    "eTag": self.etag,
                    "sequencer": self.sequencer,
                },
            },
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderReport:
    """Outcomes of a folder's files: objects by dataset, sidecars, and reasons of skipped paths.

    `published` are the data objects, as `s3://bucket/key`; `first_day` is their earliest day. `unannounced` has
    dataset and day of the objects that no topic announces; a listing finds them.
    """

    objects: Mapping[str, int]
    sidecars: int
    skipped: Mapping[str, str]
    first_day: date | None
    unannounced: frozenset[tuple[str, date]] = frozenset()
    published: tuple[str, ...] = ()


class Feed:
    """Publishes into a cloud whose buckets, topics and queues are provisioned."""

    def __init__(self, cloud: EmbeddedCloud, registry: ContractRegistry) -> None:
        self._cloud = cloud
        self._registry = registry
        self._s3 = cloud.client("s3")
        self._sqs = cloud.client("sqs")
        self._publishers: dict[str, SNSClient] = {}

    def put(self, bucket: str, key: str, content: bytes | IO[bytes], *, content_type: str | None = None) -> str:
        """Store an object without an announcement; return its ETag without quotes."""
        # S3's own default for an object without a type.
        typed = content_type or "binary/octet-stream"
        return self._s3.put_object(Bucket=bucket, Key=key, Body=content, ContentType=typed)["ETag"].strip('"')

    def event(self, *, bucket: str, key: str, size: int, etag: str) -> ObjectEvent:
        """Describe a new object; the event time follows from the key, or is the present time."""
        event_time = self._time_of(bucket, key) or datetime.now(UTC)
        return ObjectEvent(bucket=bucket, key=key, size=size, etag=etag, event_time=event_time)

    def announce(self, events: Iterable[ObjectEvent]) -> int:
        """Publish a message per event, in order within each topic; return the number of messages.

        Raises ConfigurationError for a bucket without a contract, QueueUnavailableError when SNS refuses a message.
        """
        by_topic: dict[str, list[str]] = {}
        for event in events:
            topic = topic_of(self._registry, event.bucket)
            is_chunk = self._registry.shapes[topic] == "nexrad-chunk"
            by_topic.setdefault(topic, []).append(chunk_notification(event) if is_chunk else _notification([event]))
        for topic, messages in by_topic.items():
            for start in range(0, len(messages), BATCH):
                self._publish(topic, messages[start : start + BATCH])
        return sum(len(messages) for messages in by_topic.values())

    def announce_together(self, events: Iterable[ObjectEvent]) -> None:
        """Publish a single message with all events, to the topic of the first event's bucket."""
        listed = list(events)
        self._publish(topic_of(self._registry, listed[0].bucket), [_notification(listed)])

    def announce_raw(self, body: str) -> None:
        """Send any text to the queue, without SNS."""
        url = self._sqs.get_queue_url(QueueName=self._cloud.primary_queue)["QueueUrl"]
        self._sqs.send_message(QueueUrl=url, MessageBody=body)

    def deliver(self, item: FeedObject) -> ObjectEvent:
        """Store the part of an object that `delivery` names; return the event of the whole object."""
        if item.delivery is not StoredAs.MISSING:
            stored = item.content if item.delivery is StoredAs.WHOLE else item.content[: len(item.content) // 2]
            self.put(item.bucket, item.key, stored, content_type=item.content_type)
        # The ETag of an object put in one part is its MD5 (Amazon S3 API Reference, Object).
        etag = hashlib.md5(item.content, usedforsecurity=False).hexdigest()
        return self.event(bucket=item.bucket, key=item.key, size=len(item.content), etag=etag)

    def from_folder(self, folder: Path) -> FolderReport:
        """Publish every file `folder/<bucket>/<key>` that a contract covers, in the order of names.

        Objects of a dataset without a topic are stored, but not announced.

        Raises ConfigurationError if the folder does not exist.
        """
        if not folder.is_dir():
            raise ConfigurationError(
                "the path of the objects is not a folder",
                observed=folder,
                expected="a folder with files at <bucket>/<key>",
                next_step="name a folder that exists",
            )
        events: list[ObjectEvent] = []
        objects: Counter[str] = Counter()
        sidecars = 0
        skipped: dict[str, str] = {}
        days: dict[str, date] = {}
        unannounced: set[tuple[str, date]] = set()
        for path, bucket, key in _files(folder):
            name = path.relative_to(folder).as_posix()
            route = self._registry.route(bucket=bucket, key=key)
            why = self._why_skipped(bucket, key, route)
            if route.contract is None or why is not None:
                skipped[name] = str(why)
                continue
            with path.open("rb") as file:
                etag = self.put(bucket, key, file)
            day = self._day_of(route.contract, key) if route.kind is KeyKind.DATA else None
            if day is not None:
                days[f"s3://{bucket}/{key}"] = day
            if route.contract.notifications.topics:
                events.append(self.event(bucket=bucket, key=key, size=path.stat().st_size, etag=etag))
            elif day is not None:
                unannounced.add((route.contract.id, day))
            if route.kind is KeyKind.DATA:
                objects[route.contract.id] += 1
            else:
                sidecars += 1
        self.announce(events)
        return FolderReport(
            objects=dict(objects),
            sidecars=sidecars,
            skipped=skipped,
            first_day=min(days.values(), default=None),
            unannounced=frozenset(unannounced),
            published=tuple(days),
        )

    def store_folder(self, folder: Path) -> None:
        """Store the files `folder/<bucket>/<key>`, unannounced; the folder may be missing."""
        for path, bucket, key in _files(folder):
            if key and bucket in self._registry.buckets:
                with path.open("rb") as file:
                    self.put(bucket, key, file)

    def _day_of(self, contract: DatasetContract, key: str) -> date:
        """Return a data key's day. Raises InvalidKeyTimeError for an impossible day."""
        match = self._registry.grammars[contract.id].match(key, datetime.now(UTC))
        if match is None:  # not reached, because the same pattern made the route DATA
            raise InvalidKeyTimeError(f"{key} is not a data key of {contract.id}")
        return match.start.date()

    def _why_skipped(self, bucket: str, key: str, route: Route) -> str | None:
        if not key:
            return "it is not at <bucket>/<key>"
        if bucket not in self._registry.buckets:
            return f"no dataset contract names bucket {bucket}"
        if route.contract is None or route.kind is KeyKind.FOREIGN:
            return f"its key matches no contract of bucket {bucket}"
        if route.kind is KeyKind.IGNORED:
            return f"the contract {route.contract.id} excludes the key from ingest"
        return self._why_no_day(route.contract, key) if route.kind is KeyKind.DATA else None

    def _why_no_day(self, contract: DatasetContract, key: str) -> str | None:
        try:
            day = self._day_of(contract, key)
        except InvalidKeyTimeError as error:
            return str(error)
        return f"its day, {day}, has not begun" if day > datetime.now(UTC).date() else None

    def _publish(self, topic: str, messages: list[str]) -> None:
        account = topic.split(":")[4]
        if account not in self._publishers:
            self._publishers[account] = self._cloud.client("sns", account=account)
        answer = self._publishers[account].publish_batch(
            TopicArn=topic,
            PublishBatchRequestEntries=[
                {"Id": str(index), "Message": message, "Subject": SUBJECT} for index, message in enumerate(messages)
            ],
        )
        if refused := answer["Failed"]:
            raise QueueUnavailableError("SNS refused a message", observed=f"{len(refused)} refused; first {refused[0]}")

    def _time_of(self, bucket: str, key: str) -> datetime | None:
        contract = self._registry.route(bucket=bucket, key=key).contract
        if contract is None or not contract.storage.key_grammar.has_times:
            return None
        for suffix in ("", *(sidecar.suffix for sidecar in contract.storage.sidecars)):
            try:
                match = self._registry.grammars[contract.id].match(key.removesuffix(suffix))
            except InvalidKeyTimeError:
                return None
            if match is not None:
                forecast = contract.storage.key_grammar.end_offset_hours is not None
                return match.start + FORECAST_DELAY if forecast else match.end + OBSERVATION_DELAY
        return None


def refuse_no_objects(registry: ContractRegistry, folder: Path) -> None:
    """Raise ConfigurationError if no file of a folder is a data object of a contract."""
    looked_at = 0
    for _, bucket, key in _files(folder):
        if registry.route(bucket=bucket, key=key).kind is KeyKind.DATA:
            return
        looked_at += 1
    raise ConfigurationError(
        "the folder has no object of any dataset",
        observed=f"{folder}: {counted(looked_at, 'file')} looked at",
        expected="DIR/<bucket>/<key>",
        next_step="use buckets and keys of the datasets in kfm dataset list (KFM_CONTRACTS_DIR adds contracts)",
    )


def _files(folder: Path) -> Iterator[tuple[Path, str, str]]:
    """Yield the files of a folder in the order of names, each with its bucket and key."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        bucket, _, key = path.relative_to(folder).as_posix().partition("/")
        yield path, bucket, key


def _notification(events: Iterable[ObjectEvent]) -> str:
    return json.dumps({"Records": [event.record() for event in events]}, separators=(",", ":"))


def chunk_notification(event: ObjectEvent) -> str:
    """Return Unidata's message of a chunk, whose fields are the parts of the chunk's key.

    Raises ConfigurationError for a key that is not `SITE/VOLUME/YYYYMMDD-HHMMSS-NNN-KIND`.
    """
    match = _CHUNK_KEY.fullmatch(event.key)
    if match is None:
        raise ConfigurationError("the key is not of a NEXRAD chunk", observed=event.key, expected=_CHUNK_KEY.pattern)
    fields = match.groupdict()
    message = {
        "S3Bucket": event.bucket,
        "Key": event.key,
        "SiteID": fields["site"],
        "DateTime": "{year}-{month}-{day}T{hour}:{minute}:{second}".format_map(fields),
        "VolumeID": int(fields["volume"]),
        "ChunkID": int(fields["chunk"]),
        "ChunkType": fields["kind"],
        "L2Version": "V08" if kind_of(fields["site"]) is TDWR else "V06",
    }
    return json.dumps(message)


def topic_of(registry: ContractRegistry, bucket: str) -> str:
    """Return the ARN of the topic that announces a bucket.

    If there are several, it is the first whose name has the number of the bucket's name (`noaa-goes18`:
    NewGOES18Object), else the first. Raises ConfigurationError for a bucket without contract or without topic.
    """
    contracts = registry.buckets.get(bucket)
    if contracts is None:
        raise ConfigurationError(
            "no dataset contract names this bucket",
            observed=bucket,
            expected="one of " + ", ".join(sorted(registry.buckets)),
        )
    arns = [topic.arn for contract in contracts for topic in contract.notifications.topics]
    if not arns:
        raise ConfigurationError(
            "no topic announces the objects of this bucket",
            observed=bucket,
            next_step="run kfm backfill run, which lists the bucket's objects",
        )
    numbers = set(re.findall(r"\d+", bucket))
    same_number = [arn for arn in arns if numbers & set(re.findall(r"\d+", arn.rsplit(":", 1)[1]))]
    return (same_number or arns)[0]
